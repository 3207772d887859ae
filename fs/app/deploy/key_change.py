"""`ember cluster rotate-key`: a new key for a cluster of many machines, while all goes on.

    1. here: the new key above the old one in the inventory's key file
    2. on every host: both; every process reads them, and has to be heard to know the new one
    3. every process once more: what was still connected by the old key connects by the new one
    4. on every host: the new one alone, which has to open every process, and the
       old one none; then here, too

Invariants:
    - One run at a time: those of this inventory exclude each other, and every other command
      that changes hosts (`on_hosts`); one with another copy of the key file, elsewhere, is
      found out by what the hosts have.
    - A key is out of a process only after every listener has been heard to know the other.
    - The file here has both keys until every host has the new one alone: an
      interrupted run is taken up by the next one, with the same new key, and nothing
      is lost by beginning at step 2 again.

Refused: hosts that cannot be reached, which would keep the old key and be shut out with it; hosts
whose keys are not those of the file here.
"""

import base64
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from ...rpc.credential_files import key_text, new_key, read_keys
from ...runtime.secret_file import read_secret_lines, replace_secret_file
from ...schema.status import FsError, Status
from ..terminal.listing import confirm
from .installer import Options, on_hosts
from .inventory import ROLES, HostPart, Inventory
from .layout import ETC, service_of, version_of
from .planning import HostFacts, digest_of
from .reach import Reach, is_running

GREET_TIMEOUT_S: Final = 60.0
"""For processes to read their file, and for one that is just starting to serve."""


def run_key_change(inventory: Inventory, options: Options) -> int:
    """Carry out `ember cluster rotate-key`; return the exit code.

    Raises:
        FsError: ALREADY_RUNNING beside another command; BAD_CONFIG, START_FAILED,
            NOT_RUNNING, RPC_UNAUTHENTICATED: both keys open the cluster, or nothing was
            changed; the next run goes on.
    """
    if not inventory.cluster.is_closed:
        raise FsError(
            Status.BAD_CONFIG, f"{inventory.cluster.id} is an open cluster: it has no key"
        )
    return on_hosts(inventory, partial(_change_key, options=options), is_alone=True)


async def _change_key(reach: Reach, options: Options) -> int:
    inventory = reach.inventory
    reach.progress.step(f"looking at {len(inventory.hosts)} hosts")
    facts = await reach.facts(inventory.hosts)
    reach.progress.close()
    asked = manager_of(inventory, facts, reach.failed)
    version = version_of(asked, facts[asked.name].services[service_of("mgmtd")].program)
    path = inventory.key_path
    read_keys(path)
    lines = read_secret_lines(path)
    _need_own_keys(inventory, facts, [path.read_bytes(), *map(_key_file, _possible(lines))])
    await _need_teller(reach, asked, version, lines[-1])
    confirm(
        plan_lines(inventory, facts, is_begun=len(lines) > 1),
        dry_run=options.is_dry_run,
        yes=options.is_yes,
    )
    if len(lines) == 1:
        lines.insert(0, new_key(random.SystemRandom()))
        replace_secret_file(path, key_text(lines))
    new, old = lines
    reach.progress.step("the new key beside the old one")
    facts = await _give(reach, lines)
    await _greet(reach, facts, asked, version)
    reach.progress.step("connecting by the new key")
    await _reload(reach, facts)
    reach.progress.step("the new key alone")
    facts = await _give(reach, [new])
    await _greet(reach, facts, asked, version)
    await _need_refusal(reach, facts, asked, version, old)
    replace_secret_file(path, key_text([new]))
    reach.progress.close("the old key opens nothing now")
    return 0


def manager_of(
    inventory: Inventory, facts: Mapping[str, HostFacts], failed: Mapping[str, str]
) -> HostPart:
    """Return the host of a manager to ask; pure.

    Raises:
        FsError: START_FAILED when not every host was reached, NOT_RUNNING
            without a manager that runs.
    """
    if failed:
        names = ", ".join(sorted(failed))
        raise FsError(
            Status.START_FAILED,
            f"{names} would keep the old key, and be shut out: bring back or `ember cluster "
            "remove` first; nothing was changed",
        )
    for host in inventory.with_role("mgmtd"):
        if is_running(facts[host.name], "mgmtd"):
            return host
    raise FsError(Status.NOT_RUNNING, "no manager runs: ember cluster deploy")


def _key_file(lines: Sequence[str]) -> bytes:
    return key_text(lines).encode()


def _possible(lines: Sequence[str]) -> list[Sequence[str]]:
    """Return which keys a host may have, of those in the file here."""
    return [lines, lines[:1], lines[1:]] if len(lines) > 1 else [lines]


