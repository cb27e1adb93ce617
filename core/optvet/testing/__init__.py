"""For plugin authors: planted faults and tiny models."""
