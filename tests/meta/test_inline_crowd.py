"""The short form of tests/meta/inline_crowd.py, and power losses in the middle of a move."""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import pytest
import trio
import trio.testing

from fs.meta import records
from fs.schema.proto import meta_pb2 as meta
from tests.kv.harness import CHOSEN_KIND
from tests.meta.harness import ROOT, World, inline_report, session
from tests.meta.inline_crowd import run_seed
from tests.meta.test_power_loss import LosesAll
from tests.sim.determinism import run_deterministic

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(CHOSEN_KIND not in {"", "memory"}, reason="takes virtual time"),
]
DATA = b"all of it"


@pytest.mark.parametrize("seed", range(8))
def test_what_was_acknowledged_is_what_everybody_reads(seed):
    crowd = run_deterministic(lambda: run_seed(seed), seed)
    assert crowd.inline_count and crowd.chunks.fill_count and crowd.chunks.late_count


@pytest.fixture
def world(inline_world):
    return inline_world


@pytest.fixture
async def file(world, root):
    made = await root.create(ROOT, b"f", wants_write=True, session=session(1))
    await root.sync(made.inode_id, is_durable=True, **inline_report(DATA))
    return made.inode_id


async def extend(user, inode_id):
    await user.call("extend_stripe", meta.ExtendStripeReq(inode_id=inode_id, dyn_stripe_min=1))


async def test_a_move_is_durable_before_its_chunk_is_filled(world, root, file, autojump_clock):
    """Its number would be given again otherwise, and storage do nothing for what comes with it."""
    kept = []

    async def lose_power() -> None:
        world.engine.power_loss(LosesAll())
        kept.append((await root.attr(file)).file)

    world.chunks.before_truncate = lose_power
    await extend(root, file)
    assert [(f.is_inline, f.truncate_pending, f.truncate_ver) for f in kept] == [(True, True, 1)]
    assert world.chunks.filled == [(file, DATA)]


async def test_bytes_are_in_their_record_until_the_note_of_their_chunk_is_durable(
    world, root, file, autojump_clock
):
    """The note is lost with the power: the record is back,
    and the move is done again under the same number.
    """
    fill = world.chunks.fill_file
    numbers = []

    async def fill_file(filled, data, truncate_ver, is_wanted) -> None:
        await fill(filled, data, truncate_ver, is_wanted)
        numbers.append(truncate_ver)

    world.chunks.fill_file = fill_file
    sync, sync_count = world.engine.sync, 0

    async def lose_the_note() -> None:
        nonlocal sync_count
        sync_count += 1
        if sync_count == 2:  # the one after the note
            world.engine.power_loss(LosesAll())
            assert records.inline_key(file) in await world.dump()
        await sync()

    world.engine.sync = lose_the_note
    await extend(root, file)
    assert world.chunks.filled == [(file, DATA)] * 2 and numbers == [1, 1]
    part = (await root.attr(file)).file
    assert (part.is_inline, part.truncate_pending, part.truncate_ver) == (False, False, 1)


async def test_of_two_services_that_move_the_slower_one_does_no_harm(
    world, root, file, nursery, autojump_clock
):
    """It has the bytes in its hands when another one has finished:
    it looks again before it asks storage.
    """
    fill = world.chunks.fill_file
    held, go = trio.Event(), trio.Event()

    async def slow(*asked) -> None:
        world.chunks.fill_file = fill
        held.set()
        await go.wait()
        await fill(*asked)

    world.chunks.fill_file = slow
    nursery.start_soon(extend, root, file)
    await held.wait()
    other = World(world.engine, inline_bytes_max=4096)
    other.chunks = world.chunks
    other.meta = other.new_meta()
    other._request_count = 1000
    await extend(other.user(0), file)
    assert world.chunks.filled == [(file, DATA)]
    await root.sync(
        file, has_new_data=True, length_hint=meta.LengthHintPb(length=20, truncate_ver=1)
    )
    go.set()
    await trio.sleep(1)
    assert world.chunks.filled == [(file, DATA)]
    part = (await root.attr(file)).file
    assert (part.length, part.is_inline, part.truncate_pending) == (20, False, False)


