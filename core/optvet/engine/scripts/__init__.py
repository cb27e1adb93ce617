"""Every script that optvet writes: of bundles, of issues, of the parts of a source.

A script is a template of ``templates/`` with values put in. Names and messages come from models
and native code, so each is inserted as a literal, or as printable text of a docstring or comment.
Scripts of bundles and issues check the same facts of a model (``facts.py.jinja``).
"""
