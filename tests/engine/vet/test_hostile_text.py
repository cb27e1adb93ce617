"""Texts of foreign code are matched in linear time, whatever they hold."""

import time
from collections.abc import Callable

import pytest

from optvet.engine.work.trials.inference import graph_output_of
from optvet.engine.work.trials.raised_errors import normalized_message

SIZE = 200_000
HOSTILE = {
    "one word": "x" * SIZE,
    "slashes": "/" * SIZE,
    "words and slashes": "a/" * (SIZE // 2),
    "open quotes": "'\"`" * (SIZE // 3),
    "one open quote": "'" + "a " * (SIZE // 2),
    "names": "name:" * (SIZE // 5),
    "parentheses": "(" * SIZE,
    "digits": "1" * SIZE,
    "blanks": " " * SIZE,
    "lines": "\n" * SIZE,
    "dots": "a." * (SIZE // 2),
    "dashes": "a-_" * (SIZE // 3),
    "brackets": "[0]" * (SIZE // 3) + "x",
    "escapes": "\x1b[" * (SIZE // 2),
}


def matchers() -> dict[str, Callable[[str], object]]:
    """What is matched against names, messages and logs of others."""
    from optvet.cli import render, vet_facts
    from optvet.engine.environment import extras
    from optvet.engine.work.sandbox.messages import NO_MEMORY

    plugins = {
        "optvet_onnxruntime.pass_log": ("TRANSFORMER_DONE", "_BEGUN"),
        "optvet_onnxruntime.installed_passes": ("_LEVEL",),
        "optvet_tvm.optimizer": ("_REFUSAL",),
        "optvet_text.feeding": ("_IDS", "_PAST", "_PRESENT", "_TYPES"),
        "optvet_classification": ("_TASK",),
        "optvet_classification.find_scores": ("_SCORES",),
        "optvet_classification.compare_rows": ("_LABEL",),
        "optvet_detection": ("_TASK",),
        "optvet_segmentation": ("_TASK",),
        "optvet_embedding": ("_TASK", "_NAME"),
        "optvet_pose": ("_TASK", "_HEAT_MAPS"),
        "optvet_speech": ("_TASK", "_FRAMES"),
        "optvet_image": ("_TASK",),
        "optvet_tabular": ("_TASK",),
        "optvet_token": ("_TASK",),
        "optvet_tensor": ("_TASK",),
        "optvet_audio": ("_SOUND", "_IS_STATE"),
        "optvet_images": ("_IMAGES", "_OTHER"),
    }
    found: dict[str, Callable[[str], object]] = {
        "gist": normalized_message,
        "base of an output": graph_output_of,
        "out of memory": NO_MEMORY.search,
        "requirement": extras._REQUIREMENT.match,
        "line of a node": render.node_line,
        "type": vet_facts._TYPE.match,
    }
    for module, name in (
        ("optvet_openvino.optimizer", "_LINE"),
        ("optvet_tvm.options", "EXTRA_PASS"),
    ):
        # Matched from the beginning only, line by line.
        found[f"{module}.{name}"] = getattr(pytest.importorskip(module), name).fullmatch
    for module, names in plugins.items():
        loaded = pytest.importorskip(module)
        for name in names:
            found[f"{module}.{name}"] = getattr(loaded, name).findall
    return found


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_texts_take_no_time(kind: str) -> None:
    for name, match in matchers().items():
        started = time.process_time()
        match(HOSTILE[kind])
        assert time.process_time() - started < 2.0, f"{name} on {kind}"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "Node (conv_1) Op (Conv) [ShapeInferenceError] 3 vs 4",
            "Node conv Op Conv ShapeInferenceError vs",
        ),
        ("cannot read /tmp/a b.onnx: 'weights_3' is gone", "cannot read b onnx is gone"),
        ("node with name: Relu_7 has no kernel", "node with has no kernel"),
        ("no use for <lock at 0x7fA0be3c> here", "no use for lock at here"),
        ("don't", "don t"),
    ],
)
def test_the_gist_of_a_message_has_no_names_numbers_and_paths(message: str, expected: str) -> None:
    assert normalized_message(message) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("y", "y"),
        ("y[0].keys", "y"),
        ("y[0][12].length", "y"),
        ("y.keys.z", "y.keys.z"),
        ("y[]", "y[]"),
    ],
)
def test_the_base_of_an_output_is_the_graphs(name: str, expected: str) -> None:
    assert graph_output_of(name) == expected
