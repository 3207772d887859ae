"""One write of a client in a simulated cluster without faults,
traced through every process that works on it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import trio

from fs.client.native import EmberFs
from fs.runtime.ports import Runtime
from fs.runtime.tracing import Span, Tracer
from fs.schema.routing import Role

from .cluster import SimCluster
from .determinism import run_deterministic
from .shape import Shape

SEED = 7
CLIENT = "traced"
JOIN_S = 10.0
"""By then new targets have left their chains and come back."""
SHAPE = Shape(
    roles={"mgmtd-1": frozenset({Role.MGMTD}), "meta-1": frozenset({Role.META})},
    storage_count=3,
    replica_count=3,
    chain_count=1,
    think_s=0.1,
)


@dataclass(frozen=True)
class Told:
    """A span, and the process that told of it."""

    process: str
    span: Span


def traced_write(on_end: Callable[[str, Span], None] = lambda _process, _span: None) -> list[Told]:
    """Write a file, and read it, with only the former traced;
    return all spans in the order of their ends.
    """
    told: list[Told] = []
    cluster = SimCluster(SEED, SHAPE)

    def make_tracer(process: str, runtime: Runtime) -> Tracer:
        def sink(span: Span) -> None:
            told.append(Told(process, span))
            on_end(process, span)

        # Processes of the cluster trace what clients ask them to.
        return Tracer(runtime.clock, runtime.random, sample_rate=process == CLIENT, sink=sink)

    async def work(fs: EmberFs) -> None:
        await fs.write_file("/a", b"12345")

    async def work_untraced(fs: EmberFs) -> None:
        assert await fs.read_file("/a") == b"12345"

    async def scenario() -> None:
        await cluster.connect_client("other", work_untraced_first)
        await trio.sleep(JOIN_S)
        await cluster.wait_healthy(is_still=True)
        await cluster.connect_client(CLIENT, work)
        await cluster.connect_client("last", work_untraced)

    async def work_untraced_first(fs: EmberFs) -> None:
        await fs.write_file("/b", b"67890")

    async def main() -> None:
        with trio.fail_after(600):
            await cluster.run(scenario, trio.sleep_forever)

    cluster.make_tracer = make_tracer
    run_deterministic(main, SEED)
    return told
