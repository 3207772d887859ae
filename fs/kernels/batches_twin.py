"""The twin of batches.c: the same in Python.  It says what the functions promise.

What is packed is little-endian: `ENTRY`, a row of a ring, names its file, its memory
and what is asked by a key of 16 bytes, of which the second four are the memory's id;
rows of one kind have the same key.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from xxhash import xxh3_64_intdigest

ENTRY: Final = struct.Struct("<QQQQ16s16x")
"""User data, offset in the file, offset in the memory, length, key."""
FILE_END: Final = struct.Struct("<16sQ")
"""Key, bytes in the file."""
FILE_LAYOUT: Final = struct.Struct("<16sQQII")
"""Key, inode, bytes of a chunk, stripe slots, the first of them."""
SLOT: Final = struct.Struct("<I")
"""Which chain, by its place among all."""
REPLICAS_MAX: Final = 7
CHAIN_NODES: Final = struct.Struct(f"<QQI{REPLICAS_MAX}I")
"""Chain, its version, how many nodes may be asked, and which, by numbers that begin at 0."""
ROW: Final = struct.Struct("<QII")
"""Of a request, a piece of one chunk: offset in the memory, length, position of its entry,
or of the first of several that it joins.
"""
COMPLETION: Final = struct.Struct("<QQ")
COLUMN_COUNT: Final = 6
_PIECE_COUNT_MAX: Final = 1 << 16
_NODE_COUNT_MAX: Final = 1 << 20
_UINT32_MAX: Final = 2**32 - 1
_UINT64_MAX: Final = 2**64 - 1
_SEVEN_BITS: Final = 0x7F
_MORE: Final = 0x80
"""Of a byte of a number in protobuf: others follow."""

_REPLY_COLUMN_COUNT: Final = 3
_SUM: Final = struct.Struct("<Q")

Buffer = bytes | bytearray | memoryview
Request = tuple[int, bytes, bytes, int]
"""The number of a node, the columns of the message, `ROW` by `ROW` what is asked for,
and how many bytes that is.
"""


def kinds_of(  # noqa: PLR0917 - a compiled function has no keywords
    entries: bytes,
    memory_id: int,
    size: int,
    block_size: int,
    length_max: int,
    end_max: int,
    kinds_max: int,
    /,
) -> list[bytes] | None:
    """Return the different keys of entries, in their order; None: not all are plain.

    They are plain when each has at least one byte, lies within the memory, and there are few kinds.

    Args:
        entries: `ENTRY` by `ENTRY`.
        memory_id: that all of them must name.
        size: of the memory.
        block_size: no entry may cross a multiple of it; 0: any may.
        length_max: bytes of one entry.
        end_max: where the longest file ends.
        kinds_max: how many kinds are few.

    Raises:
        ValueError: no whole number of entries.
    """
    of_memory = memory_id.to_bytes(4, "little")
    kinds: dict[bytes, None] = {}
    for _, offset, place, length, key in _records(ENTRY, entries):
        is_good = (
            0 < length <= length_max
            and offset + length <= end_max
            and place + length <= size
            and (not block_size or place % block_size + length <= block_size)
        )
        if not is_good or key[4:8] != of_memory:
            return None
        kinds[key] = None
        if len(kinds) > kinds_max:
            return None
    return list(kinds)


def are_within(entries: bytes, ends: bytes, /) -> bool:
    """Return whether no entry goes beyond the end of its file.

    Args:
        entries: `ENTRY` by `ENTRY`.
        ends: `FILE_END` of each kind.

    Raises:
        ValueError: no whole number of records, or a kind that `ends` does not tell of.
    """
    known: dict[bytes, int] = {}
    for key, end in _records(FILE_END, ends):
        known.setdefault(key, end)
    for _, offset, _, length, key in _records(ENTRY, entries):
        if key not in known:
            raise ValueError("an entry of a kind that is not told of")
        if offset + length > known[key]:
            return False
    return True


def plan_reads(  # noqa: PLR0917 - as above
    entries: bytes,
    layouts: bytes,
    slots: bytes,
    chains: bytes | bytearray,
    node_count: int,
    start: int,
    together: int,
    joined_max: int,
    count_max: int,
    bytes_max: int,
    tags: bytes,
    /,
) -> list[Request] | None:
    """Return which node is asked for what, cut by chunks;
    None: these are too many pieces, or beyond what a file can have.

    A chain is asked where it was asked last, until that node has `together` bytes to do; then
    it is the node's turn that has something to do, but less than that, or else the one with the
    least, from the one at `start` on.  A piece that continues the one before, in its chunk and
    in the memory, is joined to it.

    Args:
        entries: `ENTRY` by `ENTRY`, at most 65536.
        layouts: `FILE_LAYOUT` of each kind.
        slots: `SLOT` by `SLOT`.
        chains: `CHAIN_NODES` of each.
        node_count: nodes that there are.
        start: where to begin among equal nodes of a chain.
        together: bytes.
        joined_max: bytes of what is joined.
        count_max: entries of one request.
        bytes_max: bytes of one request, if it has more than one entry.
        tags: of the columns of the message, which are inode, chunk, chain, its version,
            offset in the chunk and length.

    Raises:
        ValueError: something that is packed names what is not there, or is not whole.
    """
    if len(tags) != COLUMN_COUNT or not 0 <= node_count <= _NODE_COUNT_MAX:
        raise ValueError(f"{len(tags)} tags, {node_count} nodes")
    if len(entries) > _PIECE_COUNT_MAX * ENTRY.size:
        raise ValueError(f"{len(entries)} bytes of entries")
    files: dict[bytes, tuple[int, int, int, int]] = {}
    for key, *layout in _records(FILE_LAYOUT, layouts):
        files.setdefault(key, tuple(layout))
    slot_count = _count(SLOT, slots)
    ways = [(c, version, nodes[:n], n) for c, version, n, *nodes in _records(CHAIN_NODES, chains)]
    pieces = _pieces_of(entries, files, slot_count)
    if pieces is None:
        return None
    load, chosen = [0] * node_count, dict[int, int]()
    open_requests: dict[int, _Request] = {}
    requests: list[_Request] = []
    last: _Request | None = None
    for position, key, place, index, offset, length in pieces:
        inode_id, _, stripe_size, first_slot = files[key]
        (number,) = SLOT.unpack_from(slots, (first_slot + index % stripe_size) * SLOT.size)
        if number >= len(ways):
            raise ValueError("a slot without a chain")
        chain_id, version, nodes, replica_count = ways[number]
        if not 1 <= replica_count <= REPLICAS_MAX or max(nodes) >= node_count:
            raise ValueError("a chain without nodes, or with unknown ones")
        columns = (inode_id, index, chain_id, version, offset, length)
        if last is not None and last.joins(columns, place, joined_max, bytes_max):
            load[last.node] += length
            continue
        node = chosen.get(number)
        if node is None or load[node] >= together:
            node = chosen[number] = _choose(nodes, load, start, together)
        load[node] += length
        request = open_requests.get(node)
        if request is None or len(request.rows) >= count_max or request.bytes + length > bytes_max:
            request = open_requests[node] = _Request(node)
            requests.append(request)
        request.bytes += length
        request.columns.append(columns)
        request.rows.append((place, length, position))
        last = request
    return [one.packed(tags) for one in requests]


_Piece = tuple[int, bytes, int, int, int, int]
"""Position of its entry, key, offset in the memory, chunk, offset in the chunk, length."""


def _pieces_of(
    entries: bytes, files: Mapping[bytes, tuple[int, int, int, int]], slot_count: int
) -> list[_Piece] | None:
    pieces: list[_Piece] = []
    for position, (_, offset, place, length, key) in enumerate(_records(ENTRY, entries)):
        if key not in files:
            raise ValueError("an entry of a kind that is not told of")
        _, size, stripe_size, first_slot = files[key]
        if not (0 < size <= _UINT32_MAX and stripe_size and first_slot + stripe_size <= slot_count):
            raise ValueError("a layout that cannot be")
        end = offset + length
        first, last = offset // size, (end - 1) // size
        count = len(pieces) + last - first + 1
        is_beyond = last > _UINT32_MAX or place + length > _UINT64_MAX + 1
        if not length or is_beyond or count > _PIECE_COUNT_MAX:
            return None
        for index in range(first, last + 1):
            begin = max(offset, index * size)
            step = min(end, (index + 1) * size) - begin
            pieces.append(
                (position, key, place + begin - offset, index, begin - index * size, step)
            )
    return pieces


class _Request:
    def __init__(self, node: int) -> None:
        self.node = node
        self.bytes = 0
        self.columns: list[tuple[int, ...]] = []
        self.rows: list[tuple[int, int, int]] = []

    def joins(self, columns: tuple[int, ...], place: int, joined_max: int, bytes_max: int) -> bool:
        """Make the last piece longer by one that continues it;
        False: that one is a piece of its own.
        """
        *chunk, begin, done = self.columns[-1]
        start, _, position = self.rows[-1]
        *wanted, offset, length = columns
        if (
            (wanted, offset, place) != (chunk, begin + done, start + done)
            or done + length > joined_max
            or self.bytes + length > bytes_max
        ):
            return False
        self.columns[-1] = (*chunk, begin, done + length)
        self.rows[-1] = (start, done + length, position)
        self.bytes += length
        return True

    def packed(self, tags: bytes) -> Request:
        message = bytearray()
        for tag, column in zip(tags, zip(*self.columns, strict=True), strict=True):
            numbers = b"".join(map(_varint, column))
            message += bytes([tag]) + _varint(len(numbers)) + numbers
        return self.node, bytes(message), b"".join(ROW.pack(*row) for row in self.rows), self.bytes


def _choose(nodes: list[int], load: list[int], start: int, together: int) -> int:
    best, least = -1, -1
    for number in range(len(nodes)):
        node = nodes[(start + number) % len(nodes)]
        given = load[node]
        if 0 < given < together:
            return node
        if best < 0 or given < least:
            best, least = node, given
    return best


@lru_cache(maxsize=4096)
def _varint(value: int) -> bytes:
    """Return a number as protobuf has it."""
    found = bytearray()
    while value > _SEVEN_BITS:
        found.append(value & _SEVEN_BITS | _MORE)
        value >>= 7
    found.append(value)
    return bytes(found)


def windows_of(
    view: memoryview, rows: bytes, lengths: list[int], payload_bytes: int, /
) -> list[memoryview] | None:
    """Return where the payload of a reply goes, neighbours as one;
    None: it does not have all that was asked for.

    Args:
        view: the memory.
        rows: `ROW` by `ROW`.
        lengths: bytes of the payload for each.
        payload_bytes: of the reply.

    Raises:
        ValueError: a row beyond the memory.
    """
    if not _are_whole(rows, lengths):
        return None
    windows: list[memoryview] = []
    start = end = total = 0
    for place, length, _ in _inside(rows, len(view)):
        total += length
        if place == end > start:
            end += length
            continue
        if end > start:
            windows.append(view[start:end])
        start, end = place, place + length
    if end > start:
        windows.append(view[start:end])
    return windows if total == payload_bytes else None


def have_come(
    view: memoryview, rows: bytes, lengths: list[int], checksums: list[int] | None, /
) -> bool:
    """Return whether all that was asked for is there, and is what was sent.

    Args:
        view: the memory.
        rows: `ROW` by `ROW`.
        lengths: as for `windows_of`.
        checksums: xxh3-64 of each; None: they are not looked at.
    """
    if not _are_whole(rows, lengths):
        return False
    if checksums is None:
        return True
    return len(checksums) * ROW.size == len(rows) and all(
        place + length <= len(view) and xxh3_64_intdigest(view[place : place + length]) == checksum
        for (place, length, _), checksum in zip(_records(ROW, rows), checksums, strict=True)
    )


def put_reply(  # noqa: PLR0917 - as above
    view: memoryview,
    rows: bytes,
    message: Buffer,
    tags: bytes,
    payload: Buffer,
    verifies: bool,
    /,
) -> bool:
    """Put the payload of a reply where it belongs;
    return whether all that was asked for has come, and is what was sent.

    False: what lies there now is of no account; so, too, if the message has other
    columns than those, or other fields.

    Args:
        view: the memory.
        rows: `ROW` by `ROW`.
        message: of the reply, as it came.
        tags: of its columns, which are lengths, versions and checksums.
        payload: the bytes of all rows one after the other.
        verifies: whether the checksum of each, xxh3-64, is compared.

    Raises:
        ValueError: a row beyond the memory, or something that is not whole.
    """
    count, columns = _count(ROW, rows), _reply_columns(bytes(message), tags)
    if columns is None:
        return False
    numbers, sums = columns.get(0, b""), columns.get(2, b"")
    if verifies and len(sums) != count * _SUM.size:
        return False
    payload, at, start = memoryview(payload), 0, 0
    for number, (place, length, _) in enumerate(_inside(rows, len(view))):
        found, at = _take_varint(numbers, at)
        end = start + length
        if found != length or end > len(payload):
            return False
        view[place : place + length] = payload[start:end]
        (wanted,) = _SUM.unpack_from(sums, number * _SUM.size) if verifies else (0,)
        if verifies and xxh3_64_intdigest(view[place : place + length]) != wanted:
            return False
        start = end
    return at == len(numbers) and start == len(payload)


def _reply_columns(message: bytes, tags: bytes) -> dict[int, bytes] | None:
    """Return the columns of a message by the positions of their tags;
    None: it has other fields, or one twice.
    """
    if len(tags) != _REPLY_COLUMN_COUNT:
        raise ValueError(f"{len(tags)} tags")
    found: dict[int, bytes] = {}
    at = 0
    while at < len(message):
        column = tags.find(message[at])
        size, at = _take_varint(message, at + 1)
        if column in found or column < 0 or size is None or at + size > len(message):
            return None
        found[column] = message[at : at + size]
        at += size
    return found


def _take_varint(packed: bytes, at: int) -> tuple[int | None, int]:
    """Return a number as protobuf has it, and where it ends; None: there is none."""
    value = 0
    for shift in range(0, 64, 7):
        if at == len(packed):
            break
        byte, at = packed[at], at + 1
        value |= (byte & _SEVEN_BITS) << shift
        if byte < _MORE:
            return (value if value <= _UINT64_MAX else None), at
    return None, at


def completions_of(entries: bytes, /) -> bytes:
    """Return `COMPLETION` by `COMPLETION` what is said of entries that were done as a whole:
    their user data and lengths.
    """
    done = [
        COMPLETION.pack(user_data, length)
        for user_data, _, _, length, _ in _records(ENTRY, entries)
    ]
    return b"".join(done)


def _are_whole(rows: bytes, lengths: list[int]) -> bool:
    return [length for _, length, _ in _records(ROW, rows)] == lengths


def _inside(rows: bytes, size: int) -> Iterator[tuple[int, int, int]]:
    for place, length, position in _records(ROW, rows):
        if place + length > size:
            raise ValueError("a row beyond the memory")
        yield place, length, position


def _count(record: struct.Struct, packed: bytes | bytearray) -> int:
    count, rest = divmod(len(packed), record.size)
    if rest:
        raise ValueError(f"{len(packed)} bytes are no whole number of records of {record.size}")
    return count


def _records(record: struct.Struct, packed: bytes | bytearray) -> Iterable[tuple[Any, ...]]:
    _count(record, packed)
    return record.iter_unpack(packed)
