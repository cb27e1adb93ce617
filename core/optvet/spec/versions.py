"""What is installed, by its metadata: every command asks, and importing a library takes seconds."""

from importlib import metadata


def version_of(distribution: str, *, extra: str) -> str:
    """Version of an installed distribution.

    Args:
        distribution: As installers call it, such as "apache-tvm".
        extra: What brings it, such as "optvet[tvm]".

    Raises:
        ImportError: It is not installed; the message names ``extra``.
    """
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError as error:
        raise ImportError(f"it needs {distribution}; install {extra}") from error
