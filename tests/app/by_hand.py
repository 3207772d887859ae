"""A cluster as systemd and containers run it:
every process by itself, from the files of deploy/compose, over TCP.

Commands, files, health checks and order are those of the compose file; only its addresses
and paths are of this machine.
"""

import os
import random
import re
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import yaml

from tests.commands import run_ember

EMBER = Path(sys.executable).parent / "ember"


PORTS = range(16_384, 32_768)
"""Below those that Linux gives to connections:
one of these may be taken by any program before a process listens there.
"""


def free_ports(count):
    """Return ports that nobody uses now; all are held until all are known."""
    with ExitStack() as held:
        ports = []
        for port in random.SystemRandom().sample(PORTS, len(PORTS)):
            # Whatever tests do to `random`.
            if len(ports) == count:
                break
            with suppress(OSError):  # taken
                held.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
    return ports


COMPOSE = Path(__file__).resolve().parents[2] / "deploy" / "compose"
TIMEOUT_S = 240
NO_MANAGER_YET = "no primary manager"
"""Of any command; the machine may be busy."""

SERVERS = ["mgmtd", "meta", "storage-1", "storage-2", "storage-3"]


class ByHand:
    """Configuration files of one cluster and the processes started from them."""

    def __init__(self, base):
        self.base = base
        self.mount = base / "ember"
        self.mount.mkdir()
        self.running = {}
        self.key_file, self.token_file = base / "cluster.key", base / "token"
        run_ember("key", "new", self.key_file).check_returncode()
        self.services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
        self.ports = dict(zip(SERVERS, free_ports(len(SERVERS)), strict=True))
        self.manager = f"tcp:127.0.0.1:{self.ports['mgmtd']}"
        for name in [*SERVERS, "mount"]:
            self.file(name).write_text(
                self.here(name, (COMPOSE / f"config/{name}.toml").read_text())
            )
        mount = self.file("mount").read_text()
        self.file("mount").write_text(
            mount.replace("key_file", "token_file").replace(
                str(self.key_file), str(self.token_file)
            )
        )

    def here(self, name, text):
        """Replace what only holds in containers."""
        for server, port in self.ports.items():
            text = re.sub(rf'"tcp:{server}:\d+"', f'"tcp:127.0.0.1:{port}"', text)
        text = re.sub(r'"tcp:0\.0\.0\.0:\d+"', '"tcp:127.0.0.1:0"', text)
        for container, path in {
            "/run/secrets/cluster_key": self.key_file,
            "/run/secrets/mount_key": self.key_file,
            "/var/lib/emberfs": self.base / name / "state",
            "/disks": self.base / name / "disks",
            "/mnt/emberfs": self.base,
        }.items():
            text = text.replace(f'"{container}', f'"{path}')
        return text

    def command(self, name):
        """Return the command of a service, with its file."""
        return [EMBER, *(self.placed(name, word) for word in self.services[name]["command"])]

    def placed(self, name, word):
        if word.startswith("/config/"):
            return str(self.file(Path(word).stem))
        return word.replace("/etc/emberfs/process.toml", str(self.file(name)))

    def probe(self, name, *more):
        """Run a service's health check; return its exit code and what it says."""
        kind, ember, *words = self.services[name]["healthcheck"]["test"]
        assert (kind, ember) == ("CMD", "ember")
        done = run_ember(*(self.placed(name, word) for word in words), *more, timeout=TIMEOUT_S)
        return done.returncode, done.stdout + done.stderr

    def file(self, name):
        return self.base / f"{name}.toml"

    def start(self, name, code=None):
        """Start a process that ends with this one, from another checkout if one is named;
        return what tells that it serves.
        """
        ready, told = os.pipe()
        chosen = {"PYTHONPATH": f"{code}:{code}/fs/client/user"} if code else {}
        with (self.base / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *self.command(name)],
                stdout=log,
                stderr=log,
                pass_fds=[told],
                env={**os.environ, **chosen, "EMBERFS_READY_FD": str(told)},
            )
        os.close(told)
        return ready

    def wait_ready(self, *waiting):
        for ready in waiting:
            assert os.read(ready, 100).endswith(b"\n"), self.logs()
            os.close(ready)

    def init(self):
        """Make the cluster; on failure again, as the compose file says: on a machine that is busy a
        manager may serve only when the command has waited for as long as it does.
        """
        ends = time.monotonic() + TIMEOUT_S
        while True:
            done = run_ember(*self.command("init")[1:], timeout=TIMEOUT_S)
            if NO_MANAGER_YET not in done.stderr or time.monotonic() > ends:
                break
        assert done.returncode == 0, done.stderr + self.logs()
        return done.stdout

    def add_storage(self, number):
        """Write the file of one more storage process, without targets."""
        name = f"storage-{number}"
        (self.ports[name],) = free_ports(1)
        self.services[name] = self.services["storage-3"]
        text = (COMPOSE / "config/storage-3.toml").read_text().replace("storage-3", name)
        text = text.replace("node_id = 13", f"node_id = {10 + number}")
        self.file(name).write_text(self.here(name, re.sub(r"target_ids.*\n", "", text)))

    def refused(self, name):
        """Start a process that is refused; return what it says."""
        done = subprocess.run(
            self.command(name), capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
        assert done.returncode == 1 and "RPC_UNAUTHENTICATED" in done.stderr, done.stderr
        return done.stderr

    def user(self, *words):
        """Run `ember user ...` with what a manager's file says."""
        done = run_ember("user", *words, "--config", self.file("mgmtd"), timeout=TIMEOUT_S)
        done.check_returncode()
        return done.stdout

    def mount_with_the_key(self):
        """Have the mount prove the cluster's key, as the compose file says,
        instead of a user's token.
        """
        text = self.file("mount").read_text().replace("token_file", "key_file")
        self.file("mount").write_text(text.replace(str(self.token_file), str(self.key_file)))

    def end(self):
        """End whatever still runs, at once."""
        for child in self.running.values():
            child.kill()
            child.wait(10)
        subprocess.run(["fusermount3", "-u", "-z", "-q", self.mount], check=False)

    def logs(self):
        return "".join(f"== {p.name}\n{p.read_text()}" for p in self.base.glob("*.log"))

    def stop(self, name):
        child = self.running.pop(name)
        child.terminate()
        assert child.wait(60) == 0, self.logs()