def _need_own_keys(
    inventory: Inventory, facts: Mapping[str, HostFacts], contents: Sequence[bytes]
) -> None:
    """Raise FsError(BAD_CONFIG) when a host has a key file that is none of these:
    somebody else replaces the key, or has.
    """
    known = {"", *map(digest_of, contents)}
    others = [
        host.name
        for host in inventory.hosts
        if facts[host.name].files.get(host.path(f"{ETC}/cluster.key"), "") not in known
    ]
    if others:
        raise FsError(
            Status.BAD_CONFIG,
            f"{', '.join(others)}: other keys than in {inventory.key_path}: somebody replaces them "
            "from elsewhere, or has; end that there, and copy its key file here",
        )


def running_roles(host: HostPart, facts: Mapping[str, HostFacts]) -> list[str]:
    """Return which roles of a host run."""
    return [role for role in ROLES if role in host.roles and is_running(facts[host.name], role)]


def plan_lines(
    inventory: Inventory, facts: Mapping[str, HostFacts], *, is_begun: bool
) -> Sequence[str]:
    """Return what is going to happen, for people; pure."""
    path = inventory.key_path
    here = (
        f"{path}: has a new key above the old one already"
        if is_begun
        else f"{path}: a new key above the old one"
    )
    hosts = [
        f"{host.name}: both keys, then the new one alone, for "
        f"{', '.join(running_roles(host, facts)) or 'nothing that runs'}"
        for host in inventory.hosts
    ]
    return [here, *hosts, f"{path}: the new one alone; copies of the old key open nothing then"]


async def _give(reach: Reach, lines: Sequence[str]) -> dict[str, HostFacts]:
    """Put keys on every host and have every process read them;
    return what runs there, of which each has read them or will be heard.

    Looked at behind the files: a process that was down before, and came back, may have
    begun with what they said before.
    """
    content = base64.b64encode(_key_file(lines)).decode()

    async def one(host: HostPart) -> None:
        files = [(host.path(f"{ETC}/cluster.key"), 0o600, content)]
        await reach.on(host, "write", folders=[], files=files, links=[], reload=False)

    await reach.each(reach.inventory.hosts, one)
    facts = await reach.facts(reach.inventory.hosts)
    _need_all(reach)
    _need_own_keys(reach.inventory, facts, [_key_file(lines)])
    await _reload(reach, facts)
    return facts


async def _reload(reach: Reach, facts: Mapping[str, HostFacts]) -> None:
    async def one(host: HostPart) -> None:
        services = [service_of(role) for role in running_roles(host, facts)]
        await reach.on(host, "reload", services=services)

    await reach.each(reach.inventory.hosts, one)
    _need_all(reach)


async def _greet(
    reach: Reach, facts: Mapping[str, HostFacts], asked: HostPart, version: str
) -> None:
    """Hear every process that listens by the first key alone,
    from a host with a version of the code; raises FsError(RPC_UNAUTHENTICATED).
    """
    addresses = _listeners(reach.inventory, facts)
    told = await reach.ask(asked, version, "greet", addresses=addresses, timeout_s=GREET_TIMEOUT_S)
    if told["late"]:
        why = "; ".join(f"{address}: {trouble}" for address, trouble in told["late"].items())
        raise FsError(Status.RPC_UNAUTHENTICATED, f"the new key does not open {why}; run it again")


async def _need_teller(reach: Reach, asked: HostPart, version: str, old: str) -> None:
    """Raise FsError(BAD_CONFIG) where what is installed could not say, in the end,
    whether a key is refused: releases before it was asked for.
    """
    try:
        await reach.ask(asked, version, "refused", addresses=[], key=old)
    except FsError as error:
        what = (
            f"{asked.name} with {version} cannot tell whether a key is refused ({error.detail}); "
            "nothing was changed:"
        )
        remedy = "upgrade first, or end what was begun by the command of that release"
        raise FsError(Status.BAD_CONFIG, f"{what} {remedy}") from error


async def _need_refusal(
    reach: Reach, facts: Mapping[str, HostFacts], asked: HostPart, version: str, old: str
) -> None:
    """Have every process that listens refuse the old key; raises FsError(RPC_UNAUTHENTICATED)."""
    addresses = _listeners(reach.inventory, facts)
    told = await reach.ask(
        asked, version, "refused", addresses=addresses, key=old, timeout_s=GREET_TIMEOUT_S
    )
    if told["late"]:
        why = "; ".join(f"{address}: {trouble}" for address, trouble in told["late"].items())
        what = f"nobody knows that the old key opens nothing: {why}; run it again"
        raise FsError(Status.RPC_UNAUTHENTICATED, what)


def _listeners(inventory: Inventory, facts: Mapping[str, HostFacts]) -> list[str]:
    return [
        inventory.address(host, role)
        for host in inventory.hosts
        for role in running_roles(host, facts)
        if role != "mount"
    ]


def _need_all(reach: Reach) -> None:
    if reach.failed:
        names = ", ".join(sorted(reach.failed))
        raise FsError(Status.START_FAILED, f"{names}: another key needs all hosts; run it again")
