"""Which parts of a model must keep their precision, for the rest to be converted."""
