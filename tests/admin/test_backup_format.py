"""The file of a backup: what is written is read, and nothing else is."""

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fs.admin.backup_format import BLOCK_BYTES, MAGIC, BackupDecoder, BackupEncoder
from fs.schema.proto.backup_pb2 import BackupHeadPb
from fs.schema.status import FsError, Status

HEAD = BackupHeadPb(cluster_id="c", engine="memory", release="1", meta_format=2)
ROWS = [(b"k%03d" % n, b"v" * n) for n in range(40)]


def encode(rows) -> bytes:
    encoder = BackupEncoder()
    return (
        encoder.head(BackupHeadPb.FromString(HEAD.SerializeToString()))
        + b"".join(encoder.add(row) for row in rows)
        + encoder.end()
    )


def decode(made: bytes):
    decoder = BackupDecoder(io.BytesIO(made).read, "file")
    return decoder.head, [row for block in decoder.blocks() for row in block]


def refused(made: bytes) -> str:
    with pytest.raises(FsError) as caught:
        decode(made)
    assert caught.value.status is Status.BAD_BACKUP
    assert caught.value.detail.startswith("file: ")
    return caught.value.detail


@pytest.mark.slow
@given(st.dictionaries(st.binary(max_size=40), st.binary(max_size=40)))
def test_what_was_written_is_read(rows):
    rows = sorted(rows.items())
    assert decode(encode(rows)) == (HEAD, rows)


def test_blocks_are_bounded():
    rows = [(b"%05d" % n, bytes(100_000)) for n in range(100)]
    decoder = BackupDecoder(io.BytesIO(encode(rows)).read, "file")
    sizes = [sum(len(value) for _, value in block) for block in decoder.blocks()]
    assert max(sizes) <= BLOCK_BYTES + 100_000
    assert sum(sizes) == 10_000_000


def test_every_changed_byte_is_told():
    made = encode(ROWS)
    assert decode(made)[1] == ROWS
    for index in range(len(made)):
        for mask in (0x01, 0x80, 0xFF):
            spoilt = bytearray(made)
            spoilt[index] ^= mask
            refused(bytes(spoilt))


def test_every_cut_is_told():
    made = encode(ROWS)
    for length in range(len(made)):
        detail = refused(made[:length])
        assert "ends too early" in detail


def test_what_follows_the_end_is_told():
    assert "after its end" in refused(encode(ROWS) + b"\x00")
    assert "after its end" in refused(encode(ROWS) * 2)


def frames(made: bytes) -> list[bytes]:
    found, at = [], len(MAGIC) + 4
    while at < len(made):
        (length,) = struct.unpack_from("<L", made, at + 4)
        found.append(made[at : at + 16 + length])
        at += 16 + length
    return found


def test_blocks_that_are_left_out_doubled_or_moved_are_told():
    rows = [(b"%05d" % n, bytes(100_000)) for n in range(40)]
    made = encode(rows)
    begin, (head, *blocks, last) = made[: len(MAGIC) + 4], frames(made)
    assert len(blocks) > 2
    assert begin + b"".join([head, *blocks, last]) == made
    for order in (blocks[1:], blocks[:-1], blocks[::-1], [blocks[0], *blocks]):
        refused(begin + b"".join([head, *order, last]))
    refused(begin + b"".join([*blocks, last]))


def test_rows_out_of_order_are_told():
    assert "order" in refused(encode([(b"b", b""), (b"a", b"")]))
    assert "order" in refused(encode([(b"a", b""), (b"a", b"")]))


def test_a_newer_format_is_refused_by_name():
    made = encode(ROWS)
    newer = MAGIC + (2).to_bytes(4, "little") + made[len(MAGIC) + 4 :]
    assert "format version 2" in refused(newer)


@pytest.mark.parametrize("made", [b"", b"x", b"#!/bin/sh\n" * 10, b"EMBERBAK"])
def test_what_is_no_backup_is_refused(made):
    refused(made)
