"""The twin of writes.c: the same in Python.

It says what the functions promise.  Both hash and wait without the interpreter's lock.
"""

import ctypes
import os
from typing import Final

from xxhash import xxh3_64_digest

Buffer = bytes | bytearray | memoryview

Row = tuple[int, int, Buffer]
"""Bytes and where they go: a descriptor, the offset in its file."""

_ROWS_MAX: Final = 1024
_BLOCK_BYTES_MAX: Final = 1 << 30
_OFFSET_MAX: Final = 2**63 - 1
_FD_MAX: Final = 2**31 - 1


def block_checksums(data: Buffer, block: int, /) -> bytes:
    """Return the xxh3-64 of each `block` bytes (the last may be fewer), one after the other,
    the highest byte of each first.

    Raises:
        ValueError: `block` is below 1 or above 1 GiB.
    """
    _check_block(block)
    view = memoryview(data)
    return b"".join([xxh3_64_digest(view[at : at + block]) for at in range(0, len(view), block)])


def write_rows(block: int, unit: int, rows: list[Row], /) -> list[tuple[int, bytes]]:
    """Write the first bytes of each row, as far as they are made of units;
    rows that follow each other in a file go by one call.

    Nothing is written of a row whose offset or memory does not begin with a unit, or
    whose memory is read-only.  For the others `pwritev` is called once, and again only
    where a signal came in between.

    Args:
        block: as `block_checksums`.
        unit: what the file wants offsets, lengths and places in memory to
            be multiples of; 1 to 1 GiB.
        rows: 1,024 at most.  No two may lie in the same place.

    Returns:
        Of each row how many of its bytes have been written, or, negative, the errno of the call
        that was to write them; and the checksums of all its bytes.

    Raises:
        ValueError: sizes, offsets or a count that cannot be; nothing has been written then.
        OverflowError: the same, of a descriptor beyond 31 bits; when
            compiled, of any number beyond 63.
    """
    _check_block(block)
    _check_block(unit)
    if len(rows) > _ROWS_MAX:
        raise ValueError("too many rows")
    parts: list[memoryview] = []
    for fd, offset, data in rows:
        if not -_FD_MAX - 1 <= fd <= _FD_MAX:
            raise OverflowError(f"{fd} is no descriptor")
        if not 0 <= offset <= _OFFSET_MAX - len(data):
            raise ValueError("an offset that no file has")
        view = memoryview(data)
        is_askew = view.readonly or offset % unit or not view or _address_of(view) % unit
        parts.append(view[: 0 if is_askew else len(view) - len(view) % unit])
    checksums = [block_checksums(data, block) for _, _, data in rows]
    written: list[int] = []
    while len(written) < len(rows):
        first = len(written)
        end = first + 1
        while end < len(rows) and parts[end] and _follows(rows, parts, end):
            end += 1
        written += _write_run(rows[first], parts[first:end])
    return list(zip(written, checksums, strict=True))


def _check_block(block: int) -> None:
    if not 1 <= block <= _BLOCK_BYTES_MAX:
        raise ValueError("no size of a block")


def _address_of(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def _follows(rows: list[Row], parts: list[memoryview], number: int) -> bool:
    """Return whether a row begins where the one before it ends."""
    fd, offset, data = rows[number - 1]
    size = len(parts[number - 1])
    return 0 < size == len(data) and rows[number][:2] == (fd, offset + size)


def _write_run(first: Row, parts: list[memoryview]) -> list[int]:
    """Write parts that follow each other; return how much of each is there,
    or why none of it is.
    """
    if not parts[0]:
        return [0]
    try:
        done = os.pwritev(first[0], parts, first[1])
    except OSError as error:
        return [-(error.errno or 0)] * len(parts)
    found = []
    for part in parts:
        found.append(min(done, len(part)))
        done -= found[-1]
    return found
