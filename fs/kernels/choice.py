"""Whether a compiled kernel serves, or its twin."""

import logging
import os
import struct
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Final

_log = logging.getLogger(__name__)

IS_WANTED: Final = os.environ.get("EMBER_KERNELS") != "python"
"""The environment does not ask for the twins."""

REFUSED: Final[dict[str, str]] = {}
"""Compiled modules that are there but do not serve, and why."""

_REMEDY: Final = (
    "its twin in Python serves; build it again (python setup.py build_ext --inplace) or install "
    "anew"
)
_ELF64: Final = b"\x7fELF\x02\x01"
_ELF_HEADER: Final = struct.Struct("<16x2HI3QI6H")
_SEGMENT: Final = struct.Struct("<2I6Q")
_SECTION: Final = struct.Struct("<2I4Q2I2Q")
_SEGMENT_LOADED: Final = 1
_SECTION_STRINGS: Final = 3


def serves(name: str, interface: int) -> bool:
    """Return whether a compiled module of this package is wanted, there, whole, and fits.

    One that is there and cannot serve is told in the log; that there is none is not: there
    was nothing to compile it with.

    Args:
        name: of the module, which is not imported if its file was cut off.
        interface: that its caller knows.
    """
    found = find_spec(f"{__package__}.{name}") if IS_WANTED else None
    if found is None or found.origin is None:
        return False
    try:
        if not is_whole(Path(found.origin)):
            reason = "it is cut off"
        elif fits(import_module(found.name), interface):
            return True
        else:
            reason = "it was built from another source"
    except (ImportError, OSError) as error:  # of another machine, or not to be read
        reason = str(error)
    REFUSED[name] = reason
    _log.warning("%s does not serve: %s; %s", found.origin, reason, _REMEDY)
    return False


def fits(module: ModuleType, interface: int) -> bool:
    """Return whether a compiled module is of the source that its caller was written for.

    One that was built from an older checkout, and never since, must not be called with
    arguments that it does not know.
    """
    return getattr(module, "INTERFACE", None) == interface


def is_whole(path: Path) -> bool:
    """Return whether a shared object has the end that its header speaks of; raises OSError.

    The loader maps a file that was cut off, by a full disk or a power loss, and the process dies of
    SIGBUS where it touches what is missing, which nothing can catch.  What is no such file at all
    the loader refuses by itself.
    """
    data = path.read_bytes()
    if not data.startswith(_ELF64) or len(data) < _ELF_HEADER.size:
        return True
    header = _ELF_HEADER.unpack_from(data)
    segments, sections, segment_count = header[4], header[5], header[9]
    section_count, names_index = header[11], header[12]
    if max(segments + segment_count * _SEGMENT.size, sections) > len(data):
        return False
    for number in range(segment_count):
        kind, _, offset, _, _, byte_count, *_ = _SEGMENT.unpack_from(
            data, segments + number * _SEGMENT.size
        )
        if kind == _SEGMENT_LOADED and offset + byte_count > len(data):
            return False
    if not section_count:
        return True
    # Linkers put the table of sections last, and the names in its last entry: zeros there are a
    # file that was not written to its end.
    if names_index >= section_count or sections + section_count * _SECTION.size > len(data):
        return False
    names = _SECTION.unpack_from(data, sections + names_index * _SECTION.size)
    kind = names[1]
    return bool(kind == _SECTION_STRINGS)
