"""The release this code belongs to."""

from importlib.metadata import PackageNotFoundError, version


def _release() -> str:
    try:
        return version("emberfs")
    except PackageNotFoundError:
        return "unpackaged"


RELEASE = _release()
