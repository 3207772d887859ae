"""`ember cluster deploy`: from an inventory to a cluster that serves;
again, to what the inventory says now.

Order: look at all machines; plan; ship code and files; the store and the managers; make nodes,
chains and the chain table known; metadata services and storage; wait for the chains; even out;
mounts.  Every step may be repeated, so that an interrupted run is taken up by the next one.  What
goes wrong on one host stops that host alone, unless the cluster has to be made yet.
"""

import base64
import random
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import trio
import typer

from ...rpc.credential_files import read_keys, write_new_key
from ...runtime.durable_file import write_durable
from ...runtime.held_file import held_file
from ...schema.status import FsError, Status
from ..terminal.errors import unwrapped
from ..terminal.listing import EXIT_FOUND, confirm
from ..terminal.progress import Progress
from .code_archive import Release, make_release
from .inventory import FIRST_NODE_IDS, HostPart, Inventory
from .layout import CURRENT, ETC, VAR, VERSIONS, client_config, command, service_of, version_of
from .planning import (
    ClusterPlan,
    HostFacts,
    HostPlan,
    View,
    cluster_block_bytes,
    digest_of,
    host_troubles,
    named_block_bytes,
    plan_cluster,
    same_machines,
    told_block_bytes,
)
from .reach import INSTALL_TIMEOUT_S, Reach, is_running

SERVE_TIMEOUT_S: Final = 120.0
CHAIN_TIMEOUT_S: Final = 300.0
BALANCE_TIMEOUT_S: Final = 86_400.0
EXIT_FAILED: Final = 1
KEY: Final = "key"
PLACEHOLDER: Final = b"a key that is to be made"
"""Stands for the key in a plan that makes one."""


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    only: Sequence[str] = ()
    """Hosts; empty: all."""
    is_dry_run: bool = False
    is_yes: bool = False
    waits_balanced: bool = False
    with_mounts: bool = False
    """Of an upgrade: restarts mounts, too."""


def chosen(inventory: Inventory, names: Sequence[str]) -> list[HostPart]:
    """Return the hosts that --only names, or all; raises FsError(BAD_CONFIG)."""
    known = {host.name for host in inventory.hosts}
    if unknown := sorted(set(names) - known):
        raise FsError(
            Status.BAD_CONFIG, f"--only {unknown[0]}: the inventory has {', '.join(sorted(known))}"
        )
    return [host for host in inventory.hosts if not names or host.name in names]


def run_deploy(inventory: Inventory, options: Options) -> int:
    """Carry out `ember cluster deploy`; return the exit code.

    Raises:
        FsError: BAD_CONFIG, START_FAILED, ...: nothing more was done.
    """
    return on_hosts(inventory, partial(_deploy, options=options))


def on_hosts(
    inventory: Inventory, use: Callable[[Reach], Awaitable[int]], *, is_alone: bool = False
) -> int:
    """Do something with ways to all hosts.

    Args:
        inventory: names the hosts.
        use: what; returns the exit code.
        is_alone: no other command of this key file changes hosts meanwhile.

    Raises:
        FsError: ALREADY_RUNNING beside one that has to be alone, or when this one has to
            be; BAD_CONFIG when that cannot be known; what `use` raises, without the
            groups that nurseries make.
    """
    with _beside_others(inventory, is_alone=is_alone), unwrapped():
        return trio.run(_with_reach, inventory, use)


@contextmanager
def _beside_others(inventory: Inventory, *, is_alone: bool) -> Iterator[None]:
    """Hold a lock beside the key file, of which each host gets a copy;
    before the key is made there is nothing to replace.
    """
    if not (inventory.cluster.is_closed and inventory.key_path.exists()):
        yield
        return
    path = inventory.key_path.with_name(f".{inventory.key_path.name}.lock")
    detail = f"another `ember cluster` command is changing hosts of {inventory.cluster.id}: {path}"
    with held_file(path, detail, is_shared=not is_alone):
        yield


