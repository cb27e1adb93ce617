"""Looks for faults of an optimizer on models that it makes itself.

::

    vocabulary ─→ plan of a round ─→ batches, in workers: make │ check │ run │ optimize │ compare
        pools        ▲                         │
                     │                         ▼
                   state ←── corpus, counts ── records ──→ suspects ─→ vet, reduce, bundle
                  (SQLite)                                            findings

What a worker finds is a suspicion: it compares with a plain tolerance, and the optimizer under test
runs in the same process. ``confirm`` asks ``vet``, in processes of its own, and only what that
confirms is a finding.

A batch depends on nothing but the seed, its number and the recipes that the plan gave it, and the
plan of a round on the seed and on the rounds before. So equal seeds and budgets by count give equal
findings, whatever the number of workers, and a round that was cut short is done again.
"""
