"""Checking what plugins return against their protocols.

Otherwise a plugin that breaks its contract would fail somewhere inside optvet, or look like a fault
of the model. The error names the plugin and the method, what was expected and what it returned.
"""
