"""Versions of installed libraries, from their metadata: importing a library takes seconds."""

import re
from importlib import metadata

from optvet.spec.errors import MissingLibrary

_VERSION = re.compile(r"^Version:[ \t]*(\S+)[ \t]*$", re.MULTILINE)


def version_of(distribution: str, *, extra: str) -> str:
    """Version of an installed distribution.

    Args:
        distribution: Its name for installers, such as "apache-tvm".
        extra: The requirement that installs it, such as "optvet[tvm]".

    Raises:
        MissingLibrary: It is not installed.
    """
    try:
        found = metadata.distribution(distribution)
        # Parsing the whole, with the description of the project in it, takes ten times as long.
        header = (found.read_text("METADATA") or "").partition("\n\n")[0]
        stated = _VERSION.search(header)
        return stated[1] if stated else found.version
    except metadata.PackageNotFoundError as error:
        raise MissingLibrary(distribution, extra) from error
