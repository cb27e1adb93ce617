"""The main job: from a model and an optimizer to confirmed culprits and a safe pipeline.

::

    open model → samples → reference ∥ candidate → compare ─ same or drift ─→ clean, drift
                                                      └ fault → controls → localize → confirm
                                                                   ↑______ without the culprit

Stages are functions over values: detect → blame → study → explain → cross-check → assemble. Their
findings are collected in a ``FindingsLedger``, the only mutable state.
"""
