"""The bytes on disk, pinned: a change here is a new format version."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fs.chunkengine import format as f
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.layout import CHUNK_SIZE_BYTES_MAX

KEY = f.chunk_key(TargetId(0x0102), ChunkId(InodeId(0x0A0B), 3))
KEY_HEX = "0000000000000102" + "0000000000000a0b" + "00000003"


def test_keys_are_these_bytes() -> None:
    position = f.make_position(4, 0x01020304, 0x99)
    assert KEY.hex() == KEY_HEX
    assert f.undo_key(7, KEY).hex() == "06" + "0000000000000007" + KEY_HEX
    assert f.split_undo_key(f.undo_key(7, KEY)) == (7, KEY)
    assert f.position_key(position).hex() == "03" + "0000040102030499"
    assert f.group_key(f.group_id(4, 5)).hex() == "02" + "04000005"
    assert f.used_key(TargetId(9)).hex() == "04" + "0000000000000009"
    prefixes = [f.CHUNK_PREFIX, f.GROUP_PREFIX, f.POSITION_PREFIX, f.USED_PREFIX, f.EPOCH_KEY]
    prefixes += [f.UNDO_PREFIX, f.PENDING_PREFIX, f.FORMAT_KEY]
    prefixes += [f.NOTE_PREFIX, f.TARGET_PREFIX]
    assert prefixes == [bytes([n]) for n in range(1, 11)]
    assert f.note_key(TargetId(9), b"key").hex() == "09" + "0000000000000009" + b"key".hex()
    assert f.target_key(TargetId(9)).hex() == "0a" + "0000000000000009"
    assert (f.TARGET_HELD, f.TARGET_REMOVING) == (b"\x01", b"\x02")
    assert f.chunk_id_of_key(KEY) == ChunkId(InodeId(0x0A0B), 3)
    assert f.target_of_key(KEY) == TargetId(0x0102)


def test_records_are_these_bytes() -> None:
    record = f.ChunkRecord(2, 5, f.make_position(1, 2, 3), 0xABCD, 1 << 20, 16, b"checksum")
    packed = record.pack()
    assert packed.hex() == (
        "0000000000000002" + "0000000000000005" + "0000010000000203" + "000000000000abcd"
        "00100000" + "00000010" + b"checksum".hex()
    )
    assert f.ChunkRecord.unpack(packed) == record
    damaged = f.ChunkRecord(2, 5, f.NO_POSITION, 0xABCD, 64 << 20, 16, b"", is_damaged=True)
    assert damaged.pack().hex() == (
        "0000000000000002" + "0000000000000005" + "ffffffffffffffff" + "000000000000abcd"
        "84000000" + "00000010"
    )
    assert f.ChunkRecord.unpack(damaged.pack()) == damaged
    pending = f.PendingRecord(record, is_remove=True)
    assert pending.pack() == b"\x01" + packed
    assert f.PendingRecord.unpack(pending.pack()) == pending
    tagged = f.PendingRecord(record, is_remove=False, tag=b"whose")
    assert tagged.pack() == b"\x02\x05whose" + packed
    assert f.PendingRecord.unpack(tagged.pack()) == tagged
    disk = f.DiskFormat(
        format_version=1, cluster_id="c", node_id=2, disk_uuid="u", checksum_block_bytes=4096
    )
    assert disk.pack() == (
        b'{"format_version":1,"cluster_id":"c","node_id":2,"disk_uuid":"u",'
        b'"checksum_block_bytes":4096}'
    )
    assert f.DiskFormat.unpack(disk.pack()) == disk
    for wrong in (b"", b"{}", disk.pack().replace(b'"u"', b'"\xff"')):
        with pytest.raises(msgspec.MsgspecError):
            f.DiskFormat.unpack(wrong)


@given(st.integers(1, CHUNK_SIZE_BYTES_MAX))
def test_the_smallest_fitting_block_is_chosen(length: int) -> None:
    size_class = f.size_class_of(length)
    assert 0 <= size_class < f.SIZE_CLASS_COUNT == 11
    assert length <= f.block_bytes(size_class)
    assert size_class == 0 or length > f.block_bytes(size_class - 1)


@given(
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 2000), st.integers(0, 255)), max_size=40)
)
def test_positions_name_disjoint_places(parts: list[tuple[int, int, int]]) -> None:
    places = {}
    for size_class, group, block in set(parts):
        position = f.make_position(size_class, group, block)
        assert f.size_class_of_position(position) == size_class
        assert f.group_of_position(position) == group
        assert f.block_of_position(position) == block
        assert f.capacity_of(position) == f.block_bytes(size_class)
        file_id, start = f.place_of(position)
        assert start % f.block_bytes(size_class) == 0
        places.setdefault((file_id, start), position)
        assert places[file_id, start] == position


def test_file_names() -> None:
    assert f.file_name(f.FileId(0x000A)) == "64k/0A"
    assert f.file_name(f.FileId(0x04FF)) == "1m/FF"
    assert f.file_name(f.FileId(0x0A00)) == "64m/00"
