"""Compares exported models of several files: an encoder, a decoder, a decoder with a cache."""
