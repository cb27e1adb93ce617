"""Whether the verified pipeline makes the model slower, and which passes do."""
