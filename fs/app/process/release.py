"""The release this code belongs to."""

import sys
from pathlib import Path
from typing import Final

PREFIX: Final = "emberfs-"
SUFFIX: Final = ".dist-info"


def _release() -> str:
    """Return the release of the first folder of the import path that tells one, or "unpackaged".

    An installer names it in the name of a folder.  Only where there is none, `importlib.metadata`
    is asked: loading that takes longer than most of what a process loads.
    """
    for place in sys.path:
        for folder in Path(place).glob(f"{PREFIX}*{SUFFIX}"):
            return folder.name.removeprefix(PREFIX).removesuffix(SUFFIX)
    return _told_by_metadata()


def _told_by_metadata() -> str:
    """Return what other forms of packages say."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("emberfs")
    except PackageNotFoundError:
        return "unpackaged"


RELEASE = _release()
