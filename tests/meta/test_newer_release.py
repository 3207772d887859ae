"""What a service does that meets the records of a newer release:
it refuses them by name, and loses nothing of what it stores again.
"""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import pytest
import trio

from fs.kv.transact import transact
from fs.meta import records
from fs.meta.damage import LAST_TYPE
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto import record_pb2
from fs.schema.status import FsError, Status
from tests.meta.harness import ROOT, refused, session

NEWER = b"\xfa\x7f\x03new"
"""A field of number 2047, as a newer release might add one."""


async def _put(world, key, value):
    async def body(tr):
        tr.set(key, value)

    await transact(world.engine, body, runtime=world.runtime)


async def test_a_running_service_ends_when_the_format_is_raised(memory_world, autojump_clock):
    record = record_pb2.FormatRecordPb(
        format_version=records.FORMAT_VERSION + 1, cluster_id="emberfs", what="meta"
    )

    async def upgrade():
        await trio.sleep(60)
        await _put(memory_world, records.FORMAT_KEY, record.SerializeToString())

    with pytest.RaisesGroup(
        pytest.RaisesExc(FsError, match=f"meta format {record.format_version}"),
        flatten_subgroups=True,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(upgrade)
            nursery.start_soon(memory_world.meta.run)


async def test_an_unknown_type_is_refused_and_left_alone(memory_world, root):
    d = (await root.mkdir(ROOT, b"d")).inode_id
    f = await root.create(d, b"f")
    key = records.inode_key(f.inode_id)
    known = (await memory_world.dump())[key]
    f.type = LAST_TYPE + 1
    await _put(memory_world, key, f.SerializeToString())
    before = await memory_world.dump()
    for asked in (
        root.attr(f.inode_id),
        root.lookup(d, b"f"),
        root.open(f.inode_id, wants_write=True, session=session(1)),
        root.set_attr(f.inode_id, mode=0),
        root.set_attr(f.inode_id, length=0),
        root.sync(f.inode_id, has_new_data=True),
        root.link(f.inode_id, ROOT, b"g"),
        root.rename(d, b"f", ROOT, b"f"),
        root.unlink(d, b"f"),
    ):
        with refused(Status.KV_BAD_FORMAT) as told:
            await asked
        assert "newer release" in str(told.value)
    assert await memory_world.dump() == before
    assert await root.names(d) == [b"f"]
    await _put(memory_world, key, known)  # what checks the store at the end does not know it either


async def test_a_refusal_with_an_unknown_status_stays_one(memory_world, root):
    root.request_id = memory_world.next_request_id()
    record = record_pb2.IdempotencyRecordPb(created_ns=1, status=65_000, detail="too new")
    key = records.idempotency_key(root.client, root.request_id)
    await _put(memory_world, key, record.SerializeToString())
    with refused(Status.INTERNAL_ERROR) as told:
        await root.mkdir(ROOT, b"d")
    assert "status 65000, unknown to this release: too new" in str(told.value)


async def test_an_inode_that_is_stored_again_keeps_fields_of_a_newer_release(memory_world, root):
    d = (await root.mkdir(ROOT, b"d")).inode_id
    f = (await root.create(d, b"f", wants_write=True, session=session(1))).inode_id
    rows = await memory_world.dump()
    for key in (records.inode_key(d), records.inode_key(f)):
        await _put(memory_world, key, rows[key] + NEWER)
    await root.set_attr(d, mode=0o700)
    await root.set_attr(f, mode=0o600)
    await root.sync(f, has_new_data=True, length_hint=meta.LengthHintPb(length=5))
    await root.rename(d, b"f", ROOT, b"g")
    rows = await memory_world.dump()
    assert NEWER in rows[records.inode_key(d)]
    assert NEWER in rows[records.inode_key(f)]
