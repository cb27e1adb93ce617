"""Measuring time: pairs of models run in turn, tokens per second, device counters."""
