"""Entries of listings, in the layout of the kernel."""

from dataclasses import replace

import pytest

from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct import records
from fs.schema.config import ClientSection
from fs.schema.ids import InodeId
from fs.schema.inode import Inode, InodeType
from tests.client.fakes import no_reads

FILE = Inode(InodeId(7), InodeType.FIFO, 0o640, 1, 2, 1, -1, 3 * 10**9 + 5, 6, 7, rdev=9)
DIRECTORY = replace(FILE, inode_id=InodeId(8), type=InodeType.DIRECTORY)


@pytest.mark.parametrize("length", range(1, 18))
@pytest.mark.parametrize("inode", [FILE, DIRECTORY])
@pytest.mark.parametrize("may_use", [True, False])
def test_an_entry_with_attributes_is_that_of_a_look_up_and_one_without(inode, length, may_use):
    section = ClientSection(
        attr_timeout_s=4.0, dir_entry_timeout_s=3.5, listed_timeout_s=3.0, entry_timeout_s=0.0
    )
    times, name = records.Replies(section, no_reads()).listed_times(0.25), b"n" * length
    entry = records.direntplus(inode, 99, name, times, may_use=may_use)
    plain = records.dirent(inode.inode_id, 99, name, inode.st_mode)
    assert len(plain) == p.DIRENT.size + p.padded(length) and entry.endswith(plain)
    looked_up = records.Replies(section, no_reads()).entry(inode)
    head = p.ENTRY_OUT.size
    assert entry[head : -len(plain)] == looked_up[head:]
    node_id, generation, *valid = p.ENTRY_OUT.unpack_from(entry)
    name_s = 3.25 if inode is DIRECTORY else 2.75 if may_use else 0.0
    assert (node_id, generation) == (inode.inode_id, 0)
    assert (valid[0] + valid[2] / 1e9, valid[1] + valid[3] / 1e9) == (name_s, 3.75)
