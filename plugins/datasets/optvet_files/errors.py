"""Errors of this dataset: what is wrong with a file, and arrays that need too much memory."""

from __future__ import annotations

from optvet.plugin import InputError, check_size


def bad_file(where: str, problem: str) -> InputError:
    """An error of this dataset about a file, or about a part of one."""
    return InputError(f"dataset 'files': {where}: {problem}")


def check_bytes(where: str, size_bytes: int) -> None:
    """InputError if arrays of this size do not fit the memory of this machine."""
    check_size(f"dataset 'files': {where}", size_bytes)
