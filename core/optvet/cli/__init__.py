"""The command line: options in, one engine call, rendered value out."""
