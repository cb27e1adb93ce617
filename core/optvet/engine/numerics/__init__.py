"""Numbers: what rounding can do to a model, and whether a difference is more than that."""
