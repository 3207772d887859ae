"""Inline files whose bytes cannot be moved to a chunk for a time:
whoever needs them there is told why, and can go on later.
"""

import pytest

from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import FsError, Status
from tests.meta.harness import ROOT, hint, inline_report, refused, session

DATA = b"all of it"


@pytest.fixture
def world(inline_world):
    return inline_world


@pytest.fixture
async def file(world, root):
    """A file whose move has begun, and is stuck."""
    made = await root.create(ROOT, b"f", 0o666, wants_write=True, session=session(1))
    await root.sync(made.inode_id, **inline_report(DATA))
    world.chunks.error = FsError(Status.CHAIN_UNAVAILABLE, "for a time")
    with refused(Status.CHAIN_UNAVAILABLE):
        await extend(root, made.inode_id)
    return made.inode_id


async def extend(user, inode_id):
    await user.call("extend_stripe", meta.ExtendStripeReq(inode_id=inode_id, dyn_stripe_min=1))


async def open_emptied(user, inode_id):
    await user.open(
        inode_id, wants_write=True, is_truncate=True, session=session(2), takes_inline=True
    )


async def create_emptied(user, _inode_id):
    fields = {"wants_write": True, "is_truncate": True, "session": session(2)}
    await user.create(ROOT, b"f", takes_inline=True, **fields)


NEEDS = {
    "extend": (extend, 9),
    "O_TRUNC": (open_emptied, 0),
    "O_CREAT": (create_emptied, 0),
    "empty": (lambda user, i: user.set_attr(i, length=0), 0),
    "cut": (lambda user, i: user.set_attr(i, length=4), 4),
    "lengthen": (lambda user, i: user.set_attr(i, length=20), 20),
    "append": (lambda user, i: user.append(i, 5), 14),
    "report": (lambda user, i: user.sync(i, has_new_data=True, length_hint=hint(12, 1)), 12),
    "old reader": (lambda user, i: user.open(i, wants_read=True), 9),
}


@pytest.mark.parametrize("name", NEEDS)
async def test_who_needs_the_chunk_is_told_and_succeeds_later(world, root, file, name):
    deed, length = NEEDS[name]
    before = await world.dump()
    for _ in range(2):
        with refused(Status.CHAIN_UNAVAILABLE):
            await deed(root, file)
    assert await world.dump() == before
    asked = meta.GetAttrReq(inode_id=file, takes_inline=True)
    assert (await root.call("get_attr", asked)).inline_data == DATA
    world.chunks.error = None
    await deed(root, file)
    part = (await root.attr(file)).file
    assert not (part.is_inline or part.truncate_pending) and part.length == length
    assert world.chunks.filled == [(file, DATA)]
    assert len(world.chunks.truncated) == (length < len(DATA))
