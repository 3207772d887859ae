"""Who is slow is waited for, who is silent is not; and for how long is tried again."""

import gc
import random
import weakref
from contextlib import suppress

import msgspec
import pytest
import trio

from fs.client.patience import ASK_S, PATIENT_S, Patience, SlowPeerError, same_error
from fs.client.retry import WORKED_ON_S_MAX, RetryBudget, longest_s
from fs.rpc.api import Received
from fs.rpc.call_under_way import CallUnderWay, TimeUpError
from fs.runtime.ports import Runtime
from fs.schema import services
from fs.schema.config import OUTCOMES_KEPT_S, ClientSection, MetaSection
from fs.schema.ids import NodeId
from fs.schema.proto.core_pb2 import GetInfoRsp
from fs.schema.routing import Node, NodeState, Role
from fs.schema.status import FsError, Status

from .fakes import FakeClock, run_inline

LIMIT_S = ClientSection().call_timeout_s
NODE = Node(NodeId(1), frozenset({Role.STORAGE}), "mem:one", "first", NodeState.CONNECTED)


class Peer:
    """Channels to one node that needs its time, or is silent."""

    def __init__(self, took_s, incarnation="first"):
        self.took_s = took_s
        self.incarnation = incarnation
        self.silent_from_s = float("inf")
        self.limits = []
        self.asked_count = 0
        self.node_id = 0

    def get(self, _address, *, node_id):
        self.node_id = node_id
        return self

    async def call(self, method, _request, *, timeout_s, under_way=None, **_options):
        is_question = method is services.CORE_GET_INFO
        assert (self.node_id == 0) is is_question  # on a connection of its own
        if is_question:
            self.asked_count += 1
        else:
            self.limits.append(timeout_s)
        call = CallUnderWay(trio.current_time() + timeout_s)
        if under_way is not None:
            under_way.add(call)
        try:
            return await call.within(self._answer(method, 0.01 if is_question else self.took_s))
        except TimeUpError:
            raise FsError(Status.RPC_TIMEOUT, "no reply") from None
        finally:
            if under_way is not None:
                under_way.remove(call)

    async def _answer(self, method, took_s):
        await trio.sleep(took_s)
        if trio.current_time() >= self.silent_from_s:
            await trio.sleep_forever()
        if method is services.CORE_GET_INFO:
            return Received(GetInfoRsp(incarnation=self.incarnation))
        return Received(method.reply_type())


async def ask(patience, under_way=None, method=services.STORAGE_SPACE_INFO):
    under_way = set() if under_way is None else under_way
    try:
        await patience.call(NODE, method, method.request_type(), under_way=under_way)
    finally:
        assert not under_way


async def test_who_is_quick_is_asked_nothing_else(autojump_clock):  # noqa: ARG001 - its clock
    peer = Peer(LIMIT_S / 2)
    patience = Patience(peer, ClientSection())
    await ask(patience)
    assert peer.limits == [LIMIT_S]
    assert not peer.asked_count


async def test_who_is_slow_has_time_when_asked_again(autojump_clock):  # noqa: ARG001
    peer = Peer(3.5 * LIMIT_S)
    patience = Patience(peer, ClientSection())
    with pytest.raises(SlowPeerError) as caught:
        await ask(patience)
    assert caught.value.status is Status.RPC_TIMEOUT
    assert isinstance(same_error(caught.value), SlowPeerError)
    await ask(patience)
    assert peer.limits == [LIMIT_S, PATIENT_S]
    assert peer.asked_count == 1 + 3


async def test_reads_go_elsewhere_after_their_limit_each_time(autojump_clock):  # noqa: ARG001
    peer = Peer(3.5 * LIMIT_S)
    patience = Patience(peer, ClientSection())
    for _ in range(2):
        with pytest.raises(SlowPeerError):
            await ask(patience, method=services.STORAGE_BATCH_READ)
    assert peer.limits == [LIMIT_S, LIMIT_S]
    assert peer.asked_count == 2, "that it lives is known, for the time that is spent on trying"


