"""Effects of differences on the model's task, measured by comparators."""
