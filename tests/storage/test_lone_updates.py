# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Small writes that are begun without a task:
which ones are, and that what goes wrong on their way ends as for all others.
"""

import pytest
import trio

from fs.chunkengine.books import StuckError
from fs.schema import services
from fs.schema.routing import LocalState
from fs.schema.status import FsError, Status
from fs.storage import lone_update
from fs.storage.context import StorageContext
from fs.storage.flusher import Flusher

from .cluster import content, open_caller, open_cluster


@pytest.fixture
def begun(monkeypatch):
    """Whether each that came was begun, by node."""
    found = []
    real = lone_update.LoneUpdates.begin

    def begin(self, *args, **options):
        is_begun = real(self, *args, **options)
        found.append((self._context.node_id, is_begun))
        return is_begun

    monkeypatch.setattr(lone_update.LoneUpdates, "begin", begin)
    return found


def check_left(cluster):
    """Nothing is held for any update."""
    for node in cluster.nodes.values():
        target = node.target
        assert not target.locks and not target.unsettled and not target.inflight.count
        assert not target.forwards and not target.unanswered_since_s
        assert not any(slot.is_busy for slot in target.channels._slots.values())


@pytest.mark.parametrize("node_count", [1, 2, 3])
@pytest.mark.parametrize("is_durable", [False, True])
async def test_small_whole_versions_are_begun_on_every_replica(
    mock_clock, begun, node_count, is_durable
):
    async with open_cluster(node_count) as cluster, open_caller(cluster) as client:
        expected = {}
        await client.write(0, b"00" * 2000, 9)  # blocks of this size have space from now on
        for number in range(12):
            index, data = number % 4, b"%02d" % number * 2000
            request = client.write_request(0, data, index)
            request.is_durable = is_durable
            begun.clear()
            reply = await client.attempt(request, data)
            assert reply.is_durable is is_durable
            assert reply.chain_version == cluster.chain.chain_version
            assert (reply.update_ver, reply.chunk_length) == (1 + number // 4, len(data))
            expected[index] = (1 + number // 4, 0, data)
            check_left(cluster)
            assert sorted(begun) == [(n, True) for n in cluster.nodes]
        for index, wanted in expected.items():
            assert {content(cluster, n, index) for n in cluster.nodes} == {wanted}


async def test_what_is_unusual_is_left_to_others(mock_clock, begun):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        for _ in range(3):
            await client.write(0, b"first")
        assert begun[-1] == (2, True)

        async def is_begun(request, data):
            begun.clear()
            await client.update(request, data)
            return any(one for _, one in begun)

        assert not await is_begun(client.write_request(3, b"behind"), b"behind")
        request = client.write_request(0, b"repeated" * 8000)
        await client.update(request, b"repeated" * 8000)
        assert not await is_begun(request, b"repeated" * 8000), "a repeat"
        untagged = client.write_request(0, b"x")
        untagged.ClearField("tag")
        assert not await is_begun(untagged, b"x")
        wrong = client.write_request(0, b"right")
        with pytest.raises(FsError) as caught:
            await client.attempt(wrong, b"wrong")
        assert caught.value.status is Status.CHECKSUM_MISMATCH
        check_left(cluster)


async def test_what_does_not_decode_is_refused_and_no_bug(mock_clock, begun):
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        await client.write(0, b"before")
        channel = client.channels.get("mem:node-1", node_id=1)
        with pytest.raises(FsError) as caught:
            await channel.call(services.STORAGE_WRITE, b"\xff\xff\xff", payload=[b"some"])
        assert caught.value.status is Status.RPC_BAD_REQUEST
        assert begun[-1] == (1, False)
        assert not cluster.bugs


async def test_a_repeat_has_the_first_result_and_no_effect(mock_clock, begun):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        for data in (b"aaaa", b"bbbb"):
            await client.write(0, data)
        request = client.write_request(0, b"once")
        first = await client.attempt(request, b"once")
        assert sorted(begun[-3:]) == [(1, True), (2, True), (3, True)]
        client.channel_id += 1
        await client.write(0, b"others")
        assert await client.attempt(request, b"once") == first
        assert {content(cluster, n)[2] for n in cluster.nodes} == {b"others"}


@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("node_id", [2, 3])
async def test_a_successor_that_dies_meanwhile_is_left_out(
    mock_clock, begun, monkeypatch, node_id, is_durable
):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        for _ in range(3):
            await client.write(0, b"before")
        engine = cluster.nodes[node_id].engine
        real, asked = engine.prepare_write, []

        def prepare_write(*args, **options):
            asked.append(args)
            if len(asked) == 1:
                cluster.nursery.start_soon(cluster.nodes[node_id].kill)
                raise FsError(Status.BUSY, "about to die")
            return real(*args, **options)

        monkeypatch.setattr(engine, "prepare_write", prepare_write)
        request = client.write_request(0, b"after!")
        request.is_durable = is_durable
        begun.clear()
        reply = await client.attempt(request, b"after!", timeout_s=20)
        assert reply.update_ver == 4
        assert begun[0] == (1, True)
        left = [n for n in cluster.nodes if n != node_id]
        assert {content(cluster, n)[2] for n in left} == {b"after!"}


async def test_no_space_below_takes_the_version_back(mock_clock, begun, monkeypatch):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        for _ in range(3):
            await client.write(0, b"before")

        def refuse(*_args, **_options):
            raise FsError(Status.NO_SPACE, "full")

        with monkeypatch.context() as patched:
            patched.setattr(cluster.nodes[3].engine, "prepare_write", refuse)
            request = client.write_request(0, b"after!")
            begun.clear()
            with pytest.raises(FsError) as caught:
                await client.attempt(request, b"after!")
        assert caught.value.status is Status.NO_SPACE
        assert sorted(begun) == [(1, True), (2, True), (3, True)]
        assert [content(cluster, n) for n in cluster.nodes] == [(3, 0, b"before")] * 3
        check_left(cluster)
        with pytest.raises(FsError) as again:
            await client.attempt(request, b"after!")
        assert again.value.status is Status.NO_SPACE, "nothing comes of a late copy"
        await client.write(0, b"later!")
        assert {content(cluster, n)[2] for n in cluster.nodes} == {b"later!"}


async def test_digests_that_differ_send_the_successor_through_resync(
    mock_clock, begun, monkeypatch
):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        for _ in range(3):
            await client.write(0, b"before")
        real, asked = lone_update.reply_of, []

        def reply_of(place, *args, **options):
            reply = real(place, *args, **options)
            if place.successor is None and not asked:
                asked.append(place)
                reply.chunk_checksum ^= 1
            return reply

        monkeypatch.setattr(lone_update, "reply_of", reply_of)
        version = cluster.chain.chain_version
        await client.write(0, b"after!")
        assert asked
        await cluster.wait_all_serving()
        assert cluster.chain.chain_version > version
        assert {content(cluster, n)[2] for n in cluster.nodes} == {b"after!"}


async def test_a_lease_that_runs_out_meanwhile_lets_nobody_be_told_of_success(
    mock_clock, begun, monkeypatch
):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        for _ in range(3):
            await client.write(0, b"before")
        head = cluster.nodes[1]
        real = cluster.nodes[2].engine.prepare_write

        def prepare_write(*args, **options):
            monkeypatch.setattr(type(head.lease), "is_valid", lambda lease: lease is not head.lease)
            return real(*args, **options)

        monkeypatch.setattr(cluster.nodes[2].engine, "prepare_write", prepare_write)
        begun.clear()
        with pytest.raises(FsError) as caught:
            await client.attempt(client.write_request(0, b"after!"), b"after!")
        assert caught.value.status is Status.OUTCOME_UNKNOWN
        assert sorted(begun) == [(1, True), (2, True)]
        assert {content(cluster, n)[2] for n in cluster.nodes} == {b"after!"}
        check_left(cluster)


async def test_a_successor_that_is_replaced_is_waited_for_no_longer(mock_clock, begun, monkeypatch):
    """The call is given up when the chain changes, and the update follows the chain."""
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        for _ in range(3):
            await client.write(0, b"before")
        monkeypatch.setattr(lone_update._Lone, "_tell", silent_at(2, lone_update._Lone._tell))
        found = []

        async def write():
            found.append(
                await client.attempt(client.write_request(0, b"after!"), b"after!", timeout_s=30)
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await trio.sleep(0.5)
            assert not found
            target = cluster.nodes[2].target
            cluster.nodes[2].storage.targets.set_local(target, LocalState.OFFLINE)
        assert found[0].update_ver == 4
        assert content(cluster, 1)[2] == content(cluster, 3)[2] == b"after!"


def silent_at(node_id, real):
    """Let a replica keep its answers to itself."""

    def tell(self):
        if self._context.node_id != node_id:
            real(self)

    return tell


@pytest.mark.parametrize("node_id", [1, 2])
async def test_a_bug_of_the_engine_holds_up_nobody_else(mock_clock, begun, monkeypatch, node_id):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        for _ in range(3):
            await client.write(0, b"before")
        engine = cluster.nodes[node_id].engine

        def prepare_write(*_args, **_options):
            raise AssertionError("broken invariant")

        with monkeypatch.context() as patched:
            patched.setattr(engine, "prepare_write", prepare_write)
            with pytest.raises(FsError) as caught:
                await client.attempt(client.write_request(0, b"poison"), b"poison", timeout_s=20)
        assert caught.value.status is (
            Status.INTERNAL_ERROR if node_id == 1 else Status.OUTCOME_UNKNOWN
        )
        assert {type(error) for _, error in cluster.bugs} == {AssertionError}
        assert any(where.startswith("begin") for where, _ in cluster.bugs)
        cluster.bugs.clear()
        client.channel_id += 1
        await client.write(0, b"after!")
        assert {content(cluster, n)[2] for n in cluster.nodes} == {b"after!"}
        check_left(cluster)


async def test_a_bug_after_a_failed_attempt_ends_no_process(mock_clock, begun, monkeypatch):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        for _ in range(3):
            await client.write(0, b"before")

        def refuse(*_args, **_options):
            raise FsError(Status.BUSY, "for now")

        async def go_on(*_args, **_options):
            raise AssertionError("broken invariant")

        with monkeypatch.context() as patched:
            patched.setattr(cluster.nodes[2].engine, "prepare_write", refuse)
            patched.setattr(lone_update, "pass_on_and_commit", go_on)
            with pytest.raises(FsError) as caught:
                await client.attempt(client.write_request(0, b"poison"), b"poison")
        assert caught.value.status is Status.INTERNAL_ERROR
        assert [type(error) for _, error in cluster.bugs] == [AssertionError]
        cluster.bugs.clear()
        client.channel_id += 1
        await client.write(0, b"after!")
        assert {content(cluster, n)[2] for n in cluster.nodes} == {b"after!"}
        check_left(cluster)


@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("is_stuck", [False, True])
async def test_a_bug_of_the_engine_at_the_commit_ends_no_process(
    mock_clock, begun, monkeypatch, is_durable, is_stuck
):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        for _ in range(3):
            await client.write(0, b"before")
        engine, asked = cluster.nodes[1].engine, []

        def commit(*_args, **_options):
            asked.append(None)
            if is_stuck and len(asked) == 1:
                raise StuckError(Status.IO_ERROR, "not on the event loop")
            raise AssertionError("broken invariant")

        request = client.write_request(0, b"poison")
        request.is_durable = is_durable
        begun.clear()
        with monkeypatch.context() as patched:
            patched.setattr(engine, "commit", commit)
            reply = await client.attempt(request, b"poison")
            await trio.sleep(1)
        assert reply.update_ver == 4, "the chain has it, and the caller is told before the commit"
        assert (1, True) in begun
        assert [type(error) for _, error in cluster.bugs] == [AssertionError]
        cluster.bugs.clear()
        await client.write(0, b"after!")
        assert {content(cluster, n)[2] for n in cluster.nodes} == {b"after!"}
        check_left(cluster)


async def test_a_bug_on_the_way_to_the_successor_holds_up_nobody_else(
    mock_clock, begun, monkeypatch
):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        for _ in range(3):
            await client.write(0, b"before")

        def channel_to(*_args):
            raise AssertionError("broken invariant")

        begun.clear()
        with monkeypatch.context() as patched:
            patched.setattr(StorageContext, "channel_to", channel_to)
            with pytest.raises(FsError) as caught:
                await client.attempt(client.write_request(0, b"poison"), b"poison")
        assert caught.value.status is Status.INTERNAL_ERROR
        assert begun == [(1, True)]
        assert [type(error) for _, error in cluster.bugs] == [AssertionError]
        cluster.bugs.clear()
        client.channel_id += 1
        await client.write(0, b"after!")
        assert {content(cluster, n)[2] for n in cluster.nodes} == {b"after!"}
        check_left(cluster)


@pytest.mark.parametrize("step", ["_record", "_tell", "_commit", "_replied"])
@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_lack_at_any_step_is_the_answer_and_lets_go_of_the_chunk(
    mock_clock, begun, monkeypatch, step, is_durable
):
    """No task would end with it, but the event loop;
    and whoever waits for the chunk would wait for ever.
    """
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        for _ in range(3):
            await client.write(0, b"before")
        real, lacks = getattr(lone_update._Lone, step), []

        def lacking(self, *args):
            if len(lacks) < 2:  # at two replicas, or in the first try and the second
                lacks.append(self)
                raise MemoryError("injected")
            real(self, *args)

        monkeypatch.setattr(lone_update._Lone, step, lacking)
        request = client.write_request(0, b"after!")
        request.is_durable = is_durable
        begun.clear()
        reply = await client.update(request, b"after!")
        assert len(lacks) > 0 and begun
        assert reply.update_ver == 4
        assert {content(cluster, n)[2] for n in cluster.nodes} == {b"after!"}
        check_left(cluster)
        await client.write(0, b"later!")
        assert {content(cluster, n)[2] for n in cluster.nodes} == {b"later!"}
        assert not cluster.bugs


async def test_a_call_whose_update_has_failed_meanwhile_is_waited_for_by_nobody(
    mock_clock, begun, monkeypatch
):
    """Its successor would look as if it did not answer, for as long as nobody writes,
    and what is late could pass the next update.
    """
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        for _ in range(3):
            await client.write(0, b"before")
        target = cluster.nodes[1].target
        real, lacks, epoch = Flusher.begin, [], target.epoch

        def lacking(self, disk):
            if not lacks:
                lacks.append(disk)
                raise MemoryError("injected")
            return real(self, disk)

        request = client.write_request(0, b"after!")
        request.is_durable = True
        begun.clear()
        with monkeypatch.context() as patched:
            patched.setattr(Flusher, "begin", lacking)
            with pytest.raises(FsError) as caught:
                await client.attempt(request, b"after!")
        assert caught.value.status is Status.OUT_OF_RESOURCES
        assert lacks == [target.disk] and begun[0] == (1, True)
        assert target.epoch == epoch + 1
        await trio.sleep(1)
        assert not target.forwards and not target.unanswered_since_s
        assert (await client.update(request, b"after!")).update_ver == 4
        assert {content(cluster, n)[2] for n in cluster.nodes} == {b"after!"}
        check_left(cluster)
        assert not cluster.bugs
