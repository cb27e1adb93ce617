"""Writes ``manifest.json``: ``python -m conversions.make_manifest`` in ``benchmarks``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from conversions import (
    faulty_conversions,
    right_conversions,
    several_faults,
    transformer_conversions,
)
from conversions.written import CASES

MODULES = (faulty_conversions, several_faults, right_conversions, transformer_conversions)

if __name__ == "__main__":
    cases = [asdict(case) for case, _ in CASES.values()]
    Path(__file__).with_name("manifest.json").write_text(
        json.dumps({"cases": cases}, indent=1) + "\n"
    )
    right = sum(bool(case["control"]) for case in cases)
    print(f"{len(cases)} cases in {len(MODULES)} modules, {right} of them right")
