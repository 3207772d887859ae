"""Hosts for the installer: network namespaces behind a bridge in one of their own,
each with a root folder of its own.

The operator works in the bridge's namespace.  Nothing of it is reachable from this machine's
network.  What a run that was killed has left is removed by the next one.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EMBER = Path(sys.executable).parent / "ember"
PREFIX = "embertest"
NET = "10.97.0"


def run(*words, timeout=600, check=True, **kwargs):
    """Run a tool; return how it ended.

    One that fails has its words told, unless that is looked at.
    """
    done = subprocess.run(
        [str(w) for w in words],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        **kwargs,
    )
    if check:
        assert not done.returncode, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def trouble():
    """Return why there can be no namespaces here; empty when there can."""
    if os.geteuid():
        return "network namespaces need root"
    if not os.access("/dev/fuse", os.W_OK):
        return "needs /dev/fuse"
    name = f"{PREFIX}-{os.getpid()}-try"
    tried = run("ip", "netns", "add", name, check=False)
    run("ip", "netns", "delete", name, check=False)
    return tried.stderr.strip()


def sweep():
    """Remove what runs left whose process is gone."""
    for line in run("ip", "netns", "list").stdout.splitlines():
        name = line.split()[0]
        parts = name.split("-")
        if parts[0] == PREFIX and not Path(f"/proc/{parts[1]}").exists():
            end(name)


def pids_in(name):
    return [int(pid) for pid in run("ip", "netns", "pids", name, check=False).stdout.split()]


def end(name):
    """Kill everything in a namespace of ours, and remove it."""
    for _ in range(50):
        pids = pids_in(name)
        if not pids:
            break
        for pid in pids:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    run("ip", "netns", "delete", name, check=False)


def copy_code(source, goal):
    """Copy what a checkout is installed from: the one that is tested may change meanwhile."""
    for folder in ("fs", "placement"):
        shutil.copytree(
            source / folder, goal / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "requirements.lock"):
        shutil.copy(source / name, goal)


class Hosts:
    """Some hosts, and the operator's place."""

    def __init__(self, base):
        sweep()
        self.base = base
        self.run_id = f"{PREFIX}-{os.getpid()}-{secrets.token_hex(3)}"
        self.numbers = []
        self.code = base / "code"
        copy_code(ROOT, self.code)
        self.hub = self.name("hub")
        run("ip", "netns", "add", self.hub)
        hub = ["ip", "-n", self.hub]
        run(*hub, "link", "set", "lo", "up")
        run(*hub, "link", "add", "hub", "type", "bridge")
        run(*hub, "addr", "add", f"{NET}.254/24", "dev", "hub")
        run(*hub, "link", "set", "hub", "up")

    def name(self, what):
        return f"{self.run_id}-{what}"

    def address(self, number):
        return f"{NET}.{number}"

    def root(self, number):
        return self.base / f"host-{number}"

    def mount(self, number):
        return self.root(number) / "mnt/ember"

    def add(self, number):
        """A machine with an address and two empty disks."""
        for disk in ("disks/0", "disks/1"):
            (self.root(number) / disk).mkdir(parents=True, exist_ok=True)
        self.connect(number)

    def connect(self, number):
        """Make a machine's network."""
        self.numbers.append(number)
        name = self.name(number)
        run("ip", "netns", "add", name)
        run(
            "ip",
            "-n",
            self.hub,
            "link",
            "add",
            f"v{number}",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            name,
        )
        run("ip", "-n", self.hub, "link", "set", f"v{number}", "master", "hub", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")

    def lose(self, number):
        """The machine is gone: its network first, then all that ran there."""
        run("ip", "-n", self.name(number), "link", "set", "eth0", "down")
        self._end(number)

    def wipe(self, number):
        """Throw away what a lost machine had."""
        shutil.rmtree(self.root(number))

    def _end(self, number):
        end(self.name(number))
        run("fusermount3", "-u", "-z", "-q", self.mount(number), check=False)
        self.numbers.remove(number)

    def ember(self, *words, check=True, timeout=600, **kwargs):
        """Run a command where the operator is."""
        inside = ["nsenter", f"--net=/run/netns/{self.hub}", "--"]
        return run(*inside, EMBER, *words, check=check, timeout=timeout, **kwargs)

    def logs(self):
        """What the processes wrote, for a failure."""
        files = sorted(self.base.glob("host-*/var/lib/emberfs/run/*.log"))
        return "".join(f"== {f.relative_to(self.base)}\n{f.read_text()[-3000:]}" for f in files)

    # ---- what an inventory says of them

    def code_lines(self):
        return [
            f"dependencies = {json.dumps('present:' + sysconfig.get_path('purelib'))}",
            f"python = {json.dumps(os.path.realpath(sys.executable))}",
        ]

    def place_lines(self, number):
        return [f'namespace = "{self.name(number)}"', f'root = "{self.root(number)}"']

    def further_lines(self):
        return []

    def close(self):
        for number in list(self.numbers):
            self._end(number)
        end(self.hub)


def inventory(hosts, members, *, replicas=3, chains=0, settings=""):
    """Write the inventory of hosts with these roles; return its path.

    Args:
        hosts: where they are.
        members: roles by number.
        replicas: per chain.
        chains: of a new cluster.
        settings: further TOML.
    """
    lines = [
        "[cluster]", 'id = "training"', f"replicas = {replicas}", f"chains = {chains}", "[code]",
        'source = "code"', *hosts.code_lines(), *hosts.further_lines(),
    ]  # fmt: skip
    for number, roles in members.items():
        lines += [
            "[[hosts]]", f'name = "h{number}"', f"number = {number}",
            f'address = "{hosts.address(number)}"', f"roles = {json.dumps(roles.split())}",
            f'rack = "r{number}"', *hosts.place_lines(number),
        ]  # fmt: skip
        if "storage" in roles:
            lines.append('disks = [{ path = "/disks/0" }, { path = "/disks/1", weight = 2.0 }]')
    path = hosts.base / "inventory.toml"
    path.write_text("\n".join(lines) + "\n" + settings)
    return path
