"""Tables of what was timed: what models are made of, and where they are executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from optvet.report.charts import ORIGINAL, label_of, short_operator
from optvet.spec.records.bench import BenchResult
from optvet.spec.records.devices import Quantity
from optvet.spec.records.placement import PlacedNode, Placement
from optvet.spec.records.report_table import ReportTable
from optvet.spec.records.structure import Inventory

_OPERATORS = 12
_SLOWEST = 3
_NAME_CHARS = 26
Cell = str | int | float | None


def summary_tables(result: BenchResult) -> list[ReportTable]:
    """One line per variant: what it is made of, and where it is executed."""
    tables = [
        _structure(_inventories(result)),
        _placement(_placements(result)),
        _paces(result),
        _devices(result),
        _kernels(result),
    ]
    return [table for table in tables if table.rows]


def operator_tables(result: BenchResult) -> list[ReportTable]:
    """Operators with their shares and their times, and the nodes that take longest."""
    placements = _placements(result)
    tables = [operators(_inventories(result)), _times(placements), _slowest(placements)]
    return [table for table in tables if table.rows]


def _inventories(result: BenchResult) -> dict[str, Inventory]:
    known = {ORIGINAL: result.original} | {
        label_of(v, result): v.inventory for v in result.variants
    }
    return {label: found for label, found in known.items() if found is not None}


def _placements(result: BenchResult) -> dict[str, Placement]:
    own = {label_of(v, result): v.placement for v in result.variants if v.placement is not None}
    return {**result.placements, **own}


def _structure(known: Mapping[str, Inventory]) -> ReportTable:
    first = known.get(ORIGINAL)
    listed = any(each.weight_inputs for each in known.values())
    rows: list[list[Cell]] = []
    for label, each in known.items():
        same = first is None or each is first
        left_out = sum(each.flops_unknown.values())
        row: list[Cell] = [label, each.nodes]
        row += ["" if same or first is None else f"{each.nodes - first.nodes:+,}"]
        row += [each.initializers, each.unused_initializers]
        row += [each.weight_inputs] if listed else []
        row += [each.parameters, each.size_bytes]
        row += [each.flops if each.flops or not left_out else None, left_out]
        rows.append(row)
    return ReportTable(
        title="Structure",
        note="Nodes of nested graphs included. Operations: multiplications and additions of one "
        "run, without those of the nodes of unknown cost.",
        columns=[
            *("variant", "nodes", "change", "weights", "unused"),
            *(["among inputs"] if listed else []),
            *("parameters", "bytes", "operations", "unknown"),
        ],
        rows=rows,
    )


def operators(known: Mapping[str, Inventory]) -> ReportTable:
    """Nodes by operator and their share, the most frequent of all models first."""
    models = list(known.values())
    total = Counter[str]()
    for each in models:
        total.update(each.operators)
    shown = [name for name, _ in total.most_common(_OPERATORS)]
    rows: list[list[Cell]] = [
        [short_operator(name), *(_count(m.operators.get(name, 0), m.share(name)) for m in models)]
        for name in shown
    ]
    if len(total) > len(shown):
        rest: list[Cell] = []
        for each in models:
            left = sum(n for name, n in each.operators.items() if name not in shown)
            rest.append(_count(left, left / max(sum(each.operators.values()), 1)))
        rows.append([f"{len(total) - len(shown)} others", *rest])
    return ReportTable(title="Operators", columns=["operator", *known], rows=rows)


def _count(count: int, share: float) -> str | None:
    return f"{count:,} ({share:.0%})" if count else None


def _placement(known: Mapping[str, Placement]) -> ReportTable:
    providers = list(dict.fromkeys(p for each in known.values() for p in each.providers))
    rows: list[list[Cell]] = [
        [
            label,
            each.nodes,
            *(_count(each.providers.get(p, 0), each.share_of(p)) for p in providers),
            each.seconds * 1e3,
            ", ".join(_without_kernel(each.elsewhere)),
        ]
        for label, each in known.items()
    ]
    elsewhere = any(each.elsewhere for each in known.values())
    columns = ["variant", "executed", *providers, "ms", "no kernel"]
    return ReportTable(
        title="Placement",
        note="Nodes that the runtime executes, and their total time under its profiler."
        + " No kernel: operators that do not run on the preferred provider." * elsewhere,
        columns=columns if elsewhere else columns[:-1],
        rows=rows if elsewhere else [row[:-1] for row in rows],
    )


def _without_kernel(nodes: list[PlacedNode]) -> Iterator[str]:
    for name, count in Counter(node.operator for node in nodes).most_common():
        yield f"{name} x{count}" if count > 1 else name


def _paces(result: BenchResult) -> ReportTable:
    """Time to the first token and for each further one, of models that write text."""
    own = {label_of(v, result): v.pace for v in result.variants if v.pace is not None}
    rows: list[list[Cell]] = [
        [label, pace.first_token_s * 1e3, pace.per_token_s * 1e3, 1 / pace.per_token_s, pace.tokens]
        for label, pace in {**result.paces, **own}.items()
    ]
    return ReportTable(
        title="Text",
        note="Medians, each model in a process of its own.",
        columns=["variant", "first token, ms", "per token, ms", "tokens per s", "tokens"],
        rows=rows,
    )


def _devices(result: BenchResult) -> ReportTable:
    own = {label_of(v, result): v.device for v in result.variants if v.device is not None}
    known = {**result.devices, **own}
    rows: list[list[Cell]] = [
        [
            label,
            each.device,
            *_quantity(each.utilisation, 100.0),
            *_quantity(each.memory_bytes, 1e-6),
            *_quantity(each.power_w, 1.0),
            *_quantity(each.temperature_c, 1.0),
            each.energy_per_run_j,
        ]
        for label, each in known.items()
    ]
    units = ("%", "MB", "W", "°C")
    return ReportTable(
        title="Device",
        note="Read every 10 ms while one model ran in a loop. Memory is that of all processes.",
        columns=["variant", "device", *(w for u in units for w in (u, f"peak {u}")), "J per run"],
        rows=rows,
    )


def _quantity(quantity: Quantity | None, factor: float) -> tuple[float | None, float | None]:
    return (None, None) if quantity is None else (quantity.mean * factor, quantity.peak * factor)


def _kernels(result: BenchResult) -> ReportTable:
    own = {label_of(v, result): v.kernels for v in result.variants if v.kernels is not None}
    rows: list[list[Cell]] = []
    for label, profile in {**result.kernels, **own}.items():
        rows += [
            [
                label,
                _cut(kernel.name),
                kernel.launches,
                "x".join(map(str, kernel.block)),
                "x".join(map(str, kernel.grid)),
                _percent(kernel.utilisation),
                _percent(kernel.compute_share),
                _percent(kernel.memory_share),
            ]
            for kernel in profile.kernels[:_OPERATORS]
        ]
        rows.append([label, "all kernels", profile.launches, *[None] * 5])
    return ReportTable(
        title="Kernels",
        note="By the device's profiler. In use: part of the cycles in which a processor had work; "
        "compute and memory are shares of the peak throughput.",
        columns=[
            "variant",
            "kernel",
            "launches per run",
            "block",
            "grid",
            "in use",
            "compute",
            "memory",
        ],
        rows=rows,
    )


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"


def _times(known: Mapping[str, Placement]) -> ReportTable:
    """Time by operator, what is compared with beside its variants."""
    spent = [{o.operator: o.seconds for o in each.operators} for each in known.values()]
    total = Counter[str]()
    for times in spent:
        total.update(times)
    rows: list[list[Cell]] = [
        [short_operator(name), *(_milliseconds(times.get(name)) for times in spent)]
        for name, _ in total.most_common(_OPERATORS)
    ]
    rows.append(["all", *(_milliseconds(each.seconds) for each in known.values())])
    return ReportTable(
        title="Time by operator, ms",
        note="Per run, under the runtime's profiler.",
        columns=["operator", *known],
        rows=rows if known else [],
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _slowest(known: Mapping[str, Placement]) -> ReportTable:
    rows: list[list[Cell]] = [
        [label, _cut(node.name), node.operator, node.seconds * 1e3, _share(node, each)]
        for label, each in known.items()
        for node in each.slowest[:_SLOWEST]
    ]
    return ReportTable(
        title="Slowest nodes",
        columns=["variant", "node", "operator", "ms", "share"],
        rows=rows,
    )


def _share(node: PlacedNode, placement: Placement) -> str:
    return f"{node.seconds / placement.seconds:.0%}" if placement.seconds else "–"


def _cut(name: str) -> str:
    if len(name) <= _NAME_CHARS:
        return name
    half = _NAME_CHARS // 2 - 1
    return f"{name[:half]}…{name[-half:]}"
