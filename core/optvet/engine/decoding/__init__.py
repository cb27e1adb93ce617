"""Models of several files that write a text together: an encoder, a decoder, one with a cache."""
