"""A cluster for torture: every process by itself, in a network namespace of its own,
over TCP, kept running.

    base/config/NAME.toml  base/logs/NAME.log  base/data/NAME/  base/mnt

Plays what an init system does for a real cluster: what dies is started again 0.1 s later, unless it
was taken down on purpose.  All processes end with this one.

Concurrency: one thread keeps the processes; everything else is called from one thread.
"""

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import trio

from fs.admin.chunks import ChainComparison, Facts, compare
from fs.app.reach.mgmtd_link import newest_routing, run_with_mgmtd
from fs.rpc.credential_files import KEY_FILE_VARIABLE, write_new_key
from fs.schema.ids import TargetId
from fs.schema.routing import PublicState, RoutingInfo
from fs.schema.status import FsError

from .disk import LoopDisk
from .network import Network

ROOT: Final = Path(__file__).resolve().parents[2]
CLUSTER_ID: Final = "torture"
START_TIMEOUT_S: Final = 150.0
STOP_TIMEOUT_S: Final = 180.0
RESTART_PAUSE_S: Final = 0.1
RESTART_PAUSE_S_MAX: Final = 3.0
POLL_S: Final = 0.05
DEAD_ERRNOS: Final = {errno.ENOTCONN, errno.ECONNABORTED}
DEAD_TIMEOUT_S: Final = 1.0
"""The mount point of a killed mount daemon must say ENOTCONN by then."""
REMOUNT_TIMEOUT_S: Final = 180.0
"""A new mount takes less than ten seconds on a machine that has time for it."""
LEFTOVER_TIMEOUT_S: Final = 180.0
LOOP_NODE: Final = "storage-1"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How big a cluster is wanted."""

    nodes: int = 3
    replicas: int = 3
    chains: int = 6
    loop_mib: int = 512
    """Of the disk of the first node; 0: a folder like the others'."""
    loops_everywhere: bool = False
    managers: int = 1
    """More than one: as many managers, and as many metadata services, over one kv process."""


@dataclass(slots=True)
class Child:
    """One process of the cluster."""

    name: str
    role: str
    process: subprocess.Popen[bytes] | None = None
    is_wanted: bool = True
    start_count: int = 0
    started_s: float = 0.0
    pause_s: float = RESTART_PAUSE_S
    environment: dict[str, str] = field(default_factory=dict)


def is_leftover(facts: dict[TargetId, Facts | None]) -> bool:
    """True if the replicas differ by one unfinished update only,
    which some have committed and others still hold pending.

    A tail commits before those in front of it hear of it.
    """
    nothing = 0, 0, 0, 0
    known = [f or nothing for f in facts.values()]
    newest = max(f[0] for f in known)
    behind = [f for f in known if f[0] != newest]
    contents = [
        {f[2:] for f in group if f[0]} for group in (behind, [f for f in known if f[0] == newest])
    ]
    is_unfinished = all(f[0] == newest - 1 and f[1] == newest for f in behind)
    return is_unfinished and all(len(group) <= 1 for group in contents)


def is_dead(place: Path | int) -> bool:
    """True if a path, or an open descriptor, lies on a mount whose daemon has died."""
    try:
        os.statvfs(place)
    except OSError as error:
        if error.errno not in DEAD_ERRNOS:
            raise
        return True
    return False


