"""Which names are URLs of files on EmberFS, and not paths."""

import os

PROTOCOLS = ("ember", "hf3fs")


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return whether files of this name are reached by their cluster's address.

    Raises:
        TypeError: bytes.
    """
    name = os.fspath(path)
    if isinstance(name, bytes):
        raise TypeError(f"{name!r} is bytes: os.fsdecode(...) makes a path of it")
    return name.startswith(tuple(f"{protocol}://" for protocol in PROTOCOLS))
