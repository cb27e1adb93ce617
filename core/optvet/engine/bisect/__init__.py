"""Which release of a package broke a model: a binary search over releases."""
