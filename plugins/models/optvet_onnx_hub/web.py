"""Downloads: a part gathers the bytes, and a later call goes on with it, until they are right."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO, TypeVar

from optvet.plugin import (
    InputError,
    file_sha256,
)
from optvet_onnx_hub.addresses import (
    is_local,
    objection,
)

_T = TypeVar("_T")
CHUNK = 1 << 20
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that may be different the next time."""


@dataclass(frozen=True)
class RetryPolicy:
    """Time limits and retries of downloads.

    Attributes:
        timeout_s: A connection without any data for this time is closed.
        attempts: Maximal number of connections for one file.
        backoff_s: Pause after the first failure; doubled after each further one.
        longest_pause_s: Limit of a pause, even if the server asks for a longer one.
        slow_s: A connection that brings less than ``slow_bytes`` in this time is closed.
    """

    timeout_s: float = 30.0
    attempts: int = 5
    backoff_s: float = 1.0
    longest_pause_s: float = 30.0
    slow_s: float = 60.0
    slow_bytes: int = 16 << 10


def kind_of(data: bytes) -> str:
    """What the bytes seem to be instead of what was expected."""
    text = data[:512].lstrip().lower()
    if not data:
        return "nothing"
    if text.startswith((b"<!doctype html", b"<html")) or b"<html" in text:
        return "an HTML page"
    if text.startswith(b"version https://git-lfs"):
        return "a git-lfs pointer"
    if text.startswith((b"{", b"[")):
        return "broken JSON or a part of it"
    return "something else"


# ── Downloading ────────────────────────────────────────────────────────────────────────────────

# Why not pooch (1.9): it downloads to a new temporary file at each attempt, so it never resumes; it
# limits no size, follows redirections anywhere, and retries by a number of attempts alone. With a
# downloader of our own, what is left of pooch is comparing a checksum and moving a file. Why not


class Failed(Exception):
    """The server does not give the file; the text says which and why.

    ``resumable`` tells that what came so far may be gone on with later.
    """

    def __init__(self, why: str, *, resumable: bool = False) -> None:
        super().__init__(why)
        self.resumable = resumable


