"""A disk that was put back to an earlier state does not serve as the last
that has a chain's newest data.
"""
# ruff: noqa: ARG001 - the clock fixture acts by being asked for

import pytest
import trio

from fs.mgmtd.watermarks import WATERMARK_PREFIX, Watermarks, unpack_watermarks, watermark_key
from fs.schema import services
from fs.schema.ids import ChainId, TargetId
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.routing import Chain, ChainTarget, PublicState
from fs.schema.status import FsError, Status
from tests.mgmtd.harness import L, O, S, W, cluster_of
from tests.mgmtd.ops.test_chain_ops import refused

pytestmark = pytest.mark.thorough

ONE, TWO = TargetId(1101), TargetId(1201)


def chain_of(*states):
    members = tuple(ChainTarget(t, state) for t, state in zip((ONE, TWO), states, strict=False))
    return Chain(ChainId(1), 5, members, (ONE, TWO), (ONE, TWO))


def test_less_than_was_told_is_an_older_image():
    marks = Watermarks({})
    assert not marks.hear(ONE, 100)
    assert not marks.hear(ONE, 100)
    assert marks.hear(ONE, 99)
    assert marks.older(ONE) == 100
    assert marks.is_refused(ONE, chain_of(PublicState.LASTSRV))
    for state in (PublicState.OFFLINE, PublicState.WAITING, PublicState.SYNCING):
        assert not marks.is_refused(ONE, chain_of(state))
    assert not marks.is_refused(ONE, None)
    assert not marks.hear(ONE, 98)  # nothing new
    assert marks.hear(ONE, 101)
    assert marks.older(ONE) is None


def test_a_release_that_keeps_none_is_believed():
    marks = Watermarks({ONE: 100})
    assert not marks.hear(ONE, 0)
    assert marks.older(ONE) is None
    assert marks.hear(ONE, 1)  # of a disk that was emptied
    assert marks.hear(ONE, 0)
    assert not marks.is_refused(ONE, chain_of(PublicState.LASTSRV))


def test_what_is_unwritten_is_written_once_and_read_again():
    marks = Watermarks({TWO: 7})
    marks.hear(ONE, 100)
    first = marks.unwritten()
    marks.hear(ONE, 101)
    marks.note_written(first)  # an older one has been written meanwhile
    second = marks.unwritten()
    assert [key for key, _ in second] == [b"MGWM" + ONE.to_bytes(8, "big")] == [watermark_key(ONE)]
    marks.note_written(second)
    assert marks.unwritten() == []
    assert unpack_watermarks([value for _, value in second]) == {ONE: 101}
    marks.forget(ONE)
    marks.forget(TargetId(5))
    assert marks.unwritten() == [(watermark_key(ONE), None)]
    assert not marks.hear(ONE, 1)


def test_people_are_told_of_when_the_disk_is():
    marks = Watermarks({ONE: 1_800_000_000, TWO: 1 << 60})
    marks.hear(ONE, 1_790_000_000)
    assert "2026-09-21 14:13:20 UTC, but served until 2027-01-15 08:00:00 UTC" in str(
        marks.refusal(ONE)
    )
    marks.hear(TWO, 1)
    assert "before it ever served, but served until second 1152921504606846976" in str(
        marks.refusal(TWO)
    )


async def stop_all(cluster, node_ids):
    """Stop processes one after the other; the last one is the last to serve."""
    for node_id in node_ids:
        await cluster.storages[node_id].stop()
        await cluster.until(lambda i, n=node_id: cluster.state_of(i, n) in {O, L})


async def accept(cluster, target_id, **options):
    request = pb.AcceptOldImageReq(chain_id=1, target_id=target_id, **options)
    return await cluster.call(services.MGMTD_ACCEPT_OLD_IMAGE, request)


async def begin(cluster, told=100):
    await cluster.up()
    cluster.watermarks |= {node_id * 100 + 1: told for node_id in cluster.storage_ids}
    await trio.sleep(5)  # heard, and kept


@pytest.mark.parametrize("managers", [1, 2], ids=["same-manager", "next-manager"])
async def test_the_last_server_does_not_serve_from_an_older_image(autojump_clock, managers):
    async with cluster_of(manager_count=managers, storages=2) as cluster:
        await begin(cluster)
        await stop_all(cluster, [12, 11])
        if managers > 1:
            await cluster.primaries[0].kill()
            await trio.sleep(30)
        cluster.watermarks[1101] = 60
        for node_id in (11, 12):
            await cluster.start_storage(node_id)
        await trio.sleep(30)
        info = await cluster.info()
        assert cluster.states(info) == [L, W]
        assert cluster.states(info, 2) == [S, S]  # chains whose disks are as they were
        assert info.target(1101).has_old_image
        assert "OLD_DISK_IMAGE" in info.target(1101).trouble
        assert cluster.told == {1101: 100}
        cluster.watermarks[1101] = 100  # the right disk is back
        await cluster.storages[11].kill()
        await cluster.start_storage(11)
        info = await cluster.until(lambda i: cluster.states(i) == [S, S])
        assert info.chain(1).loss_count == 0
        info = await cluster.until(lambda i: not i.target(1101).trouble)
        assert not info.target(1101).has_old_image


