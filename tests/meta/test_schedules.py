"""All schedules of the pairs that are known to be dangerous (tests/meta/schedules.py),
and that it finds what is broken.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from fs.meta.service import MetaService
from fs.schema.proto import meta_pb2
from tests.meta.schedules import Turns, explore, next_choices, possible_deeds, prepare

PAIRS = [
    ("rename a into e", "rename b into sub"),
    ("rename sub over e", "rename e over sub"),
    ("rename sub", "rmdir sub"),
    ("rename x to sub/f", "rmdir sub"),
    ("rename sub over e", "mkdir in e"),
    ("create in sub", "rmdir sub"),
    ("create new", "create exclusive"),
    ("link y", "unlink y"),
    ("unlink y", "unlink z"),
    ("rename x over y", "unlink y"),
    ("exchange a and b", "rename x"),
    ("truncate y", "append y"),
    ("write y", "empty y"),
    ("clean", "restore t"),
    ("remove t", "restore t to sub"),
    ("trash sub", "restore t to sub"),
    ("lock sub", "rename x to sub/f"),
    ("lock a", "rename a into e"),
    ("list for what is made in sub", "makedirs in sub"),
    ("makedirs in e", "rename sub over e"),
]


@pytest.mark.slow
@pytest.mark.parametrize("names", PAIRS, ids=" and ".join)
async def test_every_schedule_is_explained(names, autojump_clock):  # noqa: ARG001
    tree = await prepare()
    deeds = possible_deeds(tree.at)
    count, _ = await explore(tree, [deeds[name] for name in names])
    assert count >= 6, "two deeds that begin and commit have six orders"


@pytest.mark.slow
def test_a_mutant_is_found():
    command = [
        "-m",
        "tests.meta.schedules",
        "--sample",
        "40",
        "--seed",
        "3",
        "--broken",
        "moves_without_conflict",
    ]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and ", 0 groups not explained" not in done.stdout, done.stdout


async def test_choices_are_tried_in_every_order():
    seen = []

    async def task(number):
        for step in range(2):
            await turns.stop(number)
            order.append((number, step))

    choices = []
    while choices is not None:
        order, turns = [], Turns(choices)
        await turns.run([task, task])
        seen.append(tuple(order))
        choices = next_choices(turns)
    assert len(seen) == len(set(seen)) == 6


@pytest.mark.parametrize("name", ["unlink y", "rename x over y", "empty y", "append y", "clean"])
async def test_an_open_for_reading_tells_one_state_of_the_file(name, autojump_clock):  # noqa: ARG001
    tree = await prepare()
    deeds = possible_deeds(tree.at)
    _, is_all = await explore(tree, [deeds["open y to read"], deeds[name]])
    assert is_all


async def test_an_open_for_reading_that_tells_something_else_is_found(
    autojump_clock,  # noqa: ARG001
    monkeypatch,
):
    reads = MetaService._read_content

    async def read_wrongly(service, op, request):
        reply = await reads(service, op, request)
        if isinstance(request, meta_pb2.OpenReq):
            reply.inode.file.length += 1
        return reply

    monkeypatch.setattr(MetaService, "_read_content", read_wrongly)
    tree = await prepare()
    deeds = possible_deeds(tree.at)
    with pytest.raises(AssertionError):
        await explore(tree, [deeds["open y to read"], deeds["append y"]])
