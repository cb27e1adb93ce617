"""The Hugging Face source, with the real library against a small imitation on this machine."""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import optvet_hf_models
from optvet import InputError, PluginError, UsageError
from optvet.engine.discovery import Plugins
from optvet.engine.models.sources import resolve_model
from optvet.plugin import ModelSource
from optvet_hf_models import HuggingFaceSource

TEXT = '<ir_version: 8, opset_import: ["" : 12]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
SMALL = onnx.parser.parse_model(TEXT).SerializeToString()
FIRST, SECOND = "a" * 40, "b" * 40


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """Repositories by name, files by commit; ``status`` and ``spoiled`` are what goes wrong."""

    def __init__(self) -> None:
        self.commits: dict[tuple[str, str], dict[str, bytes]] = {}
        self.refs: dict[tuple[str, str], str] = {}
        self.status: dict[str, tuple[int, str]] = {}
        self.spoiled: dict[str, bytes] = {}
        self.asked: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with suppress(OSError):
                    hub.answer(self, self.command == "GET")

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def add(self, repo: str, commit: str = FIRST, ref: str = "main", **files: bytes) -> None:
        named = {n.replace("__", "/").replace("_onnx", ".onnx"): d for n, d in files.items()}
        self.commits[repo, commit] = named
        self.refs[repo, ref] = self.refs[repo, commit] = commit

    def answer(self, handler: BaseHTTPRequestHandler, body: bool) -> None:
        path = unquote(urlsplit(handler.path).path)
        self.asked.append(path)
        parts = path.strip("/").split("/")
        if parts == ["api", "models"]:
            listed = [{"id": r, "modelId": r, "tags": ["onnx"]} for r, _ in self.commits]
            return self.send(handler, 200, json.dumps(listed).encode(), body)
        is_api = parts[0] == "api"
        repo = "/".join(parts[2:4] if is_api else parts[:2])
        if repo in self.status:
            code, kind = self.status[repo]
            return self.send(handler, code, b"{}", body, {"X-Error-Code": kind})
        if not any(r == repo for r, _ in self.commits):
            return self.send(handler, 404, b"{}", body, {"X-Error-Code": "RepoNotFound"})
        rest = parts[4:] if is_api else parts[2:]
        revision = "/".join(rest[1:]) if is_api else rest[1]
        commit = self.refs.get((repo, revision))
        if rest[0] not in ("revision", "resolve") or commit is None:
            return self.send(handler, 404, b"{}", body, {"X-Error-Code": "RevisionNotFound"})
        files = self.commits[repo, commit]
        if is_api:
            siblings = [self.sibling(n, d) for n, d in files.items()]
            info = {"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "tags": []}
            return self.send(handler, 200, json.dumps(info).encode(), body)
        name = "/".join(rest[2:])
        data = self.spoiled.get(name, files.get(name))
        if data is None:
            return self.send(handler, 404, b"{}", body, {"X-Error-Code": "EntryNotFound"})
        etag = sha256(files[name]) if name.endswith((".onnx", ".data")) else sha1(files[name])
        return self.send(handler, 200, data, body, {"ETag": f'"{etag}"', "X-Repo-Commit": commit})

    @staticmethod
    def sibling(name: str, data: bytes) -> dict[str, Any]:
        listed: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": sha1(data)}
        if name.endswith((".onnx", ".data")):
            listed["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 130}
        return listed

    @staticmethod
    def send(
        handler: BaseHTTPRequestHandler,
        code: int,
        data: bytes,
        body: bool,
        headers: dict[str, str] | None = None,
    ) -> None:
        handler.send_response(code)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        if body:
            handler.wfile.write(data)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub", reason="needs the extra huggingface")
    from huggingface_hub import constants

    hub = Hub()
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    yield hub
    hub.close()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def fetch(cache: Path, reference: str) -> Path:
    (path,) = HuggingFaceSource().fetch(reference, cache)
    return path


def with_data(location: str = "weights.data") -> tuple[bytes, bytes]:
    """A model with external data, and the data."""
    values = np.arange(2, dtype=np.float32)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 12]> '
        "g (float[2] x) => (float[2] y) <float[2] w = {0, 0}> { y = Add(x, w) }"
    )
    tensor = model.graph.initializer[0]
    tensor.CopyFrom(numpy_helper.from_array(values, "w"))
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "8")):
        tensor.external_data.add(key=key, value=value)
    return model.SerializeToString(), values.tobytes()


# What works


def test_the_source_keeps_the_protocol() -> None:
    (source,) = optvet_hf_models.optvet_model_sources()
    assert isinstance(source, ModelSource)
    assert source.name == "huggingface"
    assert pickle.loads(pickle.dumps(source)).name == "huggingface"


