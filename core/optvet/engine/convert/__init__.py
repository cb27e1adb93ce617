"""From a source and a chain of converters to a verdict: which stage breaks the model.

source → its outputs, twice → conversion, stage by stage → every artifact on every input → noise
where they differ → the first stage that stays wrong → another runtime → answer.
"""
