"""`ember cluster remove`: hosts leave, with nothing lost and nothing
of the cluster's secrets left on them.

For each host: drain what it stores, stop its processes, make the cluster forget its nodes, take key
and configuration away.  The inventory still names it meanwhile, since that says how it is reached;
without it there afterwards the cluster is as the inventory says.

Every step may be repeated: an interrupted run is taken up by the next one.  A host that cannot be
reached is drained and forgotten all the same; as it keeps the key, that has to be replaced, and is
said.  Disks keep what is on them.

All drains begin before anybody waits for one, so that nothing moves
from one leaving host to another.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import typer
from msgspec import structs

from ...schema.status import FsError, Status
from ..terminal.listing import confirm
from .installer import EXIT_FAILED, Options, chosen, on_hosts
from .inventory import FIRST_NODE_IDS, ROLES, HostPart, Inventory, problems
from .layout import ETC, HELPERS, UNIT, UNITS, service_of, version_of
from .planning import STOPPED, HostFacts, View
from .reach import Reach, is_running
from .upgrade import STOP_TIMEOUT_S

DRAIN_TIMEOUT_S: Final = 7 * 86_400.0
ADMIN_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Leaving:
    """What is to be done with one host."""

    host: HostPart
    nodes: Mapping[str, int]
    """Of the cluster, by role."""
    stops: Sequence[str]
    """Roles that run, the last to stop last."""
    files: Sequence[str]
    """Which it has, and is not to keep."""
    is_reached: bool = True

    @property
    def is_empty(self) -> bool:
        """True if the host has left already."""
        return not (self.nodes or self.stops or self.files)

    def lines(self) -> Iterator[str]:
        """Yield the plan for people."""
        name = self.host.name
        if "storage" in self.nodes:
            yield f"{name}: move what it stores to other hosts, and wait for that"
        if self.stops:
            yield f"{name}: stop {', '.join(self.stops)}"
        if self.nodes:
            yield f"{name}: forget nodes {', '.join(map(str, self.nodes.values()))}"
        if self.files:
            yield f"{name}: remove its key and configuration; disks stay as they are"
        if not self.is_reached:
            yield f"{name}: cannot be reached: what runs there, and its key, stay there"


def run_remove(inventory: Inventory, names: Sequence[str], options: Options) -> int:
    """Carry out `ember cluster remove`; return the exit code.

    Raises:
        FsError: BAD_CONFIG when the rest is no cluster, NOT_RUNNING, what the manager
            says; the next run goes on.
    """
    leaving = chosen(inventory, names)
    for problem in problems(without(inventory, leaving)):
        raise FsError(Status.BAD_CONFIG, f"without {', '.join(names)}: {problem}")
    return on_hosts(inventory, partial(_remove, leaving=leaving, options=options))


def without(inventory: Inventory, leaving: Sequence[HostPart]) -> Inventory:
    """Return an inventory that some hosts have left."""
    rest = [host for host in inventory.hosts if host not in leaving]
    return structs.replace(inventory, hosts=rest)


def plan_leaving(host: HostPart, facts: HostFacts | None, view: View) -> Leaving:
    """Return what is to be done with a host; pure.

    Args:
        host: of the inventory.
        facts: what was found there; None when it cannot be reached.
        view: what the manager says.
    """
    known = {node.node_id for node in view.nodes}
    ids = {role: host.node_id(role) for role in FIRST_NODE_IDS if role in host.roles}
    nodes = {role: node_id for role, node_id in ids.items() if node_id in known}
    if facts is None:
        return Leaving(host, nodes, (), (), is_reached=False)
    stops = [
        role
        for role in reversed(ROLES)
        if role in host.roles and facts.services[service_of(role)].state != STOPPED
    ]
    ours = (host.path(f"{ETC}/"), f"{UNITS}/", *HELPERS)
    files = [path for path, digest in facts.files.items() if digest and path.startswith(ours)]
    files.sort(key=lambda path: path == UNIT)  # what the others belong to is the last to go
    return Leaving(host, nodes, stops, files)


async def _remove(reach: Reach, leaving: Sequence[HostPart], options: Options) -> int:
    managers = without(reach.inventory, leaving).with_role("mgmtd")
    reach.progress.step(f"looking at {len(leaving) + len(managers)} hosts")
    facts = await reach.facts([*leaving, *managers])
    asked = next((h for h in managers if is_running(facts.get(h.name), "mgmtd")), None)
    if asked is None:
        raise FsError(
            Status.NOT_RUNNING, "no manager runs on a host that stays: ember cluster deploy"
        )
    version = version_of(asked, facts[asked.name].services["mgmtd"].program)
    view = await reach.view(asked, version)
    reach.progress.close()
    plans = [plan_leaving(host, facts.get(host.name), view) for host in leaving]
    lines = [line for plan in plans for line in plan.lines()]
    if all(plan.is_empty for plan in plans):
        typer.echo("nothing to do")
    else:
        confirm(lines, dry_run=options.is_dry_run, yes=options.is_yes)
        await _let_all_go(reach, plans, asked, version)
        reach.progress.close("removed")
    for line in key_lines(reach.inventory, plans):
        typer.echo(line)
    names = ", ".join(host.name for host in leaving)
    typer.echo(f"take {names} out of the inventory: a deploy would install it again")
    return EXIT_FAILED if reach.failed else 0


def key_lines(inventory: Inventory, plans: Sequence[Leaving]) -> Iterator[str]:
    """Yield what is to be done about keys that nobody could take away; pure."""
    names = [plan.host.name for plan in plans if not plan.is_reached]
    if names and inventory.cluster.is_closed:
        yield (
            f"{', '.join(names)} could not be reached and may have the cluster's key still, which "
            "opens all of it: take"
            ' it out of the inventory, then `ember cluster rotate-key` (specs/deploying.md, "A '
            'key that got away")'
        )


async def _let_all_go(
    reach: Reach, plans: Sequence[Leaving], asked: HostPart, version: str
) -> None:
    """Carry out what is planned; raises FsError."""
    for plan in plans:
        if "storage" in plan.nodes:
            reach.progress.step(f"beginning to drain {plan.host.name}")
            await reach.command(asked, version, _drain(plan), timeout_s=ADMIN_TIMEOUT_S)
    for plan in plans:
        await _let_go(reach, plan, asked, version)


def _drain(plan: Leaving) -> list[str]:
    return ["admin", "node", "drain", str(plan.nodes["storage"]), "--yes"]


async def _let_go(reach: Reach, plan: Leaving, asked: HostPart, version: str) -> None:
    """Carry out what is planned for one host; raises FsError."""
    name, node = plan.host.name, ["admin", "node"]
    if "storage" in plan.nodes:
        reach.progress.step(f"draining {name}")
        drain = [*_drain(plan), "--wait"]
        await reach.command(asked, version, drain, timeout_s=DRAIN_TIMEOUT_S)
    if plan.stops:
        reach.progress.step(f"stopping {', '.join(plan.stops)} of {name}")
        services = [service_of(role) for role in plan.stops]
        await reach.on(plan.host, "stop", services=services, timeout_s=STOP_TIMEOUT_S)
    for node_id in plan.nodes.values():
        reach.progress.step(f"forgetting node {node_id}")
        remove = [*node, "remove", str(node_id), "--drain", "--yes"]
        await reach.command(asked, version, remove, timeout_s=ADMIN_TIMEOUT_S)
    if plan.files:
        services = [service_of(role) for role in plan.host.roles]
        await reach.on(plan.host, "forget", services=services, files=list(plan.files))
