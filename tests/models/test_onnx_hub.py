"""The hub client, against a server that misbehaves in every way; nothing beyond this machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import socket
import struct
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

import optvet_onnx_hub
import optvet_onnx_hub.archive as archive_module
from optvet import InfrastructureError, InputError, UsageError
from optvet.engine.discovery import Plugins
from optvet.engine.models.sources import resolve_model
from optvet.plugin import ModelSource
from optvet_onnx_hub import HubSource
from optvet_onnx_hub.addresses import address_of
from optvet_onnx_hub.web import RetryPolicy

TEXT = '<ir_version: 8, opset_import: ["" : 12]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
SMALL = onnx.parser.parse_model(TEXT).SerializeToString()
BIG = SMALL + b"\x32\x80\x80\x20" + bytes(1 << 19)
"""Half a megabyte that no test parses."""
QUICK = RetryPolicy(timeout_s=0.5, attempts=3, backoff_s=0.001, longest_pause_s=0.01)

Answer = Callable[[BaseHTTPRequestHandler, bytes], None]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Hub:
    """A server on this machine: ``files`` by path, and ``answers`` that replace the good one."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.answers: dict[str, list[Answer]] = {}
        self.asked: list[tuple[str, str | None]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.asked.append((self.path, self.headers.get("Range")))
                answers = hub.answers.get(self.path, [])
                answer = answers.pop(0) if answers else well
                with suppress(OSError):
                    answer(self, hub.files.get(self.path, b""))

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/hub/ONNX_HUB_MANIFEST.json"

    def add(
        self, model: str = "Net", opset: int = 12, data: bytes = SMALL, **changes: Any
    ) -> dict[str, Any]:
        path = f"vision/{model.lower()}/model/{model.lower()}-{opset}.onnx"
        meta = {"model_sha": sha(data), "model_bytes": len(data), "tags": ["vision", "tiny"]}
        entry = {
            "model": model,
            "model_path": path,
            "onnx_version": "1.9",
            "opset_version": opset,
            "metadata": meta,
        }
        for key, value in changes.items():
            target = meta if key in ("tags",) or key.startswith("model_with") else entry
            target = meta if key in ("model_sha", "model_bytes") else target
            target[key] = value
        self.files[f"/hub/{path}"] = data
        manifest = json.loads(self.files.get("/hub/ONNX_HUB_MANIFEST.json", b"[]"))
        self.manifest([*manifest, entry])
        return entry

    def manifest(self, value: object) -> None:
        self.files["/hub/ONNX_HUB_MANIFEST.json"] = json.dumps(value).encode()

    def answer(self, path: str, *answers: Answer) -> None:
        self.answers[path] = list(answers)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


MANIFEST = "/hub/ONNX_HUB_MANIFEST.json"
NET = "/hub/vision/net/model/net-12.onnx"


def send(
    handler: BaseHTTPRequestHandler,
    code: int,
    data: bytes,
    length: int | None = None,
    **headers: str,
) -> None:
    handler.send_response(code)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(data) if length is None else length))
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.wfile.write(data)
    handler.close_connection = True


