"""Examines trials: asks the judge about every sample, and measures noise where it matters."""