async def test_who_falls_silent_while_it_is_waited_for_is_given_up(autojump_clock):  # noqa: ARG001
    peer = Peer(3.5 * LIMIT_S)
    patience = Patience(peer, ClientSection())
    with pytest.raises(SlowPeerError):
        await ask(patience)
    began_s = trio.current_time()
    peer.silent_from_s = began_s + 1.5 * LIMIT_S
    with pytest.raises(FsError) as caught:
        await ask(patience)
    assert caught.value.status is Status.RPC_TIMEOUT
    assert not isinstance(caught.value, SlowPeerError)
    assert trio.current_time() - began_s <= 2 * LIMIT_S + 2 * ASK_S + 0.1


@pytest.mark.parametrize("method", [services.STORAGE_SPACE_INFO, services.STORAGE_BATCH_READ])
async def test_that_a_peer_does_not_live_is_known_when_the_limit_has_passed(
    autojump_clock,  # noqa: ARG001
    nursery,
    method,
):
    peer, under_way = Peer(0.01), set()
    patience = Patience(peer, ClientSection())
    nursery.start_soon(patience.watch, lambda: [(NODE, under_way)])
    await trio.sleep(0.3 * LIMIT_S)  # its looks and this call have nothing to do with each other
    peer.silent_from_s = began_s = trio.current_time()
    with pytest.raises(FsError) as caught:
        await patience.call(NODE, method, method.request_type(), under_way=under_way)
    assert caught.value.status is Status.RPC_TIMEOUT
    assert not isinstance(caught.value, SlowPeerError)
    assert trio.current_time() - began_s <= LIMIT_S + 0.1
    assert peer.asked_count == 1


async def test_one_that_lives_is_asked_once_for_all_that_wait_for_it(
    autojump_clock,  # noqa: ARG001
    nursery,
):
    peer, under_way = Peer(3.5 * LIMIT_S), set()
    patience = Patience(peer, ClientSection())
    nursery.start_soon(patience.watch, lambda: [(NODE, under_way)])

    async def call():
        method = services.STORAGE_SPACE_INFO
        with pytest.raises(SlowPeerError):
            await patience.call(NODE, method, method.request_type(), under_way=under_way)

    async with trio.open_nursery() as several:
        for _ in range(5):
            several.start_soon(call)
    assert peer.asked_count == 1


class Lacking(Peer):
    """There is no memory to ask it anything with."""

    async def _answer(self, method, took_s):
        if method is services.CORE_GET_INFO:
            raise MemoryError
        return await super()._answer(method, took_s)


class NoTasks:
    """A nursery that has no memory for a task."""

    def start_soon(self, *_what):
        raise MemoryError


async def test_no_memory_to_ask_with_ends_one_call_and_not_the_client(
    autojump_clock,  # noqa: ARG001
    nursery,
):
    """A mount would end with it, and all programs that use it."""
    peer, under_way = Lacking(3 * LIMIT_S), set()
    patience = Patience(peer, ClientSection())
    nursery.start_soon(patience.watch, lambda: [(NODE, under_way)])
    for asked_count in (1, 2):  # the watch goes on
        with pytest.raises(FsError) as caught:
            await ask(patience, under_way)
        assert caught.value.status is Status.RPC_TIMEOUT
        assert peer.asked_count == asked_count


async def test_nobody_waits_for_a_question_that_has_no_task(autojump_clock):  # noqa: ARG001
    patience = Patience(Peer(3 * LIMIT_S), ClientSection())
    asked = patience._ask_ahead(NODE, NoTasks())
    assert asked.done.is_set()
    assert not await patience._lives(NODE, asked.asked_s)


async def test_another_process_in_its_place_is_no_sign_of_life(autojump_clock):  # noqa: ARG001
    patience = Patience(Peer(2 * LIMIT_S, incarnation="second"), ClientSection())
    for _ in range(2):
        with pytest.raises(FsError) as caught:
            await ask(patience)
        assert not isinstance(caught.value, SlowPeerError)


