"""Explains findings: where in the graph they begin, which runtimes show them, what changed."""