def test_the_only_onnx_file_is_the_model(hub: Hub, cache: Path) -> None:
    hub.add("org/net", README=b"read me", net_v1_onnx=SMALL)
    path = fetch(cache, "org/net")
    assert path == cache / "huggingface" / "org" / "net" / FIRST / "net_v1.onnx"
    assert path.read_bytes() == SMALL


def test_a_short_name_is_one_of_the_model_zoo(hub: Hub, cache: Path) -> None:
    hub.add("onnxmodelzoo/net-12", other_onnx=b"x", **{"net-12_onnx": SMALL})
    assert fetch(cache, "net-12") == fetch(cache, "onnxmodelzoo/net-12")
    assert fetch(cache, "net-12").name == "net-12.onnx"


def test_the_exporters_usual_name_is_taken(hub: Hub, cache: Path) -> None:
    hub.add("org/net", onnx__model_onnx=SMALL, onnx__model_fp16_onnx=b"x")
    assert fetch(cache, "org/net").read_bytes() == SMALL


def test_a_file_can_be_named(hub: Hub, cache: Path) -> None:
    hub.add("org/net", a_onnx=b"x", deep__b_onnx=SMALL)
    assert fetch(cache, "org/net/deep/b.onnx").read_bytes() == SMALL
    assert fetch(cache, "org/net@main/deep/b.onnx").read_bytes() == SMALL


def test_revisions_lie_side_by_side_and_are_named(hub: Hub, cache: Path) -> None:
    other = SMALL + b"\x32\x00"
    hub.add("org/net", FIRST, "v1", net_onnx=SMALL)
    hub.add("org/net", SECOND, "main", net_onnx=other)
    assert fetch(cache, "org/net@v1").read_bytes() == SMALL
    assert fetch(cache, "org/net").read_bytes() == other
    assert fetch(cache, f"org/net@{FIRST}").read_bytes() == SMALL


def test_a_branch_of_a_pull_request_is_spelled_with_escapes(hub: Hub, cache: Path) -> None:
    hub.add("org/net", FIRST, "refs/pr/1", net_onnx=SMALL)
    assert fetch(cache, "org/net@refs%2Fpr%2F1").read_bytes() == SMALL


def test_the_model_says_which_commit_it_is(hub: Hub, cache: Path) -> None:
    hub.add("org/net", net_onnx=SMALL)
    plugins = Plugins([]).register("model source", HuggingFaceSource())
    (model,) = resolve_model("huggingface:org/net", plugins, cache)
    assert model.source == f"huggingface:org/net@{FIRST}/net.onnx"
    hub.add("org/net", SECOND, "main", net_onnx=SMALL + b"\x32\x00")
    assert resolve_model(model.source, plugins, cache) == [model]
    (moved,) = resolve_model("huggingface:org/net", plugins, cache)
    assert moved.source == f"huggingface:org/net@{SECOND}/net.onnx"


def test_external_data_is_fetched_too_and_can_be_opened(hub: Hub, cache: Path) -> None:
    graph, weights = with_data()
    files: dict[str, Any] = {"onnx__weights.data": weights, "big.data": b"?"}
    hub.add("org/net", onnx__model_onnx=graph, **files)
    plugins = Plugins([]).register("model source", HuggingFaceSource())
    (model,) = resolve_model("huggingface:org/net", plugins, cache)
    assert numpy_helper.to_array(model.load().graph.initializer[0]).tolist() == [0, 1]
    assert not [path for path in hub.asked if path.endswith("big.data")]


