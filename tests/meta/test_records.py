"""The key map, byte for byte: what is stored must be found by every later release."""

from hypothesis import given
from hypothesis import strategies as st

from fs.meta import records

IDS = st.integers(0, 2**64 - 1)


@given(IDS | st.integers(records.TOGETHER_ID_MIN - 600, records.TOGETHER_ID_MIN + 600))
def test_a_packed_id_is_no_other_and_says_which_it_is(inode_id):
    packed = records.pack_id(inode_id)
    assert len(packed) == 8
    assert records.unpack_id(packed) == inode_id
    assert records.pack_id(records.unpack_id(packed[::-1])) == packed[::-1]


def test_a_run_of_ids_lies_together():
    first = records.TOGETHER_ID_MIN + 0x1000
    keys = [records.inode_key(inode_id) for inode_id in range(first, first + 256)]
    assert keys == sorted(keys)
    others = [records.inode_key(first + 256 * step) for step in (-1, 1, 2, 16, 32, 1 << 20)]
    assert not [key for key in others if keys[0] < key < keys[-1]]


def test_keys_byte_for_byte():
    assert records.inode_key(0x1001) == b"INOD" + bytes.fromhex("0110000000000000")
    together = 0x0010_1122_3344_5566  # its lowest byte comes behind the five others
    assert records.inode_key(together) == b"INOD" + bytes.fromhex("5544332211661000")
    assert (
        records.dentry_key(0x1001, b"a/b") == b"DENT" + bytes.fromhex("0000000000001001") + b"a/b"
    )
    assert records.dentry_prefix(1) == b"DENT" + bytes.fromhex("0000000000000001")
    assert records.dentry_end(1) == b"DENT" + bytes.fromhex("0000000000000002")
    assert records.directory_times_key(1) == b"DTIM" + bytes.fromhex("0100000000000000")
    assert records.subdirectory_count_key(1) == b"DCNT" + bytes.fromhex("0100000000000000")
    assert (
        records.file_session_key(2, "ab" * 16)
        == b"INOS" + bytes.fromhex("0200000000000000") + b"ab" * 16
    )
    assert (
        records.xattr_key(2, b"user.x") == b"XATR" + bytes.fromhex("0200000000000000") + b"user.x"
    )
    assert records.idempotency_key("cc", b"\x01" * 16) == b"IDEMcc\x00" + b"\x01" * 16
    assert records.gc_key(records.GC_FILE, 258, 3) == b"GCFI" + bytes.fromhex(
        "00000000000001020000000000000003"
    )
    assert records.gc_key(records.GC_DIRECTORY, 1, 3).startswith(b"GCDI")
    assert records.truncation_key(2) == b"TRUN" + bytes.fromhex("0200000000000000")
    assert records.inline_key(2) == b"INLN" + bytes.fromhex("0200000000000000")
    assert (
        records.usage_key(2, records.KIND_BYTES)
        == b"USAG" + bytes.fromhex("0200000000000000") + b"b"
    )
    assert records.quota_key(2) == b"QUOT" + bytes.fromhex("0000000000000002")
    assert (
        records.quota_near_key(2, records.KIND_INODES)
        == b"QNEA" + bytes.fromhex("0200000000000000") + b"i"
    )
    assert records.usage_fence_key(2) == b"UFEN" + bytes.fromhex("0200000000000000")
    assert (
        records.link_key(2, 3, b"n")
        == b"LINK" + bytes.fromhex("02000000000000000000000000000003") + b"n"
    )
    assert (
        records.trash_key(258, 3, b"n")
        == b"TRSH" + bytes.fromhex("00000000000001020000000000000003") + b"n"
    )
    assert records.inode_ids_key(7) == b"SINGinode-ids-7"
    assert records.FORMAT_KEY == b"SINGmeta-format"
    assert records.INODE_COUNT_KEY == b"SINGinode-count"
    assert records.INLINE_BYTES_KEY == b"SINGinline-bytes"
    assert records.OUTCOME_TICK_KEY == b"SINGoutcome-tick"


def test_parts_come_back_out_of_keys():
    assert records.dentry_name(records.dentry_key(9, b"name")) == b"name"
    assert records.xattr_name(records.xattr_key(9, b"user.y")) == b"user.y"
    assert records.file_session_inode(records.file_session_key(0x1234, "x" * 32)) == 0x1234
    assert records.truncation_inode(records.truncation_key(0x1234)) == 0x1234
    assert records.link_place(records.link_key(2, 3, b"n")) == (3, b"n")
    assert records.quota_directory(records.quota_key(7)) == 7
    assert records.trash_parts(records.trash_key(77, 3, b"n")) == (77, 3, b"n")
    assert records.unpack_count(records.pack_count(-3)) == -3
    assert records.gc_due_ns(records.gc_key(records.GC_FILE, 77, 1)) == 77
    assert records.unpack_times(records.pack_times(-5, 2**62)) == (-5, 2**62)
    assert records.unpack_u64(records.pack_u64(2**64 - 1)) == 2**64 - 1
    assert records.unpack_u64(None) == records.unpack_count(None) == 0


def test_dentries_of_a_directory_are_one_range_in_name_order():
    names = [b"\x01", b"a", b"a\xff\xff", b"b", b"\xff" * 255]
    keys = [records.dentry_key(5, name) for name in names]
    assert keys == sorted(keys)
    assert all(records.dentry_prefix(5) < key < records.dentry_end(5) for key in keys)
    assert not records.dentry_prefix(5) <= records.dentry_key(6, b"a") < records.dentry_end(5)
