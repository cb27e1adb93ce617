"""The cache on disk: results of trials, whole answers, and their keys."""
