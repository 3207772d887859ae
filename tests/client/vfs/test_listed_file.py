# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Files of a listing, of which no inode is made, are shown, and noted,
as what an inode is made of.
"""

from dataclasses import fields

import pytest
import trio

from fs.client.fuse.direct import records
from fs.client.vfs.known import Known
from fs.client.vfs.listed_file import listed_file
from fs.client.vfs.shown_names import ShownNames
from fs.schema.config import ClientSection
from fs.schema.ids import InodeId
from fs.schema.inode import InodeType, inode_from_pb, inode_to_pb
from fs.schema.proto import common_pb2 as pb
from tests.client.fakes import no_reads

from .conftest import ROOT, RW

SHOWN = ("inode_id", "st_mode", "uid", "gid", "nlink", "length", "mtime_ns", "ctime_ns")
CHANGES = (
    {},
    {"atime_ns": -1, "mtime_ns": -(10**9) - 1, "ctime_ns": -5, "bare_ctime_ns": -5},
    {"nlink": 0},
    {"nlink": 3, "acl": {}},
    {"used_bytes": 513, "file": {"length": 1 << 40, "has_holes": True}},
    {"mode": 0o7777, "bare_ctime_ns": 8, "file": {"length": 1, "is_inline": True}},
)


def message(changes):
    made = pb.InodePb(
        inode_id=(1 << 40) + 7,
        type=pb.FILE,
        mode=0o640,
        uid=3,
        gid=4,
        nlink=1,
        atime_ns=5 * 10**9 + 6,
        mtime_ns=7,
        ctime_ns=8 * 10**9,
        btime_ns=9,
        file={"length": 4097, "layout": {"chunk_size_bytes": 1 << 19, "stripe_size": 1}},
    )
    made.MergeFrom(pb.InodePb(**changes))
    return made


@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("may_use", [True, False])
def test_it_is_shown_as_its_inode_is(changes, may_use):
    told = listed_file(message(changes))
    inode = inode_from_pb(message(changes))
    assert told.inode == inode
    for name in (*SHOWN, "atime_ns", "has_acl", "is_bare"):
        assert getattr(told, name) == getattr(inode, name), name
    times = records.Replies(ClientSection(), no_reads()).listed_times(0.25)
    for name in (b"n" * length for length in range(1, 18)):
        entry = records.direntplus_of_file(told, 99, name, times, may_use=may_use)
        assert entry == records.direntplus(inode, 99, name, times, may_use=may_use)
        assert len(entry) == records.direntplus_bytes(name)


@pytest.mark.parametrize("type_", [type_ for type_ in InodeType if type_ is not InodeType.FILE])
def test_only_a_regular_file_is_one(type_):
    made = message({})
    made.type = int(type_)
    assert listed_file(made) is None
    made.type = pb.FILE
    made.ClearField("file")
    assert listed_file(made) is None


def noted(mount, inode_id):
    """Return what a mount knows of an inode that the kernel holds, as it can be compared."""
    known = mount.vfs._core.known[inode_id]
    said = {field.name: getattr(known, field.name) for field in fields(Known)}
    said["nameless"] = known.removed
    said["listed_in"] = len(known.listed_in)
    return said, mount.vfs._core.given.find(inode_id)


async def test_the_same_is_noted_of_it_as_of_its_inode(autojump_clock, mounts):
    """One after the other of what a listing may tell of a file,
    for the kernel that may know it by another one or by a look-up.
    """
    async with mounts(2) as both:
        inode_id = InodeId(message({}).inode_id)
        for name, changes in ((name, changes) for name in (b"a", b"b") for changes in CHANGES):
            told, inode = listed_file(message(changes)), inode_from_pb(message(changes))
            used, now_s = [], both[0].vfs._core.now_s()
            for mount in both:
                names, listed_s = mount.names, now_s - 0.02
                shown = ShownNames(now_s, 0.1, now_s - 0.01, listed_s)
                if mount is both[0]:
                    may_use = names.listed.may_use(1, name, inode, listed_s)
                    names.give_listed(
                        1, name, inode, age_s=0.25, shown=shown, may_use=may_use, now_s=now_s
                    )
                else:
                    may_use = names.give_listed_file(
                        (1, name), told, shown, age_s=0.25, now_s=now_s
                    )
                shown.note_taken_in(now_s)
                used.append(may_use)
            assert used[0] is used[1]
            assert noted(both[0], inode_id) == noted(both[1], inode_id)
            await trio.sleep(0.03)


async def test_what_was_listed_before_it_was_opened_is_shown_as_it_is_open(autojump_clock, mounts):
    """The rest of a page is of before."""
    async with mounts() as mount:
        for name in (b"a", b"b"):
            await mount.write_file(name, b"x")
        directories = mount.vfs.directories
        handle_id = directories.opendir(1, ROOT)
        (first,) = (await directories.readdir(handle_id, 0))[:1]
        page = directories._open[handle_id].page
        page[:] = [entry._replace(told=listed_file(inode_to_pb(entry.inode))) for entry in page]
        handle = (await mount.open(b"b", RW)).handle_id
        await mount.files.write(handle, 0, b"longer")
        found = directories.readdir_now(handle_id, first.cookie, 10)
        assert [(entry.name, entry.told.length) for entry in found or ()] == [(b"b", 6)]
        await mount.close(handle)
        directories.releasedir(handle_id)
