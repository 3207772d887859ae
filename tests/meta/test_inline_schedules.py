"""All ways in which a report with inline data and one other request can overlap,
at two services over one store.
"""

import random
from itertools import product

import pytest

from fs.kv.memory import MemoryEngine
from fs.meta.check import check
from fs.runtime.simulated import SimulatedClock
from fs.schema.proto import meta_pb2 as meta
from tests.examples import some_of
from tests.kv.harness import CHOSEN_KIND
from tests.meta.harness import ROOT, World, inline_report, session
from tests.meta.pauses import PausingEngine
from tests.meta.schedules import STOPS, Chunks, Turns, next_choices

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(CHOSEN_KIND not in {"", "memory"}, reason="begins anew with each schedule"),
]
BEFORE, DATA = b"before", b"all of it"
RUN_COUNT_MAX = 120
OTHER = "d" * 32
REPORT_ID = b"r" * 16


async def open_to_write(user, inode_id):
    request = meta.OpenReq(
        inode_id=inode_id, wants_write=True, session=session(2), takes_inline=True
    )
    return (await user.call("open", request)).inode.file


async def extend(user, inode_id):
    request = meta.ExtendStripeReq(inode_id=inode_id, dyn_stripe_min=1, ends_inline=True)
    return (await user.call("extend_stripe", request)).inode.file


def set_length(length):
    async def change(user, inode_id):
        return (await user.set_attr(inode_id, length=length)).file

    return change


async def append(user, inode_id):
    return (await user.append(inode_id, 5)).inode.file


async def read_of_an_earlier_release(user, inode_id):
    return (await user.open(inode_id, wants_read=True)).file


async def report_again(user, inode_id):
    """The same try, come twice."""
    user.request_id = REPORT_ID
    return (await user.sync(inode_id, **_report(user, inode_id))).file


CHANGES = {
    "open": open_to_write,
    "extend": extend,
    "empty": set_length(0),
    "cut": set_length(3),
    "lengthen": set_length(20),
    "append": append,
    "old reader": read_of_an_earlier_release,
    "again": report_again,
}
LENGTHS = {
    "empty": {0},
    "cut": {3},
    "lengthen": {20},
    # What was there before, or the report, and then five bytes.
    "append": {5, len(BEFORE) + 5, len(DATA) + 5},
}


def _report(user, _inode_id):
    return inline_report(DATA, user.world.known_data_ver)


async def begin(*, is_inline: bool):
    """Return a world in which a file is open for writing by the client that will report."""
    world = World(MemoryEngine(SimulatedClock()), inline_bytes_max=4096)
    await world.initialise()
    user = world.user()
    made = await user.create(ROOT, b"f", wants_write=True, session=session(1))
    if is_inline:
        await user.sync(made.inode_id, **inline_report(BEFORE))
    world.known_data_ver = int(is_inline)
    return world, made.inode_id


async def place(world, number, turns):
    """Return a service of its own over the store;
    it stops before it takes a snapshot, commits, or asks storage.
    """

    async def stop(what):
        if what in STOPS:
            await turns.stop(number)

    made = World(world.engine, inline_bytes_max=4096)
    made.known_data_ver = world.known_data_ver
    made.chunks = Chunks(world.chunks, stop)
    made._request_count = 1_000_000 * (number + 1)
    engine = made.engine = PausingEngine(world.engine, _no_stop)
    made.meta = made.new_meta()
    made.runtime.random.uniform = lambda _a, _b: 0.0
    engine.pause = stop
    return made


async def _no_stop(_what):
    return


async def run_one(turns, name, *, is_inline):
    world, inode_id = await begin(is_inline=is_inline)
    places = [await place(world, number, turns) for number in range(2)]
    told = {}

    async def report(_number):
        user = places[0].user()
        user.request_id = REPORT_ID
        request = meta.SyncReq(inode_id=inode_id, **_report(user, inode_id))
        told["report"] = await user.call("sync", request)

    async def change(_number):
        told["change"] = await CHANGES[name](
            places[1].user(client=OTHER if name != "again" else "c" * 32), inode_id
        )

    await turns.run([report, change])
    asked = meta.GetAttrReq(inode_id=inode_id, takes_inline=True)
    after = await world.user().call("get_attr", asked)
    assert await check(world.engine) == []
    judge(name, told, after, world.chunks.filled, is_inline=is_inline)


def judge(name, told, after, filled, *, is_inline):
    part, was_taken = after.inode.file, not told["report"].is_inline_refused
    said = told["change"]
    if name in {"open", "extend"} and not said.is_inline:
        # Who was told so may write to a chunk at once.
        assert not part.is_inline and said.dyn_stripe, part
    if name == "extend":
        assert not part.is_inline and part.dyn_stripe == 1
    if name in {"open", "extend", "old reader", "again"}:
        before = len(BEFORE) if is_inline else 0
        assert part.length == (len(DATA) if was_taken else before)
    else:
        assert part.length in LENGTHS[name]
    if part.is_inline:
        assert after.inline_data == (DATA if was_taken else BEFORE)
    if name == "again":
        assert was_taken and part.data_ver == int(is_inline) + 1
    assert all(data in {DATA, BEFORE} for _, data in filled)


