# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""The profile of a mount: who is counted, for how long, and how much is told."""

import json
import os
import threading

import pytest
import trio

from fs.client.vfs.ports import Caller
from fs.client.vfs.profile import (
    FILE_COUNT_MAX,
    KEPT_S,
    PROCESS_COUNT_MAX,
    THREAD_COUNT_MAX,
    VALUE_BYTES_MAX,
    Profile,
    process_of,
)
from fs.schema.status import FsError, Status

ROOT = Caller(0, 0)


def of_thread(thread_id):
    """Ten threads are one process."""
    return thread_id // 10, f"p{thread_id // 10}"


def told(profile):
    return json.loads(profile.look(ROOT))


async def test_threads_are_counted_as_their_process():
    profile = Profile(of_thread)
    assert not profile.is_on
    assert told(profile)["processes"] == []
    assert profile.is_on
    profile.note(10, "read", 5, 4096, 0.002)
    profile.note(11, "read", 5, 1000, 0.3)
    profile.note(12, "ring_read", 0, 7, 0.001, calls=64)
    profile.note(20, "lookup", 1, 0, 0.0)
    found = told(profile)
    first, second = found["processes"]
    assert (first["pid"], first["command"], second["command"]) == (1, "p1", "p2")
    read = first["operations"]["read"]
    assert (read["calls"], read["bytes"], sum(read["counts"])) == (2, 5096, 2)
    assert read["sum_s"] == pytest.approx(0.302)
    assert first["operations"]["ring_read"]["calls"] == 64
    assert found["files"] == [
        {"inode_id": 5, "calls": 2, "bytes": 5096, "pid": 1},
        {"inode_id": 1, "calls": 1, "bytes": 0, "pid": 2},
    ]
    assert found["left_out"] == 0


async def test_it_ends_some_time_after_the_last_look_and_begins_anew(autojump_clock):
    profile = Profile(of_thread)
    began = told(profile)["began_s"]
    await trio.sleep(KEPT_S - 1)
    profile.note(10, "read", 5, 1, 0.1)
    assert len(told(profile)["processes"]) == 1
    await trio.sleep(KEPT_S - 1)
    profile.note(10, "read", 5, 1, 0.1)
    assert profile.is_on
    await trio.sleep(KEPT_S + 1)
    profile.note(10, "read", 5, 1, 0.1)
    assert not profile.is_on
    again = told(profile)
    assert again["processes"] == again["files"] == []
    assert again["began_s"] > began


async def test_only_the_daemons_user_may_look():
    profile = Profile(of_thread)
    with pytest.raises(FsError) as caught:
        profile.look(Caller(os.geteuid() + 1, 0))
    assert caught.value.status is Status.NOT_PERMITTED
    assert not profile.is_on


@pytest.mark.thorough
async def test_what_is_kept_and_told_is_bounded():
    profile = Profile(lambda thread_id: (thread_id, f"command-{thread_id}"))
    told(profile)
    for number in range(1, 2 * FILE_COUNT_MAX):
        profile.note(number, "read", number, 1, 1.0 if number == PROCESS_COUNT_MAX else 0.1)
        profile.note(number, "write", number, 1, 0.1)
    value = profile.look(ROOT)
    assert len(value) <= VALUE_BYTES_MAX
    found = json.loads(value)
    assert found["left_out"] == PROCESS_COUNT_MAX - len(found["processes"]) > 0
    assert len(profile._processes) == PROCESS_COUNT_MAX
    assert len(profile._files) == FILE_COUNT_MAX
    assert len(profile._process_ids) <= THREAD_COUNT_MAX


async def test_threads_are_found_by_the_kernel():
    assert process_of(0) == (0, "kernel")
    pid, command = await trio.to_thread.run_sync(lambda: process_of(threading.get_native_id()))
    assert pid == os.getpid() and command not in {"", "?"}
    assert process_of(2**22 + 1) == (2**22 + 1, "?")
