"""`ember cluster upgrade` and `stop`: what runs is restarted, process by process, or stopped.

Invariants:
    - Before each process nothing speaks against it by `ember admin upgrade check`: no moment
      has more than one process away.
    - A role's files change only while it does not run: what runs is what its files say, also when
      it dies and is started again.

Refused: chains with a replica missing, nodes away, moves under way, code whose wire versions or
disk format do not fit to what runs.  An interrupted upgrade is taken up by the next one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import typer
from msgspec import structs

from ...admin.upgrade import RESTART_ORDER
from ...schema.status import FsError, Status
from ..terminal.amounts import ids_text
from ..terminal.listing import confirm
from .installer import (
    CHAIN_TIMEOUT_S,
    EXIT_FAILED,
    KEY,
    Options,
    Survey,
    chosen,
    install,
    on_hosts,
    start_on,
    survey,
    write_files,
)
from .inventory import ROLES, HostPart, Inventory
from .layout import service_of, version_of
from .planning import (
    STOPPED,
    ClusterPlan,
    HostPlan,
    ServiceFacts,
    View,
    plan_cluster,
    plan_host,
    targets_for,
    wanted_files,
)
from .reach import Reach

STOP_TIMEOUT_S: Final = 100.0
UPGRADE_ORDER: Final = ("kv", *(role.name.lower() for role in RESTART_ORDER), "mount")
"""Who is asked comes before who asks; mounts last."""


@dataclass(frozen=True, slots=True)
class Step:
    """A process to start anew."""

    host: HostPart
    role: str


def run_upgrade(inventory: Inventory, options: Options) -> int:
    """Carry out `ember cluster upgrade`; return the exit code.

    Raises:
        FsError: nothing more was done; the next run goes on.
    """
    return on_hosts(inventory, partial(_upgrade, options=options))


def run_stop(inventory: Inventory, options: Options, roles: Sequence[str]) -> int:
    """Carry out `ember cluster stop`; return the exit code; raises FsError(BAD_CONFIG)."""
    for role in roles:
        if role not in ROLES:
            raise FsError(Status.BAD_CONFIG, f"{role}: no role; there are {', '.join(ROLES)}")
    use = partial(_stop, options=options, roles=roles or ROLES)
    return on_hosts(inventory, use)


# ---- upgrade -------------------------------------------------------------------------------------


async def _upgrade(reach: Reach, options: Options) -> int:
    hosts = chosen(reach.inventory, options.only)
    seen = await survey(reach, hosts)
    reach.progress.close()
    if reach.failed:
        typer.echo("nothing was changed: an upgrade needs all its hosts", err=True)
        return EXIT_FAILED
    seen = await _take_up(reach, hosts, seen, options)
    assert seen.view is not None, "a manager has answered"
    plan = plan_cluster(
        reach.inventory,
        seen.release,
        seen.facts,
        seen.secrets,
        seen.view,
        block_bytes=seen.block_bytes,
    )
    todo = steps(plan, options, seen.view.acting)
    if not todo:
        typer.echo("nothing to do")
        return _note_mounts(plan, options)
    for problem in unsafe(seen.view):
        raise FsError(Status.CHAIN_UNAVAILABLE, f"not now: {problem}; nothing was changed")
    for problem in overtaken(reach.inventory, seen.view, todo, seen.release.version):
        raise FsError(Status.RPC_BAD_VERSION, f"{problem}; nothing was changed")
    lines = [_line(step, seen) for step in todo]
    confirm(lines, dry_run=options.is_dry_run, yes=options.is_yes)
    await _carry_out(reach, plan, seen, todo)
    reach.progress.close("upgraded")
    return EXIT_FAILED if reach.failed else _note_mounts(plan, options)


async def _take_up(
    reach: Reach, hosts: Sequence[HostPart], seen: Survey, options: Options
) -> Survey:
    """Start what an upgrade had stopped when it was cut off; look again.

    Raises:
        FsError: NOT_RUNNING when no manager answers and nothing of that kind explains it;
            START_FAILED, CHAIN_UNAVAILABLE.
    """
    plan = plan_cluster(
        reach.inventory,
        seen.release,
        seen.facts,
        seen.secrets,
        seen.view,
        block_bytes=seen.block_bytes,
    )
    stopped = [(p.host, role) for role in UPGRADE_ORDER for p in plan.hosts if role in _stopped(p)]
    managers = [p.host for p in plan.hosts if "mgmtd" in p.host.roles and not p.installs]
    if not stopped or not managers:
        if seen.view is not None:
            return seen
        detail = "no manager runs: ember cluster deploy, with the code that was installed last"
        raise FsError(Status.NOT_RUNNING, detail)
    lines = [f"{host.name}: start {role}, which was stopped" for host, role in stopped]
    confirm(lines, dry_run=options.is_dry_run, yes=options.is_yes)
    for host, role in stopped:
        reach.progress.step(f"starting {role} of {host.name}")
        await _restart(reach, host, seen, [role])
    await _wait_ready(reach, managers[0], seen.release.version, [])
    return await survey(reach, hosts)


async def _wait_ready(
    reach: Reach, manager: HostPart, version: str, node_ids: Sequence[int]
) -> None:
    """Wait until nothing speaks against starting one process more anew;
    raises FsError(CHAIN_UNAVAILABLE) when that takes too long.
    """
    waited = await reach.ask(
        manager, version, "ready", node_ids=node_ids, timeout_s=CHAIN_TIMEOUT_S
    )
    if waited["late"]:
        raise FsError(
            Status.CHAIN_UNAVAILABLE, f"{waited['late']}; what comes later stays as it is"
        )


def _stopped(plan: HostPlan) -> list[str]:
    """Return which roles of a host that has the new code do not run."""
    return [] if plan.installs else [role for role in plan.starts if role != "mount"]


def _note_mounts(plan: ClusterPlan, options: Options) -> int:
    """Say which mounts go on as they are, which is no error."""
    late = [p.host.name for p in plan.hosts if "mount" in p.restarts]
    if late and not options.with_mounts:
        typer.echo(f"mounts go on as they are until --mounts: {', '.join(late)}")
    return 0


def steps(plan: ClusterPlan, options: Options, acting: int) -> list[Step]:
    """Return what to start anew, one process after the other: who is asked before who asks.

    Args:
        plan: of the cluster.
        options: of the command.
        acting: node id of the acting manager: the last of its kind, so that there is one
            change of managers, not several.
    """
    found = []
    for role in UPGRADE_ORDER if options.with_mounts else UPGRADE_ORDER[:-1]:
        hosts = [p.host for p in plan.hosts if role in (*p.restarts, *p.starts)]
        hosts.sort(key=lambda host: role == "mgmtd" and host.node_id(role) == acting)
        found += [Step(host, role) for host in hosts]
    return found


def overtaken(
    inventory: Inventory, view: View, todo: Sequence[Step], version: str
) -> Iterator[str]:
    """Yield which processes would be newer than others that they ask,
    since --only leaves those as they are.
    """
    done = {step.host.node_id(step.role) for step in todo}
    releases = {node.node_id: node.release for node in view.nodes if node.node_id not in done}
    for step in todo:
        for role in UPGRADE_ORDER[: UPGRADE_ORDER.index(step.role)]:
            for host in inventory.with_role(role):
                other = releases.get(host.node_id(role), version)
                if other not in {"", version}:
                    yield (
                        f"{step.role} of {step.host.name} would ask {role} of {host.name}, which "
                        f"runs {other}: that one first, or all without --only"
                    )


def _line(step: Step, seen: Survey) -> str:
    service = seen.facts[step.host.name].services[service_of(step.role)]
    version = version_of(step.host, service.program) or STOPPED
    return f"{step.host.name}: restart {step.role}: {version} -> {seen.release.version}"


def unsafe(view: View) -> list[str]:
    """Return why no process may be taken away now."""
    away = [n.node_id for n in view.nodes if n.state != "connected"]
    found = []
    if away:
        found.append(f"nodes {away} are not connected")
    if view.incomplete:
        found.append(f"chains {ids_text(view.incomplete)} have fewer replicas than wanted")
    if view.move_count or view.is_rebalancing:
        found.append(f"{view.move_count} targets are being moved")
    return found


def misfits(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return why code cannot run beside other code, by what each says of itself."""
    found = []
    if old["wire"][1] < new["wire"][0] or new["wire"][1] < old["wire"][0]:
        found.append(
            f"{old['release']} speaks wire versions {old['wire']}, {new['release']} {new['wire']}:"
            " upgrade by a release between them"
        )
    elif new["wire"][1] < old["wire"][1]:
        found.append(
            f"{new['release']} speaks wire versions {new['wire']}, {old['release']} {old['wire']}: "
            "who asks would be newer than who is asked; to go back: ember cluster stop, then deploy"
        )
    if new["disk"] < old["disk"]:
        found.append(
            f"disks have format {old['disk']}, {new['release']} knows {new['disk']}: there is no "
            "way back"
        )
    return found