def well(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    if not data:
        return send(handler, 404, b"nothing here")
    wanted = handler.headers.get("Range")
    if wanted:
        start = int(wanted.removeprefix("bytes=").partition("-")[0])
        if start >= len(data):
            return send(handler, 416, b"")
        rest = f"bytes {start}-{len(data) - 1}/{len(data)}"
        return send(handler, 206, data[start:], Content_Range=rest)
    return send(handler, 200, data)


def code(number: int, **headers: Any) -> Answer:
    return lambda handler, data: send(handler, number, b"no", **headers)


def instead(data: bytes) -> Answer:
    return lambda handler, _: send(handler, 200, data)


def half(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    send(handler, 200, data[: len(data) // 2], len(data))


def reset(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    """Half of it, then a reset of the connection."""
    half(handler, data)
    handler.wfile.flush()
    time.sleep(0.05)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def silence(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    time.sleep(0.8)


def silence_amid(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    half(handler, data)
    handler.wfile.flush()
    time.sleep(0.8)


def no_length(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    handler.send_response(200)
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.wfile.write(data)
    handler.close_connection = True


def no_range(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    send(handler, 200, data)


def wrong_range(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    send(handler, 206, data, Content_Range=f"bytes 0-{len(data) - 1}/{len(data)}")


def nonsense(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    handler.wfile.write(b"220 mail.example ESMTP\r\n\r\n")
    handler.close_connection = True


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def source(hub: Hub, **changes: Any) -> HubSource:
    return HubSource(hub.address, RetryPolicy(**{**vars(QUICK), **changes}))


def fetch(hub: Hub, cache: Path, reference: str = "Net", **changes: Any) -> Path:
    (path,) = source(hub, **changes).fetch(reference, cache)
    return path


def left(cache: Path) -> list[str]:
    """What lies in the cache, except the manifest."""
    files = (f for f in cache.rglob("*") if f.is_file() and f.parent.name != "manifests")
    return sorted(f.name for f in files)


# What works


def test_the_source_keeps_the_protocol() -> None:
    (found,) = optvet_onnx_hub.optvet_model_sources()
    assert isinstance(found, ModelSource)
    assert found.name == "onnx_hub"
    assert pickle.loads(pickle.dumps(found)).name == "onnx_hub"


def test_a_model_is_downloaded_checked_and_kept(hub: Hub, cache: Path) -> None:
    hub.add()
    path = fetch(hub, cache)
    assert path.read_bytes() == SMALL
    assert path == cache / "onnx_hub" / sha(SMALL) / "net-12.onnx"
    assert left(cache) == ["net-12.onnx"]


def test_what_is_kept_needs_no_network(hub: Hub, cache: Path) -> None:
    hub.add()
    first = fetch(hub, cache)
    hub.asked.clear()
    assert fetch(hub, cache) == fetch(hub, cache, "net@12") == first
    assert hub.asked == []


def test_a_kept_file_that_was_damaged_is_fetched_again(hub: Hub, cache: Path) -> None:
    hub.add()
    path = fetch(hub, cache)
    path.write_bytes(SMALL[:-1])
    assert fetch(hub, cache).read_bytes() == SMALL


@pytest.mark.parametrize("name", ["Net", "net", "NET", "net-12", "Net@12", "net-12@12"])
def test_names_are_the_manifests_or_the_files(hub: Hub, cache: Path, name: str) -> None:
    hub.add()
    assert fetch(hub, cache, name).name == "net-12.onnx"


def test_blanks_and_hyphens_are_one(hub: Hub, cache: Path) -> None:
    hub.add("Emotion FERPlus", model_path="body/emotion.onnx")
    hub.files["/hub/body/emotion.onnx"] = SMALL
    assert fetch(hub, cache, "emotion-ferplus").name == "emotion.onnx"


def test_without_an_opset_the_highest_is_taken(hub: Hub, cache: Path) -> None:
    for opset in (7, 12, 9):
        hub.add(opset=opset, data=SMALL + b"\x32\x00" * opset)
    assert fetch(hub, cache).name == "net-12.onnx"
    assert fetch(hub, cache, "Net@9").name == "net-9.onnx"
    assert fetch(hub, cache, "net-7").name == "net-7.onnx"


def test_another_hub_is_named_in_the_reference(hub: Hub, cache: Path) -> None:
    hub.add()
    (path,) = HubSource("http://127.0.0.1:9/none.json", QUICK).fetch(f"{hub.address}#Net", cache)
    assert path.read_bytes() == SMALL


def test_another_hub_is_named_in_the_environment(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add()
    monkeypatch.setenv("OPTVET_ONNX_HUB", hub.address)
    assert [card.name for card in HubSource(policy=QUICK).models()] == ["Net@12"]


def test_cards_tell_opset_tags_size_and_checksum(hub: Hub) -> None:
    hub.add()
    (card,) = source(hub).models()
    assert (card.name, card.size_bytes, card.tags) == ("Net@12", len(SMALL), ("vision", "tiny"))
    assert card.extra["opset"] == "12"
    assert card.extra["sha256"] == sha(SMALL)
    assert card.description == "net-12"


def test_a_proxy_is_not_asked_for_this_machine(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add()
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert fetch(hub, cache).read_bytes() == SMALL


def test_the_pin_is_a_reference_to_the_same_file(hub: Hub, cache: Path) -> None:
    hub.add()
    pin = source(hub).pinned("net", cache)
    assert pin == f"onnx_hub:{hub.address}#Net@12@sha256:{sha(SMALL)[:12]}"
    assert fetch(hub, cache, pin.removeprefix("onnx_hub:")).read_bytes() == SMALL


def test_the_model_says_which_file_it_is(hub: Hub, cache: Path) -> None:
    hub.add()
    plugins = Plugins([]).register("model source", source(hub))
    (model,) = resolve_model("onnx_hub:net", plugins, cache)
    assert model.source.endswith(f"#Net@12@sha256:{sha(SMALL)[:12]}")
    assert resolve_model(model.source, plugins, cache) == [model]


def test_a_pinned_file_that_the_hub_replaced_is_refused(hub: Hub, cache: Path) -> None:
    hub.add()
    with pytest.raises(InputError, match=r"'Net': the hub has another file now.*leave out @sha256"):
        fetch(hub, cache, "Net@12@sha256:0123456789ab")


def test_large_files_of_github_are_asked_for_where_they_are() -> None:
    assert address_of("a/b c.onnx", optvet_onnx_hub.ADDRESS) == (
        "https://media.githubusercontent.com/media/onnx/models/main/a/b%20c.onnx"
    )


# What was asked for is wrong


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("Nte", r"unknown onnx_hub model 'Nte'; did you mean 'Net'"),
        ("Net@7", r"'Net' has no opset 7; it has 12"),
        ("", "reference '' is not understood; write it as NAME"),
        ("Net@twelve", "is not understood"),
        ("Net@", "is not understood"),
        ("https://x.example/M.json", "names no model; write it as ADDRESS#NAME"),
        ("http://x.example/M.json#Net", "plain http, which is accepted from this machine only"),
        ("ftp://x.example/M.json#Net", "is no web address"),
        ("file:///etc/passwd#Net", "is no web address"),
        ("https://user:word@x.example/M.json#Net", "has a user name or password in it"),
        ("https://x.example:port/M.json#Net", "is malformed"),
        ("https://x.example/a b#Net", "blanks or control characters"),
        ("Net+data", r"Net@12: the hub has no archive with test data.*leave out \+data"),
    ],
)
def test_a_wrong_reference_is_refused(hub: Hub, cache: Path, reference: str, message: str) -> None:
    hub.add()
    with pytest.raises(UsageError, match=message):
        fetch(hub, cache, reference)
    assert left(cache) == []


def test_two_files_of_one_name_and_opset_must_be_told_apart(hub: Hub, cache: Path) -> None:
    hub.add()
    other = SMALL + b"\x32\x00"
    hub.add(data=other, model_path="vision/net/model/net-qdq-12.onnx")
    hub.files["/hub/vision/net/model/net-qdq-12.onnx"] = other
    hub.files[NET] = SMALL
    with pytest.raises(UsageError, match=r"is 2 files of opset 12; .*net-12, net-qdq-12"):
        fetch(hub, cache)
    assert fetch(hub, cache, "net-qdq-12").read_bytes() == other


# The manifest is wrong


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<!DOCTYPE html><html>sign in</html>", "sends an HTML page for its manifest"),
        (b'[{"model": "Net"', "sends broken JSON or a part of it"),
        (b'{"models": []}', "sends a JSON dict for its manifest, expected a list"),
        (b"[" * 100_000, "broken JSON"),
        (b"\x00\xff", "sends something else"),
    ],
)
def test_a_manifest_that_is_none_is_refused(
    hub: Hub, cache: Path, data: bytes, message: str
) -> None:
    hub.files[MANIFEST] = data
    with pytest.raises(InputError, match=message):
        fetch(hub, cache)
    with pytest.raises(InputError, match=message):
        list(source(hub).models())
    assert list(cache.rglob("*")) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_path": "/etc/passwd"}, "model_path: .*leads out of the hub"),
        ({"model_path": "../../x.onnx"}, "model_path: .*leads out of the hub"),
        ({"model_path": "a\\b.onnx"}, "model_path: .*leads out of the hub"),
        ({"model_path": "https://x.example/x.onnx"}, "model_path: .*leads out of the hub"),
        ({"model_path": "a/\n.onnx"}, "model_path: .*leads out of the hub"),
        ({"model_path": ""}, "model_path: .*leads out of the hub"),
        ({"model_sha": "12ab"}, "metadata.model_sha: .*'12ab' is no SHA-256"),
        ({"model_sha": None}, "metadata.model_sha"),
        ({"model_bytes": -5}, "metadata.model_bytes"),
        ({"opset_version": "newest"}, "opset_version"),
        ({"model_with_data_path": "../../a.tar.gz"}, "model_with_data_path"),
    ],
)
def test_an_entry_that_cannot_be_is_refused_by_name_and_spares_the_others(
    hub: Hub, cache: Path, change: dict[str, Any], message: str
) -> None:
    hub.add("Bad", **change)
    hub.add()
    with pytest.raises(InputError, match=f"'bad' is refused: in the manifest of .*{message}"):
        fetch(hub, cache, "bad")
    assert fetch(hub, cache).read_bytes() == SMALL
    descriptions = {card.name: card.description for card in source(hub).models()}
    assert descriptions["Bad"].startswith("unusable: ")


def test_a_manifest_without_end_is_refused(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add()
    monkeypatch.setattr(optvet_onnx_hub, "MANIFEST_LIMIT", 64)
    with pytest.raises(InputError, match=r"announces .* more than the 64 allowed"):
        fetch(hub, cache)
    hub.answer(MANIFEST, no_length)
    with pytest.raises(InputError, match="sends more than 64 bytes"):
        fetch(hub, cache)


# The server is wrong


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (code(404), r"answers 404 Not Found; try later"),
        (code(401), "answers 401 Unauthorized"),
        (code(500), r"answers 500 Internal Server Error \(tried 3 times\)"),
        (code(503), r"answers 503 Service Unavailable \(tried 3 times\)"),
        (code(429, Retry_After="9999"), r"answers 429 Too Many Requests \(tried 3 times\)"),
        (code(302, Location=NET), "redirects in a circle, or to no web address"),
        (code(302, Location="http://x.example/x"), "redirects to .*plain http"),
        (code(302, Location="ftp://127.0.0.1/x"), "redirects to .*no web address"),
        (code(302, Location="file:///etc/passwd"), "to no web address"),
        (code(302), "redirects in a circle, or to no web address"),
        (code(204), r"answers 204, expected 200 \(tried 3 times\)"),
        (instead(b"<html>sign in</html>"), r"announces 20 bytes \(an HTML page\), but the .* says"),
        (instead(b"version https://git-lfs.github.com/spec/v1"), "a git-lfs pointer"),
        (instead(SMALL[:-1] + b"!"), r"has SHA-256 \w+, but the manifest says \w+; it is refused"),
        (lambda h, d: send(h, 200, d, 1 << 60), "announces .*another file.*manifest says"),
        (silence, r"does not answer within 0.5 s|breaks off"),
        (nonsense, "breaks off"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_server_that_does_not_give_the_file_is_told_of(
    hub: Hub, cache: Path, answer: Answer, message: str
) -> None:
    hub.add()
    hub.answer(NET, *[answer] * 12)
    with pytest.raises(InputError, match=f"onnx_hub model Net@12: http://127.*{message}"):
        fetch(hub, cache)
    assert left(cache) == []
    assert not (cache / "onnx_hub" / sha(SMALL)).exists()


@pytest.mark.parametrize("answer", [half, reset, silence_amid], ids=lambda a: a.__name__)
def test_half_a_file_is_gone_on_with_at_once(hub: Hub, cache: Path, answer: Answer) -> None:
    hub.add(data=BIG)
    hub.answer(NET, answer)
    assert fetch(hub, cache).read_bytes() == BIG
    ranges = [range_ for path, range_ in hub.asked if path == NET]
    assert ranges[0] is None
    assert ranges[1] is not None
    assert left(cache) == ["net-12.onnx"]


def test_half_a_file_is_kept_as_a_part_and_gone_on_with_later(hub: Hub, cache: Path) -> None:
    hub.add(data=BIG)
    hub.answer(NET, half, *[code(503)] * 9)
    with pytest.raises(InputError, match=r"Net@12: .*bytes are kept: run again to continue"):
        fetch(hub, cache)
    assert left(cache) == ["net-12.onnx.part"]
    hub.answers.clear()
    hub.asked.clear()
    assert fetch(hub, cache).read_bytes() == BIG
    assert [r for p, r in hub.asked if p == NET] == [f"bytes={len(BIG) // 2}-"]
    assert left(cache) == ["net-12.onnx"]


@pytest.mark.parametrize("answer", [no_range, wrong_range, code(416)], ids=lambda a: a.__name__)
def test_a_server_that_cannot_go_on_sends_it_from_the_start(
    hub: Hub, cache: Path, answer: Answer
) -> None:
    hub.add(data=BIG)
    hub.answer(NET, half, answer)
    assert fetch(hub, cache).read_bytes() == BIG


def test_a_part_of_another_file_is_thrown_away(hub: Hub, cache: Path) -> None:
    hub.add(data=BIG)
    part = cache / "onnx_hub" / sha(BIG) / "net-12.onnx.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"something else")
    assert fetch(hub, cache).read_bytes() == BIG
    part.write_bytes(BIG + b"longer")
    part.with_suffix("").unlink()
    assert fetch(hub, cache).read_bytes() == BIG


@pytest.mark.parametrize("size", [None, len(SMALL)])
def test_a_file_without_an_announced_length_is_taken(
    hub: Hub, cache: Path, size: int | None
) -> None:
    hub.add(model_bytes=size)
    hub.answer(NET, no_length)
    assert fetch(hub, cache).read_bytes() == SMALL


def test_more_than_the_manifest_says_is_refused(hub: Hub, cache: Path) -> None:
    hub.add(model_bytes=len(SMALL) - 3)
    hub.answer(NET, no_length)
    with pytest.raises(InputError, match=r"sends more than \d+ bytes; try later"):
        fetch(hub, cache)
    assert left(cache) == []


def test_a_file_of_unknown_size_is_limited(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(model_bytes=None)
    monkeypatch.setattr(optvet_onnx_hub, "MODEL_LIMIT", 10)
    with pytest.raises(InputError, match=r"announces .* more than the 10 allowed"):
        fetch(hub, cache)
    assert left(cache) == []


def test_a_file_that_trickles_is_given_up(hub: Hub, cache: Path) -> None:
    def trickle(handler: BaseHTTPRequestHandler, data: bytes) -> None:
        send(handler, 200, b"", len(data))
        for byte in data:
            handler.wfile.write(bytes([byte]))
            time.sleep(0.01)

    hub.add()
    hub.answer(NET, *[trickle] * 9)
    with pytest.raises(InputError, match=r"sends only \d+ bytes in 0.05 s"):
        fetch(hub, cache, slow_s=0.05, attempts=1)


def test_no_network_is_said_with_what_to_do(cache: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/M.json"
        with pytest.raises(InputError, match=r"'Net': .*cannot be reached: .*OPTVET_ONNX_HUB"):
            HubSource(address, QUICK).fetch("Net", cache)
        with pytest.raises(InputError, match=r"hub .*cannot be reached.*check the address"):
            list(HubSource(address, QUICK).models())


def test_a_hub_that_is_gone_leaves_the_kept_manifest(hub: Hub, cache: Path) -> None:
    hub.add()
    hub.add("Other", data=SMALL + b"\x32\x00")
    fetch(hub, cache)
    hub.answer(MANIFEST, *[code(503)] * 9)
    assert fetch(hub, cache, "other").name == "other-12.onnx"


def test_a_full_disk_is_no_fault_of_the_hub(hub: Hub, cache: Path) -> None:
    hub.add()
    fetch(hub, cache)
    blocked = cache / "onnx_hub" / sha(BIG)
    hub.add("Other", data=BIG)
    blocked.write_text("a file where a folder should be")
    with pytest.raises(InfrastructureError, match=r"Other@12: cannot write to .*choose another"):
        fetch(hub, cache, "other")


def test_two_at_once_bring_it_once(hub: Hub, cache: Path) -> None:
    hub.add(data=BIG)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(hub, cache))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [p.read_bytes() == BIG for p in found] == [True] * 4
    assert [p for p, _ in hub.asked].count(NET) == 1


# Archives


def archive(*members: tuple[str, bytes | tarfile.TarInfo]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members:
            if isinstance(content, bytes):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                content.name = name
                tar.addfile(content)
    return buffer.getvalue()


def special(kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, target
    return info


def with_archive(hub: Hub, packed: bytes) -> None:
    path = "vision/net/model/net-12.tar.gz"
    hub.add(
        model_with_data_path=path,
        model_with_data_sha=sha(packed),
        model_with_data_bytes=len(packed),
    )
    hub.files[f"/hub/{path}"] = packed


GOOD = (("net/model.onnx", SMALL), ("net/test_data_set_0/input_0.pb", b"\x08\x02"))


def test_an_archive_is_unpacked_beside_its_test_data(hub: Hub, cache: Path) -> None:
    with_archive(hub, archive(*GOOD))
    path = fetch(hub, cache, "Net+data")
    assert path.read_bytes() == SMALL
    assert (path.parent / "test_data_set_0" / "input_0.pb").read_bytes() == b"\x08\x02"
    assert left(cache) == ["input_0.pb", "model.onnx"]
    hub.asked.clear()
    assert fetch(hub, cache, "net+data") == path
    assert hub.asked == []
    assert source(hub).pinned("net+data", cache).endswith("+data")


def bomb() -> bytes:
    info = tarfile.TarInfo("net/model.onnx")
    info.size = 1 << 50
    return gzip.compress(info.tobuf() + bytes(10_000))


def long_name() -> bytes:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 32
    return gzip.compress(info.tobuf() + bytes(10_000))


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (archive(("../evil.onnx", SMALL)), r"member '../evil.onnx' leads out of its folder"),
        (archive(("net/../../evil", b"x")), "leads out of its folder"),
        (archive(("/evil.onnx", SMALL)), "member '/evil.onnx' leads out of its folder"),
        (archive(("link", special(tarfile.SYMTYPE, "/etc"))), "member 'link' is a link"),
        (archive(("link", special(tarfile.LNKTYPE, "../x"))), "member 'link' is a link"),
        (archive(("null", special(tarfile.CHRTYPE))), "member 'null' is a link or a device"),
        (archive(("pipe", special(tarfile.FIFOTYPE))), "member 'pipe' is a link or a device"),
        (archive(("readme", b"x")), r"has 0 .onnx files \(none\)"),
        (archive(("a.onnx", b"x"), ("b.onnx", b"x")), r"2 .onnx files \(a.onnx, b.onnx\)"),
        (archive(*GOOD)[:-20], "cannot be unpacked"),
        (b"no archive at all", "cannot be unpacked"),
        (gzip.compress(b"no archive at all"), "cannot be unpacked"),
        (bomb(), "makes it more than"),
        (long_name(), "cannot be unpacked .*more than is allowed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_archive_is_refused_and_leaves_nothing_outside(
    hub: Hub, cache: Path, packed: bytes, message: str
) -> None:
    with_archive(hub, packed)
    with pytest.raises(InputError, match=f"onnx_hub model Net@12: .*{message}"):
        fetch(hub, cache, "Net+data")
    assert [f for f in left(cache) if f not in ("readme", "a.onnx", "b.onnx")] == []
    assert {p.name for p in cache.parent.iterdir()} == {"cache"}
    assert not list(cache.rglob(".unpacking*"))


def test_an_archive_of_too_many_files_is_refused(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "MEMBER_LIMIT", 3)
    with_archive(hub, archive(*((f"f{n}", b"") for n in range(5))))
    with pytest.raises(InputError, match="member 'f3' is one of more than 3"):
        fetch(hub, cache, "Net+data")


def test_a_damaged_archive_is_refused_by_its_checksum(hub: Hub, cache: Path) -> None:
    packed = archive(*GOOD)
    with_archive(hub, packed)
    hub.files["/hub/vision/net/model/net-12.tar.gz"] = packed[:-1] + b"?"
    with pytest.raises(InputError, match=r"Net@12: .*but the manifest says .*it is refused"):
        fetch(hub, cache, "Net+data")
    assert left(cache) == []
