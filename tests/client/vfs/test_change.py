"""Changes that are begun: who waits has the answer before what it does not depend
on is taken in.
"""

import logging

import pytest

from fs.client.vfs.change import Change, begin, make
from fs.schema import services
from fs.schema.proto import meta_pb2

REQUEST = meta_pb2.MkdirReq(name=b"d")
REPLY = meta_pb2.InodeRsp()


class Core:
    """Meta, which answers at once."""

    def __init__(self):
        self.begins_changes = self
        self.in_task = []

    def begin_change(self, _method, _request, ended):
        ended(REPLY, None)
        return True

    def finish_in_task(self, taken, on_end):
        taken.close()
        self.in_task.append(on_end)

    async def call(self, _method, _request):
        return REPLY


@pytest.fixture
def happened():
    return []


def change_of(happened, take, note=None):
    return Change(
        services.META_MKDIR,
        REQUEST,
        take,
        lambda: happened.append("fail"),
        note=note or (lambda _: happened.append("note")),
    )


async def test_the_answer_is_given_before_the_rest_of_the_reply_is_taken_in(happened):
    change = change_of(happened, lambda _: happened.append("take") or 5)
    assert begin(Core(), change, lambda made, error: happened.append((made, error)))
    assert happened == ["take", (5, None), "note"]


async def test_the_rest_is_taken_in_also_where_the_reply_cannot_be(happened):
    wrong = ValueError("wrong")

    def take(_):
        raise wrong

    assert begin(Core(), change_of(happened, take), lambda *made: happened.append(made))
    assert happened == [(None, wrong), "note"]
    happened.clear()
    with pytest.raises(ValueError, match="wrong"):
        await make(Core(), change_of(happened, take))
    assert happened == ["note"]


async def test_the_rest_is_taken_in_before_a_task_goes_on(happened):
    async def late():
        happened.append("awaited")

    core = Core()
    assert begin(core, change_of(happened, lambda _: late()), lambda *made: happened.append(made))
    assert happened == ["note"]
    assert len(core.in_task) == 1
    await make(core, change_of(happened, lambda _: late()))
    assert happened == ["note", "note", "awaited"]


async def test_a_bug_in_taking_in_the_rest_answers_nobody_twice(happened, caplog):
    def note(_):
        raise ValueError("note")

    change = change_of(happened, lambda _: 5, note)
    with caplog.at_level(logging.ERROR):
        assert begin(Core(), change, lambda *made: happened.append(made))
    assert happened == [(5, None)]
    assert "has been answered" in caplog.text
