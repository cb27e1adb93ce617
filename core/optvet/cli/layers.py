"""How a quantized model was judged, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optvet.spec.records import LayerRecord, MovedOutput, Quantized

_LISTED = 2


def layers_text(record: Quantized) -> str:
    """Describe the verdict on the layers, and how far rounding moves the outputs."""
    lines = list(_show_outcomes(record))
    lines += [_show_movement(output) for output in record.outputs[:_LISTED]]
    return "\n".join(lines)


def _show_outcomes(record: Quantized) -> Iterator[str]:
    if record.method == "whole run":
        words = f"could not be compared one by one: {record.reason}" if record.reason else ""
        yield f"{_count(record.quantizers, 'quantized layer')} {words}".strip()
        yield "judged by the whole run: a small error in one layer could hide in its rounding"
        return
    wrong = [layer for layer in record.layers if layer.outcome in ("fault", "saturation")]
    compared = f"{record.compared} of {_count(record.quantizers, 'quantized layer')}"
    if record.compared == record.quantizers:
        compared = _count(record.quantizers, "quantized layer")
    right = "each is" if not wrong else f"all but {len(wrong)} are"
    size = "" if record.largest is None else f", within {record.largest:.2f} step of it"
    yield (
        f"{compared} compared on {_count(record.samples, 'sample')}: {right} the exact result of "
        f"its own inputs, rounded{size}"
    )
    skipped = {name for layer in record.layers for name in _list_skipped_parts(layer)}
    if skipped:
        yield f"{_count(len(skipped), 'inner quantization')} left out"
    coarse = [layer for layer in record.layers if layer.outcome == "coarse"]
    if coarse:
        yield f"{_count(len(coarse), 'layer')} computed coarsely, all alike"
    hidden = {name for layer in record.layers for name in layer.hidden}
    if hidden:
        yield f"{len(hidden)} could not be seen: a small error could hide there"


def _list_skipped_parts(layer: LayerRecord) -> Sequence[str]:
    return layer.skipped if layer.outcome == "skipped" else ()


def _show_movement(output: MovedOutput) -> str:
    unit = "steps" if output.unit == "steps" else "of its largest value"
    words = f"{output.name} differs by up to {_size(output.difference)} {unit}"
    if output.rounding is not None:
        words += f"; rounding alone moves it by up to {_size(output.rounding)}"
    if output.flipped:
        ahead = "it was no larger than the next"
        if output.margin:
            ahead = f"it was ahead by at most {_size(output.margin)} {unit}"
        words += (
            f"; its largest element changes on {_count(output.flipped, 'sample')}, where {ahead}"
        )
    return words


def _size(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _count(amount: int, noun: str) -> str:
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"
