"""Archives of a hub: unpacked within limits, nothing outside of their folder."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath

from optvet.plugin import (
    InfrastructureError,
    InputError,
)
from optvet_onnx_hub.web import CHUNK

ARCHIVE_LIMIT = 8 << 30
"""Bytes of an archive, packed or unpacked."""
MEMBER_LIMIT = 10_000


class _Bounded(gzip.GzipFile):
    """Unpacks as much as an honest archive needs; a header may claim to be gigabytes long."""

    def read(self, size: int | None = -1) -> bytes:
        """The next ``size`` bytes."""
        if size is None or not 0 <= size <= CHUNK or self.tell() > ARCHIVE_LIMIT:
            raise tarfile.ReadError("it unpacks to more than is allowed")
        return super().read(size)


def unpack(archive: Path, place: Path, subject: str) -> None:
    """The files of ``archive`` in the new folder ``place``; all of them or none.

    Raises:
        InputError: It is damaged, or has anything but files and folders that stay in ``place``.
        InfrastructureError: There is no room.
    """
    folder = Path(tempfile.mkdtemp(dir=place.parent, prefix=".unpacking."))
    try:
        with (
            archive.open("rb") as raw,
            _Bounded(fileobj=raw, mode="rb") as plain,
            tarfile.open(fileobj=plain, mode="r:") as tar,
        ):
            # Python 3.11.3 and older know no filters; what they would change is refused below.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            total = 0
            for number, member in enumerate(tar, 1):
                total += member.size
                why = _objection_to(member, number, total)
                if why:
                    raise InputError(
                        f"{subject}: its archive is refused, since member {member.name!r} {why}; "
                        "leave out +data, and tell the hub's owner"
                    )
                tar.extract(member, folder)
            # What follows has no files, but the checksum of all at its end.
            while plain.read(CHUNK):
                pass
        os.replace(folder, place)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(
            f"{subject}: its archive cannot be unpacked ({error}); leave out +data"
        ) from error
    except OSError as error:
        raise InfrastructureError(
            f"{subject}: cannot unpack to {place}: {error.strerror or error}; make room, or "
            "choose another cache folder"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _objection_to(member: tarfile.TarInfo, number: int, total: int) -> str:
    """What speaks against unpacking ``member``, the ``number``-th; empty if nothing does."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or "\0" in member.name:
        return "leads out of its folder"
    if not (member.isreg() or member.isdir()):
        return "is a link or a device, expected files and folders only"
    if total > ARCHIVE_LIMIT:
        return f"makes it more than {ARCHIVE_LIMIT:,} bytes"
    if number > MEMBER_LIMIT:
        return f"is one of more than {MEMBER_LIMIT:,}"
    return ""