class Fleet:
    """See the module head."""

    def __init__(self, base: Path, sizes: Sizes, *, wrapper: str = "", extra: str = "") -> None:
        """Write the files; nothing runs yet.

        Args:
            base: an empty folder.
            sizes: of the cluster.
            wrapper: a module that runs the storage processes instead of their own:
                what is broken on purpose.
            extra: more lines for every configuration file.
        """
        self.base, self.sizes, self.mount = base, sizes, base / "mnt"
        self._wrapper = wrapper
        self.network = Network()
        self.storages = [f"storage-{i + 1}" for i in range(sizes.nodes)]
        self.managers, self.metas = ["mgmtd"], ["meta"]
        self.stores: list[str] = []
        if sizes.managers > 1:
            self.managers = [f"mgmtd-{i + 1}" for i in range(sizes.managers)]
            self.metas = [f"meta-{i + 1}" for i in range(sizes.managers)]
            self.stores = ["kv"]
        self.controls = [*self.stores, *self.managers, *self.metas]
        self.children: dict[str, Child] = {}
        self.disks: dict[str, LoopDisk] = {}
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._to_start: list[tuple[Child, threading.Event]] = []
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        for name in ("config", "logs", "data", "mnt"):
            (base / name).mkdir(parents=True)
        self.key_file = base / "cluster.key"
        write_new_key(self.key_file, random.SystemRandom())
        self._key_file_before = os.environ.get(KEY_FILE_VARIABLE)
        os.environ[KEY_FILE_VARIABLE] = str(self.key_file)  # for what calls the cluster from here
        try:
            self._make_files(extra)
        except BaseException:
            self.close()
            raise

    # ---- files

    def _make_files(self, extra: str) -> None:
        names = [*self.controls, *self.storages, "mountd"]
        addresses = {name: self.network.add(name) for name in names}
        self.addresses = [addresses[name] for name in self.managers]
        self._all_addresses = addresses
        for name in names:
            self.children[name] = Child(name, name.split("-")[0])
        self._write_controls(addresses, extra)
        per_node, rest = divmod(self.sizes.chains * self.sizes.replicas, self.sizes.nodes)
        assert not rest, "chains * replicas must divide by nodes"
        for index, name in enumerate(self.storages):
            node_id = 11 + index
            disk = self._make_disk(name)
            targets = [node_id * 1000 + 1 + i for i in range(per_node)]
            text = f'[[storage.disks]]\npath = "{disk}"\ntarget_ids = {targets}\n{extra}'
            self._write(name, node_id, addresses, text)
        text = f'[client]\nmount_point = "{self.mount}"\n{extra}'
        self._write("mountd", 0, addresses, text)

    def _write_controls(self, addresses: dict[str, str], extra: str) -> None:
        """Managers and metadata services: each with a store of its own, or all over one."""
        own = '[kv]\npath = "{}"\n'
        for name in self.stores:
            self._write(name, 0, addresses, own.format(self.base / "data" / "meta") + extra)
        shared = f'[kv]\nengine = "remote"\naddress = "{addresses.get("kv", "")}"\n'
        meta = "[meta]\ngc_delay_s = 2.0\nsession_grace_s = 5.0\n"
        for number, name in enumerate([*self.managers, *self.metas], 1):
            store = shared if self.stores else own.format(self.base / "data" / name)
            rest = meta if name in self.metas else ""
            self._write(name, number, addresses, store + rest + extra)

    def _write(self, name: str, node_id: int, addresses: dict[str, str], rest: str) -> None:
        number = f"node_id = {node_id}\n" if node_id else ""
        listen = f'listen = "{addresses[name]}"\n' if name != "mountd" else ""
        self.config(name).write_text(
            f'[process]\ncluster_id = "{CLUSTER_ID}"\n{number}{listen}'
            f"mgmtd_addresses = {json.dumps(self.addresses)}\n"
            f'[auth]\nkey_file = "{self.key_file}"\n{rest}'
        )

    def _make_disk(self, name: str) -> Path:
        path = self.base / "data" / name
        if self.sizes.loop_mib and (name == LOOP_NODE or self.sizes.loops_everywhere):
            image = self.base / f"{name}.img"
            self.disks[name] = LoopDisk(image, path, self.sizes.loop_mib)
        return path

    def config(self, name: str) -> Path:
        return self.base / "config" / f"{name}.toml"

    def address(self, name: str) -> str:
        """Where a process listens."""
        return self._all_addresses[name]

    def log(self, name: str) -> Path:
        return self.base / "logs" / f"{name}.log"

    def disk(self, name: str) -> Path:
        """The disk of a storage process."""
        return self.base / "data" / name

    # ---- processes

    def up(self, *, has_mount: bool = True) -> None:
        """Start everything, make the cluster, mount it if wanted."""
        self._keeper.start()
        for name in (*self.controls, *self.storages):
            self.start(name)
        init = [sys.executable, "-m", "fs.app.main", "admin", "cluster", "init"]
        init += [f"--mgmtd={self.config(name)}" for name in self.managers]
        init += [f"--meta={self.config(name)}" for name in self.metas]
        init += [f"--storage={self.config(name)}" for name in self.storages]
        init += ["--replicas", str(self.sizes.replicas)]
        deadline = time.monotonic() + START_TIMEOUT_S
        while subprocess.run(init, cwd=ROOT, check=False, capture_output=True).returncode:
            assert time.monotonic() < deadline, f"no cluster after {START_TIMEOUT_S:g} s: {init}"
        self.wait_healthy(START_TIMEOUT_S)
        if has_mount:
            self._mount()

    def remount(self) -> None:
        """Unmount and mount, so that nothing is cached any more."""
        self.stop("mountd")
        self._mount()

    def _mount(self, timeout_s: float = START_TIMEOUT_S) -> None:
        self.start("mountd")
        deadline = time.monotonic() + timeout_s
        while not os.path.ismount(self.mount):
            assert time.monotonic() < deadline, (
                f"not mounted after {timeout_s:g} s: {self._last_line('mountd')}"
            )
            time.sleep(POLL_S)

    def kill_mount(self) -> tuple[float, float]:
        """Kill the mount daemon and mount anew; return the seconds until the dead mount says so,
        and until a new one serves.

        Raises:
            AssertionError: one of them takes too long.
        """
        assert self.stop("mountd", signal.SIGKILL) == -signal.SIGKILL
        began = time.monotonic()
        while not is_dead(self.mount):
            assert time.monotonic() - began < DEAD_TIMEOUT_S, f"{self.mount} does not say ENOTCONN"
        dead_s = time.monotonic() - began
        subprocess.run(["umount", "-l", self.mount], check=True, capture_output=True)
        began = time.monotonic()
        self._mount(REMOUNT_TIMEOUT_S)
        return dead_s, time.monotonic() - began

    def start(self, name: str) -> None:
        """Have a process started, and restarted whenever it ends, until `stop`."""
        child = self.children[name]
        begun = threading.Event()
        with self._lock:
            child.is_wanted = True
            self._to_start.append((child, begun))
        assert begun.wait(START_TIMEOUT_S), f"{name} was not started"

    def _spawn(self, child: Child) -> None:
        module, words = f"fs.app.{child.role}", []
        if self._wrapper and child.role == "storage":
            module, words = self._wrapper, [module]
        command = [
            *self.network.enter(child.name), "setpriv", "--pdeathsig", "KILL",
            sys.executable, "-m", module, *words, str(self.config(child.name)),
        ]  # fmt: skip
        with self.log(child.name).open("ab") as log:
            child.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "PYTHONPATH": f"{ROOT}:{ROOT}/fs/client/user",
                    **child.environment,
                },
            )
        child.start_count += 1
        child.started_s = time.monotonic()

    def _keep(self) -> None:
        """Start what is wanted and does not run; the thread
        that starts a process must outlive it.
        """
        while not self._is_over.wait(POLL_S):
            with self._lock:
                asked, self._to_start = self._to_start, []
                for child, begun in asked:
                    if child.process is None or child.process.poll() is not None:
                        self._spawn(child)
                    begun.set()
                for child in self.children.values():
                    if child.process is not None and child.is_wanted:
                        self._restart(child)

    def _restart(self, child: Child) -> None:
        assert child.process is not None
        if child.process.poll() is None:
            return
        ran_s = time.monotonic() - child.started_s
        if ran_s > RESTART_PAUSE_S_MAX:
            child.pause_s = RESTART_PAUSE_S
        if ran_s >= child.pause_s:
            child.pause_s = min(child.pause_s * 2, RESTART_PAUSE_S_MAX)
            if child.role == "mountd":
                subprocess.run(["umount", "-l", self.mount], check=False, capture_output=True)
            self._spawn(child)

    def pid(self, name: str) -> int:
        """The pid of a process that runs; raises AssertionError if it does not."""
        process = self.children[name].process
        assert process is not None and process.poll() is None, f"{name} does not run"
        return process.pid

    def send(self, name: str, number: signal.Signals) -> None:
        os.kill(self.pid(name), number)

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> int:
        """End a process and leave it so; return its exit code."""
        child = self.children[name]
        with self._lock:
            child.is_wanted = False
        if child.process is None:
            return 0
        if child.process.poll() is None:
            child.process.send_signal(number)
        return child.process.wait(STOP_TIMEOUT_S)

    # ---- what the manager says

    def ask(self, use: Callable[..., object], timeout_s: float = 5.0) -> object:
        """Run `use(mgmtd, channels)`; raises FsError."""
        return run_with_mgmtd(self.addresses, CLUSTER_ID, use, timeout_s=timeout_s)

    def routing(self, timeout_s: float = 5.0) -> RoutingInfo:
        """Return the newest routing info; raises FsError(RPC_TIMEOUT)."""

        async def use(mgmtd, _channels):
            return await newest_routing(mgmtd, timeout_s)

        return run_with_mgmtd(self.addresses, CLUSTER_ID, use, timeout_s=timeout_s)

    def unhealthy(self) -> str:
        """Return what is not as it should be, empty when every target of every chain serves."""
        for child in self.children.values():
            if child.is_wanted and child.process is not None and child.process.poll() is not None:
                return f"{child.name} does not run"
        try:
            info = self.routing(2.0)
        except FsError as error:
            return str(error)
        if not info.chains:
            return "no chains"
        states = [
            f"{m.target_id} {m.public_state.name.lower()}"
            for chain in info.chains.values()
            for m in chain.targets
            if m.public_state is not PublicState.SERVING
        ]
        return ", ".join(states)

    def wait_healthy(self, timeout_s: float) -> float:
        """Wait until every target serves; return the seconds it took,
        raise AssertionError if it does not come.
        """
        began = time.monotonic()
        while problem := self.unhealthy():
            assert time.monotonic() - began < timeout_s, (
                f"not healthy for {timeout_s:g} s: {problem}"
            )
            time.sleep(0.25)
        return time.monotonic() - began

    def compare(self) -> tuple[int, list[str]]:
        """Compare all replicas; return the number of chunks and what differs.

        What a client that died left behind is waited for: storage completes it.
        """
        deadline = time.monotonic() + LEFTOVER_TIMEOUT_S
        while True:
            results = self._compare_once()
            found = [(r.chain_id, c, facts) for r in results for c, facts in r.different.items()]
            is_final = not all(is_leftover(facts) for _, _, facts in found)
            if not found or is_final or time.monotonic() > deadline:
                different = [f"chain {n} chunk {c.inode_id}.{c.index}: {f}" for n, c, f in found]
                return sum(r.chunk_count for r in results), different
            time.sleep(1)

    def _compare_once(self) -> list[ChainComparison]:

        async def use(mgmtd, channels):
            with trio.fail_after(60):
                return await compare(channels, await newest_routing(mgmtd, 10))

        return run_with_mgmtd(self.addresses, CLUSTER_ID, use, timeout_s=90)

    # ---- the end

    def down(self) -> list[str]:
        """Stop everything in order; return what did not end well.

        Meta before storage: else it goes on removing chunks from whoever is left.
        """
        problems = []
        for name in ("mountd", *self.metas, *self.storages, *self.managers, *self.stores):
            try:
                code = self.stop(name)
            except subprocess.TimeoutExpired:
                self.children[name].process.kill()
                code = f"still running {STOP_TIMEOUT_S:g} s after SIGTERM"
            if code:
                problems.append(f"{name}: exit {code}: {self._last_line(name)}")
        return problems

    def _last_line(self, name: str) -> str:
        lines = self.log(name).read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        """End whatever still runs, unmount, give devices back; the files stay."""
        self._is_over.set()
        os.environ.pop(KEY_FILE_VARIABLE, None)
        if self._key_file_before is not None:
            os.environ[KEY_FILE_VARIABLE] = self._key_file_before
        for child in self.children.values():
            child.is_wanted = False
            if child.process is not None and child.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(signal.SIGCONT)
                child.process.kill()
                child.process.wait()
        subprocess.run(["umount", "-l", self.mount], check=False, capture_output=True)
        for disk in self.disks.values():
            disk.close()
        self.network.close()

    def wipe(self) -> None:
        """Remove the files, after `close`."""
        shutil.rmtree(self.base)