class _Again(Exception):
    """The same may work a moment later; ``pause_s`` is what the server asks for."""

    def __init__(self, why: str, pause_s: float = 0.0) -> None:
        super().__init__(why)
        self.pause_s = pause_s


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirection to where the hub might be as well, and to nowhere else."""

    def __init__(self, is_local: bool) -> None:
        self.is_local = is_local

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """The request to follow with."""
        why = objection(newurl)
        if not why and is_local(newurl) and not self.is_local:
            why = "is on this machine, and the hub is not"
        if why:
            fp.close()
            raise Failed(f"{req.full_url} redirects to {newurl!r}, which {why}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Web:
    """Gets files from a server that may do anything."""

    def __init__(self, policy: RetryPolicy, *, is_local: bool) -> None:
        self.policy = policy
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            # A proxy cannot reach what is on this machine.
            urllib.request.ProxyHandler({} if is_local else None),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            _Redirects(is_local),
        ):
            self._opener.add_handler(handler)

    def read(self, url: str, limit: int) -> bytes:
        """All of ``url``, at most ``limit`` bytes; in memory."""

        def read() -> bytes:
            with self._open(url, 0) as response:
                length = _read_announced_bytes(url, response, 0, None, limit)
                return b"".join(self._chunks(url, response, length, limit))

        return self._with_retries(url, read)

    def save(self, url: str, part: Path, size: int | None, limit: int) -> None:
        """All of ``url`` in the file ``part``, going on where that ends."""
        self._with_retries(url, lambda: self._go_on(url, part, size, limit))

    def _with_retries(self, url: str, once: Callable[[], _T]) -> _T:
        pause = self.policy.backoff_s
        for attempt in range(1, self.policy.attempts + 1):
            try:
                return once()
            except _Again as error:
                if attempt == self.policy.attempts:
                    times = "once" if attempt == 1 else f"{attempt} times"
                    raise Failed(f"{url} {error} (tried {times})", resumable=True) from error
                time.sleep(min(max(pause, error.pause_s), self.policy.longest_pause_s))
                pause *= 2
        raise AssertionError("attempts must be positive")

    def _go_on(self, url: str, part: Path, size: int | None, limit: int) -> None:
        start = part.stat().st_size if part.exists() else 0
        if size is not None and start == size:
            return
        if start >= limit:
            part.unlink()
            start = 0
        try:
            with self._open(url, start) as response:
                start = _start(response, start)
                length = _read_announced_bytes(url, response, start, size, limit)
                with part.open("ab") as file:
                    file.truncate(start)
                    for chunk in self._chunks(url, response, length, limit - start):
                        file.write(chunk)
        except _Unsatisfiable as error:
            part.unlink(missing_ok=True)
            raise _Again("cannot continue where the kept part ends") from error
        got = part.stat().st_size
        if size is not None and got < size:
            raise _Again(f"ends after {got:,} of {size:,} bytes")

    def _open(self, url: str, start: int) -> HTTPResponse:
        headers = {"User-Agent": "optvet", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        request = urllib.request.Request(url, headers=headers)
        try:
            response: HTTPResponse = self._opener.open(request, timeout=self.policy.timeout_s)
            return response
        except urllib.error.HTTPError as error:
            with error:
                raise _answer(url, error, start) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise Failed(f"{url} cannot be trusted: {error.reason}") from error
            raise _Again(f"cannot be reached: {error.reason}") from error
        except TimeoutError as error:
            raise _Again(f"does not answer within {self.policy.timeout_s:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise _Again(f"breaks off: {error or type(error).__name__}") from error
        except ValueError as error:
            raise Failed(f"{url} gives a malformed answer: {error}") from error

    def _chunks(
        self, url: str, response: HTTPResponse, length: int | None, limit: int
    ) -> Iterator[bytes]:
        """What the server sends, as it comes: ``length`` bytes, or up to ``limit``."""
        policy = self.policy
        total, recent, until = 0, 0, time.monotonic() + policy.slow_s
        # Not until the connection ends: a server may well keep it open.
        while length is None or total < length:
            try:
                chunk = response.read1(CHUNK if length is None else min(CHUNK, length - total))
            except TimeoutError as error:
                raise _Again(f"sends nothing for {policy.timeout_s:g} s") from error
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise _Again(f"breaks off: {error or type(error).__name__}") from error
            if not chunk:
                break
            total, recent = total + len(chunk), recent + len(chunk)
            if total > limit:
                raise Failed(f"{url} sends more than {limit:,} bytes")
            yield chunk
            if time.monotonic() > until:
                if recent < policy.slow_bytes:
                    raise _Again(f"sends only {recent:,} bytes in {policy.slow_s:g} s")
                recent, until = 0, time.monotonic() + policy.slow_s
        if length is not None and total < length:
            # ``read1`` takes a connection that ends early for the end of the file.
            raise _Again(f"breaks off after {total:,} of {length:,} bytes")


class _Unsatisfiable(Exception):
    """The server has nothing from the asked-for byte on."""


def _answer(url: str, error: urllib.error.HTTPError, start: int) -> Exception:
    """What an answer other than 200 and 206 means."""
    if error.code == 416 and start:
        return _Unsatisfiable()
    words = f"answers {error.code} {http.client.responses.get(error.code, '')}".rstrip()
    if error.code in _PASSING:
        after = error.headers.get("Retry-After", "") if error.headers else ""
        return _Again(words, float(after) if re.fullmatch(r"\d{1,6}", after) else 0.0)
    if 300 <= error.code < 400:
        return Failed(f"{url} redirects in a circle, or to no web address ({error.code})")
    return Failed(f"{url} {words}")


def _start(response: HTTPResponse, first_byte: int) -> int:
    """The byte at which the answer starts; 0 from a server that does not know ranges."""
    if response.status == 206:
        content = response.headers.get("Content-Range", "")
        if re.match(rf"bytes {first_byte}-\d+/", content):
            return first_byte
        raise _Unsatisfiable
    if response.status == 200:
        return 0
    raise _Again(f"answers {response.status}, expected 200")


def _read_announced_bytes(
    url: str, response: HTTPResponse, start: int, size: int | None, limit: int
) -> int | None:
    """How many bytes are to come, if the server says so.

    Raises:
        Failed: It says so many that this cannot be what is wanted.
    """
    if response.length is None:
        return None
    total = start + response.length
    if size is None and total > limit:
        raise Failed(f"{url} announces {total:,} bytes, more than the {limit:,} allowed")
    if size is not None and total != size:
        kind = "another file"
        if not start and total < CHUNK:
            with contextlib.suppress(OSError, http.client.HTTPException):
                kind = kind_of(response.read(512))
        raise Failed(f"{url} announces {total:,} bytes ({kind}), but the manifest says {size:,}")
    return response.length


def refused(subject: str, action: Callable[[], _T]) -> _T:
    """What ``action`` returns; a failed download is an InputError about ``subject``."""
    try:
        return action()
    except Failed as error:
        raise InputError(f"{subject}: {error}; check the address and your network") from error


def bring(
    web: Web, url: str, target: Path, sha: str, size: int | None, limit: int, subject: str
) -> None:
    """``url`` as the file ``target``, once its checksum is right; else no file at all.

    A part that does not lead to the right checksum was of another file: then from its start.
    """
    part = target.with_name(f"{target.name}.part")
    resumed = part.exists()
    try:
        web.save(url, part, size, limit)
        found = file_sha256(part)
        if found != sha and resumed:
            part.unlink()
            web.save(url, part, size, limit)
            found = file_sha256(part)
    except Failed as error:
        kept = part.stat().st_size if part.exists() and error.resumable else 0
        advice = f"{kept:,} bytes are kept: run again to continue from there"
        if not kept:
            part.unlink(missing_ok=True)
            advice = "try later, or another hub"
        raise InputError(f"{subject}: {error}; {advice}") from error
    if found != sha:
        kind = kind_of(part.read_bytes()[:512]) if part.stat().st_size < CHUNK else "other bytes"
        part.unlink()
        raise InputError(
            f"{subject}: {url} has SHA-256 {found}, but the manifest says {sha}; it is refused "
            f"({kind}: a file that was changed or damaged): try later, or another hub"
        )
    os.replace(part, target)


# ── Files ──────────────────────────────────────────────────────────────────────────────────────