def test_a_commit_in_the_cache_needs_no_network_and_no_library(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/net", net_onnx=SMALL)
    path = fetch(cache, "org/net")
    hub.asked.clear()
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert fetch(cache, f"org/net@{FIRST}") == path
    assert fetch(cache, "org/net") == path
    assert hub.asked == []


def test_a_branch_is_served_from_the_cache_while_the_hub_is_away(hub: Hub, cache: Path) -> None:
    hub.add("org/net", net_onnx=SMALL)
    path = fetch(cache, "org/net")
    hub.status["org/net"] = (503, "")
    assert fetch(cache, "org/net") == path


def test_a_damaged_file_in_the_cache_is_fetched_again(hub: Hub, cache: Path) -> None:
    hub.add("org/net", net_onnx=SMALL)
    path = fetch(cache, "org/net")
    path.write_bytes(SMALL[:-1] + b"!")
    assert fetch(cache, "org/net").read_bytes() == SMALL


def test_the_model_zoo_is_listed(hub: Hub) -> None:
    hub.add("onnxmodelzoo/resnet50-v1-7", net_onnx=SMALL)
    hub.add("onnxmodelzoo/version-RFB-320", net_onnx=SMALL)
    hub.add("onnxmodelzoo/vit_Opset17_timm", net_onnx=SMALL)
    cards = {card.name: card.extra for card in HuggingFaceSource().models()}
    assert cards == {
        "onnxmodelzoo/resnet50-v1-7": {"opset": "7"},
        "onnxmodelzoo/version-RFB-320": {},
        "onnxmodelzoo/vit_Opset17_timm": {"opset": "17"},
    }


# What goes wrong


@pytest.mark.parametrize(
    "reference", ["", "a/b/c", "a/../b", "/etc/passwd", "a/b@", "a b", "a/b#x"]
)
def test_a_malformed_reference_is_refused(cache: Path, reference: str) -> None:
    with pytest.raises(UsageError, match="is not understood; write it as ORG/REPO"):
        fetch(cache, reference)


def test_an_unknown_repository_is_told(hub: Hub, cache: Path) -> None:
    with pytest.raises(UsageError, match=r"model org/none@main: there is no such repository, or"):
        fetch(cache, "org/none")


def test_an_unknown_revision_is_told(hub: Hub, cache: Path) -> None:
    hub.add("org/net", net_onnx=SMALL)
    with pytest.raises(UsageError, match=r"model org/net@v9: there is no such revision"):
        fetch(cache, "org/net@v9")


def test_a_gated_repository_is_told(hub: Hub, cache: Path) -> None:
    hub.status["org/net"] = (403, "GatedRepo")
    with pytest.raises(UsageError, match=r"org/net@main is gated: accept its terms.*HF_TOKEN"):
        fetch(cache, "org/net")


def test_without_an_onnx_file_what_there_is_is_listed(hub: Hub, cache: Path) -> None:
    hub.add("org/net", README=b"x", weights=b"y")
    with pytest.raises(UsageError, match=r"has no ONNX file; it has README, weights;"):
        fetch(cache, "org/net")


def test_of_several_onnx_files_one_must_be_named(hub: Hub, cache: Path) -> None:
    hub.add("org/net", a_onnx=b"x", b_onnx=b"y")
    with pytest.raises(UsageError, match=r"has 2 ONNX files; name one.*: a\.onnx, b\.onnx"):
        fetch(cache, "org/net")


def test_an_unknown_file_has_its_neighbours_named(hub: Hub, cache: Path) -> None:
    hub.add("org/net", small_onnx=SMALL)
    with pytest.raises(UsageError, match=r"unknown file of .*'smal.onnx'; did you mean 'small"):
        fetch(cache, "org/net/smal.onnx")


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        (
            SMALL[:-1] + b"!",
            r"file net\.onnx has SHA-256 \w+, but the hub lists \w+; it is refused",
        ),
        (SMALL[:-1], r"file net\.onnx"),
        (SMALL + b"more", r"file net\.onnx"),
    ],
)
def test_a_wrong_file_is_refused_and_not_kept(
    hub: Hub, cache: Path, spoiled: bytes, message: str
) -> None:
    hub.add("org/net", net_onnx=SMALL)
    hub.spoiled["net.onnx"] = spoiled
    with pytest.raises(UsageError, match=f"huggingface model org/net@main: {message}"):
        fetch(cache, "org/net")
    assert not list(cache.rglob("net.onnx"))
    hub.spoiled.clear()
    assert fetch(cache, "org/net").read_bytes() == SMALL


def test_external_data_that_is_missing_is_named(hub: Hub, cache: Path) -> None:
    graph, _ = with_data("gone.data")
    hub.add("org/net", net_onnx=graph)
    with pytest.raises(
        InputError, match=r"keeps tensors in 'gone.data', which the repository does"
    ):
        fetch(cache, "org/net")


@pytest.mark.parametrize("location", ["../../../../evil.data", "/etc/passwd"])
def test_external_data_elsewhere_is_not_fetched(hub: Hub, cache: Path, location: str) -> None:
    graph, _ = with_data(location)
    hub.add("org/net", net_onnx=graph)
    with pytest.raises(InputError, match="which the repository does not have"):
        fetch(cache, "org/net")


def test_a_file_of_an_impossible_name_is_not_listed(hub: Hub, cache: Path) -> None:
    hub.add("org/net", **{"../../evil.onnx": SMALL})
    with pytest.raises(UsageError, match="has no ONNX file"):
        fetch(cache, "org/net")


def test_no_network_is_told(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        UsageError, match=r"org/net@main is not available .*not in the cache; check"
    ):
        fetch(cache, "org/net")


def test_a_missing_library_is_named_with_its_extra(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(PluginError, match=r"needs huggingface_hub; install optvet\[huggingface\]"):
        fetch(cache, "org/net")