async def test_who_is_judged_failed_is_not_waited_for_either(autojump_clock):  # noqa: ARG001
    patience, under_way = Patience(Peer(3 * LIMIT_S), ClientSection()), set()
    with pytest.raises(SlowPeerError):
        await ask(patience)
    async with trio.open_nursery() as nursery:

        async def judge():
            await trio.sleep(LIMIT_S / 2)
            for call in list(under_way):
                call.fail(FsError(Status.RPC_CONNECTION_LOST, "judged failed"))

        nursery.start_soon(judge)
        began_s = trio.current_time()
        with pytest.raises(FsError) as caught:
            await ask(patience, under_way)
        assert caught.value.status is Status.RPC_CONNECTION_LOST
        assert trio.current_time() - began_s == pytest.approx(LIMIT_S / 2)


@pytest.mark.parametrize(
    ("error", "tried_s"),
    [
        (FsError(Status.RPC_TIMEOUT), 120.0),
        (FsError(Status.NOT_SERVING), 120.0),
        (SlowPeerError(Status.RPC_TIMEOUT), WORKED_ON_S_MAX),
        (FsError(Status.CHANNEL_BUSY), WORKED_ON_S_MAX),
    ],
)
async def test_for_how_long_is_tried_again(autojump_clock, error, tried_s):  # noqa: ARG001
    runtime = Runtime(FakeClock(), None, run_inline, random.Random(1))
    budget, began_s = (
        RetryBudget(ClientSection(retry_time_s_max=120.0), runtime),
        trio.current_time(),
    )

    async def try_again():
        while True:
            budget.check(error)
            await budget.pause()

    with pytest.raises(FsError):
        await try_again()
    assert trio.current_time() - began_s == pytest.approx(tried_s, abs=1.5)


async def test_silence_counts_from_the_last_sign_of_work(autojump_clock):  # noqa: ARG001
    runtime = Runtime(FakeClock(), None, run_inline, random.Random(1))
    budget, began_s = (
        RetryBudget(ClientSection(retry_time_s_max=20.0), runtime),
        trio.current_time(),
    )
    await trio.sleep(15.0)
    budget.check(SlowPeerError(Status.RPC_TIMEOUT))
    await trio.sleep(15.0)
    budget.check(FsError(Status.RPC_TIMEOUT))
    await trio.sleep(6.0)
    with pytest.raises(FsError):
        budget.check(FsError(Status.RPC_TIMEOUT))
    assert trio.current_time() - began_s == pytest.approx(36.0)


def test_no_try_of_an_operation_outlasts_what_services_remember():
    """With the largest settings of clients, and the smallest of services."""
    largest = {"retry_time_s_max": 300.0, "call_timeout_s": 300.0}
    for key, value in largest.items():
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({key: value + 1}, ClientSection)
    smallest_s = OUTCOMES_KEPT_S
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"idempotency_expiry_s": smallest_s - 1}, MetaSection)
    assert longest_s(msgspec.convert(largest, ClientSection)) <= smallest_s


class Failing(Peer):
    """Every call of it fails with a status, at once or late."""

    def __init__(self, took_s, status):
        super().__init__(took_s)
        self.status = status

    async def _answer(self, method, took_s):
        if method is not services.CORE_GET_INFO:
            await trio.sleep(took_s)
            raise FsError(self.status, "as the test wants it")
        return await super()._answer(method, took_s)


@pytest.mark.parametrize(
    ("took_s", "status"),
    [
        (0.01, Status.RPC_CONNECTION_LOST),
        (0.01, Status.NO_SPACE),
        (2 * LIMIT_S, Status.OK),
        (0.95 * LIMIT_S, Status.CHANNEL_BUSY),
    ],
)
async def test_a_call_that_failed_keeps_no_bytes(autojump_clock, took_s, status):  # noqa: ARG001
    class Bytes(bytearray):
        """That can be referred to weakly."""

    async def write(patience):
        data, method = Bytes(10), services.STORAGE_WRITE
        found = weakref.ref(data)
        with suppress(FsError):
            await patience.call(
                NODE, method, method.request_type(), payload=[data], under_way=set()
            )
            pytest.fail("it has not failed")
        return found

    gc.disable()
    try:
        found = await write(Patience(Failing(took_s, status), ClientSection()))
        await trio.lowlevel.checkpoint()
        assert found() is None
    finally:
        gc.enable()
