"""Sources whose formats can hold code: none of it runs unless the user trusts the file."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import zipfile
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.assault.test_evil_data import Payload
from tests.commands import Run, run
from tests.engine.convert import plain

from optvet.engine.campaign.file import read_campaign
from optvet.engine.campaign.plan import requests_of
from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.repair.run import repair_model
from optvet.engine.trust import check_source
from optvet.spec.convert import ConvertRequest
from optvet.spec.errors import OptvetError
from optvet.spec.repair import RepairRequest

__all__ = ["run"]
REFUSED = "may run code.* --trust"
PICKLES = ("net.pt", "net.pth", "net.pkl", "net.pickle", "net.joblib", "net.npy", "net.onnx")
ELSEWHERE = ("net.keras", "net.h5", "saved")


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A folder that is made by code of the evil file."""
    return tmp_path / "ran"


def exported(target: Path, ran: Path) -> None:
    """A program of PyTorch whose sample inputs are a pickle that runs code."""
    torch = pytest.importorskip("torch", reason="needs optvet[torch]")
    good = target.with_name("good.pt2")
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),)), good)
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(target, "w") as evil:
        names = [n for n in source.namelist() if "sample_inputs" in n]
        assert names, source.namelist()
        for name in source.namelist():
            data = pickle.dumps(Payload(ran)) if name in names else source.read(name)
            evil.writestr(name, data)


def evil_file(folder: Path, name: str, ran: Path) -> Path:
    path = folder / name
    if name == "net.pt2":
        exported(path, ran)
    elif name == "net.keras":
        layer = {"class_name": "Lambda", "config": {"function": {"class_name": "__lambda__"}}}
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("config.json", json.dumps(layer))
    elif name == "saved":
        path.mkdir()
        (path / "saved_model.pb").write_bytes(b"\x08\x01")
    else:
        path.write_bytes(pickle.dumps(Payload(ran)))
    return path


def asked(how: str, given: Mapping[str, object], out: Path) -> None:
    if how == "repair":
        repair_model(RepairRequest.model_validate({**given, "out": out}), plain.plugins())
    else:
        convert_model(ConvertRequest.model_validate(given), plain.plugins())


@pytest.mark.parametrize("name", ["net.pt2", *PICKLES])
@pytest.mark.parametrize("how", ["convert", "repair", "--converted"])
def test_a_pickle_is_never_loaded_unasked(name: str, how: str, tmp_path: Path, ran: Path) -> None:
    path = evil_file(tmp_path, name, ran)
    via = "torch_dynamo" if find_spec("onnxscript") else "plain_to_onnx"
    (tmp_path / "source.py").write_text("def net(): raise SystemExit")
    elsewhere = {"model": f"{tmp_path / 'source.py'}:net", "converted": path}
    given = elsewhere if how == "--converted" else {"model": str(path), "via": via}
    with pytest.raises(OptvetError):
        asked(how, given, tmp_path / "out")
    assert not ran.exists()


def test_an_exported_program_is_refused_with_the_reason(
    run: Run, tmp_path: Path, ran: Path
) -> None:
    path = evil_file(tmp_path, "net.pt2", ran)
    done = run("convert", str(path), "--via", "torch_dynamo")
    assert done.code == 2
    assert re.search(r"net\.pt2: .*unpickled.*--trust", done.err)
    assert not ran.exists()


def test_a_trusted_program_is_loaded(tmp_path: Path, ran: Path) -> None:
    path = evil_file(tmp_path, "net.pt2", ran)
    with pytest.raises(OptvetError):  # Its sample inputs are none; but they were read.
        convert_model(ConvertRequest(model=str(path), via=("torch_dynamo",), trust=True), Plugins())
    assert ran.exists()


@pytest.mark.parametrize("selector", ["net.pt2", "*.pt2", "."])
def test_a_campaign_of_such_files_is_refused(selector: str, tmp_path: Path, ran: Path) -> None:
    evil_file(tmp_path, "net.pt2", ran)
    (tmp_path / "good.pt2").unlink()
    file = tmp_path / "campaign.toml"
    file.write_text(f"models = [{selector!r}]\nvia = ['torch_dynamo']\n")
    plugins = Plugins()
    with pytest.raises(OptvetError, match=REFUSED):
        list(requests_of(read_campaign(file, plugins), plugins))
    trusted = read_campaign(file, plugins, trust=True)
    (request,) = requests_of(trusted, plugins, {"trust": True})
    assert request.trust
    assert not ran.exists()


@pytest.mark.parametrize("key", ["convert.trust = true", "trust = true"])
def test_no_campaign_trusts_itself(key: str, tmp_path: Path, ran: Path) -> None:
    evil_file(tmp_path, "net.pt2", ran)
    file = tmp_path / "campaign.toml"
    file.write_text(f"{key}\nmodels = ['net.pt2']\nvia = ['torch_dynamo']\n")
    with pytest.raises(OptvetError, match="trust"):
        read_campaign(file, Plugins())


@pytest.mark.parametrize("name", ELSEWHERE)
def test_files_of_tensorflow_need_trust(name: str, tmp_path: Path, ran: Path) -> None:
    path = evil_file(tmp_path, name, ran)
    suffix = path.suffix
    # Not by Plugins, which know it only where its environment was made.
    runtimes = import_module("optvet_tensorflow").optvet_runtimes()
    takers = [r for r in runtimes if suffix in r.source_formats]
    assert takers
    with pytest.raises(OptvetError, match=REFUSED):
        check_source(str(path), suffix, takers, trust=False)
    check_source(str(path), suffix, takers, trust=True)


class Silent(plain.PlainRuntime):
    """Reads files of which it does not say whether they hold code."""

    name = "silent"
    source_formats: Mapping[str, str] = {".net": "plain"}


class Harmless(Silent):
    """Says so."""

    source_risks: Mapping[str, str] = {".net": ""}


def test_a_format_that_no_plugin_vouches_for_needs_trust() -> None:
    with pytest.raises(OptvetError, match="no plugin declares"):
        check_source("a.net", ".net", [Silent()], trust=False)
    check_source("a.net", ".net", [Harmless()], trust=False)
    with pytest.raises(OptvetError, match=REFUSED):
        check_source("a.net", ".net", [Harmless(), Silent()], trust=False)


def test_a_link_with_a_harmless_name_is_read_as_what_its_name_says(
    tmp_path: Path, ran: Path
) -> None:
    shutil.move(evil_file(tmp_path, "net.pt2", ran), tmp_path / "evil")
    (tmp_path / "net.onnx").symlink_to(tmp_path / "evil")
    with pytest.raises(OptvetError):
        convert_model(
            ConvertRequest(model=str(tmp_path / "net.onnx"), via=("onnx2torch",)), Plugins()
        )
    assert not ran.exists()
