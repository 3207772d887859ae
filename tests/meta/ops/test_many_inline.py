"""Bytes of many inline files with one call:
what the payload has, what is left out, and what those get who know of none.
"""

import random

import pytest
from xxhash import xxh3_64_intdigest

from fs.kv.transact import transact
from fs.meta import inline, records
from fs.rpc.api import Reply
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.record_pb2 import InlineRecordPb
from fs.schema.status import FsError, Status
from tests.examples import many
from tests.meta.harness import ROOT, inline_report, session

ALL = 1 << 20


@pytest.fixture
async def world(inline_world):
    return inline_world


@pytest.fixture
async def files(root):
    """Inode ids and bytes of small files, by name."""
    made = {}
    for number, length in enumerate((1, 127, 128, 1000, 4096)):
        name = b"f%d" % length
        inode = await root.create(ROOT, name, wants_write=True, session=session(number))
        data = random.Random(length).randbytes(length)
        await root.sync(inode.inode_id, **inline_report(data))
        made[name] = inode.inode_id, data
    return made


def split(reply, replies_of):
    """Return the message of a reply, and the bytes that its payload has of each file."""
    message, payload = (reply.message, reply.payload) if isinstance(reply, Reply) else (reply, ())
    rest, found = b"".join(payload), {}
    for slot in replies_of(message):
        if slot.is_in_payload:
            length = slot.inode.file.length
            data, rest = rest[:length], rest[length:]
            assert len(data) == length and xxh3_64_intdigest(data) == slot.inline_checksum
            found[slot.inode.inode_id] = data
        assert not slot.inline_data
    assert not rest
    return message, found


async def attributes(user, inode_ids, **fields):
    request = meta.BatchGetAttrReq(inode_ids=inode_ids, **fields)
    return split(await user.call("batch_get_attr", request), lambda message: message.inodes)


async def paths(user, names, **fields):
    fields = {"wants_read": True, "takes_inline": True, "follow_last": True} | fields
    request = meta.BatchResolvePathReq(paths=[b"/" + name for name in names], **fields)
    return split(await user.call("batch_resolve_path", request), lambda m: m.resolved)


async def resolved_alone(user, request):
    """Return what a batch is to say of the path of a request."""
    try:
        return meta.ResolvedPathPb(inode=(await user.call("resolve_path", request)).inode)
    except FsError as error:
        return meta.ResolvedPathPb(status=int(error.status), detail=error.detail)


async def test_the_payload_has_the_bytes_in_order(root, alice, files):
    ids = [inode_id for inode_id, _ in files.values()]
    expected = dict(files.values())
    for user in (root, alice):
        message, found = await attributes(user, ids[::-1], payload_bytes_max=ALL)
        assert found == expected and list(found) == ids[::-1]
        assert [one.inode.inode_id for one in message.inodes] == ids[::-1]
    _, found = await paths(root, files, payload_bytes_max=ALL)
    assert found == expected


async def test_what_is_not_inline_or_not_there_stands_between(root, files):
    one, other = (inode_id for inode_id, _ in list(files.values())[:2])
    plain = (await root.create(ROOT, b"plain")).inode_id
    message, found = await attributes(
        root, [one, ROOT, 1 << 40, plain, other, one], payload_bytes_max=ALL
    )
    assert set(found) == {one, other}
    assert [slot.is_in_payload for slot in message.inodes] == [True, *[False] * 3, True, True]
    assert [slot.HasField("inode") for slot in message.inodes] == [
        *(True, True, False),
        *(True, True, True),
    ]
    message, found = await paths(root, [b"f1", b"none", b"", b"f127"], payload_bytes_max=ALL)
    assert set(found) == {one, other}
    assert message.resolved[1].status == Status.NOT_FOUND
    assert message.resolved[2].inode.type == pb.DIRECTORY


async def test_those_of_earlier_releases_get_what_they_got(root, files):
    ids = [inode_id for inode_id, _ in files.values()]
    message, found = await attributes(root, ids)
    assert not found and all(slot.inode.file.is_inline for slot in message.inodes)
    request = meta.BatchResolvePathReq(
        paths=[b"/f1", b"/f1000"], wants_read=True, takes_inline=True
    )
    reply = await root.call("batch_resolve_path", request)
    assert [slot.inline_data for slot in reply.resolved] == [files[b"f1"][1], files[b"f1000"][1]]


