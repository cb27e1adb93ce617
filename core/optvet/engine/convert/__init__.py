"""Converts a source by a chain of converters, and finds the stage that breaks the model.

source → its outputs, twice → conversion, stage by stage → every artifact on every input → noise
where they differ → the first stage that stays wrong → another runtime → answer.
"""
