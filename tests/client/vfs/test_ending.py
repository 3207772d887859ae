"""Sessions with nothing to report: ended together, a moment later, and before the mount is gone."""

import os

import pytest
import trio

from fs.client.ending import AGAIN_S, PAUSE_S
from fs.schema.status import FsError, Status


def ends(cluster):
    return [call for call in cluster.calls if call in {"Close", "PruneSessions"}]


async def test_many_go_in_one_call(autojump_clock, mounts, cluster):  # noqa: ARG001
    async with mounts() as m:
        for i in range(50):
            await m.close(await m.create(b"%d" % i))
        assert sum(map(len, cluster.sessions.values())) == 50
        await trio.sleep(2 * PAUSE_S)
        assert not any(cluster.sessions.values())
        assert ends(cluster) == ["PruneSessions"]


async def test_what_has_something_to_report_goes_by_itself(autojump_clock, mounts, cluster):  # noqa: ARG001
    async with mounts() as m:
        handle_id = await m.create(b"f")
        await m.files.write(handle_id, 0, b"data")
        await m.files.release(handle_id)
        assert ends(cluster) == ["Close"]
        assert cluster.get(cluster.names[1][b"f"]).length == 4


async def test_the_end_of_the_mount_ends_what_waits(autojump_clock, mounts, cluster):  # noqa: ARG001
    async with mounts() as m:
        await m.close(await m.create(b"f"))
    assert not any(cluster.sessions.values())
    assert ends(cluster) == ["PruneSessions"]


@pytest.mark.parametrize(
    "error",
    [FsError(Status.KV_UNAVAILABLE, "no"), FsError(Status.NO_SPACE, "no"), MemoryError()],
)
async def test_who_gets_no_answer_waits_on(autojump_clock, mounts, cluster, error):  # noqa: ARG001
    async with mounts() as m:
        cluster.meta_faults["PruneSessions"] = [error]
        await m.close(await m.create(b"f"))
        await trio.sleep(2 * PAUSE_S)
        await m.close(await m.create(b"g"))
        assert sum(map(len, cluster.sessions.values())) == 2
        await trio.sleep(2 * AGAIN_S)
        assert not any(cluster.sessions.values())
        assert ends(cluster) == ["PruneSessions"] * 2


@pytest.mark.parametrize("status", [Status.KV_UNAVAILABLE, Status.NO_SPACE])
async def test_one_whose_report_is_not_taken_is_ended_once_it_can_be(
    autojump_clock,  # noqa: ARG001
    mounts,
    cluster,
    status,
):
    """The program has closed its file before: a removed file kept its chunks, and others theirs,
    until the mount ended.
    """
    async with mounts() as m:
        handle_id = await m.create(b"f")
        await m.files.write(handle_id, 0, b"data")
        cluster.meta_faults["Close"] = [FsError(status, "no")] * 500
        with pytest.raises(FsError):
            await m.files.release(handle_id)
        cluster.meta_faults["PruneSessions"] = [FsError(status, "still no")]
        await trio.sleep(PAUSE_S + AGAIN_S / 2)
        assert sum(map(len, cluster.sessions.values())) == 1
        await trio.sleep(60)
        assert not any(cluster.sessions.values())
        assert cluster.get(cluster.names[1][b"f"]).length == 4


async def test_one_that_is_refused_does_not_keep_the_others(autojump_clock, mounts, cluster):  # noqa: ARG001
    no = FsError(Status.INVALID_ARGUMENT, "no")
    async with mounts() as m:
        cluster.meta_faults["PruneSessions"] = [no, no]  # all at once, and the first by itself
        for name in (b"f", b"g", b"h"):
            await m.close(await m.create(name))
        await trio.sleep(2 * AGAIN_S)
        assert sum(map(len, cluster.sessions.values())) == 1
        assert ends(cluster) == ["PruneSessions"] * 4


async def test_what_needs_no_wait_is_closed_at_once(autojump_clock, mounts, cluster):  # noqa: ARG001
    async with mounts() as m:
        handle_id = await m.create(b"f")
        assert m.files.flush_now(handle_id)
        await m.files.write(handle_id, 0, b"data")
        assert not m.files.flush_now(handle_id)
        assert not m.files.release_now(handle_id)
        await m.files.flush(handle_id)
        calls = len(cluster.calls)
        assert m.files.flush_now(handle_id)
        assert m.files.release_now(handle_id)
        assert not m.files.release_now(handle_id), "there is nothing to release any more"
        reading = (await m.open(b"f", os.O_RDONLY)).handle_id
        assert m.files.flush_now(reading)
        assert m.files.release_now(reading)
        assert cluster.calls[calls:] == ["Lookup", "Open"]
        await trio.sleep(2 * PAUSE_S)
        assert ends(cluster) == ["PruneSessions"]
        assert not any(cluster.sessions.values())


async def test_a_failed_write_is_told_once_also_without_waiting(autojump_clock, mounts, cluster):  # noqa: ARG001
    async with mounts() as m:
        handle_id = await m.create(b"f")
        other = (await m.open(b"f")).handle_id
        await m.files.write(handle_id, 0, b"data")
        cluster.chunks.write_faults.append(FsError(Status.NO_SPACE, "full"))
        with pytest.raises(FsError):
            await m.files.flush(handle_id)
        with pytest.raises(FsError):
            m.files.flush_now(other)
        assert m.files.flush_now(other)
        await m.close(handle_id)
        assert m.files.release_now(other)
