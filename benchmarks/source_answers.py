"""Does a converter's source have an answer of its own on its inputs? For ``found.py``.

    python benchmarks/source_answers.py FOLDER

FOLDER is a bundle whose ``reproduce.py`` has run. Written apart from optvet's own check, to test
it: the script's own lines run the source again. Prints the first of these that is so, or nothing:

- the source gives something else when it runs again;
- in float64 it gives something else, by more than the script's tolerance and its type's rounding;
- the converted model gives nothing but what the source gives of inputs that are a few units in the
  last place off, or of the input's largest value: a value near a limit, or terms that cancel;
- the standard has no answer for the converted model (``answers.py``), whatever shapes it declares.
"""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path
from typing import Any

import answers
import numpy as np
import onnx

DRAWS, ULPS = 24, 2


def main() -> None:
    """Print why the source has no answer; nothing if it has one."""
    folder = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(folder))
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    print(open_points(folder)[:300])


def open_points(folder: Path) -> str:
    """Why the source of a bundle has no answer; empty if it has one."""
    import part  # type: ignore[import-not-found]  # the bundle's

    script = (folder / "reproduce.py").read_text()
    tolerance = float(re.findall(r"^TOLERANCE = (\S+)", script, re.MULTILINE)[0])
    inputs = part.example_inputs
    given, was = results(script, inputs)
    if distances(was, results(script, inputs)[1]) > 0:
        return "two runs of the source differ"
    try:
        wide = distances(was, results(script, each_float(inputs, widened))[1])
    except Exception:  # whatever a framework says of a type that it does not take there
        wide = 0.0
    roundoffs = [np.finfo(w.dtype).eps for w in was if w.dtype.kind == "f"]
    if wide > max(tolerance, 8 * max(roundoffs, default=0.0)):
        return f"the source differs by {wide:.3g} in float64"
    target = folder / "converted.onnx"
    if not target.is_file():
        return ""
    model = onnx.load(target)
    weights = {tensor.name for tensor in model.graph.initializer}
    names = [i.name for i in model.graph.input if i.name not in weights]
    feeds = dict(zip(names, given, strict=False))
    if words := answers.open_points(model, feeds, made=True):
        return words
    return _near(script, inputs, was, converted(model, feeds), tolerance)


def _near(script: str, inputs: Any, was: list[Any], got: list[Any], tolerance: float) -> str:
    """Whether moved inputs explain what the converted model gives, element by element."""
    if [g.size for g in got] != [w.size for w in was] or any(w.dtype.kind == "O" for w in was):
        return ""
    rng = np.random.default_rng(0)
    draws = [was]
    for draw in range(DRAWS):
        try:
            near = each_float(inputs, lambda v, of_top=draw % 2 == 1: moved(v, rng, of_top))
            one = results(script, near)[1]
        except Exception:  # a moved input may be none of the source's any more
            continue
        if [o.size for o in one] == [w.size for w in was]:
            draws.append(one)
    for number, value in enumerate(got):
        each = [d[number].reshape(value.shape) for d in draws]
        top = size_of(was[number])
        close = [off(d, value) <= tolerance * top for d in each]
        if not np.logical_or.reduce(close).all():
            return ""
    return f"inputs that are {ULPS} units in the last place off give the same" if got else ""


def results(script: str, inputs: Any) -> tuple[list[Any], list[Any]]:
    """What a bundle's script gives its model, and what it expects of it."""
    import part

    part.example_inputs = inputs
    scope: dict[str, Any] = {"__name__": "script"}
    exec(script.partition("\ndef convert():")[0], scope)
    return list(scope["given"]), [np.asarray(v) for v in scope["expected"]]


def converted(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    """Outputs of the converted model; none if it does not run."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        return [np.asarray(v) for v in session.run(None, feeds)]
    except Exception:  # the fault may be that
        return []


def distances(was: list[Any], now: list[Any]) -> float:
    """The largest difference of any output, by its largest value; infinite for other shapes."""
    if [w.shape for w in was] != [n.shape for n in now]:
        return np.inf
    each = (off(w, n).max(initial=0.0) / size_of(w) for w, n in zip(was, now, strict=True))
    return float(max(each, default=0.0))


def off(one: Any, other: Any) -> Any:
    """Elementwise difference; infinite where both are no numbers and unlike."""
    if "f" not in one.dtype.kind + other.dtype.kind:
        return np.where(one == other, 0.0, np.inf)
    one, other = (np.asarray(v, np.float64) for v in (one, other))
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    both = np.isfinite(one) & np.isfinite(other)
    return np.where(same, 0.0, np.where(both, np.abs(one - other), np.inf))


def size_of(value: Any) -> float:
    """The largest finite magnitude of an output; 1 if it has none."""
    if value.dtype.kind != "f":
        return 1.0
    return float(np.max(np.abs(value), where=np.isfinite(value), initial=0.0)) or 1.0


def each_float(inputs: Any, change: Any) -> Any:
    """Inputs of a source with every array of floats changed."""
    if isinstance(inputs, dict):
        return {name: each_float(value, change) for name, value in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        return type(inputs)(each_float(value, change) for value in inputs)
    if isinstance(inputs, np.ndarray):
        return change(inputs) if inputs.dtype.kind == "f" else inputs
    if hasattr(inputs, "is_floating_point") and inputs.is_floating_point():
        import torch

        return torch.as_tensor(change(inputs.detach().numpy()))
    return inputs


def widened(value: Any) -> Any:
    """The array in float64."""
    return value.astype(np.float64)


def moved(value: Any, rng: np.random.Generator, of_top: bool) -> Any:
    """The array with each finite value moved by up to ``ULPS`` of its units, or of the top's.

    Zeros stay: they are exact, and often mean something else than a small number.
    """
    steps = rng.integers(-ULPS, ULPS + 1, value.shape)
    unit = np.spacing(value.dtype.type(size_of(value))) if of_top else np.spacing(np.abs(value))
    moves = np.isfinite(value) & (value != 0)
    return np.where(moves, value + steps * unit, value).astype(value.dtype)


if __name__ == "__main__":
    main()
