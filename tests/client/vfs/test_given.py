# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""What the kernel has is told again, with a time of making, when it asks for that:
without a call, and never what is older than it has.
"""

import os
from dataclasses import replace

import pytest
import trio

from fs.client.vfs import given
from fs.client.vfs.changing_attributes import AttrChange
from fs.client.vfs.given import GivenAttributes

from .conftest import ROOT


@pytest.fixture
async def mount(mounts):
    async with mounts() as made:
        yield made


@pytest.fixture
async def closed(mount):
    """A closed file that the kernel has looked up, as the number of its inode."""
    await mount.write_file(b"f", b"abc")
    inode = await mount.names.lookup(1, b"f", ROOT)
    assert inode.inode_id not in mount.vfs._core.states
    mount.cluster.calls.clear()
    return inode.inode_id


def known_of(mount, inode_id):
    return mount.vfs._core.given.find(inode_id)


async def test_what_was_looked_up_is_told_once_with_the_time_that_is_left(
    autojump_clock, mount, closed
):
    autojump_clock.jump(0.25)
    inode, left_s = mount.names.told_with_birth(closed)
    assert inode == mount.cluster.get(closed) and inode.btime_ns
    assert left_s == pytest.approx(mount.vfs.section.attr_timeout_s - 0.25)
    assert mount.cluster.calls == []
    # From now on the kernel asks only for what it does not have.
    assert mount.names.told_with_birth(closed) is None
    await mount.names.lookup(1, b"f", ROOT)
    assert mount.names.told_with_birth(closed) is None
    mount.names.forget(closed, 100)
    await mount.names.lookup(1, b"f", ROOT)
    assert mount.names.told_with_birth(closed)[0] == inode


async def test_what_was_asked_for_is_not_told_again(autojump_clock, mount, closed):
    mount.names.forget(closed, 100)
    assert await mount.names.getattr_with_birth(closed, ROOT) == mount.cluster.get(closed)
    assert mount.names.told_with_birth(closed) is None


async def test_what_was_listed_is_told_and_its_age_counts(autojump_clock, mount, closed):
    inode = mount.cluster.get(closed)
    mount.names.forget(closed, 100)
    assert mount.names.told_with_birth(closed) is None
    mount.names.give_listed(1, b"f", inode, age_s=0.5)
    found, left_s = mount.names.told_with_birth(closed)
    assert (found, left_s) == (inode, pytest.approx(0.5))
    mount.names.forget(closed, 100)
    mount.names.give_listed(1, b"f", inode, age_s=mount.vfs.section.attr_timeout_s)
    assert mount.names.told_with_birth(closed) is None


@pytest.mark.parametrize("age_s", [0.9, 1.0])
async def test_another_mounts_change_is_seen_once_the_time_is_over(autojump_clock, mounts, age_s):
    async with mounts(2) as (a, b):
        await a.write_file(b"f", b"abc")
        inode_id = (await b.names.lookup(1, b"f", ROOT)).inode_id
        await a.names.setattr(inode_id, AttrChange(mode=0o600), None, ROOT)
        await trio.sleep(age_s)
        found = b.names.told_with_birth(inode_id)
        if age_s < b.vfs.section.attr_timeout_s:
            assert found[1] == pytest.approx(b.vfs.section.attr_timeout_s - age_s)
        else:
            assert found is None
            assert (await b.names.getattr_with_birth(inode_id, ROOT)).mode == 0o600


async def _write(mount, inode_id):
    handle_id = (await mount.open(b"f")).handle_id
    await mount.files.write(handle_id, 0, b"longer")
    found = mount.names.told_with_birth(inode_id)
    assert found is None or found[0].length == 6
    await mount.close(handle_id)


async def _chmod(mount, inode_id):
    await mount.names.setattr(inode_id, AttrChange(mode=0o600), None, ROOT)


async def _cut(mount, inode_id):
    await mount.names.setattr(inode_id, AttrChange(length=1), None, ROOT)


async def _label(mount, inode_id):
    await mount.names.setxattr(inode_id, b"user.x", b"1", ROOT)


async def _link(mount, inode_id):
    await mount.names.link(inode_id, 1, b"second", ROOT)


async def _unlink(mount, inode_id):
    await mount.names.link(inode_id, 1, b"second", ROOT)
    await mount.names.unlink(1, b"second", ROOT)


async def _rename(mount, inode_id):
    await mount.names.rename((1, b"f"), (1, b"g"), ROOT)


async def _replace(mount, inode_id):
    await mount.names.link(inode_id, 1, b"second", ROOT)
    await mount.write_file(b"g", b"")
    await mount.names.rename((1, b"g"), (1, b"second"), ROOT)


@pytest.mark.parametrize(
    "change", [_write, _chmod, _cut, _label, _link, _unlink, _rename, _replace]
)
async def test_own_changes_are_seen_at_once(autojump_clock, mount, closed, change):
    assert known_of(mount, closed) is not None
    await change(mount, closed)
    found = mount.names.told_with_birth(closed)
    assert found is None or found[0] == mount.cluster.get(closed)


async def test_a_directory_has_changed_with_each_name_in_it(autojump_clock, mount):
    names, cluster = mount.names, mount.cluster
    d = (await names.mkdir(1, b"d", 0o755, ROOT)).inode_id

    async def change():
        yield await names.mknod(d, b"f", 0o100644, ROOT)
        yield await names.mkdir(d, b"sub", 0o755, ROOT)
        yield await names.rename((d, b"f"), (1, b"g"), ROOT)
        yield await names.rename((1, b"g"), (d, b"f"), ROOT)
        yield await names.unlink(d, b"f", ROOT)
        yield await names.rmdir(d, b"sub", ROOT)
        yield await names.setxattr(d, b"user.x", b"1", ROOT)
        yield await names.setattr(d, AttrChange(mode=0o700), None, ROOT)

    steps = change()
    while True:
        names.forget(d, 100)
        await names.lookup(1, b"d", ROOT)
        assert known_of(mount, d) is not None
        if await anext(steps, steps) is steps:
            break
        found = names.told_with_birth(d)
        assert found is None or found[0] == cluster.get(d)


async def test_a_directory_that_was_read_is_asked_for(autojump_clock, mount):
    """As stat(2) would: the kernel forgets when it was read last."""
    d = (await mount.names.mkdir(1, b"d", 0o755, ROOT)).inode_id
    assert known_of(mount, d) is not None
    handle_id = mount.vfs.directories.opendir(d, ROOT)
    await mount.vfs.directories.readdir(handle_id, 0)
    assert known_of(mount, d) is None
    mount.vfs.directories.releasedir(handle_id)


async def test_nothing_is_kept_of_what_is_open(autojump_clock, mount, closed):
    handle_id = (await mount.open(b"f", os.O_RDONLY)).handle_id
    await mount.names.getattr(closed, ROOT)
    assert known_of(mount, closed) is None
    await mount.close(handle_id)
    assert known_of(mount, closed) is None


async def test_replies_that_pass_each_other_are_not_told_again(autojump_clock, mount, closed):
    """The kernel takes the older one or does not; so it is asked for."""
    older = mount.cluster.get(closed)
    newer = replace(older, ctime_ns=older.ctime_ns + 5, mode=0o600)
    mount.names.give(newer)
    mount.names.give(older)
    assert mount.names.told_with_birth(closed) is None


def test_no_more_is_kept_than_may_be_used(monkeypatch, cluster):
    monkeypatch.setattr(given, "COUNT_MAX", 3)
    now = [0.0]
    kept = GivenAttributes(lambda: now[0])
    inode = cluster.get(1)
    for number in range(5):
        kept.note(replace(inode, inode_id=number), 1.0)
    assert [kept.find(n) is not None for n in range(5)] == [False, False, True, True, True]
    now[0] = 0.5
    kept.note(replace(inode, inode_id=9), 1.0)
    assert len(kept) == 3
    now[0] = 1.25
    kept.note(replace(inode, inode_id=10), 1.0)
    assert len(kept) == 2 and kept.find(9)[1] == pytest.approx(0.25)
