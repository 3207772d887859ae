"""What the installer asks of the cluster itself,
run on a manager's host with the code that is installed there.

    python -P -m fs.app.deploy.agent    the request as JSON on stdin, the answer as JSON on stdout

So an installer needs ssh alone, and talks to each cluster in the cluster's own version.

    look       nodes, chains, targets, moves
    wait       look until a goal is reached: managers, complete, balanced
    ready      look until nothing speaks against starting a process anew, as
               `ember admin upgrade check`
    make       make nodes known; of a cluster without chains also chains and chain table
    rebalance  begin to even out
    greet      hear processes, by the first key of ours alone
    refused    knock at processes with a key that was taken away
    versions   which releases, wire versions and disk formats this code knows
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from ...admin.cluster import Plan, Server, initialise, plan
from ...admin.doctor import Finding
from ...admin.upgrade import obstacles
from ...chunkengine.format import FORMAT_VERSION
from ...node.mgmtd_link import MgmtdLink
from ...rpc.channel import ChannelPool
from ...rpc.credential_files import parse_key
from ...rpc.credentials import Secret
from ...rpc.frame import VERSION_MAX, VERSION_MIN
from ...runtime.config_file import parse_config
from ...schema import services
from ...schema.proto import common_pb2, core_pb2, mgmtd_pb2
from ...schema.routing import RoutingInfo
from ...schema.status import FsError, Status
from ..admin.doctor import look
from ..process.release import RELEASE
from ..reach.mgmtd_link import newest_routing, run_with_mgmtd
from ..reach.where import Where, find
from ..terminal.errors import unwrapped

POLL_S: Final = 0.5
CALL_TIMEOUT_S: Final = 20.0
SETTLED_COUNT: Final = 3
"""Looks in a row that see a goal reached: between two moves there is none under way."""
ROLE_NUMBERS: Final = {
    "mgmtd": common_pb2.MGMTD,
    "meta": common_pb2.META,
    "storage": common_pb2.STORAGE,
}
Json = dict[str, Any]


def view_of(info: RoutingInfo, moves: mgmtd_pb2.ListMovesRsp, acting: int) -> Json:
    """Return what an installer judges a cluster by."""
    return {
        "nodes": [
            {
                "node_id": node.node_id,
                "state": node.state.name.lower(),
                "release": node.release,
                "tags": dict(node.tags),
            }
            for node in info.nodes.values()
        ],
        "targets": [
            {"target_id": t.target_id, "node_id": t.node_id, "disk_index": t.disk_index}
            for t in info.targets.values()
            if t.chain_id
        ],
        "chain_count": len(info.chains),
        "incomplete": [
            c.chain_id for c in info.chains.values() if len(c.serving) < c.replica_count
        ],
        "unserved": [c.chain_id for c in info.chains.values() if not c.serving],
        "move_count": len(moves.moves),
        "is_rebalancing": moves.is_rebalancing,
        "acting": acting,
    }


async def _look(mgmtd: MgmtdLink, timeout_s: float = CALL_TIMEOUT_S) -> Json:
    info = await newest_routing(mgmtd, timeout_s)
    moves = await mgmtd.call(
        services.MGMTD_LIST_MOVES, mgmtd_pb2.ListMovesReq(), timeout_s=timeout_s
    )
    asked = mgmtd_pb2.GetPrimaryReq()
    primary = await mgmtd.call(services.MGMTD_GET_PRIMARY, asked, timeout_s=timeout_s)
    return view_of(info, moves, primary.node_id)


def is_reached(goal: str, view: Json, node_ids: list[int]) -> bool:
    """True if a view is as wished.

    Args:
        goal: managers: one answers; complete: the nodes are connected and every chain has all its
            replicas; balanced: moreover nothing is to be moved.
        view: as of `view_of`.
        node_ids: nodes that are to be there.
    """
    if goal == "managers":
        return True
    connected = {n["node_id"] for n in view["nodes"] if n["state"] == "connected"}
    if view["incomplete"] or not view["chain_count"] or not connected.issuperset(node_ids):
        return False
    return goal == "complete" or not (view["is_rebalancing"] or view["move_count"])


async def _wait(mgmtd: MgmtdLink, goal: str, node_ids: list[int], timeout_s: float) -> Json:
    """Look until a goal is reached; returns the last view,
    with what is missing when the time is over.
    """
    wanted = SETTLED_COUNT if goal == "balanced" else 1
    count, view, trouble = 0, None, ""
    with trio.move_on_after(timeout_s):
        while count < wanted:
            try:
                view = await _look(mgmtd)
            except FsError as error:  # managers elect, or start
                trouble, count = str(error), 0
            else:
                count = count + 1 if is_reached(goal, view, node_ids) else 0
            if count < wanted:
                await trio.sleep(POLL_S)
    if count < wanted:
        return {"view": view, "late": trouble or _missing(view, node_ids)}
    return {"view": view, "late": ""}


def _missing(view: Json | None, node_ids: list[int]) -> str:
    if view is None:
        return "no manager answers"
    connected = {n["node_id"] for n in view["nodes"] if n["state"] == "connected"}
    away = sorted(set(node_ids) - connected)
    if away:
        return f"nodes {away} are not connected"
    if view["incomplete"]:
        return f"chains {view['incomplete'][:12]} have fewer replicas than wanted"
    return f"{view['move_count']} targets are being moved"


async def _ready(
    mgmtd: MgmtdLink, channels: ChannelPool, node_ids: list[int], timeout_s: float
) -> Json:
    """Look until nodes are connected, chains have all replicas, and an upgrade may go on;
    what is missing when the time is over.

    A chain of one replica is away while its node restarts, however long one
    waits: its owner wanted it so.
    """
    waited = await _wait(mgmtd, "complete", node_ids, timeout_s)
    told = [str(waited["late"])] if waited["late"] else ["nobody answered"]
    with trio.move_on_after(timeout_s):
        while not waited["late"]:
            try:
                found = obstacles(await look(mgmtd, channels))
            except FsError as error:  # managers elect
                told = [str(error)]
            else:
                told = [_said(f) for f in found if f.kind != "chain-of-one"]
            if not told:
                break
            await trio.sleep(POLL_S)
    return {"late": "; ".join(told[:3])}


async def _greet(channels: ChannelPool, addresses: list[str], timeout_s: float) -> Json:
    """Call processes until each has answered to our first key;
    who did not when the time is over, and why.
    """
    channels.replace_secrets(channels.secrets[:1])
    late = dict.fromkeys(addresses, "was not asked")

    async def greet(address: str) -> None:
        while address in late:
            try:
                await channels.get(address).call(
                    services.CORE_ECHO, core_pb2.EchoReq(), timeout_s=CALL_TIMEOUT_S
                )
            except FsError as error:  # it starts, or has not read its keys yet
                late[address] = str(error)
                await trio.sleep(POLL_S)
            else:
                del late[address]

    with trio.move_on_after(timeout_s):
        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(greet, address)
    return {"late": late}


async def _refused(channels: ChannelPool, addresses: list[str], key: str, timeout_s: float) -> Json:
    """Call processes by a key until each has refused it;
    who did not when the time is over, and why.
    """
    own, taken_away = channels.secrets, Secret.of_key(parse_key(key, "the key to be refused"))
    late = dict.fromkeys(addresses, "was not asked")

    async def knock(address: str) -> None:
        try:
            await channels.get(address).call(
                services.CORE_ECHO, core_pb2.EchoReq(), timeout_s=CALL_TIMEOUT_S
            )
        except FsError as error:
            if error.status is Status.RPC_UNAUTHENTICATED:
                del late[address]
            else:  # it starts, or is gone
                late[address] = str(error)
        else:
            late[address] = "is opened by it"

    with trio.move_on_after(timeout_s):
        while late:
            channels.replace_secrets([taken_away])
            try:
                async with trio.open_nursery() as nursery:
                    for address in late:
                        nursery.start_soon(knock, address)
            finally:
                channels.replace_secrets(own)  # the next round connects anew
            if late:
                await trio.sleep(POLL_S)
    return {"late": late}


def _said(finding: Finding) -> str:
    return f"{finding.subject} {finding.text} ({finding.remedy})"


def servers_of(request: Json) -> list[Server]:
    """Return the processes that a request describes by their configuration files."""
    return [
        Server(
            one["name"],
            (ROLE_NUMBERS[one["role"]],),
            parse_config(one["config"], Path(one["name"])),
            one["tags"],
        )
        for one in request["servers"]
    ]


async def _make(mgmtd: MgmtdLink, request: Json) -> Json:
    """Make nodes known, and chains unless there are some."""
    servers = servers_of(request)
    info = await newest_routing(mgmtd, CALL_TIMEOUT_S)
    if info.chain_tables:
        made = Plan([_node_of(server) for server in servers], [])
        for node in made.nodes:
            register = mgmtd_pb2.RegisterNodeReq(node=node)
            await mgmtd.call(services.MGMTD_REGISTER_NODE, register, timeout_s=CALL_TIMEOUT_S)
    else:
        made = plan(servers, request["replicas"])
        await initialise(mgmtd, made)
    return {"chain_count": len(made.chains)}


def _node_of(server: Server) -> common_pb2.NodePb:
    process = server.config.process
    return common_pb2.NodePb(
        node_id=process.node_id, roles=server.roles, address=process.listen, tags=server.tags
    )


def answer(request: Json) -> Json:
    """Carry out one request.

    Raises:
        FsError: what the manager says, or RPC_TIMEOUT.
    """
    if request["op"] == "versions":
        return {"release": RELEASE, "wire": [VERSION_MIN, VERSION_MAX], "disk": FORMAT_VERSION}
    where = find(None, Path(request["config"]))

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> Json:
        match request["op"]:
            case "look":
                return await _look(mgmtd)
            case "wait":
                return await _wait(
                    mgmtd, request["goal"], request["node_ids"], request["timeout_s"]
                )
            case "ready":
                return await _ready(mgmtd, channels, request["node_ids"], request["timeout_s"])
            case "greet":
                return await _greet(channels, request["addresses"], request["timeout_s"])
            case "refused":
                return await _refused(
                    channels, request["addresses"], request["key"], request["timeout_s"]
                )
            case "make":
                return await _make(mgmtd, request)
            case "rebalance":
                start = mgmtd_pb2.StartRebalanceReq()
                await mgmtd.call(services.MGMTD_START_REBALANCE, start, timeout_s=CALL_TIMEOUT_S)
                return {}
            case _:
                raise AssertionError(request["op"])

    return _run(where, use, request["timeout_s"])


def _run(where: Where, use: Any, timeout_s: float) -> Json:
    slack_s = 2 * CALL_TIMEOUT_S
    found: Json = run_with_mgmtd(
        where.addresses, where.cluster_id, use, timeout_s=timeout_s + slack_s, auth=where.auth
    )
    return found


def main() -> None:
    """Answer the request on stdin; an error is one line and exit code 1."""
    try:
        with unwrapped():
            sys.stdout.buffer.write(msgspec.json.encode(answer(json.load(sys.stdin))))
    except FsError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
