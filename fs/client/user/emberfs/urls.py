"""Which names are URLs of files on EmberFS, and not paths."""

import os

PROTOCOLS = ("ember", "hf3fs")


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return whether files of this name are reached by their cluster's address."""
    return os.fspath(path).startswith(tuple(f"{protocol}://" for protocol in PROTOCOLS))