async def test_an_older_image_stands_in_for_nobody(autojump_clock):
    async with cluster_of(storages=3) as cluster:
        await begin(cluster)
        for node_id in (11, 12, 13):
            await cluster.storages[node_id].kill()
        info = await cluster.until(lambda i: cluster.states(i) == [L, O, O])
        assert set(info.chain(1).candidates) == {1101, 1201, 1301}
        last, second, third = (t.target_id // 100 for t in info.chain(1).targets)
        cluster.watermarks[second * 100 + 1] = 1  # its disk was emptied
        await cluster.start_storage(second)
        await trio.sleep(30)
        info = await cluster.info()
        assert not info.chain(1).serving
        assert info.target(second * 100 + 1).has_old_image
        await cluster.start_storage(third)  # the last server stays away
        info = await cluster.until(lambda i: cluster.states(i) == [S, S, O])
        assert info.chain(1).serving[0] == third * 100 + 1
        assert info.chain(1).loss_count == 0
        assert not info.target(second * 100 + 1).has_old_image
        await cluster.start_storage(last)
        await cluster.until(lambda i: cluster.states(i) == [S, S, S])


async def test_the_log_says_so_of_one_that_came_back_before_it_was_missed(autojump_clock, caplog):
    async with cluster_of(storages=1) as cluster:
        await begin(cluster)
        await cluster.storages[11].kill()
        cluster.watermarks[1101] = 60
        await cluster.start_storage(11)
        await trio.sleep(30)
        assert cluster.states(await cluster.info()) == [L]
        said = [r.getMessage() for r in caplog.records if "OLD_DISK_IMAGE" in r.getMessage()]
        assert len(said) == 1
        assert said[0].startswith("chain 1 waits: ")


async def test_an_older_image_that_is_not_the_last_is_brought_up_to_date(autojump_clock):
    async with cluster_of(storages=2) as cluster:
        await begin(cluster)
        await cluster.storages[11].stop()
        cluster.watermarks[1101] = 1
        await cluster.start_storage(11)
        info = await cluster.until(lambda i: cluster.states(i) == [S, S])
        assert cluster.told == {1101: 100}
        assert not info.target(1101).trouble


async def test_a_person_accepts_an_older_image(autojump_clock):
    async with cluster_of(storages=2) as cluster:
        await begin(cluster)
        await stop_all(cluster, [12, 11])
        cluster.watermarks[1101] = 60
        for node_id in (11, 12):
            await cluster.start_storage(node_id)
        await trio.sleep(10)
        await refused(Status.OLD_DISK_IMAGE, accept(cluster, 1101))
        await refused(Status.UNSAFE_CHANGE, accept(cluster, 1201, accept_data_loss=True))
        await accept(cluster, 1101, accept_data_loss=True)
        info = await cluster.until(lambda i: cluster.states(i) == [S, S])
        assert info.chain(1).loss_count == 1
        await refused(Status.UNSAFE_CHANGE, accept(cluster, 1101, accept_data_loss=True))
        events = await cluster.call(
            services.MGMTD_LIST_ROUTING_EVENTS, pb.ListRoutingEventsReq(event_count_max=50)
        )
        assert any("older image of target 1101" in event.why for event in events.events)


async def test_a_person_gives_an_older_image_up(autojump_clock):
    async with cluster_of(storages=2) as cluster:
        await begin(cluster)
        await stop_all(cluster, [12, 11])
        cluster.watermarks[1101] = 60
        for node_id in (11, 12):
            await cluster.start_storage(node_id)
        await trio.sleep(10)
        request = pb.RotateLastServingReq(chain_id=1, lost_target_id=1101, accept_data_loss=True)
        reply = await cluster.call(services.MGMTD_ROTATE_LAST_SERVING, request)
        assert reply.chosen_target_id == 1201
        await cluster.until(lambda i: cluster.states(i) == [S, S])


async def test_a_disk_that_does_not_tell_is_believed(autojump_clock):
    async with cluster_of(storages=2) as cluster:
        await begin(cluster)
        await stop_all(cluster, [12, 11])
        cluster.watermarks.clear()
        for node_id in (11, 12):
            await cluster.start_storage(node_id)
        await cluster.until(lambda i: cluster.states(i) == [S, S])


async def test_what_served_under_a_release_that_keeps_none_is_no_older_image_later(autojump_clock):
    async with cluster_of(storages=2) as cluster:
        await begin(cluster)
        for found in (0, 60):  # 60: of a disk that replaced the one with 100 meanwhile
            await stop_all(cluster, [12, 11])
            cluster.watermarks = {1101: found}
            for node_id in (11, 12):
                await cluster.start_storage(node_id)
            await cluster.until(lambda i: cluster.states(i) == [S, S])
            await trio.sleep(5)


async def test_a_store_that_takes_no_watermark_ends_no_reign(autojump_clock, monkeypatch):
    async with cluster_of(storages=2) as cluster:
        await begin(cluster)
        primary = cluster.primaries[0].mgmtd.service.primary
        write_apart, failure_count = primary._store.write_apart, 0

        async def fail(*arguments):
            nonlocal failure_count
            is_meant = all(key.startswith(WATERMARK_PREFIX) for key, _ in arguments[-1])
            if is_meant and failure_count < 3:
                failure_count += 1
                raise FsError(Status.KV_UNAVAILABLE, "away")
            await write_apart(*arguments)

        monkeypatch.setattr(primary._store, "write_apart", fail)
        cluster.watermarks[1101] = 200
        await trio.sleep(10)
        assert failure_count == 3
        assert cluster.primaries[0].mgmtd.service.primary is primary
        assert primary.state.watermarks.unwritten() == []
        assert (await primary._store.load()).watermarks[TargetId(1101)] == 200
