"""Sources of PyTorch's own operator database, and a campaign that converts them.

    python benchmarks/torch_operators.py DIR [--samples N] [--draw N] [--only NAME …]
    optvet campaign run DIR/campaign.toml --trust
    optvet campaign tables DIR/campaign.store --study converters

Each operator of ``torch.testing._internal.common_methods_invocations`` becomes a file that calls
it as its first sample does; with ``--samples`` as further samples with other settings do.
Operators that cannot be written so are counted by reason. Needs expecttest, as the database does.
"""

from __future__ import annotations

import argparse
import keyword
import random
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch  # noqa: TID253  # the database is PyTorch's

_ELEMENTS = 400
"""Elements of all tensors of one sample: they are written into the source."""
_LOOKED_AT = 60
"""Samples of an operator among which those with other settings are looked for."""
RANDOM = re.compile(r"rand|dropout|bernoulli|multinomial|normal$|poisson|uniform|empty|rrelu")
_HEAD = '''\
"""{name}, called as in PyTorch's operator database."""

import torch

'''
_SAMPLE = """
class Operator{number}(torch.nn.Module):
    def forward(self, {arguments}):
        return {call}


def sample_{number}():
    return Operator{number}()


sample_{number}.example_inputs = (
    {tensors},
)
"""
_CAMPAIGN = """\
# By benchmarks/torch_operators.py of PyTorch {version}: {sources} sources of {operators} operators.
name = "torch-operators"
models = [
{models}
]
via = [{via}]

[convert]
random = 1
sizes = false
cross_check = ["onnx_reference"]
"""


class Unwritable(ValueError):
    """A sample that cannot be a source of a few lines; the message says why."""


@dataclass
class Call:
    """The text of a call, and the tensors that it is given."""

    tensors: list[torch.Tensor] = field(default_factory=list)

    def text_of(self, value: Any) -> str:
        """How ``value`` is written; a tensor becomes an argument of the module.

        Raises:
            Unwritable: It has no literal.
        """
        if isinstance(value, torch.Tensor):
            if value.is_complex() or value.layout != torch.strided or not value.numel():
                raise Unwritable("a tensor that is complex, sparse or empty")
            self.tensors.append(value.detach())
            return f"x{len(self.tensors) - 1}"
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        if isinstance(value, float):
            return repr(value) if abs(value) < float("inf") else f'float("{value}")'
        if isinstance(value, (torch.dtype, torch.memory_format)):
            return str(value)
        if isinstance(value, (tuple, list, torch.Size)):
            inner = ", ".join(map(self.text_of, value))
            return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if value else "()"
        raise Unwritable(f"an argument that is a {type(value).__name__}")


def main() -> None:
    """Write sources and campaign, and print what was left out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--draw", type=int, help="Convert so many sources, drawn with seed 0.")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--via", nargs="*", default=["torch_dynamo", "torch_script"])
    options = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    torch.manual_seed(0)
    options.folder.mkdir(parents=True, exist_ok=True)
    left_out: Counter[str] = Counter()
    models: list[str] = []
    names = sorted({op.name for op in op_db})
    wanted = options.only or names
    by_name = {op.name: op for op in reversed(op_db)}
    written = 0
    for name in wanted:
        try:
            texts = list(_samples(name, by_name[name], options.samples))
        except Unwritable as reason:
            left_out[str(reason)] += 1
            continue
        file = options.folder / f"{_file_name(name)}.py"
        file.write_text(_HEAD.format(name=name) + "\n".join(texts))
        models += [f"{file.name}:sample_{number}" for number in range(len(texts))]
        written += 1
    random.Random(0).shuffle(models)
    models = models[: options.draw]
    about = {"version": torch.__version__, "sources": len(models), "operators": written}
    (options.folder / "campaign.toml").write_text(
        _CAMPAIGN.format(
            models="\n".join(f'    "{m}",' for m in models),
            via=", ".join(f'"{chain}"' for chain in options.via),
            **about,
        )
    )
    print(f"{len(names)} operators; {written} of {len(wanted)} written, {len(models)} sources")
    for words, count in left_out.most_common():
        print(f"{count:4} left out: {words}")


def _file_name(name: str) -> str:
    plain = re.sub(r"\W", "_", name)
    return f"{plain}_" if keyword.iskeyword(plain) or plain == "torch" else plain


def _samples(name: str, op: Any, most: int) -> Iterator[str]:
    """The texts of up to ``most`` samples with different settings.

    Raises:
        Unwritable: There is none.
    """
    if RANDOM.search(name):
        raise Unwritable("random or uninitialized")
    function = _function(name)
    kinds = op.supported_dtypes("cpu")
    kind = next((k for k in (torch.float32, torch.int64, torch.bool) if k in kinds), None)
    if kind is None:
        raise Unwritable("no element type of float32, int64 and bool")
    reason = "no sample"
    seen: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, sample in enumerate(op.sample_inputs("cpu", kind, requires_grad=False)):
            if number >= _LOOKED_AT or len(seen) >= most:
                break
            try:
                call, text = _call(function, sample.input, sample.args, sample.kwargs)
                if text in seen:
                    continue
                _check(function, sample)
            except Unwritable as error:
                reason = str(error)
                continue
            yield _SAMPLE.format(
                number=len(seen),
                arguments=", ".join(f"x{i}" for i in range(len(call.tensors))),
                call=text,
                tensors=",\n    ".join(map(literal, call.tensors)),
            )
            seen.add(text)
    if not seen:
        raise Unwritable(reason)


def _function(name: str) -> str:
    """The text of what is called: a function of ``torch``, else a method.

    Raises:
        Unwritable: There is neither.
    """
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part, None)
    if callable(found):
        return f"torch.{name}"
    if name.isidentifier() and not name.startswith("_") and hasattr(torch.Tensor, name):
        return f".{name}"
    raise Unwritable("a variant without a function of its own")


def _call(
    function: str, first: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Call, str]:
    call = Call()
    texts = [call.text_of(v) for v in (first, *args)]
    named = [f"{key}={call.text_of(v)}" for key, v in kwargs.items()]
    if not call.tensors or sum(t.numel() for t in call.tensors) > _ELEMENTS:
        raise Unwritable("no tensor, or large ones")
    if function.startswith("."):
        return call, f"{texts[0]}{function}({', '.join([*texts[1:], *named])})"
    return call, f"{function}({', '.join([*texts, *named])})"


def _check(function: str, sample: Any) -> None:
    """Raises Unwritable unless the call gives tensors."""
    owner, _, path = function.partition(".")
    try:
        called = attrgetter(path)(torch if owner else sample.input)
        first = (sample.input,) if owner else ()
        made = called(*first, *sample.args, **sample.kwargs)
    except Exception as error:  # whatever an operator raises leaves out its sample alone
        raise Unwritable(f"the call fails: {type(error).__name__}") from error
    listed = made if isinstance(made, (tuple, list)) else [made]
    if not listed or not all(isinstance(v, torch.Tensor) and not v.is_complex() for v in listed):
        raise Unwritable("results that are complex, or no tensors")
    if any(v.layout != torch.strided for v in listed):
        raise Unwritable("sparse results")


def literal(tensor: torch.Tensor) -> str:
    """A tensor as Python."""
    text = repr(tensor.tolist()).replace("nan", 'float("nan")').replace("inf", 'float("inf")')
    return f"torch.tensor({text}, dtype={tensor.dtype})"


if __name__ == "__main__":
    main()
