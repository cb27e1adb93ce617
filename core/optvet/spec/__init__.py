"""Contracts between optvet and its plugins: hooks, protocols, value types, errors.

Nothing here runs a model. Plugins import these names from ``optvet``.
"""