async def _carry_out(reach: Reach, plan: ClusterPlan, seen: Survey, todo: Sequence[Step]) -> None:
    """Install everywhere, then start anew, one process after the other.

    Raises:
        FsError: START_FAILED or CHAIN_UNAVAILABLE: what comes later stays as it is.
    """
    assert seen.manager is not None, "checked before"
    version, manager = seen.release.version, seen.manager
    reach.progress.step(f"installing {version}")

    async def one(host: HostPart) -> None:
        await install(reach, host, seen.release)

    await reach.each([p.host for p in plan.hosts if p.installs], one)
    if reach.failed:
        return
    running = version_of(manager, seen.facts[manager.name].services["mgmtd"].program)
    old, new = [await reach.ask(manager, v, "versions") for v in (running, version)]
    for problem in misfits(old, new):
        raise FsError(Status.RPC_BAD_VERSION, f"{problem}; nothing was restarted")
    node_ids = [n.node_id for n in seen.view.nodes] if seen.view else []
    for step in todo:
        reach.progress.step(f"waiting to restart {step.role} of {step.host.name}")
        await _wait_ready(reach, manager, version, node_ids)
        reach.progress.step(f"restarting {step.role} of {step.host.name}")
        await _restart(reach, step.host, seen, [step.role])
    reach.progress.step("waiting for the chains")
    await _wait_ready(reach, manager, version, node_ids)


