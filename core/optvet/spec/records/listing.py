"""Lists of plugins, of models, and of the cache's content: one document each."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from optvet.spec.records.base import Record


class PluginEntry(Record):
    """A plugin; ``problem`` says why it cannot be used, and with which extras it could.

    ``default``: it is used if the user names no plugin of its family.
    """

    family: str | None
    name: str
    version: str | None
    origin: str
    problem: str | None
    extra: str | None
    more_with: str | None
    default: bool = False


class PluginList(Record):
    """All plugins: what ``optvet plugins --json`` writes."""

    schema_: Literal["optvet.plugins/1"] = Field("optvet.plugins/1", alias="schema")
    plugins: list[PluginEntry]


class ForeignPlugin(Record):
    """A plugin that did not come with optvet; ``problem`` says why it cannot be used."""

    family: str | None
    name: str
    origin: str
    problem: str | None


class VersionReport(Record):
    """What a bug report needs: what ``optvet --version --json`` writes.

    ``machine`` describes system, processor and memory. ``optimizers`` and ``runtimes`` map names to
    the versions of the libraries below them, None if these cannot be used here.
    """

    schema_: Literal["optvet.version/1"] = Field("optvet.version/1", alias="schema")
    optvet: str
    python: str
    platform: str
    onnx: str
    machine: dict[str, str]
    optimizers: dict[str, str | None]
    runtimes: dict[str, str | None]
    plugins: list[ForeignPlugin]


class PluginDescription(PluginEntry):
    """A plugin with its options.

    Of a runtime also those of its users, of an optimizer its passes, and of a comparator the names
    of its metrics, as far as it tells them; ``*`` in one stands for any text.
    """

    options: list[dict[str, Any]] = Field(default_factory=list)
    deployed: dict[str, Any] | None = None
    passes: list[dict[str, Any]] | None = None
    pipelines: dict[str, list[str]] | None = None
    metrics: list[str] | None = None


class PluginDescriptions(Record):
    """The plugins of one name, in all families: what ``optvet plugins show --json`` writes."""

    schema_: Literal["optvet.plugin/2"] = Field("optvet.plugin/2", alias="schema")
    plugins: list[PluginDescription]


class ModelEntry(Record):
    """A model that can be vetted by name; ``size_bytes`` is None where it is not known."""

    model: str
    name: str
    task: str | None
    description: str
    size_bytes: int | None
    tags: list[str]
    extra: dict[str, str]


class ModelList(Record):
    """Models by name: what ``optvet models list --json`` writes."""

    schema_: Literal["optvet.models/1"] = Field("optvet.models/1", alias="schema")
    models: list[ModelEntry]


class ModelDescription(Record):
    """A model that was opened: its interface, and what was declared of it."""

    model: str
    file: str
    sha256: str
    size_bytes: int
    nodes: int
    ir_version: int
    opsets: dict[str, int]
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    config: dict[str, Any]
    card: dict[str, Any] | None
    notes: list[str]


class ModelDescriptions(Record):
    """Models of one reference: what ``optvet models show --json`` writes."""

    schema_: Literal["optvet.model/1"] = Field("optvet.model/1", alias="schema")
    models: list[ModelDescription]


class PulledModel(Record):
    """A model that was fetched, and where it lies."""

    model: str
    file: str
    sha256: str
    size_bytes: int


class PulledModels(Record):
    """Models that were fetched: what ``optvet models pull --json`` writes."""

    schema_: Literal["optvet.pull/1"] = Field("optvet.pull/1", alias="schema")
    models: list[PulledModel]


class EnvironmentEntry(Record):
    """An environment of its own.

    ``python`` is its interpreter; None if it was not made. ``problem`` says why it cannot be used
    and ``cure`` what to do; both are empty if it can.
    """

    name: str
    requirements: list[str]
    plugins: list[str]
    python: str | None
    problem: str
    cure: str = ""


class ReleaseEntry(Record):
    """A release of a package that ``optvet bisect`` has installed, and keeps."""

    package: str
    version: str
    folder: str
    size_bytes: int


class EnvironmentList(Record):
    """Environments that plugins declare, and kept releases: what ``optvet env list --json`` writes.

    Before version 2 there were no ``releases``.
    """

    schema_: Literal["optvet.environments/2"] = Field("optvet.environments/2", alias="schema")
    root: str
    environments: list[EnvironmentEntry]
    releases: list[ReleaseEntry] = Field(default_factory=list)


class ReleasesCleared(Record):
    """Releases that were removed: what ``optvet env clear --json`` writes.

    ``in_use`` are those that another process uses, which stay.
    """

    schema_: Literal["optvet.env-clear/1"] = Field("optvet.env-clear/1", alias="schema")
    removed: list[ReleaseEntry]
    in_use: list[ReleaseEntry]


class CacheKind(Record):
    """How many results of one kind there are, and how large they are."""

    entries: int
    size_bytes: int


class CacheContents(Record):
    """The content of the cache: what ``optvet cache info --json`` writes."""

    schema_: Literal["optvet.cache/1"] = Field("optvet.cache/1", alias="schema")
    path: str
    entries: int
    size_bytes: int
    kinds: dict[str, CacheKind]
    models_size_bytes: int


class CacheCleared(Record):
    """What was removed: what ``optvet cache clear --json`` writes."""

    schema_: Literal["optvet.cache-clear/1"] = Field("optvet.cache-clear/1", alias="schema")
    path: str
    entries: int
    removed_bytes: int


class Term(Record):
    """A word of a screen, and what it means."""

    term: str
    meaning: str


class Terms(Record):
    """Words of the screens: what ``optvet explain --json`` writes."""

    schema_: Literal["optvet.terms/1"] = Field("optvet.terms/1", alias="schema")
    terms: list[Term]
