"""Python code that applies passes and builds an executable, for scripts of bundles."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from optvet_tvm.extra_passes import ExtraPass, module_name
from optvet_tvm.options import TvmOptions
from optvet_tvm.passes import KERNEL_PASSES


def pass_code(name: str) -> str:
    """Code that makes a pass, as ``make_pass`` does."""
    if name == "ConvertLayout":
        return 'relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]})'
    kind = name.partition("#")[0]
    room = "backend" if kind.startswith("Dispatch") else "transform"
    return f"relax.{room}.{kind}()"


def extra_code(extra: ExtraPass, options: TvmOptions) -> str:
    """Code that names the function of the user's own pass."""
    return f"{module_name(extra, options)}.{extra.function}"


def list_code(opening: str, items: Sequence[str]) -> list[str]:
    """A list of expressions, as many on a line as fit."""
    text = f"{opening}[{', '.join(items)}]"
    return textwrap.wrap(text, 92, subsequent_indent=" " * 4, break_long_words=False)


def skip_code(order: Sequence[str]) -> list[str]:
    """Code of an instrument that skips the kernel passes which ``order`` lacks."""
    skipped = sorted(set(KERNEL_PASSES) - set(order))
    return [
        *list_code("skipped = ", [repr(name) for name in skipped]),
        "",
        "@tvm.ir.instrument.pass_instrument",
        "class Skip:",
        "    def should_run(self, module, info):",
        "        return info.name not in skipped",
        "",
    ]


def build_code(
    options: TvmOptions, imports: Sequence[str], passes: Sequence[str], skip: Sequence[str] | None
) -> str:
    """Code that builds an executable of ``model``.

    Args:
        options: Target and level.
        imports: Modules of the user's own.
        passes: Lines that make the list ``passes``; none if there is nothing to apply.
        skip: Lines that make the instrument ``Skip``, if any; None for TVM's own lowering
            behind the passes.
    """
    level = f"tvm.transform.PassContext(opt_level={options.opt_level}"
    default = options.opt_level == TvmOptions().opt_level and skip is None
    apply = ["module = tvm.transform.Sequential(passes)(module)"] if passes else []
    pipeline = "" if skip is None else ", relax_pipeline=None"
    build = f"executable = relax.build(module, {options.target!r}{pipeline})"
    within = f"with tvm.target.Target({options.target!r}), {level}):"
    if skip:
        tail = [
            *skip,
            f"with tvm.target.Target({options.target!r}), {level}, instruments=[Skip()]):",
        ]
        body = [within, *(f"    {line}" for line in apply), *tail, f"    {build}"]
    elif default and not apply:
        body = [build]
    else:
        body = [within, *(f"    {line}" for line in (*apply, build))]
    return "\n".join(
        (
            "import tvm",
            *imports,
            "from tvm import relax",
            "from tvm.relax.frontend.onnx import from_onnx\n",
            "module = from_onnx(model)",
            *passes,
            *body,
            "weights = {tensor.name for tensor in model.graph.initializer}",
            "inputs = [v.name for v in model.graph.input if v.name not in weights]",
            "return executable, inputs, [v.name for v in model.graph.output]",
        )
    )
