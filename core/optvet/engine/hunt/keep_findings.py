"""Findings of a hunt as folders that stay, and what ends a hunt before it would lose one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from optvet.spec.errors import InfrastructureError
from optvet.spec.scratch import made_beside
from optvet.spec.shortage import shortage, shortage_in

FINDINGS = "findings"
"""The folder of the bundles, below that of the hunt."""


def keep_bundle(hunt: Path, bundle: Path) -> Path:
    """Copy a bundle to the findings of the folder of a hunt, unless it is there; returns its place.

    A hunt that was killed right here does this again.
    """
    target = hunt / FINDINGS / bundle.name
    target.parent.mkdir(exist_ok=True)
    if not target.exists():
        # Copied, since workers write in temporary folders alone; then moved, to be whole or absent.
        with made_beside(target) as beside:
            shutil.copytree(
                bundle, beside, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
            )
            beside.chmod(0o755)
            os.replace(beside, target)
    return target


def refuse_shortage(*found: BaseException | str) -> None:
    """End the hunt where the machine lacks something: what is suspected stays, to be vetted later.

    Args:
        found: Errors, or messages of failed tasks.

    Raises:
        InfrastructureError: One says that the machine lacks something.
    """
    for each in found:
        # A full disk says so by its number; what a worker ran into, by words alone.
        error = each if isinstance(each, BaseException) else None
        words = shortage(error) if error is not None else ""
        if words := words or shortage_in(str(each)):
            told = f"a suspicion cannot be vetted: {str(each)[:300]}; {words}"
            raise InfrastructureError(f"{told}, then continue with --resume") from error
