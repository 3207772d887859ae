"""RELEASEs give way to what a program asks next,
and to nothing that finds the file open by that.
"""

import errno
import fcntl
import os
import struct

import pytest
import trio

from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct.device import Request
from fs.client.fuse.direct.late_releases import COUNT_MAX, PASSED_MAX, LateReleases
from fs.client.fuse.direct.protocol import Opcode
from tests.client.fuse.test_direct import (  # noqa: F401 - fixtures
    cluster,
    is_watched,
    kernel,
    killed,
)


def release_of(handle_id):
    return Opcode.RELEASE, p.RELEASE_IN.pack(handle_id, 0, 0, 0)


async def answers(kernel, count):  # noqa: F811
    with trio.fail_after(60):
        return [(await kernel.receive())[:2] for _ in range(count)]


GETATTR = (Opcode.GETATTR, p.GETATTR_IN.pack(0, 0, 0))


async def two_files(kernel):  # noqa: F811
    """Make two files; return number and handle of each."""
    return await kernel.make(b"f"), await kernel.make(b"g")


async def test_attributes_go_first(kernel):  # noqa: F811
    (f, handle_id), (g, _) = await two_files(kernel)
    released, asked = kernel.send_together((*release_of(handle_id), f), (*GETATTR, g))
    assert await answers(kernel, 2) == [(asked, 0), (released, 0)]
    assert f not in kernel.vfs._core.states


async def test_no_more_than_some_go_first(kernel):  # noqa: F811
    """Where many threads ask on and on the loop does not sleep."""
    (f, handle_id), (g, _) = await two_files(kernel)
    asked = [(*GETATTR, g)] * (PASSED_MAX + 1)
    released, *asked = kernel.send_together((*release_of(handle_id), f), *asked)
    answered = [unique for unique, _ in await answers(kernel, len(asked) + 1)]
    assert answered == [*asked[:-1], released, asked[-1]]


@pytest.mark.parametrize("is_watched", [False])
async def test_where_nothing_can_be_left_each_is_done_when_it_comes(kernel):  # noqa: F811
    (f, handle_id), (g, _) = await two_files(kernel)
    released, asked = kernel.send_together((*release_of(handle_id), f), (*GETATTR, g))
    assert await answers(kernel, 2) == [(released, 0), (asked, 0)]


async def test_one_that_comes_alone_is_done_without_anything_behind_it(kernel):  # noqa: F811
    (f, handle_id), _ = await two_files(kernel)
    assert await kernel.ask(*release_of(handle_id), f) == (0, b"")


async def test_what_is_removed_changed_or_locked_finds_the_file_closed(kernel):  # noqa: F811
    """Else a removal would ask for a session that keeps the file."""
    real, kept = kernel.vfs._core.call, []

    def call(method, request):
        if method.name == "Unlink":
            kept.append(request.HasField("keep_session"))
        return real(method, request)

    kernel.vfs._core.call = call
    (f, handle_id), (g, other_id) = await two_files(kernel)
    flush = Opcode.FLUSH, p.FLUSH_IN.pack(other_id, 0, 0, 0), g
    sent = kernel.send_together((*release_of(handle_id), f), (*GETATTR, g), flush)
    assert await answers(kernel, 3) == [(sent[1], 0), (sent[0], 0), (sent[2], 0)]
    sent = kernel.send_together((*release_of(other_id), g), (Opcode.UNLINK, b"g\0"))
    assert await answers(kernel, 2) == [(sent[0], 0), (sent[1], 0)]
    assert kept == [False]
    (f, handle_id), _ = await two_files(kernel)
    opened = Opcode.OPEN, p.OPEN_IN.pack(os.O_RDONLY | os.O_TRUNC, 0), f
    sent = kernel.send_together((*release_of(handle_id), f), opened)
    assert await answers(kernel, 2) == [(sent[0], 0), (sent[1], 0)]


def lock_of(handle_id, owner, *, is_flock):
    flags = p.LK_FLOCK if is_flock else 0
    whole = 0, 2**63 - 1, fcntl.F_WRLCK, os.getpid()
    return Opcode.SETLK, p.LK_IN.pack(handle_id, owner, *whole, flags, 0)


@pytest.mark.parametrize("is_flock", [True, False])
async def test_one_that_frees_a_lock_is_not_left(kernel, is_flock):  # noqa: F811
    """Who closes, and locks again at once, finds it free;
    some thirty times, since tasks that come together run in any order.
    """
    (f, handle_id), _ = await two_files(kernel)
    assert (await kernel.ask(*lock_of(handle_id, 0, is_flock=is_flock), f))[0] == 0
    for owner in range(30):
        error, opened = await kernel.ask(Opcode.OPEN, p.OPEN_IN.pack(os.O_RDWR, 0), f)
        assert error == 0
        (next_id,) = struct.unpack_from("=Q", opened)
        flags = p.RELEASE_FLOCK_UNLOCK if is_flock else 0
        release = Opcode.RELEASE, p.RELEASE_IN.pack(handle_id, 0, flags, owner), f
        taken = *lock_of(next_id, owner + 1, is_flock=is_flock), f
        sent = kernel.send_together(release, taken)
        assert dict(await answers(kernel, 2)) == dict.fromkeys(sent, 0)
        handle_id = next_id


async def test_what_fails_is_an_error_of_that_request_alone(kernel, monkeypatch):  # noqa: F811
    (f, handle_id), (g, _) = await two_files(kernel)

    def failing(_):
        raise MemoryError("injected")

    quick = kernel.server._quick
    monkeypatch.setitem(quick, Opcode.RELEASE, failing)
    released, asked = kernel.send_together((*release_of(handle_id), f), (*GETATTR, g))
    assert await answers(kernel, 2) == [(asked, 0), (released, errno.ENOMEM)]
    assert (await kernel.ask(*GETATTR, g))[0] == 0


async def test_those_that_are_left_are_done_when_the_mount_goes(kernel):  # noqa: F811
    (f, handle_id), (g, _) = await two_files(kernel)
    kernel.send_together((*release_of(handle_id), f), (*GETATTR, g))
    kernel.unmount()
    with trio.fail_after(60):
        await kernel.served.wait()
    assert not kernel.server._late.left
    assert f not in kernel.vfs._core.states


def request(number):
    return Request(number, int(Opcode.RELEASE), 1, 0, 0, os.getpid(), b"")


def test_no_more_than_some_are_left():
    done, to_do = [], []
    late = LateReleases(lambda request: done.append(request.unique))
    late.leave = to_do.append
    for number in range(COUNT_MAX + 2):
        late.take(request(number))
    assert done == [0, 1]
    late.do_all()
    assert done == list(range(COUNT_MAX + 2))
    late.take(request(98))
    (before_sleep,) = to_do  # told once, or a loop that never sleeps would have a long list
    before_sleep()
    assert done[-1] == 98
    late.take(request(99))
    assert len(to_do) == 2
    late.abandon()
    to_do.pop()()
    assert 99 not in done
