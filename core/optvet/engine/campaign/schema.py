"""The tables of a store, and the migrations from earlier versions.

``user_version`` of the database is the number of applied migrations. A released migration is never
changed; changes are added as further migrations.

campaigns
    One row per campaign: ``name``, ``plan`` (digest of its jobs), ``source`` (the text of
    the file), ``settings`` (JSON), ``created`` and ``finished`` (seconds since 1970).
campaign_jobs
    Which jobs belong to a campaign, by ``position``. Campaigns share jobs of one key.
jobs
    One row per job. ``kind`` is "vet", "convert" or "precision"; ``key`` and ``cell`` are those of
    ``plan.Job``; ``request`` is a ``JobRequest`` as JSON, and the columns after it repeat parts of
    it; ``optimizer`` of a conversion is its chain, that of a search the precision. ``state`` is
    "queued", "running", "done" (there is an answer) or "failed" (optvet or the machine failed;
    ``--retry`` queues it again). ``document`` is the answer, a ``JobAnswered``, as JSON compressed
    by zlib. ``owner`` is the process that runs it. ``expected_s`` is the most that a job of the
    same model has taken; jobs are claimed by it.
attempts
    One row per time that a job was started; ``end`` is "done", "failed", "lost" (its process or
    worker was killed) or "released" (given back at Ctrl-C). At most one per job is "done".
owners
    Processes that run jobs. A dead one loses its jobs; see ``leases``.
findings
    One row per finding of an answer, with what tables and filters need; ``document`` is the whole.
metrics
    Numbers of an answer: ``kind`` is "impact", "output", "stage", "precision", "cost" or "model".
artifacts, finding_artifacts
    Files of findings: the bundle of a finding is the files of one ``job`` and ``number``, by
    ``name``. A file is at ``artifacts/ab/abcdef…`` below the store, by its SHA-256.
models, files
    Which file a reference of a model source stands for; digests of files by size and time.
"""

from __future__ import annotations

MIGRATIONS: tuple[str, ...] = (
    """
CREATE TABLE campaigns (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, plan TEXT NOT NULL UNIQUE,
    source TEXT NOT NULL, settings TEXT NOT NULL, created REAL NOT NULL, finished REAL
);
CREATE TABLE jobs (
    key TEXT PRIMARY KEY, cell TEXT NOT NULL, request TEXT NOT NULL, versions TEXT NOT NULL,
    model TEXT NOT NULL, model_digest TEXT NOT NULL, optimizer TEXT NOT NULL,
    pipeline TEXT NOT NULL, dataset TEXT NOT NULL, runtime TEXT NOT NULL,
    comparator TEXT NOT NULL, bundles INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'queued'
        CHECK (state IN ('queued', 'running', 'done', 'failed')),
    owner TEXT, verdict TEXT, exit_code INTEGER, wall_s REAL, finished REAL, document BLOB
);
CREATE INDEX jobs_by_state ON jobs (state);
CREATE TABLE campaign_jobs (
    campaign INTEGER NOT NULL REFERENCES campaigns (id), position INTEGER NOT NULL,
    job TEXT NOT NULL REFERENCES jobs (key), PRIMARY KEY (campaign, position)
) WITHOUT ROWID;
CREATE INDEX campaigns_by_job ON campaign_jobs (job);
CREATE TABLE owners (
    id TEXT PRIMARY KEY, host TEXT NOT NULL, boot TEXT NOT NULL, namespace TEXT NOT NULL,
    pid INTEGER NOT NULL, started INTEGER NOT NULL, beat REAL NOT NULL
);
CREATE TABLE attempts (
    job TEXT NOT NULL REFERENCES jobs (key), number INTEGER NOT NULL, owner TEXT NOT NULL,
    started REAL NOT NULL, ended REAL, end TEXT, PRIMARY KEY (job, number)
) WITHOUT ROWID;
CREATE TABLE findings (
    job TEXT NOT NULL REFERENCES jobs (key), number INTEGER NOT NULL,
    fingerprint TEXT NOT NULL, symptom TEXT NOT NULL, severity TEXT NOT NULL, stage TEXT NOT NULL,
    culprit TEXT NOT NULL, confirmed INTEGER NOT NULL, error REAL, noise_floor REAL,
    message TEXT NOT NULL, document TEXT NOT NULL, PRIMARY KEY (job, number)
) WITHOUT ROWID;
CREATE INDEX findings_by_fingerprint ON findings (fingerprint);
CREATE TABLE metrics (
    job TEXT NOT NULL REFERENCES jobs (key), kind TEXT NOT NULL, name TEXT NOT NULL, value REAL,
    PRIMARY KEY (job, kind, name)
) WITHOUT ROWID;
CREATE TABLE models (reference TEXT PRIMARY KEY, path TEXT NOT NULL);
CREATE TABLE files (
    path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, digest TEXT NOT NULL
);
""",
    """
CREATE TABLE artifacts (digest TEXT PRIMARY KEY, size INTEGER NOT NULL, created REAL NOT NULL);
CREATE TABLE finding_artifacts (
    job TEXT NOT NULL REFERENCES jobs (key), number INTEGER NOT NULL, name TEXT NOT NULL,
    digest TEXT NOT NULL REFERENCES artifacts (digest), PRIMARY KEY (job, number, name)
) WITHOUT ROWID;
CREATE INDEX findings_by_artifact ON finding_artifacts (digest);
""",
    """
ALTER TABLE jobs ADD COLUMN kind TEXT NOT NULL DEFAULT 'vet' CHECK (kind IN ('vet', 'convert'));
""",
    """
ALTER TABLE jobs ADD COLUMN expected_s REAL NOT NULL DEFAULT 0;
DROP INDEX jobs_by_state;
CREATE INDEX jobs_by_model ON jobs (model_digest, expected_s);
CREATE INDEX jobs_in_turn ON jobs (state, expected_s DESC);
CREATE INDEX jobs_in_turn_by_optimizer ON jobs (state, optimizer, expected_s DESC);
""",
    """
ALTER TABLE jobs RENAME COLUMN kind TO vet_or_convert;
ALTER TABLE jobs ADD COLUMN kind TEXT NOT NULL DEFAULT 'vet'
    CHECK (kind IN ('vet', 'convert', 'precision'));
UPDATE jobs SET kind = vet_or_convert;
ALTER TABLE jobs DROP COLUMN vet_or_convert;
""",
)
"""SQL that converts a store of version n to version n + 1, by n."""