@pytest.mark.parametrize("how", ["set_attr", "open", "create"])
async def test_an_emptied_file_is_empty_durably_before_others_hear_of_it(
    world, root, file, how, autojump_clock
):
    """What its writer makes durable next would stand before the rest of the bytes that come back
    with the power.
    """
    opened = {"wants_write": True, "is_truncate": True, "takes_inline": True}
    if how == "set_attr":
        await root.set_attr(file, length=0)
    elif how == "open":
        await root.open(file, session=session(2), **opened)
    else:
        await root.create(ROOT, b"f", session=session(2), **opened)
    world.engine.power_loss(LosesAll())
    part = (await root.attr(file)).file
    assert (part.length, part.truncate_ver, part.is_inline) == (0, 1, False)


async def test_who_ends_reports_meets_none_after_a_power_loss_either(world, root, autojump_clock):
    """He writes to a chunk from then on: a late copy of his report, taken,
    would be filled over that.
    """
    made = (await root.create(ROOT, b"g", wants_write=True, session=session(2))).inode_id
    await root.sync(made, is_durable=True, mtime_ns=1)
    asked = meta.ExtendStripeReq(inode_id=made, dyn_stripe_min=1, ends_inline=True)
    await root.call("extend_stripe", asked)
    world.engine.power_loss(LosesAll())
    late = await root.call("sync", meta.SyncReq(inode_id=made, **inline_report(DATA)))
    assert late.is_inline_refused and not late.inode.file.is_inline


async def test_chunks_of_an_emptied_file_are_written_once_it_is_empty_durably(
    world, root, file, nursery, autojump_clock
):
    """Storage would know its number as over, and do nothing for the move
    of the bytes that are back.
    """
    sync, go = world.engine.sync, trio.Event()

    async def slow() -> None:
        await go.wait()
        await sync()

    world.engine.sync = slow
    nursery.start_soon(lambda: root.set_attr(file, length=0))
    await trio.testing.wait_all_tasks_blocked()
    world.engine.sync = sync
    other = world.user(0, client="d" * 32)
    opened = {"wants_write": True, "takes_inline": True}
    assert not (await other.open(file, session=session(3), **opened)).file.is_inline
    await extend(other, file)
    world.engine.power_loss(LosesAll())
    part = (await root.attr(file)).file
    assert (part.is_inline, part.truncate_ver, part.dyn_stripe) == (False, 1, 1)
    go.set()


@pytest.mark.parametrize("is_taken", [True, False])
async def test_what_has_become_of_a_report_is_told_durably(world, root, is_taken, autojump_clock):
    """Its client writes the bytes to a chunk, or never again, from then on."""
    made = (await root.create(ROOT, b"g", wants_write=True, session=session(2))).inode_id
    await root.sync(made, is_durable=True, mtime_ns=1)
    sender = world.user()
    sender.request_id = b"r" * 16
    if is_taken:
        await sender.call("sync", meta.SyncReq(inode_id=made, **inline_report(DATA)))
    asked = meta.ExtendStripeReq(inode_id=made, dyn_stripe_min=1, report_id=b"r" * 16)
    expected = meta.INLINE_TAKEN if is_taken else meta.INLINE_NOT_TAKEN
    assert (await root.call("extend_stripe", asked)).inline_outcome == expected
    world.engine.power_loss(LosesAll())
    late = await sender.call("sync", meta.SyncReq(inode_id=made, **inline_report(DATA)))
    assert (await root.call("extend_stripe", asked)).inline_outcome == expected
    assert late.is_inline_refused is not is_taken and not late.inode.file.is_inline
    assert world.chunks.filled == [(made, DATA)] * is_taken
