"""What is told of a finding: where in the graph it begins, which runtimes show it, what changed."""
