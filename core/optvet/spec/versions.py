"""Versions of installed libraries, from their metadata: importing a library takes seconds."""

from importlib import metadata


def version_of(distribution: str, *, extra: str) -> str:
    """Version of an installed distribution.

    Args:
        distribution: Its name for installers, such as "apache-tvm".
        extra: The requirement that installs it, such as "optvet[tvm]".

    Raises:
        ImportError: It is not installed; the message names ``extra``.
    """
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError as error:
        raise ImportError(f"it needs {distribution}; install {extra}") from error
