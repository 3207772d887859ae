"""`ember cluster upgrade` and `stop`: what runs is restarted, host by host, or stopped.

Invariants:
    - Between two hosts every chain has all its replicas, so that no moment has more than one host away.
    - A host's files change only while what they configure does not run: what runs is what its files say.

Refused: chains with a replica missing, nodes away, moves under way, code whose wire versions or disk format do not fit to what
runs.  An interrupted upgrade is taken up by the next one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import typer
from msgspec import structs

from ...schema.status import FsError, Status
from ..admin.listing import confirm
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


# ---- upgrade --------------------------------------------------------------------------------------


async def _upgrade(reach: Reach, options: Options) -> int:
    hosts = chosen(reach.inventory, options.only)
    seen = await survey(reach, hosts)
    reach.progress.close()
    if reach.failed:
        typer.echo("nothing was changed: an upgrade needs all its hosts", err=True)
        return EXIT_FAILED
    if seen.view is None or seen.manager is None:
        seen = await _take_up(reach, hosts, seen, options)
    assert seen.view is not None, "a manager has answered"
    plan = plan_cluster(reach.inventory, seen.release, seen.facts, seen.secrets, seen.view)
    todo = {p.host.name: roles for p in plan.hosts if (roles := to_restart(p, options))}
    if not todo:
        typer.echo("nothing to do")
        return _note_mounts(plan, options)
    hosts = [p.host for p in plan.hosts if p.host.name in todo]
    lines = [_line(p, todo[p.host.name], seen) for p in plan.hosts if p.host.name in todo]
    for problem in unsafe(seen.view, hosts[0]):
        raise FsError(Status.CHAIN_UNAVAILABLE, f"not now: {problem}; nothing was changed")
    confirm(lines, dry_run=options.is_dry_run, yes=options.is_yes)
    await _carry_out(reach, plan, seen, todo)
    reach.progress.close("upgraded")
    return EXIT_FAILED if reach.failed else _note_mounts(plan, options)


async def _take_up(
    reach: Reach, hosts: Sequence[HostPart], seen: Survey, options: Options
) -> Survey:
    """Start what an upgrade had stopped when it was cut off, so that a manager answers; look again.

    Raises:
        FsError: NOT_RUNNING when there is nothing of that kind; START_FAILED, CHAIN_UNAVAILABLE.
    """
    plan = plan_cluster(reach.inventory, seen.release, seen.facts, seen.secrets, None)
    stopped = [(p.host, roles) for p in plan.hosts if (roles := _stopped(p))]
    managers = [host for host, roles in stopped if "mgmtd" in roles]
    if not managers:
        detail = "no manager runs: ember cluster deploy, with the code that was installed last"
        raise FsError(Status.NOT_RUNNING, detail)
    lines = [
        f"{host.name}: start {', '.join(roles)}, which were stopped" for host, roles in stopped
    ]
    confirm(lines, dry_run=options.is_dry_run, yes=options.is_yes)
    for host, roles in stopped:
        reach.progress.step(f"starting {', '.join(roles)} of {host.name}")
        await _restart(reach, host, seen, roles)
    await _wait_complete(reach, managers[0], seen.release.version, [])
    return await survey(reach, hosts)


async def _wait_complete(
    reach: Reach, manager: HostPart, version: str, node_ids: Sequence[int]
) -> None:
    """Wait until every chain has all its replicas; raises FsError(CHAIN_UNAVAILABLE) when that takes too long."""
    waited = await reach.ask(
        manager, version, "wait", goal="complete", node_ids=node_ids, timeout_s=CHAIN_TIMEOUT_S
    )
    if waited["late"]:
        raise FsError(Status.CHAIN_UNAVAILABLE, f"{waited['late']}; other hosts stay as they are")


def _stopped(plan: HostPlan) -> list[str]:
    """Return which roles of a host that has the new code do not run."""
    return [] if plan.installs else [role for role in plan.starts if role != "mount"]


def _note_mounts(plan: ClusterPlan, options: Options) -> int:
    """Say which mounts go on as they are, which is no error."""
    late = [p.host.name for p in plan.hosts if "mount" in p.restarts]
    if late and not options.with_mounts:
        typer.echo(f"mounts go on as they are until --mounts: {', '.join(late)}")
    return 0


def to_restart(plan: HostPlan, options: Options) -> list[str]:
    """Return the roles of a host to restart, or to start again after an upgrade that was cut off; in starting order."""
    wanted = {*plan.restarts, *plan.starts}
    if not options.with_mounts:
        wanted.discard("mount")
    return [role for role in ROLES if role in wanted] if plan.restarts or plan.starts else []


def _line(plan: HostPlan, roles: Sequence[str], seen: Survey) -> str:
    services = seen.facts[plan.host.name].services
    versions = {version_of(plan.host, services[service_of(role)].program) for role in roles} - {""}
    return f"{plan.host.name}: restart {', '.join(roles)}: {' and '.join(sorted(versions)) or STOPPED} -> {seen.release.version}"


def unsafe(view: View, first: HostPart) -> list[str]:
    """Return why no host may be taken away now; `first` may be away already: the upgrade begins with it."""
    own = {first.node_id(role) for role in first.roles}
    away = [n.node_id for n in view.nodes if n.state != "connected" and n.node_id not in own]
    found = []
    if away:
        found.append(f"nodes {away} are not connected")
    if view.incomplete and not [
        n for n in view.nodes if n.node_id in own and n.state != "connected"
    ]:
        found.append(f"chains {view.incomplete[:12]} have fewer replicas than wanted")
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
    if new["disk"] < old["disk"]:
        found.append(
            f"disks have format {old['disk']}, {new['release']} knows {new['disk']}: there is no way back"
        )
    return found


async def _carry_out(
    reach: Reach, plan: ClusterPlan, seen: Survey, todo: Mapping[str, Sequence[str]]
) -> None:
    """Install everywhere, then restart host by host.

    Raises:
        FsError: START_FAILED or CHAIN_UNAVAILABLE: hosts that come later stay as they are.
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
    for host_plan in plan.hosts:
        roles = todo.get(host_plan.host.name)
        if not roles:
            continue
        reach.progress.step(f"restarting {', '.join(roles)} of {host_plan.host.name}")
        await _restart(reach, host_plan.host, seen, roles)
        await _wait_complete(reach, manager, version, node_ids)


async def _restart(reach: Reach, host: HostPart, seen: Survey, roles: Sequence[str]) -> None:
    """Stop roles of a host, write its files, start them; raises FsError(START_FAILED)."""
    names = [service_of(role) for role in roles]
    await reach.on(host, "stop", services=names[::-1], timeout_s=STOP_TIMEOUT_S)
    before = seen.facts[host.name]
    gone = {name: ServiceFacts(STOPPED, "") for name in names}
    facts = structs.replace(before, services=before.services | gone)
    targets = targets_for(host, facts, seen.view, {host.name: {}})
    files = wanted_files(
        reach.inventory, host, facts, seen.release, secrets=seen.secrets, targets=targets
    )
    plan = plan_host(host, facts, seen.release, files, with_unit=True)
    await write_files(reach, replace(plan, installs=True), seen, {KEY: seen.secrets.get(KEY, b"")})
    await start_on(reach, host, seen.release.version, roles)


# ---- stop -----------------------------------------------------------------------------------------


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
