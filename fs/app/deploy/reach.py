"""Talking to hosts: requests to on_host.py and agent.py, many hosts side by side,
and who has failed.

A host that fails once is left out of everything that follows; one line says why.
"""

import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from ...schema.status import FsError, Status
from ..terminal.progress import Progress
from . import on_host
from .inventory import ROLES, HostPart, Inventory
from .layout import (
    ETC,
    FOUNDATIONDB,
    HELPERS,
    RUN,
    UNIT,
    VAR,
    VERSIONS,
    config_path,
    program,
    role_unit_path,
    service_of,
)
from .planning import STOPPED, HostFacts, View
from .transport import Transport, open_transport

HOSTS_AT_ONCE: Final = 32
TIMEOUT_S: Final = 120.0
SLACK_S: Final = 60.0
"""For connecting, and for a host that has much to do, beyond the time that it was given itself."""
INSTALL_TIMEOUT_S: Final = 1800.0
BOOT: Final = """\
import sys
if sys.version_info < (3, 11):
    said = "Python %d.%d is too old: 3.11 or newer; code.python says which"
    sys.exit(said % sys.version_info[:2])
r = sys.stdin.buffer
g = {"__name__": "on_host"}
exec(compile(r.read(int(r.readline())), "on_host.py", "exec"), g)
g["serve"](r)
"""


class Reach:
    """The hosts of an inventory."""

    def __init__(self, inventory: Inventory, progress: Progress) -> None:
        self.inventory = inventory
        self.progress = progress
        self.failed: dict[str, str] = {}
        """Why, by host."""
        self._ways: dict[str, Transport] = {}
        self._limiter = trio.CapacityLimiter(HOSTS_AT_ONCE)
        self._source = Path(on_host.__file__).read_bytes()

    async def close(self) -> None:
        """Give all ways up, also when everything else is being cancelled."""
        with trio.CancelScope(shield=True):
            for way in self._ways.values():
                await way.close()

    def fail(self, host: HostPart, problem: str) -> None:
        """Leave a host out from now on, and say why."""
        self.failed[host.name] = problem
        self.progress.close()
        sys.stderr.write(f"ember: {host.name}: {problem}\n")

    def left(self, hosts: Iterable[HostPart]) -> list[HostPart]:
        """Return those that have not failed."""
        return [host for host in hosts if host.name not in self.failed]

    async def each(
        self, hosts: Iterable[HostPart], use: Callable[[HostPart], Awaitable[None]]
    ) -> None:
        """Do something on hosts side by side; who fails is noted."""

        async def one(host: HostPart) -> None:
            async with self._limiter:
                try:
                    await use(host)
                except FsError as error:
                    self.fail(host, error.detail.removeprefix(f"{host.name}: "))

        async with trio.open_nursery() as nursery:
            for host in self.left(hosts):
                nursery.start_soon(one, host)

    async def _run(self, host: HostPart, words: list[str], given: bytes, timeout_s: float) -> bytes:
        way = self._ways.get(host.name)
        if way is None:
            way = self._ways[host.name] = open_transport(host, self.inventory.ssh)
        done = await way.run(words, given, timeout_s=timeout_s)
        if done.code:
            raise FsError(Status.START_FAILED, f"{host.name}: {done.last_word}")
        return done.stdout

    async def on(
        self,
        host: HostPart,
        op: str,
        payload: bytes = b"",
        *,
        timeout_s: float = TIMEOUT_S,
        **fields: Any,
    ) -> Any:
        """Carry out an operation of on_host.py; raises FsError."""
        request = {
            "op": op,
            "root": host.root,
            "base": host.path(VAR),
            "versions": host.path(VERSIONS),
            "run": host.path(RUN),
            "python": self.inventory.code.python,
            "timeout_s": timeout_s,
            **fields,
        }
        parts = [str(len(self._source)).encode(), b"\n", self._source]
        given = b"".join([*parts, json.dumps(request).encode(), b"\n", payload])
        words = [self.inventory.code.python, "-I", "-c", BOOT]
        return json.loads(await self._run(host, words, given, timeout_s + SLACK_S))

    async def ask(
        self, host: HostPart, version: str, op: str, *, timeout_s: float = TIMEOUT_S, **fields: Any
    ) -> Any:
        """Ask the cluster through a manager's host; raises FsError."""
        request = {"op": op, "config": config_path(host, "mgmtd"), "timeout_s": timeout_s, **fields}
        words = [program(host, version), "-P", "-m", "fs.app.deploy.agent"]
        given = msgspec.json.encode(request)
        return json.loads(await self._run(host, words, given, timeout_s + TIMEOUT_S))

    async def command(
        self, host: HostPart, version: str, words: list[str], *, timeout_s: float
    ) -> bytes:
        """Run a command of `ember` on a manager's host, with the code of a version;
        raises FsError.
        """
        ember = [program(host, version), "-P", "-m", "fs.app.main", *words]
        config = ["--config", config_path(host, "mgmtd")]
        return await self._run(host, [*ember, *config], b"", timeout_s)

    async def view(self, host: HostPart, version: str) -> View:
        """Return what the manager says of the cluster; raises FsError."""
        return msgspec.convert(await self.ask(host, version, "look"), View)

    async def facts(self, hosts: Iterable[HostPart]) -> dict[str, HostFacts]:
        """Look at hosts; those that cannot be reached have failed afterwards."""
        found: dict[str, HostFacts] = {}

        async def one(host: HostPart) -> None:
            fields = facts_request(self.inventory, host)
            began_ns = time.time_ns()
            told = await self.on(host, "facts", **fields)
            ended_ns = time.time_ns()
            facts = msgspec.convert(told, HostFacts)
            found[host.name] = msgspec.structs.replace(
                facts, skew_s=certain_skew_s(began_ns, facts.wall_ns, ended_ns)
            )

        await self.each(hosts, one)
        return found


def certain_skew_s(began_ns: int, told_ns: int, ended_ns: int) -> float:
    """Return by how much a clock is off at least, when it was read between two moments of ours."""
    if told_ns < began_ns:
        return (told_ns - began_ns) / 1e9
    return max(0, told_ns - ended_ns) / 1e9


def facts_request(inventory: Inventory, host: HostPart) -> dict[str, Any]:
    """Return what is to be looked at on a host."""
    roles = [role for role in ROLES if role in host.roles]
    configs = [config_path(host, role) for role in roles]
    others = [host.path(f"{ETC}/cluster.key"), host.path(FOUNDATIONDB), UNIT]
    others += [role_unit_path(role) for role in roles]
    others += HELPERS if "mount" in roles else ()
    return {
        "disks": [host.path(disk.path) for disk in host.disks],
        "files": configs + others,
        "texts": configs,
        "services": [service_of(role) for role in roles],
        "ports": {
            role: [host.address, getattr(inventory.ports, role)]
            for role in roles
            if role != "mount"
        },
        "mounts": [host.path(host.mount_point)] if "mount" in roles else [],
    }


def is_running(facts: HostFacts | None, role: str) -> bool:
    """True if a role of a host runs."""
    if facts is None or service_of(role) not in facts.services:
        return False
    return facts.services[service_of(role)].state != STOPPED
