"""Stored results in, documents out."""
