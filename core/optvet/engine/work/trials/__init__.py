"""Trials: one build of a model and its runs, made in workers, and what they need."""
