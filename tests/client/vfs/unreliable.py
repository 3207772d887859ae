"""A metadata service behind connections that break, for the vfs:
every request may be lost, done twice, or answered late.

The service is the real one over an engine in memory, the chunks are `tests.client.fake_chunks`; so
what a reply says of times and versions is what a cluster would say.

Invariant: as `MetaClient`, a call ends with a reply to its last try, and all
its tries carry one request id.
"""

import random

import trio

from fs.kv.faulty import RandomFaults
from fs.meta.init import initialise
from fs.meta.meta import Meta
from fs.runtime.simulated import SimulatedClock, simulated_runtime
from fs.schema.method import Method
from fs.schema.status import FsError, Retry, Status
from tests.client.fake_chunks import CHUNK, FakeChunks, FakeStore
from tests.meta.harness import CALL, FakeMgmtd, FakeRouting, make_config, outside_any_task
from tests.sim.shape import INLINE_BYTES
from tests.sim.store import WatchedStore

CLIENT_ID = "c" * 32
LATE_S = 0.4
"""How long a request or its reply may be under way."""


def snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


class Service:
    """The metadata of one cluster, and its chunks."""

    def __init__(self, seed: int, *, inline_bytes_max: int | None = None) -> None:
        """Files of up to so many bytes are kept in the metadata store; None: as the seed says."""
        if inline_bytes_max is None:
            inline_bytes_max = random.Random(f"{seed}/inline").choice(INLINE_BYTES)
        self.random = random.Random(seed)
        self.chunks = FakeChunks(CHUNK, delay_s=0.05, rng=random.Random(seed + 1))
        self.runtime = simulated_runtime(None, seed)
        self.engine = WatchedStore(SimulatedClock())
        self.faults = RandomFaults(
            random.Random(seed),
            conflict=0.1,
            unknown_committed=0.02,
            unknown_lost=0.02,
            delay_before_s_max=0.1,
            delay_after_s_max=0.05,
        )
        self.config = make_config(
            chunk_size_bytes=CHUNK, stripe_size=4, inline_bytes_max=inline_bytes_max
        )
        self.mgmtd = mgmtd = FakeMgmtd()
        mgmtd.client_ids = [CLIENT_ID]
        self.meta = Meta(self.engine, self.runtime, self.config, FakeRouting(), self.chunks, mgmtd)

    async def run(self, task_status=trio.TASK_STATUS_IGNORED) -> None:
        await initialise(
            self.engine, runtime=self.runtime, cluster_id="emberfs", config=self.config.meta
        )
        self.engine.faults = self.faults
        await self.meta.run(task_status=task_status)

    def store(self) -> FakeStore:
        return FakeStore(self.chunks)


class UnreliableMeta:
    """MetaCaller whose connection breaks: `reset` makes every try under way fail at its client."""

    client_id = CLIENT_ID

    def __init__(self, service: Service, nursery: trio.Nursery, seed: int) -> None:
        self._service, self._nursery = service, nursery
        self._random = random.Random(seed)
        self._waiting: set[trio.CancelScope] = set()
        self.try_count = 0

    def reset(self) -> None:
        """Break the connection; what the service has received it goes on with."""
        for scope in self._waiting:
            scope.cancel()

    def _sign(self, request):
        """Return the caller in a request, which keeps the id of an earlier call,
        as with `MetaClient`.
        """
        holder = request if "caller" in request.DESCRIPTOR.fields_by_name else request.sync
        holder.caller.client_id = self.client_id
        if not holder.caller.request_id:
            holder.caller.request_id = self._random.randbytes(16)
        return holder.caller

    async def call(self, method: Method, request, *, timeout_s=None):  # noqa: ARG002 - the port has it
        self._sign(request).is_repeat = False
        return await self._go_on(method, request)

    async def _go_on(self, method: Method, request):
        while True:
            outcome = await self._try(method, request.SerializeToString())
            if isinstance(outcome, Exception):
                raise outcome
            if outcome is not None:
                return method.reply_type.FromString(outcome)
            self._sign(request).is_repeat = True
            await trio.sleep(self._random.random() * 0.02)

    async def _try(self, method: Method, text: bytes):
        """Return the outcome of one try; None: the connection broke before."""
        send, receive = trio.open_memory_channel(1)
        self._nursery.start_soon(self._serve, method, text, send)
        self.try_count += 1
        with trio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                outcome = await receive.receive()
            finally:
                self._waiting.discard(scope)
            await self._delay()
            return outcome
        return None

    async def _delay(self) -> None:
        if self._random.random() < 0.5:
            await trio.sleep(self._random.random() ** 3 * LATE_S)
        else:
            await trio.lowlevel.checkpoint()

    async def _serve(self, method: Method, text: bytes, send) -> None:
        """One try at the service; it goes on when nobody waits for the reply any more."""
        await self._delay()
        request = method.request_type.FromString(text)
        try:
            reply = await getattr(self._service.meta.service, snake(method.name))(CALL, request)
            outcome = reply.SerializeToString()
        except FsError as error:
            outcome = error
        await self._delay()
        send.send_nowait(outcome)


class BegunCall:
    """A call whose end is told outside of any task, once."""

    def __init__(self, on_end) -> None:
        self._on_end = on_end

    def end(self, reply, error) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            outside_any_task(on_end, reply, error)

    def fail(self, error: FsError) -> None:
        self.end(None, error)


class BeginningMeta(UnreliableMeta):
    """One that can begin calls, too: a try that breaks is told of,
    and gone on with by `call_again`.
    """

    def begin(self, method: Method, request, on_end) -> BegunCall:
        self._sign(request).is_repeat = False
        call = BegunCall(on_end)
        self._nursery.start_soon(self._tell, method, request.SerializeToString(), call)
        return call

    def begin_change(self, method: Method, request, on_end) -> bool:
        self.begin(method, request, on_end)
        return True

    async def _tell(self, method: Method, text: bytes, call: BegunCall) -> None:
        outcome = await self._try(method, text)
        if outcome is None:
            call.fail(FsError(Status.RPC_CONNECTION_LOST, "the connection broke"))
        elif isinstance(outcome, FsError):
            call.fail(outcome)
        else:
            call.end(method.reply_type.FromString(outcome), None)

    async def call_again(self, method: Method, request, error: FsError, began_s: float):  # noqa: ARG002 - the port has it
        if error.retry is Retry.NEVER:
            raise error
        await trio.sleep(self._random.random() * 0.02)
        self._sign(request).is_repeat = True
        return await self._go_on(method, request)
