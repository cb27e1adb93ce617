"""Looks for faults on candidates that it makes itself: models for an optimizer, or sources.

::

                        plan of a round ─→ batches, in workers: make │ look
                           ▲                         │
                           │                         ▼
                         state ←──── learn ──── records ──→ suspects ─→ vet, reduce, bundle
                        (SQLite)                                          findings

The loop is one (``loop``). What is hunted in is a target: ``optimizer_target`` makes models of the
fragments of pools, and applies passes; ``sources.converter_target`` makes sources, and converts
them; synthetic models (``generate``) have no target, and are kept.

What a worker finds is a suspicion: it compares with a plain tolerance, and what is under test runs
in the same process. ``confirm`` asks ``vet``, and ``sources.confirm`` asks ``convert``, in
processes of their own, and only what these confirm is a finding.

A batch depends on nothing but the seed, its number and the recipes that the plan gave it, and the
plan of a round on the seed and on the rounds before. So equal seeds and budgets by count give equal
findings, whatever the number of workers, and a round that was cut short is done again.
"""
