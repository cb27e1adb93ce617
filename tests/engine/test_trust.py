"""What files that came with a model, or with a finding, may ask for."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnx.parser
import pytest
from pydantic import BaseModel, ConfigDict, ImportString

import optvet
from optvet import InputError
from optvet.engine.discovery import Plugins
from optvet.engine.models.sidecar import config_for
from optvet.engine.trust import dataset_from, options_from
from optvet.plugin import Harmless, Sensitive
from optvet.spec.sensitive import sensitive_options, unmarked_options

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[2] x) => (float[2] y) { y = Relu(x) }"""


class Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    level: int = 1
    hooks: Annotated[list[str], Sensitive("runs Python code")] = []
    words: Annotated[str, Sensitive("reads a file", reads_data=True)] = ""
    target: Annotated[str, Sensitive("names a device", unless=lambda v: v == "cpu")] = ""
    maker: Annotated[str, Sensitive("runs code")] | None = None
    output_file: str = ""
    keep_files: bool = False
    file_format: Annotated[str, Harmless("a name such as npz")] = "npz"
    where: Path | None = None
    what: ImportString[Any] | None = None


def settle(given: dict[str, Any], folder: Path | None = None, trust: bool = False) -> Any:
    return options_from("f.json", "options", Options(), given, folder=folder, trust=trust)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model in a folder of its own, beside which there is something else."""
    file = tmp_path / "models" / "net.onnx"
    file.parent.mkdir()
    onnx.save(onnx.parser.parse_model(MODEL), file)
    np.savez(tmp_path / "models" / "in.npz", x=np.array([1, 2], np.float32))
    np.savez(tmp_path / "out.npz", x=np.array([1, 2], np.float32))
    return file


# Which options


def test_options_are_sensitive_by_mark_type_or_name() -> None:
    assert set(sensitive_options(Options)) == {
        *("hooks", "words", "target", "maker", "output_file", "where", "what")
    }
    assert unmarked_options(Options) == {
        "output_file": "has 'file' in its name",
        "where": "is of type Path",
        "what": "is of type ImportString",
    }


def test_an_option_is_as_sensitive_as_what_is_inside_it() -> None:
    class Outer(BaseModel):
        inner: Options = Options()
        count: int = 0

    assert set(sensitive_options(Outer)) == {"inner"}


def test_no_option_of_optvet_s_own_plugins_lacks_a_mark() -> None:
    kinds = {
        type(options)
        for entry in Plugins().all()
        for options in (getattr(entry.plugin, n, None) for n in ("options", "deployed"))
        if isinstance(options, BaseModel)
    }
    assert {k.__name__: unmarked_options(k) for k in kinds if unmarked_options(k)} == {}


# What a file may set


@pytest.mark.parametrize(
    "given",
    [
        {"hooks": ["x=payload.py:f"]},
        {"words": "words.txt"},
        {"target": "gpu"},
        {"maker": "m"},
        {"output_file": "/x"},
        {"where": "."},
        {"what": "os.system"},
    ],
)
def test_a_sensitive_option_is_refused_with_file_key_value_and_what_to_do(
    given: dict[str, Any],
) -> None:
    ((name, value),) = given.items()
    with pytest.raises(InputError) as caught:
        settle({"level": 2, **given})
    assert f"f.json: key 'options.{name}' is {value!r}, which " in str(caught.value)
    assert "say --trust" in str(caught.value)
    assert caught.value.exit_code == 2
    assert settle(given, trust=True) == given


def test_what_is_harmless_may_be_set_by_anybody() -> None:
    given = {"level": 3, "file_format": "csv", "keep_files": True, "target": "cpu", "hooks": []}
    assert settle(given) == given
    assert settle(Options().model_dump(mode="json")) == Options().model_dump(mode="json")


def test_a_long_value_is_shown_in_part_and_escaped() -> None:
    with pytest.raises(InputError) as caught:
        settle({"output_file": "\x1b[2J\u202e" + "a" * 10_000})
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()


def test_data_is_named_by_what_is_inside_the_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "words.txt").write_text("a")
    os.symlink(outside / "words.txt", inside / "link.txt")
    os.symlink(inside / "loop", inside / "loop")
    found = settle({"words": "words.txt"}, folder=inside)
    assert found == {"words": str(inside / "words.txt")}
    bad = ["../out/words.txt", str(outside / "words.txt"), "link.txt", "loop", "absent", "a\0b"]
    for words in [*bad, "a" * 5000, "~/words.txt"]:
        with pytest.raises(InputError, match="reads a file"):
            settle({"words": words}, folder=inside)
    found = settle({"words": "../out/words.txt"}, folder=inside, trust=True)
    assert Path(found["words"]).samefile(outside / "words.txt")


# Records


@pytest.mark.parametrize(
    "spec", ["files:../out.npz", "files:/etc/passwd", "files:link.npz", "huggingface:user/name"]
)
def test_a_record_s_dataset_elsewhere_is_refused_unless_another_is_asked_for(
    path: Path, spec: str
) -> None:
    os.symlink(path.parent.parent / "out.npz", path.parent / "link.npz")
    path.with_suffix(".toml").write_text(f'dataset = "{spec}"\n')
    with pytest.raises(InputError, match=r"net.toml: key 'dataset' is .* --dataset"):
        optvet.vet(path, cache=False)
    assert optvet.vet(path, dataset="random", limit=1, cache=False).verdict == "clean"


def test_a_trusted_record_s_dataset_may_lie_elsewhere(path: Path) -> None:
    path.with_suffix(".toml").write_text('dataset = "files:../out.npz"\n')
    result = optvet.vet(path, cache=False, trust=True)
    assert (result.verdict, result.datasets[0].samples) == ("clean", 1)


def test_a_record_s_dataset_in_its_folder_is_read(path: Path) -> None:
    path.with_suffix(".toml").write_text('dataset = "files:in.npz"\n')
    assert optvet.vet(path, cache=False).datasets[0].samples == 1
    config = config_for(path)
    assert dataset_from(config, trust=False) == f"files:{path.parent / 'in.npz'}"


def test_a_catalogue_is_trusted_no_more_than_a_record(path: Path) -> None:
    entry = {"file": path.name, "dataset": "files:../out.npz"}
    (path.parent / "models.json").write_text(json.dumps([entry]))
    with pytest.raises(InputError, match=r"models.json: key 'dataset'"):
        optvet.vet(path, cache=False)


def test_options_in_a_record_are_checked_before_the_work_and_give_way_to_typed_ones(
    path: Path,
) -> None:
    secret = path.parent.parent / "secret.txt"
    secret.write_text("a\nb\n")
    path.with_suffix(".toml").write_text(
        'comparator = "speech"\n[comparator_options]\nvocabulary = "../secret.txt"\n'
    )
    with pytest.raises(InputError, match=r"key 'comparator_options\.vocabulary' is '../secret"):
        optvet.vet(path, cache=False)
    typed = {"vocabulary": str(secret)}
    assert optvet.vet(path, cache=False, limit=1, comparator_options=typed).verdict == "clean"
