"""Addresses and paths in a manifest, which are checked before they are used."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from urllib.parse import quote, urljoin, urlsplit

from optvet.plugin import (
    UsageError,
)


def checked_address(address: str) -> str:
    """``address``, if a hub may be there.

    Raises:
        UsageError: It is no address, has a password in it, or could be tampered with on its way.
    """
    why = objection(address)
    if why:
        raise UsageError(f"hub address {address!r} {why}; give the https address of its manifest")
    return address


def objection(url: str) -> str:
    """What speaks against fetching from ``url``; empty if nothing does."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"is malformed ({error})"
    if parts.scheme not in ("http", "https") or not host:
        return "is no web address"
    if parts.username is not None or parts.password is not None:
        return "has a user name or password in it"
    if any(c <= " " or c == "\x7f" for c in url):
        return "has blanks or control characters in it"
    if parts.scheme == "http" and not is_local(url):
        return "is plain http, which is accepted from this machine only"
    return ""


def is_local(url: str) -> bool:
    """Whether a URL leads to this machine."""
    host = urlsplit(url).hostname or ""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def address_of(file: str, manifest: str) -> str:
    """Where the hub of ``manifest`` has ``file``.

    GitHub serves a repository's large files elsewhere; at the raw address is but a pointer.
    """
    parts = urlsplit(manifest)
    if parts.hostname == "raw.githubusercontent.com":
        manifest = f"https://media.githubusercontent.com/media{parts.path}"
    return urljoin(manifest.partition("?")[0], quote(file))


# ── The manifest ───────────────────────────────────────────────────────────────────────────────


def safe_path(path: str) -> str:
    """``path``, if it is a relative one that stays in the hub."""
    parts = path.split("/")
    if (
        not path
        or path.startswith("/")
        or "\\" in path
        or ":" in parts[0]
        or not path.isprintable()
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise ValueError(f"the path {path!r} leads out of the hub")
    return path


def sha_of(text: str) -> str:
    """A SHA-256 in lower case; ValueError if ``text`` is none."""
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise ValueError(f"{text!r} is no SHA-256")
    return text.lower()
