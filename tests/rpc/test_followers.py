"""Tasks that have answered a request lead again:
few are started, and nothing of one request concerns a later one.
"""

import pytest
import trio
import trio.testing

from fs.rpc import server_connection
from fs.runtime.followers import Followers
from fs.schema.proto import core_pb2 as core
from fs.schema.services import CORE_ECHO as ECHO
from fs.schema.status import FsError, Status

pytestmark = pytest.mark.thorough


class Service:
    """Answers after as many milliseconds as it is told."""

    def __init__(self):
        self.tasks = []

    async def echo(self, _call, request):
        self.tasks.append(trio.lowlevel.current_task())
        await trio.sleep(int(request.data) / 1000)
        return core.EchoRsp(data=request.data)


async def ask(p, milliseconds, timeout_s=30.0):
    request = core.EchoReq(data=str(milliseconds).encode())
    received = await p.channel.call(ECHO, request, timeout_s=timeout_s)
    assert received.message.data == request.data


@pytest.fixture
def service(monkeypatch):
    made = Service()
    monkeypatch.setattr("fs.rpc.core_service.CoreService.echo", made.echo)
    return made


async def test_one_request_after_the_other_takes_two_tasks(net, process, service):
    async with process(net) as p:
        for _ in range(8):
            await ask(p, 1)
    assert len(service.tasks) == 8
    assert len(set(service.tasks)) == 2


async def test_a_time_limit_ends_with_its_request(net, process, service):
    async with process(net) as p:
        await ask(p, 1)
        await ask(p, 1, timeout_s=0.2)
        await ask(p, 1, timeout_s=0.2)
        for _ in range(2):  # in the tasks of both
            await ask(p, 300)
        assert len(set(service.tasks)) == 2


@pytest.mark.usefixtures("service")
async def test_a_call_that_is_given_up_takes_nobody_elses_task_with_it(net, process):
    async with process(net) as p:
        await ask(p, 1)
        with trio.move_on_after(0.05):
            await ask(p, 10_000)
        with pytest.raises(FsError) as raised:
            await ask(p, 10_000, timeout_s=0.05)
        assert raised.value.status is Status.RPC_TIMEOUT
        for _ in range(3):
            await ask(p, 60)


@pytest.mark.usefixtures("service")
async def test_few_of_many_stay(net, process, monkeypatch):
    waiting = []
    wait = Followers.wait

    async def counted(self):
        waiting.append(len(self) + 1)
        await wait(self)

    monkeypatch.setattr(Followers, "wait", counted)
    async with process(net) as p:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask, p, 20)
        await ask(p, 1)
    assert max(waiting) == server_connection.FOLLOWER_COUNT_MAX


async def test_followers_lead_in_turn_and_leave_when_cancelled():
    followers, led = Followers(), []

    async def follow(name):
        await followers.wait()
        led.append(name)

    assert not followers.wake_one()
    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(follow, name)
            await trio.testing.wait_all_tasks_blocked()
        assert len(followers) == 3
        assert followers.wake_one()
        await trio.testing.wait_all_tasks_blocked()
        assert led == ["c"]
        nursery.cancel_scope.cancel()
    assert not followers.wake_one() and led == ["c"]
