# ruff: noqa: ARG001 - a test that sleeps names the clock it wants
"""Inline reports whose client asks again, gives up, or comes late:
their bytes take effect once, whatever others do to the file meanwhile.
"""

import pytest
import trio

from fs.meta import records
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.record_pb2 import IdempotencyRecordPb, InlineRecordPb
from fs.schema.status import Status
from tests.meta.harness import ROOT, hint, inline_report, refused, session

DATA = b"all of it"
REQUEST_ID, OTHER_ID = b"r" * 16, b"o" * 16
OTHER = "d" * 32


@pytest.fixture
def world(inline_world):
    return inline_world


@pytest.fixture
async def file(root):
    made = await root.create(ROOT, b"f", 0o666, wants_write=True, session=session(1))
    return made.inode_id


@pytest.fixture
def sender(world):
    """Whoever has one request, and sends it again and again."""
    made = world.user(0)
    made.request_id = REQUEST_ID
    return made


async def send(user, inode_id, data=DATA, **told) -> meta.InodeRsp:
    return await user.call("sync", meta.SyncReq(inode_id=inode_id, **inline_report(data, **told)))


async def row(world, inode_id) -> bytes | None:
    value = (await world.dump()).get(records.inline_key(inode_id))
    return None if value is None else InlineRecordPb.FromString(value).data


async def opened(world, inode_id):
    """Return another client, who has the file open for writing by session 2."""
    other = world.user(0, client=OTHER)
    await other.open(inode_id, wants_write=True, session=session(2), takes_inline=True)
    return other


async def end(user, inode_id, report_id=REQUEST_ID, **fields) -> meta.InodeRsp:
    asked = {"dyn_stripe_min": 1, "ends_inline": True, "report_id": report_id} | fields
    return await user.call("extend_stripe", meta.ExtendStripeReq(inode_id=inode_id, **asked))


# ---- what others do between a report and its repeat ----------------------------------------------


async def write_to_a_chunk(other, inode_id):
    await other.call("extend_stripe", meta.ExtendStripeReq(inode_id=inode_id, dyn_stripe_min=1))
    await other.sync(inode_id, has_new_data=True, length_hint=hint(9, 1))


async def make_it_inline_anew(other, inode_id):
    await other.world.user(0).close(inode_id, session(1).session_id)  # else he does not write alone
    assert not (await send(other, inode_id, b"of others", data_ver=1)).is_inline_refused
    await other.world.user(0).open(
        inode_id, wants_write=True, session=session(1), takes_inline=True
    )


async def lengthen(other, inode_id):
    await other.set_attr(inode_id, length=20)


async def empty(other, inode_id):
    await other.set_attr(inode_id, length=0)


async def empty_and_write(other, inode_id):
    await empty(other, inode_id)
    await write_to_a_chunk(other, inode_id)


async def end_its_session(other, inode_id):
    await other.world.user(0).close(inode_id, session(1).session_id)


