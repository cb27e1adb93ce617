"""Lists of nodes to keep in float32 in the forms of other tools."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

_SCRIPT = '''\
# polygraphy run MODEL.onnx --trt --{flag} --precision-constraints obey \\
#     --trt-network-postprocess-script postprocess.py
import tensorrt as trt

KEEP = {keep}


def postprocess(network):
    """Compute the layers of these ONNX nodes in float32."""
    for layer in network:
        nodes = getattr(layer, "metadata", "")
        if layer.name not in KEEP and not any(f"[ONNX Layer: {{name}}]" in nodes for name in KEEP):
            continue
        outputs = [layer.get_output(index) for index in range(layer.num_outputs)]
        floats = [index for index, each in enumerate(outputs) if each.dtype == trt.float32]
        if floats:
            layer.precision = trt.float32
        for index in floats:
            layer.set_output_type(index, trt.float32)
'''


def polygraphy_script(nodes: Sequence[str], precision: str) -> str:
    """A script for Polygraphy's ``--trt-network-postprocess-script``.

    TensorRT names a layer like the node that it comes from; where a node becomes several layers,
    each has the node in its metadata.
    """
    lines = "".join(f"    {name!r},\n" for name in nodes)
    return _SCRIPT.format(flag=precision, keep=f"{{\n{lines}}}" if nodes else "set()")


def autocast_command(nodes: Sequence[str], precision: str) -> str:
    """A call of ModelOpt's AutoCast, whose patterns match the beginnings of names.

    Each pattern ends with ``$``, so that it matches one name.
    """
    patterns = " ".join(shlex.quote(f"{re.escape(name)}$") for name in nodes)
    call = "python -m modelopt.onnx.autocast --onnx_path MODEL.onnx --keep_io_types"
    return f"{call} --low_precision_type {precision} --nodes_to_exclude {patterns}\n"
