"""Whether another worker shall import the library of an optimizer, to share the jobs left of it.

``k`` workers that have it loaded need ``left / k`` seconds; with one more that has to import it
first, ``(left + setup) / (k + 1)``. So it pays as long as ``left`` is at least ``k * setup``. Both
are estimated by the answers that the campaign has; where it has none, jobs are shared.
"""

from __future__ import annotations

import sqlite3


def shared_optimizers(database: sqlite3.Connection, campaign: int, now: float) -> list[str]:
    """Optimizers of workers whose queued jobs are worth another worker."""
    (typical_s,) = database.execute(
        "SELECT avg(wall_s) FROM campaign_jobs JOIN jobs ON key = job WHERE campaign = ?",
        (campaign,),
    ).fetchone()
    rows = database.execute(
        "SELECT optimizer, sum(state = 'queued') AS queued, sum(state = 'running') AS running "
        "FROM campaign_jobs JOIN jobs ON key = job WHERE campaign = ? GROUP BY optimizer",
        (campaign,),
    ).fetchall()
    return [
        row["optimizer"]
        for row in rows
        if row["queued"]
        and (
            typical_s is None
            or row["queued"] * typical_s
            >= row["running"] * _setup_s(database, campaign, row["optimizer"], now)
        )
    ]


def _setup_s(database: sqlite3.Connection, campaign: int, optimizer: str, now: float) -> float:
    """By how much its first job takes, or took, longer than that model under another optimizer."""
    first = database.execute(
        "SELECT model_digest, coalesce(wall_s, ? - started) AS took_s FROM campaign_jobs c "
        "JOIN jobs ON key = c.job JOIN attempts a ON a.job = key "
        "WHERE campaign = ? AND optimizer = ? ORDER BY started LIMIT 1",
        (now, campaign, optimizer),
    ).fetchone()
    if first is None:
        return 0.0
    (other_s,) = database.execute(
        "SELECT min(wall_s) FROM campaign_jobs JOIN jobs ON key = job "
        "WHERE campaign = ? AND model_digest = ? AND optimizer != ?",
        (campaign, first["model_digest"], optimizer),
    ).fetchone()
    return max(0.0, float(first["took_s"]) - float(other_s or 0.0))