CHANGES = {
    function.__name__: function
    for function in (
        write_to_a_chunk,
        make_it_inline_anew,
        lengthen,
        empty,
        empty_and_write,
        end_its_session,
    )
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_repeat_is_told_that_it_was_taken(world, sender, file, name):
    """Refused, its client would write these bytes to a chunk,
    over what others have written since.
    """
    first = await send(sender, file)
    assert not first.is_inline_refused
    other = await opened(world, file)
    await CHANGES[name](other, file)
    await other.close(file, session(2).session_id)
    before, bytes_before = await other.attr(file), await row(world, file)
    sender.is_repeat = True
    for _ in range(2):
        again = await send(sender, file)
        assert not again.is_inline_refused and again.inode == before
        assert again.HasField("is_metered")
    # The first try, which comes once more from some service, is none that could do anything.
    sender.is_repeat = False
    assert not (await send(sender, file)).is_inline_refused
    assert (await other.attr(file), await row(world, file)) == (before, bytes_before)


async def test_who_is_told_so_needs_no_right_any_more(world, root):
    """The session that gave the right has ended: what was taken stands."""
    owner = await root.create(ROOT, b"g", 0o666)
    alice = world.user(1001, client="e" * 32)
    await alice.open(owner.inode_id, wants_write=True, session=session(5), takes_inline=True)
    alice.request_id = REQUEST_ID
    assert not (await send(alice, owner.inode_id)).is_inline_refused
    await root.set_attr(owner.inode_id, mode=0o600)
    alice.request_id = None
    await alice.close(owner.inode_id, session(5).session_id)
    alice.request_id, alice.is_repeat = REQUEST_ID, True
    assert not (await send(alice, owner.inode_id)).is_inline_refused
    alice.request_id = OTHER_ID
    with refused(Status.ACCESS_DENIED):
        await send(alice, owner.inode_id)


async def test_another_report_that_rests_on_what_was_before_is_late(sender, root, file):
    made = (await send(sender, file)).inode
    late = await send(root, file, b"other one")
    assert late.is_inline_refused and late.inode == made


async def test_what_is_kept_of_a_report_is_small(world, sender, file):
    await send(sender, file, b"z" * 4000)
    kept = (await world.dump())[records.idempotency_key("c" * 32, REQUEST_ID)]
    assert len(kept) < 60
    assert IdempotencyRecordPb.FromString(kept).created_ns


async def test_a_first_try_that_is_refused_leaves_nothing(world, sender, file):
    await opened(world, file)
    before = await world.dump()
    assert (await send(sender, file)).is_inline_refused
    assert await world.dump() == before


async def test_a_repeat_that_was_refused_is_refused_for_good(world, sender, file):
    """Its client writes to a chunk by now: the first try, come late,
    must not make the file inline.
    """
    other = await opened(world, file)
    sender.is_repeat = True
    assert (await send(sender, file)).is_inline_refused
    await other.close(file, session(2).session_id)
    sender.is_repeat = False
    late = await send(sender, file)
    assert late.is_inline_refused and late.inode == await other.attr(file)
    assert not late.inode.file.is_inline


# ---- who gives up, and asks what has become of it ------------------------------------------------


async def test_who_ends_reports_before_he_writes_meets_none_later(world, root, file):
    asked = meta.ExtendStripeReq(inode_id=file, dyn_stripe_min=1, ends_inline=True)
    reply = await root.call("extend_stripe", asked)
    assert (reply.inode.file.data_ver, reply.inline_outcome) == (1, meta.INLINE_NOT_KNOWN)
    late = await root.call("sync", meta.SyncReq(inode_id=file, **inline_report(DATA)))
    assert late.is_inline_refused
    # Without that a stripe that is wide enough changes nothing.
    asked.ends_inline = False
    before = await world.dump()
    await root.call("extend_stripe", asked)
    assert await world.dump() == before


@pytest.mark.parametrize("name", [None, *CHANGES])
async def test_who_gives_up_is_told_that_it_was_taken(world, root, sender, file, name):
    await send(sender, file)
    if name is not None:
        await CHANGES[name](await opened(world, file), file)
    for _ in range(2):
        told = await end(root, file)
        assert told.inline_outcome == meta.INLINE_TAKEN and told.inode.file.dyn_stripe


async def test_who_gives_up_before_it_comes_has_it_refused(root, sender, file):
    for _ in range(2):
        assert (await end(root, file)).inline_outcome == meta.INLINE_NOT_TAKEN
    await root.set_attr(file, length=0)
    part = (await root.attr(file)).file
    late = await send(sender, file, data_ver=part.data_ver, truncate_ver=part.truncate_ver)
    assert late.is_inline_refused and late.inode == await root.attr(file)
    sender.is_repeat = True
    assert (await send(sender, file)).is_inline_refused


async def test_a_report_that_was_refused_counts_as_not_taken(world, root, sender, file):
    await opened(world, file)
    sender.is_repeat = True
    assert (await send(sender, file)).is_inline_refused
    assert (await end(root, file)).inline_outcome == meta.INLINE_NOT_TAKEN


async def test_a_report_that_failed_counts_as_not_taken(root, sender, file):
    sender.is_repeat = True
    with refused(Status.INVALID_ARGUMENT):
        await sender.call(
            "sync",
            meta.SyncReq(inode_id=file, **inline_report(DATA) | {"inline_checksum": 1}),
        )
    assert (await end(root, file)).inline_outcome == meta.INLINE_NOT_TAKEN


async def test_only_ones_own_reports_are_asked_for(world, root, sender, file):
    await send(sender, file)
    other = await opened(world, file)
    assert (await end(other, file)).inline_outcome == meta.INLINE_NOT_TAKEN
    assert (await end(root, file)).inline_outcome == meta.INLINE_TAKEN
    with refused(Status.RPC_BAD_REQUEST):
        await end(root, file, b"short")
    with refused(Status.RPC_BAD_REQUEST):  # of an extension, not of a report
        await end(root, file, await _of_a_creation(root))


async def _of_a_creation(root) -> bytes:
    await root.create(ROOT, b"another")
    return root.last_request_id


# ---- clients that were given up, and live --------------------------------------------------------


async def prune(world, *living):
    world.mgmtd.client_ids = list(living)
    await trio.sleep(1000)
    return await world.meta.sessions.step()


@pytest.mark.parametrize("is_emptied", [False, True])
async def test_what_a_lost_writer_may_write_to_is_not_made_inline(
    world, root, file, is_emptied, autojump_clock
):
    """Cut off, he goes on writing to the chunk that he knows of:
    a move would be filled over that.
    """
    await end(root, file, b"")
    assert await prune(world, OTHER) == 1
    other = world.user(0, client=OTHER)
    request = meta.OpenReq(inode_id=file, wants_write=True, session=session(2), takes_inline=True)
    assert (await other.call("open", request)).inline_bytes_max == 0
    if is_emptied:
        await other.set_attr(file, length=0)
    part = (await other.attr(file)).file
    told = {"data_ver": part.data_ver, "truncate_ver": part.truncate_ver}
    assert part.has_lost_writer and not part.length
    assert (await send(other, file, **told)).is_inline_refused


async def test_who_repeats_an_open_of_what_is_gone_is_told_so(
    world, root, sender, file, autojump_clock
):
    root.request_id = b"s" * 16
    await send(root, file)
    root.request_id = None
    await root.close(file, session(1).session_id)
    sender.is_repeat = True  # its first try has been lost, so this one is remembered
    assert (await sender.create_rsp(ROOT, b"f", wants_read=True, takes_inline=True)).inline_data
    await root.unlink(ROOT, b"f")
    await trio.sleep(61)
    await world.meta.gc.step()
    with refused(Status.STALE):  # not METADATA_DAMAGED: nothing is wrong with any record
        await sender.create_rsp(ROOT, b"f", wants_read=True, takes_inline=True)


async def test_who_knows_of_no_chunk_is_no_danger(world, root, sender, file, autojump_clock):
    """He has the stripe extended first, and the bytes moved with that."""
    await send(sender, file)
    assert await prune(world, OTHER) == 1
    other = await opened(world, file)
    part = (await other.attr(file)).file
    assert not part.has_lost_writer
    assert not (await send(other, file, b"of others", data_ver=part.data_ver)).is_inline_refused
    await end(root, file, b"")
    assert world.chunks.filled == [(file, b"of others")]