async def _restart(reach: Reach, host: HostPart, seen: Survey, roles: Sequence[str]) -> None:
    """Stop roles of a host, write its files, start them; raises FsError(START_FAILED)."""
    names = [service_of(role) for role in roles]
    await reach.on(host, "stop", services=names[::-1], timeout_s=STOP_TIMEOUT_S)
    before = seen.facts[host.name]
    gone = {name: ServiceFacts(STOPPED, "") for name in names}
    facts = structs.replace(before, services=before.services | gone)
    targets = targets_for(host, facts, seen.view, {host.name: {}})
    files = wanted_files(
        reach.inventory,
        host,
        facts,
        seen.release,
        secrets=seen.secrets,
        targets=targets,
        block_bytes=seen.block_bytes,
    )
    plan = plan_host(host, facts, seen.release, files, with_unit=True)
    await write_files(reach, replace(plan, installs=True), seen, {KEY: seen.secrets.get(KEY, b"")})
    await start_on(reach, host, seen.release.version, roles)


# ---- stop ----------------------------------------------------------------------------------------


async def _stop(reach: Reach, options: Options, roles: Sequence[str]) -> int:
    hosts = chosen(reach.inventory, options.only)
    reach.progress.step(f"looking at {len(hosts)} hosts")
    facts = await reach.facts(hosts)
    running = {
        host.name: [
            role
            for role in reversed(ROLES)
            if role in roles
            and role in host.roles
            and facts[host.name].services[service_of(role)].state != STOPPED
        ]
        for host in reach.left(hosts)
    }
    reach.progress.close()
    if not any(running.values()):
        typer.echo("nothing to do")
        return EXIT_FAILED if reach.failed else 0
    lines = [f"{name}: stop {', '.join(found)}" for name, found in running.items() if found]
    confirm(lines, dry_run=options.is_dry_run, yes=options.is_yes)
    for role in reversed(ROLES):
        await _stop_role(reach, [h for h in hosts if role in running.get(h.name, ())], role)
    reach.progress.close("stopped")
    return EXIT_FAILED if reach.failed else 0


async def _stop_role(reach: Reach, hosts: Sequence[HostPart], role: str) -> None:
    async def one(host: HostPart) -> None:
        await reach.on(host, "stop", services=[service_of(role)], timeout_s=STOP_TIMEOUT_S)

    if hosts:
        reach.progress.step(f"stopping {role} on {len(hosts)} hosts")
        await reach.each(hosts, one)
