"""What is kept on disk: results of trials, whole answers, and the keys they are kept under."""