async def test_no_more_comes_than_is_asked_for_or_allowed(root, files, monkeypatch):
    ids = [inode_id for inode_id, _ in files.values()]  # 1, 127, 128, 1000, 4096
    for limit, count in ((0, 0), (1, 1), (127, 1), (128, 2), (1255, 3), (1256, 4), (ALL, 5)):
        _, found = await attributes(root, ids, payload_bytes_max=limit)
        assert set(found) == set(ids[:count]), limit
        _, found = await paths(root, files, payload_bytes_max=limit)
        assert set(found) == set(ids[:count]), limit
    monkeypatch.setattr(inline, "REPLY_BYTES_MAX", 256)
    _, found = await attributes(root, ids, payload_bytes_max=ALL)
    assert set(found) == set(ids[:3])


@pytest.mark.parametrize("how", ["lost", "shorter", "no record", "odd", "newer"])
async def test_one_damaged_record_keeps_no_other_from_being_read(world, root, files, how):
    ids = [inode_id for inode_id, _ in files.values()]
    bad, data = files[b"f128"]

    async def damage(tr):
        key = records.inline_key(bad)
        record = InlineRecordPb(data=data, checksum=xxh3_64_intdigest(data))
        if how == "lost":
            return tr.clear(key)
        if how == "shorter":
            record.data = data[:-1]
        packed = record.SerializeToString()
        if how == "no record":
            packed = packed[:40]
        if how == "odd":  # the same, in another order
            packed = packed[-9:] + packed[:-9]
        if how == "newer":  # with a field that this release does not know
            packed += b"\x18\x05"
        return tr.set(key, packed)

    await transact(world.engine, damage, runtime=world.runtime)
    is_whole = how in {"odd", "newer"}
    for _, found in (
        await attributes(root, ids, payload_bytes_max=ALL),
        await paths(root, files, payload_bytes_max=ALL),
    ):
        assert found == {i: d for i, d in files.values() if i != bad or is_whole}
    if not is_whole:
        with pytest.raises(FsError) as e:
            await root.call("get_attr", meta.GetAttrReq(inode_id=bad, takes_inline=True))
        assert e.value.status is Status.METADATA_DAMAGED

    async def mend(tr):
        record = InlineRecordPb(data=data, checksum=xxh3_64_intdigest(data))
        tr.set(records.inline_key(bad), record.SerializeToString())

    await transact(world.engine, mend, runtime=world.runtime)


async def test_who_may_not_read_a_path_gets_no_bytes_of_it(root, alice, files):
    await root.set_attr(files[b"f127"][0], mode=0o600)
    message, found = await paths(alice, files, payload_bytes_max=ALL)
    assert files[b"f127"][0] not in found and len(found) == 4
    assert message.resolved[1].status == Status.ACCESS_DENIED


async def test_a_client_that_takes_none_has_them_moved_all_the_same(root, files):
    message, found = await paths(root, files, payload_bytes_max=ALL, takes_inline=False)
    assert not found and not any(slot.inode.file.is_inline for slot in message.resolved)


async def test_many_paths_are_walked_as_each_alone(root, alice):
    """They share what they have passed: which makes no difference, whoever walks."""
    a = (await root.mkdir(ROOT, b"a")).inode_id
    b = (await root.mkdir(a, b"b")).inode_id
    closed = (await root.mkdir(a, b"closed")).inode_id
    for directory in (ROOT, a, b, closed):
        await root.create(directory, b"f")
        await root.symlink(directory, b"up", b"..")
        await root.symlink(directory, b"there", b"/a/b")
        await root.symlink(directory, b"self", b"self")
        await root.symlink(directory, b"deep", b"b/../b/./f")
    await root.set_attr(closed, mode=0o700)
    rng = random.Random(154)
    words = [*b"a b closed f up there self deep . .. none".split(), b"x" * 300, b""]
    names = [
        b"/".join(rng.choices(words, k=rng.randint(1, 6))) + rng.choice([b"", b"/"])
        for _ in range(many(1000))
    ]
    for user in (root, alice):
        for follow_last in (True, False):
            message, _ = await paths(user, names, follow_last=follow_last, wants_read=False)
            for name, slot in zip(names, message.resolved, strict=True):
                request = meta.ResolvePathReq(path=b"/" + name, follow_last=follow_last)
                assert slot == await resolved_alone(user, request), name
