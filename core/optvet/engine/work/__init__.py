"""What all judging is made of: cases, and trials of them."""
