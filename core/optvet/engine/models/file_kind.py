"""What a file is that is no ONNX model, for the message that refuses it."""

from __future__ import annotations

import contextlib
import json


def kind_of_file(data: bytes) -> tuple[str, str]:
    """What the file seems to be, and what the user can do."""
    again = "download or export it again"
    text = data[:512].lstrip().lower()
    if not data:
        return "an empty file", again
    if data.startswith(b"version https://git-lfs"):
        return "a git-lfs pointer, not the file itself", "run 'git lfs pull' in its repository"
    if text.startswith((b"<!doctype html", b"<html")) or b"<html" in text:
        return "an HTML page (an error or login page?)", "download the file itself"
    if data.startswith(b"PK\x03\x04"):
        if b"data.pkl" in data[:4096]:
            return "a PyTorch checkpoint", "export it with torch.onnx.export"
        return "a zip archive", "unpack it and give the .onnx file inside"
    if data.startswith(b"\x1f\x8b"):
        return "a gzip archive", "unpack it and give the .onnx file inside"
    if data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "a Python pickle", "export the model to ONNX; optvet never unpickles"
    if data[4:8] == b"TFL3":
        return "a TensorFlow Lite model", "convert it with tf2onnx"
    if data[4:8] == b"ORTM":
        return "an ONNX Runtime (ORT format) model", "give the ONNX file it was made from"
    if data.startswith(b"\x89HDF"):
        return "an HDF5 file (Keras weights?)", "convert it with tf2onnx"
    if data.startswith(b"GGUF"):
        return "a GGUF file", "give an ONNX export of the model"
    if data[8:9] == b"{" and int.from_bytes(data[:8], "little") < 10**8:
        return "a safetensors file (weights without a graph)", "export the model to ONNX"
    if text.startswith((b"<", b"ir_version")) and b"ir_version" in text:
        return "ONNX text", "convert it with onnx.parser.parse_model and onnx.save"
    if text.startswith((b"{", b"[")) and _is_json(data):
        return "JSON text", "give the .onnx file"
    return _kind_of_protobuf(data)


def _is_json(data: bytes) -> bool:
    with contextlib.suppress(ValueError, RecursionError):
        json.loads(data)
        return True
    return False


def _kind_of_protobuf(data: bytes) -> tuple[str, str]:
    """Distinguishes a truncated model from other data, by its outermost protobuf fields."""
    fields, end = _outer_fields(data)
    if end > len(data) and data[:1] == b"\x08":
        return (
            f"cut short (it announces at least {end:,} bytes and has {len(data):,})",
            "download or export it again",
        )
    if end == len(data) and fields:
        return "another kind of protobuf (it has no graph)", "give the model's .onnx file"
    return "no ONNX file", "check that this is the right file"


def _outer_fields(data: bytes) -> tuple[list[int], int]:
    """Numbers of the outermost protobuf fields, and the end of the last one (-1: not found).

    An end beyond the data means that the last field is truncated.
    """
    fields: list[int] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        field, wire = tag >> 3, tag & 7
        if not 1 <= field <= 100 or wire not in (0, 1, 2, 5):
            return fields, -1
        if wire == 0:
            _, at = _varint(data, at)
        elif wire == 2:
            length, at = _varint(data, at)
            at += length
        else:
            at += 8 if wire == 1 else 4
        fields.append(field)
    return fields, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at offset ``at``, and its end; that is beyond the data if it is truncated."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    return value, len(data) + 1