async def _with_reach(inventory: Inventory, use: Callable[[Reach], Awaitable[int]]) -> int:
    progress = Progress()
    reach = Reach(inventory, progress)
    try:
        code = await use(reach)
    finally:
        progress.close()
        await reach.close()
    return code


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found before anything was changed."""

    release: Release
    facts: Mapping[str, HostFacts]
    view: View | None
    manager: HostPart | None
    """Through which the cluster was asked."""
    secrets: Mapping[str, bytes]
    block_bytes: int
    """See `cluster_block_bytes`."""


async def survey(reach: Reach, hosts: Sequence[HostPart]) -> Survey:
    """Look at hosts, and at the cluster through whichever manager runs; changes nothing.

    Raises:
        FsError: BAD_CONFIG; RPC_TIMEOUT when managers run and do not answer.
    """
    inventory = reach.inventory
    reach.progress.step("packing the code")
    release = make_release(inventory)
    managers = inventory.with_role("mgmtd")
    asked = [*hosts, *(host for host in managers if host not in hosts)]
    reach.progress.step(f"looking at {len(asked)} hosts")
    facts = await reach.facts(asked)
    secrets = read_secrets(inventory, facts)
    key_digest = digest_of(secrets[KEY]) if KEY in secrets else ""
    for host in reach.left(hosts):
        troubles = [*host_troubles(inventory, host, facts[host.name], release, key_digest)]
        if troubles:
            reach.fail(host, "; ".join(troubles))
    by_name = {host.name: host for host in inventory.hosts}
    for name, trouble in same_machines(facts):
        reach.fail(by_name[name], trouble)
    view, manager = await _view(reach, managers, facts)
    known = facts | await _other_storage_hosts(reach, hosts, facts)
    block_bytes = cluster_block_bytes(inventory, known, view)
    return Survey(release, facts, view, manager, secrets, block_bytes)


async def _other_storage_hosts(
    reach: Reach, hosts: Sequence[HostPart], facts: Mapping[str, HostFacts]
) -> dict[str, HostFacts]:
    """Look at those that were left out, if one that joins needs to know what they were made with,
    and nobody has said it.
    """
    storage = reach.inventory.with_role("storage")
    told = {h.name: told_block_bytes(h, facts[h.name]) for h in storage if h.name in facts}
    joining = [h for h in reach.left(hosts) if told.get(h.name) == 0]
    if not joining or any(told.values()) or named_block_bytes(reach.inventory):
        return {}
    return await reach.facts(h for h in storage if h.name not in facts)


async def _view(
    reach: Reach, managers: Sequence[HostPart], facts: Mapping[str, HostFacts]
) -> tuple[View | None, HostPart | None]:
    """Return what the cluster says of itself, and the host through which it was asked.

    Without the store managers cannot answer: they are not waited for.
    """
    holders = [facts[h.name] for h in reach.inventory.with_role("kv") if h.name in facts]
    if any(not is_running(found, "kv") for found in holders):
        return None, None
    running = [h for h in managers if is_running(facts.get(h.name), "mgmtd")]
    if not running:
        return None, None
    reach.progress.step("asking the manager")
    for host in running[:-1]:
        with suppress(FsError):  # the last one is to say why
            return await reach.view(host, _version(host, facts)), host
    return await reach.view(running[-1], _version(running[-1], facts)), running[-1]


def _version(host: HostPart, facts: Mapping[str, HostFacts]) -> str:
    return version_of(host, facts[host.name].services["mgmtd"].program)


def read_secrets(inventory: Inventory, facts: Mapping[str, HostFacts]) -> dict[str, bytes]:
    """Return the key and FoundationDB's cluster file,
    as far as the cluster has them; makes nothing.

    Raises:
        FsError: BAD_CONFIG when the key is not here but on hosts, or cannot be used.
    """
    found: dict[str, bytes] = {}
    if inventory.cluster.metadata == "foundationdb":
        file = inventory.local(inventory.cluster.foundationdb_cluster_file)
        try:
            found["foundationdb"] = file.read_bytes()
        except OSError as error:
            raise FsError(Status.BAD_CONFIG, f"{file}: {error.strerror}") from error
    if not inventory.cluster.is_closed:
        return found
    if inventory.key_path.exists():
        read_keys(inventory.key_path)
        found[KEY] = inventory.key_path.read_bytes()
        return found
    for host in inventory.hosts:
        path = host.path(f"{ETC}/cluster.key")
        if host.name in facts and facts[host.name].files[path]:
            raise FsError(
                Status.BAD_CONFIG,
                f"{inventory.key_path} is missing, but {host.name} has a key: copy its {path} here",
            )
    found[KEY] = PLACEHOLDER
    return found


# ---- deploy --------------------------------------------------------------------------------------


async def _deploy(reach: Reach, options: Options) -> int:
    hosts = chosen(reach.inventory, options.only)
    seen = await survey(reach, hosts)
    _check_versions(reach, seen)
    if reach.failed and (seen.view is None or not seen.view.chain_count):
        reach.progress.close()
        typer.echo("nothing was changed: a new cluster needs all its hosts", err=True)
        return EXIT_FAILED
    left = {host.name: seen.facts[host.name] for host in reach.left(hosts)}
    plan = plan_cluster(
        reach.inventory, seen.release, left, seen.secrets, seen.view, block_bytes=seen.block_bytes
    )
    reach.progress.close()
    late = [f"{p.host.name}: {', '.join(p.restarts)}" for p in plan.hosts if p.restarts]
    if plan.is_empty:
        typer.echo("nothing to do" + (" but for an upgrade" if late else ""))
    else:
        confirm([*plan.lines()], dry_run=options.is_dry_run, yes=options.is_yes)
        await _carry_out(reach, plan, seen)
    for node_id in plan.strangers:
        typer.echo(
            f"node {node_id} is not of the inventory: ember admin node remove {node_id} --drain"
        )
    for line in late:
        typer.echo(f"{line} to be restarted with other code or settings: ember cluster upgrade")
    await _wait_balanced(reach, seen, options)
    if reach.failed:
        return EXIT_FAILED
    return EXIT_FOUND if late else 0


def _check_versions(reach: Reach, seen: Survey) -> None:
    """Refuse to add hosts of one version to a cluster that runs another;
    raises FsError(BAD_CONFIG).
    """
    for host in reach.inventory.hosts:
        for found in seen.facts[host.name].services.values() if host.name in seen.facts else ():
            version = version_of(host, found.program)
            if version and version != seen.release.version:
                raise FsError(
                    Status.BAD_CONFIG,
                    f"{host.name} runs {version}, code.source is {seen.release.version}:"
                    " ember cluster upgrade first, or name the code that runs",
                )


async def _carry_out(reach: Reach, plan: ClusterPlan, seen: Survey) -> None:
    """Do what is planned.

    Raises:
        FsError: START_FAILED; the next run goes on.
    """
    inventory = reach.inventory
    if plan.makes_key:
        write_new_key(inventory.key_path, random.SystemRandom())
    key = {KEY: inventory.key_path.read_bytes()} if inventory.cluster.is_closed else {}
    write_durable(inventory.client_path, client_config(inventory))
    plans = {p.host.name: p for p in plan.hosts}
    is_new = seen.view is None or not seen.view.chain_count
    reach.progress.step(f"installing {plan.version}")
    await reach.each([p.host for p in plan.hosts], partial(_prepare, reach, plans, seen, key))
    _stop_if_failed(reach, needs_all=is_new)
    for role in ("kv", "mgmtd"):
        await start(reach, plans, plan.version, (role,))
        _stop_if_failed(reach, needs_all=is_new)
    manager = seen.manager or _first_manager(reach, plans)
    if manager is None:
        typer.echo("no manager runs: deploy one before the others", err=True)
        return
    ask = partial(reach.ask, manager, plan.version)
    waited = await ask("wait", goal="managers", node_ids=[], timeout_s=SERVE_TIMEOUT_S)
    if waited["view"] is None:
        raise FsError(Status.START_FAILED, f"managers: {waited['late']}")
    if plan.new_nodes:
        reach.progress.step("making nodes and chains known")
        servers = [_server(host, role, plans) for host, role in _registered(reach, plan, waited)]
        await ask("make", servers=servers, replicas=inventory.cluster.replicas)
    await start(reach, plans, plan.version, ("meta", "storage"))
    await _wait_complete(reach, plan, ask)
    if plan.rebalances or (not is_new and any(role == "storage" for _, role in plan.new_nodes)):
        await ask("rebalance")
        typer.echo("targets are being moved to the new storage nodes: ember admin move list")
    await start(reach, plans, plan.version, ("mount",))
    reach.progress.close("ready")
    typer.echo(f"commands: ember admin node list --config {inventory.client_path}")


def _registered(
    reach: Reach, plan: ClusterPlan, waited: Mapping[str, Any]
) -> list[tuple[HostPart, str]]:
    """Return the nodes to make known: of a cluster without chains all,
    since the chains are made of them.
    """
    if waited["view"]["chain_count"]:
        return [(host, role) for host, role in plan.new_nodes if host.name not in reach.failed]
    return [(p.host, role) for p in plan.hosts for role in FIRST_NODE_IDS if role in p.host.roles]


def _server(host: HostPart, role: str, plans: Mapping[str, HostPlan]) -> dict[str, Any]:
    config = plans[host.name].configs[role]
    return {"name": f"{role} of {host.name}", "role": role, "config": config, "tags": host.tags}


def _first_manager(reach: Reach, plans: Mapping[str, HostPlan]) -> HostPart | None:
    managers = [h for h in reach.left(reach.inventory.with_role("mgmtd")) if h.name in plans]
    return managers[0] if managers else None


def _stop_if_failed(reach: Reach, *, needs_all: bool) -> None:
    if reach.failed and needs_all:
        names = ", ".join(sorted(reach.failed))
        raise FsError(
            Status.START_FAILED, f"{names}: a new cluster needs all its hosts; run it again"
        )


async def _prepare(
    reach: Reach,
    plans: Mapping[str, HostPlan],
    seen: Survey,
    key: Mapping[str, bytes],
    host: HostPart,
) -> None:
    """Ship code and files to one host."""
    plan = plans[host.name]
    if plan.installs:
        await install(reach, host, seen.release)
    await write_files(reach, plan, seen, key)


async def install(reach: Reach, host: HostPart, release: Release) -> None:
    """Put a release beside the others on a host."""
    await reach.on(
        host,
        "install",
        release.archive,
        timeout_s=INSTALL_TIMEOUT_S,
        folder=host.path(f"{VERSIONS}/{release.version}"),
        dependencies=reach.inventory.code.dependencies,
        mark={"digest": release.digest, "version": release.version},
    )


async def write_files(reach: Reach, plan: HostPlan, seen: Survey, key: Mapping[str, bytes]) -> None:
    """Write what differs on a host, and the folders that processes need."""
    host = plan.host
    if not (plan.files or plan.installs):
        return
    folders = [host.path(VAR), *([host.path(f"{VAR}/storage")] if "storage" in host.roles else [])]
    if "mount" in host.roles and seen.facts[host.name].services["mountd"].state == "stopped":
        folders.append(host.path(host.mount_point))
    files = [
        (f.path, f.mode, key.get(KEY, b"") if f.content == PLACEHOLDER else f.content)
        for f in plan.files
    ]
    await reach.on(
        host,
        "write",
        folders=folders,
        files=[(path, mode, base64.b64encode(content).decode()) for path, mode, content in files],
        links=[(host.path(CURRENT), seen.release.version)],
        reload=seen.facts[host.name].has_systemd,
    )


async def start(
    reach: Reach, plans: Mapping[str, HostPlan], version: str, roles: Sequence[str]
) -> None:
    """Start roles on all hosts that are to have them started, and wait until they serve."""

    async def one(host: HostPart) -> None:
        wanted = [role for role in roles if role in plans[host.name].starts]
        await start_on(reach, host, version, wanted)

    hosts = [p.host for p in plans.values() if set(roles) & set(p.starts)]
    if hosts:
        reach.progress.step(f"starting {' and '.join(roles)} on {len(hosts)} hosts")
        await reach.each(hosts, one)


async def start_on(reach: Reach, host: HostPart, version: str, roles: Sequence[str]) -> None:
    """Start roles of a host and wait until they serve; raises FsError(START_FAILED)."""
    if not roles:
        return
    names = [service_of(role) for role in roles]
    commands = [(service_of(role), command(host, version, role)) for role in roles]
    folder = host.path(f"{VERSIONS}/{version}/code/fs/app/deploy")
    await reach.on(host, "start", commands=commands, keeper=f"{folder}/keeper.py")
    waited = await reach.on(host, "wait", services=names, timeout_s=SERVE_TIMEOUT_S)
    if waited["late"]:
        told = "; ".join(f"{name} is {why}" for name, why in waited["late"].items())
        raise FsError(Status.START_FAILED, f"{host.name}: {told}")


async def _wait_complete(reach: Reach, plan: ClusterPlan, ask: Any) -> None:
    """Wait until every chain has all its replicas;
    one that has not is no error as long as somebody serves it.

    Raises:
        FsError: CHAIN_UNAVAILABLE.
    """
    reach.progress.step("waiting for the chains")
    node_ids = [
        p.host.node_id(role)
        for p in plan.hosts
        for role in FIRST_NODE_IDS
        if role in p.host.roles and p.host.name not in reach.failed
    ]
    waited = await ask("wait", goal="complete", node_ids=node_ids, timeout_s=CHAIN_TIMEOUT_S)
    if waited["view"] is None or waited["view"]["unserved"]:
        raise FsError(Status.CHAIN_UNAVAILABLE, waited["late"])
    if waited["late"]:
        reach.progress.close()
        sys.stderr.write(f"ember: note: {waited['late']}; ember admin doctor tells more\n")


async def _wait_balanced(reach: Reach, seen: Survey, options: Options) -> None:
    """With --wait, wait until no target is to be moved any more."""
    manager = seen.manager
    if not options.waits_balanced or manager is None or options.is_dry_run:
        return
    reach.progress.step("waiting until all targets are where they belong")
    waited = await reach.ask(
        manager,
        seen.release.version,
        "wait",
        goal="balanced",
        node_ids=[],
        timeout_s=BALANCE_TIMEOUT_S,
    )
    reach.progress.close("balanced")
    if waited["late"]:
        raise FsError(Status.START_FAILED, waited["late"])
