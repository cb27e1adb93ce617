"""What differences mean for the model's task: comparators and the figures of their metrics."""
