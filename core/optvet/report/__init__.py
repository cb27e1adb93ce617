"""Documents made of stored results."""
