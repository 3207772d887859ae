"""What operators set while everything goes on:
settings of roles, tags, pauses of garbage collection.

None of it may be noticed by clients.  One version of a role's settings names one text for ever,
also over losses of power, and every process comes to the newest one (`checkers.py`).
"""

from typing import Any, Final

import trio

from fs.admin.gc_pause import pause_until
from fs.runtime.simulated import simulated_runtime
from fs.schema import services
from fs.schema.proto import common_pb2, mgmtd_pb2
from fs.schema.routing import Role

from .cluster import SimCluster
from .world import World, operator_fault

VALUES: Final[dict[Role, dict[str, list[float]]]] = {
    Role.MGMTD: {
        "mgmtd.probe_timeout_s": [0.3, 1.0],
        "mgmtd.replace_after_s": [5.0, 600.0],
        "mgmtd.move_stall_s": [10.0, 120.0],
        "mgmtd.moves_max": [1, 8],
        "mgmtd.moves_per_node_max": [1, 2],
        "mgmtd.rotate_after_s": [2.0, 60.0],
        "mgmtd.rotations_max": [1, 4],
        "process.slow_request_s": [0.1, 10.0],
    },
    Role.META: {
        "meta.gc_delay_s": [0.5, 2.0, 10.0],
        "meta.gc_interval_s": [0.2, 2.0],
        "meta.gc_batch_count": [1, 64],
        "meta.session_scan_interval_s": [0.5, 5.0],
        "client.retry_time_s_max": [1.0, 10.0, 120.0],
        "client.retry_pause_s": [0.001, 0.2],
        "client.call_timeout_s": [0.5, 5.0],
        "client.batch_count_max": [1, 1000],
        "client.requests_per_node_max": [1, 32],
    },
    Role.STORAGE: {
        "storage.forward_timeout_s": [5.0, 30.0],
        "storage.forward_retry_s": [0.01, 0.5],
        "storage.resync_interval_s": [0.2, 1.0],
        "storage.resync_concurrency": [1, 8],
        "storage.resync_bytes_per_s_max": [0, 300_000],
        "storage.scrub_bytes_per_s_max": [0, 1 << 20, 1 << 23],
        "storage.read_concurrency": [1, 4],
        "storage.write_concurrency": [1, 16],
        "storage.low_space_fraction": [0.0, 0.05],
    },
}
"""What running processes take over, and values that a healthy cluster may have."""
PBS: Final = {
    Role.MGMTD: common_pb2.MGMTD,
    Role.META: common_pb2.META,
    Role.STORAGE: common_pb2.STORAGE,
}
PAUSED_S_MAX: Final = 20.0


def text_of(values: dict[str, float]) -> str:
    """Return settings as a file has them."""
    sections: dict[str, list[str]] = {}
    for name, value in sorted(values.items()):
        section, key = name.split(".")
        sections.setdefault(section, []).append(f"{key} = {value}")
    return "\n".join(f"[{name}]\n" + "\n".join(lines) for name, lines in sections.items())


async def set_settings(cluster: SimCluster, role: Role, text: str) -> Any:
    """Ask the managers once to keep a text for a role; return the reply, None if there was none."""
    request = mgmtd_pb2.SetSettingsReq(role=PBS[role], text=text)
    return await cluster.ask_manager(services.MGMTD_SET_SETTINGS, request)


async def reset_settings(world: World) -> None:
    """Have every role begin again with its own file; what is under way may still be refused."""
    left = [*VALUES]
    while left:
        if await set_settings(world.cluster, left[-1], "") is not None:
            left.pop()
        else:
            await trio.sleep(0.5)


@operator_fault(3)
async def change_settings(world: World) -> None:
    """Other values for a few settings of a role, in the middle of everything."""
    source, cluster = world.operator_random, world.cluster
    role = source.choice([*VALUES])
    names = source.sample([*VALUES[role]], k=source.randint(1, 4))
    text = text_of({name: source.choice(VALUES[role][name]) for name in names})
    cluster.trace.add("settings", f"{role.name} {text!r}")
    world.has_settings = True
    reply = await set_settings(cluster, role, text)
    if reply is not None:
        world.count("settings_kept")


@operator_fault(1)
async def change_tags(world: World) -> None:
    """A node is told what it is for."""
    source, cluster = world.operator_random, world.cluster
    node_id = cluster.processes[source.choice(sorted(cluster.processes))].node_id
    change = source.choice([mgmtd_pb2.TAGS_SET, mgmtd_pb2.TAGS_ADD, mgmtd_pb2.TAGS_REMOVE])
    tags = {source.choice(["rack", "kind"]): f"t{source.randrange(3)}"}
    request = mgmtd_pb2.SetTagsReq(node_id=node_id, change=change, tags=tags)
    if await cluster.ask_manager(services.MGMTD_SET_TAGS, request) is not None:
        world.count("tags_set")


@operator_fault(1)
async def pause_gc(world: World) -> None:
    """Garbage collection is held up for a time."""
    source, cluster = world.operator_random, world.cluster
    runtime = simulated_runtime(cluster.network.endpoint("observer"), source.getrandbits(32))
    until_s = trio.current_time() + source.uniform(1.0, PAUSED_S_MAX)
    name = source.choice(cluster.controls)
    until_ns = cluster.processes[name].clock.wall_ns() + round(
        (until_s - trio.current_time()) * 1e9
    )
    await pause_until(cluster.kv, runtime, until_ns)
    await trio.sleep(source.uniform(0.0, PAUSED_S_MAX))
    await pause_until(cluster.kv, runtime, 0)