@pytest.mark.parametrize("is_inline", [False, True], ids=["empty", "inline"])
@pytest.mark.parametrize("name", CHANGES)
async def test_every_schedule_leaves_one_of_the_two_orders(name, is_inline, autojump_clock):  # noqa: ARG001
    choices, count = [], 0
    while choices is not None and count < RUN_COUNT_MAX:
        turns = Turns(choices)
        try:
            await run_one(turns, name, is_inline=is_inline)
        except AssertionError as error:
            raise AssertionError(f"schedule {turns.chosen}: {error}") from error
        choices = next_choices(turns)
        count += 1
    # Who reads, and finds nothing inline, commits nothing.
    order_count = 3 if name == "old reader" else 6
    assert count >= order_count, "two requests that begin and commit have six orders"


# ---- a report whose client does not hear of it, and asks again or gives up, while others change th

THEIRS = b"of others"
ORDERED_COUNT, RANDOM_COUNT = 40, 60
"""There are too many schedules to try all: so many in order, and as many at random."""


async def _asked(user, inode_id, data, part):
    report = inline_report(data, part.data_ver, part.truncate_ver)
    return await user.call("sync", meta.SyncReq(inode_id=inode_id, **report))


async def ask_again(user, inode_id):
    """Return whether the client takes its bytes for taken."""
    user.request_id, user.is_repeat = REPORT_ID, True
    request = meta.SyncReq(inode_id=inode_id, **_report(user, inode_id))
    return not (await user.call("sync", request)).is_inline_refused


async def give_up(user, inode_id):
    """As `ask_again`, of a client that goes on to write to a chunk."""
    request = meta.ExtendStripeReq(
        inode_id=inode_id, dyn_stripe_min=1, ends_inline=True, report_id=REPORT_ID
    )
    outcome = (await user.call("extend_stripe", request)).inline_outcome
    assert outcome != meta.INLINE_NOT_KNOWN
    return outcome == meta.INLINE_TAKEN


async def ask_again_and_give_up(user, inode_id):
    was_taken = await ask_again(user, inode_id)
    user.request_id, user.is_repeat = None, False
    assert await give_up(user, inode_id) is was_taken
    return was_taken


async def write_to_a_chunk(user, inode_id):
    request = meta.ExtendStripeReq(inode_id=inode_id, dyn_stripe_min=1)
    part = (await user.call("extend_stripe", request)).inode.file
    report = {"length": len(THEIRS), "truncate_ver": part.truncate_ver}
    await user.sync(inode_id, has_new_data=True, length_hint=meta.LengthHintPb(**report))


async def write_inline(user, inode_id):
    """Once the client that reports counts as gone, and its session is pruned."""
    await user.world.user().close(inode_id, session(1).session_id)
    part = (await user.attr(inode_id)).file
    await _asked(user, inode_id, THEIRS, part)


async def empty_it(user, inode_id):
    await user.set_attr(inode_id, length=0)


async def cut_it(user, inode_id):
    await user.set_attr(inode_id, length=2)


async def nothing(_user, _inode_id):
    return


DOUBTS = {f.__name__: f for f in (ask_again, give_up, ask_again_and_give_up)}
OTHERS = {f.__name__: f for f in (write_to_a_chunk, write_inline, empty_it, cut_it, nothing)}


async def doubt_one(turns, doubt, other, *, is_inline):
    """Run one schedule; the bytes of the report are there, whoever looks,
    exactly if its client takes them for taken.
    """
    world, inode_id = await begin(is_inline=is_inline)
    places = [await place(world, number, turns) for number in range(3)]
    takes_for_taken, seen = [], []

    async def send_first(_number):
        user = places[0].user()
        user.request_id = REPORT_ID
        request = meta.SyncReq(inode_id=inode_id, **_report(user, inode_id))
        await user.call("sync", request)  # and nobody hears of the reply

    async def find_out(_number):
        takes_for_taken.append(await DOUBTS[doubt](places[1].user(), inode_id))

    async def change(_number):
        user = places[2].user(client=OTHER)
        fields = {"wants_read": True, "wants_write": True, "takes_inline": True}
        request = meta.OpenReq(inode_id=inode_id, session=session(2), **fields)
        seen.append((await user.call("open", request)).inline_data)
        await OTHERS[other](user, inode_id)
        await user.close(inode_id, session(2).session_id)

    await turns.run([send_first, find_out, change])
    asked = meta.GetAttrReq(inode_id=inode_id, takes_inline=True)
    seen.append((await world.user().call("get_attr", asked)).inline_data)
    seen += [data for _, data in world.chunks.filled]
    assert await check(world.engine) == []
    assert [DATA in seen] == takes_for_taken, (seen, takes_for_taken)


@pytest.mark.parametrize(
    ("doubt", "other", "is_inline"), some_of(product(DOUBTS, OTHERS, (False, True)), 14)
)
async def test_a_report_in_doubt_takes_effect_once(doubt, other, is_inline, autojump_clock):  # noqa: ARG001
    async def run_with(turns):
        try:
            await doubt_one(turns, doubt, other, is_inline=is_inline)
        except AssertionError as error:
            raise AssertionError(f"schedule {turns.chosen}: {error}") from error

    choices = []
    for _ in range(ORDERED_COUNT):
        turns = Turns(choices)
        await run_with(turns)
        choices = next_choices(turns)
        if choices is None:
            return
    source = random.Random(1)
    for _ in range(RANDOM_COUNT):
        await run_with(Turns([], source))
