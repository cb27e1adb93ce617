"""Edits that might mend the first fault of a model, in order of what they change."""
