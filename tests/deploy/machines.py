"""Machines for the installer: as hosts.py, but each boots Debian's systemd as process 1
in namespaces of its own, has a root file system of its own, and is reached by a real sshd alone.

The roots are one tree that mmdebstrap makes and over which each machine's own files lie.  Nothing
that is installed comes from this machine: the installer ships wheels.  Needs root, mmdebstrap, ssh,
overlay file systems and a cgroup2 mount.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from fs.app.deploy.code_archive import without

from .hosts import Hosts, end, run

BOOT = Path(__file__).with_name("boot.sh")
PACKAGES = "systemd,systemd-sysv,dbus,openssh-server,iproute2,procps,python3,python3-venv,fuse3"
MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "systemd-modules-load.service",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "getty.target",
)
BOOT_TIMEOUT_S = 120


def cgroups():
    """Where cgroup2 is mounted; None without."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, path, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(path)
    return None


def missing():
    """What a run of machines needs and this one has not, as one line; empty when all is there."""
    tools = {"mmdebstrap": "mmdebstrap", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}
    found = sorted({f"package {tools[tool]}" for tool in tools if shutil.which(tool) is None})
    found += ["root"] * bool(os.geteuid()) + ["a cgroup2 mount"] * (cgroups() is None)
    return f"machines with systemd need {', '.join(found)}" if found else ""


def make_tree(tree):
    """Make the tree that all machines share, unless it is there."""
    if not (tree / "sbin/init").exists():
        run("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", tree)


def download_wheels(folder, code):
    """Have the wheels that code needs on hosts in a folder."""
    folder.mkdir(exist_ok=True)
    lock = folder / "requirements.txt"
    text = without((code / "requirements.lock").read_text(), {"pyfuse3", "foundationdb"})
    if lock.exists() and lock.read_text() == text:
        return
    lock.write_text(text)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    run(*pip, "--only-binary", ":all:", "--dest", folder, "-r", lock)


class Machines(Hosts):
    """Some machines, and the operator's place."""

    def __init__(self, base, tree):
        make_tree(tree)
        super().__init__(base)
        self.tree = tree
        self.wheels = base / "wheels"
        self.outer = {}
        """Of each machine that runs the process that made its namespaces."""
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", base / "id")
        (base / "known_hosts").touch()

    def folder(self, number):
        return self.base / f"machine-{number}"

    def init(self, number):
        """The process id of a machine's systemd, seen from here."""
        outer = self.outer[number].pid
        children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        return int(children[0]) if children else 0

    def root(self, number):
        return Path(f"/proc/{self.init(number)}/root")

    def ssh_words(self):
        return ["-i", self.base / "id", "-o", f"UserKnownHostsFile={self.base}/known_hosts"]

    def on(self, number, *words, check=True):
        """Run a command on a machine, as root, by ssh."""
        inside = ["nsenter", f"--net=/run/netns/{self.hub}", "--", "ssh", "-T", *self.ssh_words()]
        return run(*inside, f"root@{self.address(number)}", "--", *words, check=check, timeout=120)

    # ---- life

    def add(self, number):
        """A new machine with an address and two empty disks."""
        upper = self.folder(number) / "upper"
        for disk in ("0", "1"):
            (self.folder(number) / "disks" / disk).mkdir(parents=True, exist_ok=True)
        for path in ("etc/ssh", "root/.ssh", "etc/systemd/system"):
            (upper / path).mkdir(parents=True, exist_ok=True)
        for name in MASKED:
            (upper / "etc/systemd/system" / name).symlink_to("/dev/null")
        (upper / "etc/hostname").write_text(f"h{number}\n")
        (upper / "etc/machine-id").write_text("")  # its own, made at the first boot
        shutil.copy(self.base / "id.pub", upper / "root/.ssh/authorized_keys")
        for path in (upper / "root", upper / "root/.ssh"):
            path.chmod(0o700)
        self._make_host_key(number, upper)
        self.connect(number)
        self.boot(number)

    def _make_host_key(self, number, upper):
        (upper / "etc/ssh/sshd_config.d").mkdir()
        key = upper / "etc/ssh/ssh_host_ed25519_key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        config = "HostKey /etc/ssh/ssh_host_ed25519_key\nMaxStartups 100\n"
        (upper / "etc/ssh/sshd_config.d/embertest.conf").write_text(config)
        known = self.base / "known_hosts"
        others = [
            line
            for line in known.read_text().splitlines()
            if line.split()[0] != self.address(number)
        ]
        words = " ".join(key.with_suffix(".pub").read_text().split()[:2])
        known.write_text("\n".join([*others, f"{self.address(number)} {words}"]) + "\n")

    def boot(self, number):
        """Start a machine; returns when its sshd answers."""
        group = cgroups() / self.name(number)
        group.mkdir(exist_ok=True)
        spaces = ["--mount", "--uts", "--ipc", "--pid", "--cgroup", "--fork", "--kill-child"]
        words = ["nsenter", f"--net=/run/netns/{self.name(number)}", "--", "unshare", *spaces, "--"]
        script = 'echo $$ > "$0/cgroup.procs"; exec "$@"'
        boot = ["bash", BOOT, self.tree, self.folder(number), f"h{number}"]
        with (self.base / f"boot-{number}.log").open("ab") as log:
            self.outer[number] = subprocess.Popen(
                ["bash", "-c", script, group, *map(str, [*words, *boot])],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        ends = time.monotonic() + BOOT_TIMEOUT_S
        while self.on(number, "true", check=False).returncode:
            assert self.outer[number].poll() is None and time.monotonic() < ends, self._boot_log(
                number
            )
            time.sleep(0.2)

    def _boot_log(self, number):
        return (self.base / f"boot-{number}.log").read_text()[-3000:]

    def reboot(self, number):
        """Have a machine shut down in order and start again."""
        self.on(number, "systemctl", "reboot", check=False)  # the connection is cut
        self.outer[number].wait(BOOT_TIMEOUT_S)
        self._remove_cgroups(number)
        self.boot(number)

    def cut_power(self, number):
        """Kill all that runs on a machine at once, and start it again."""
        self._kill(number)
        self.boot(number)

    def wipe(self, number):
        """Throw away what a lost machine had."""
        shutil.rmtree(self.folder(number))

    def _kill(self, number):
        with suppress(ProcessLookupError):
            os.kill(self.init(number) or self.outer[number].pid, signal.SIGKILL)
        self.outer[number].wait(BOOT_TIMEOUT_S)
        self._remove_cgroups(number)

    def _remove_cgroups(self, number):
        group = cgroups() / self.name(number)
        for folder, _, _ in sorted(os.walk(group), reverse=True):
            with suppress(OSError):  # somebody is still ending there
                os.rmdir(folder)

    def _end(self, number):
        self._kill(number)
        end(self.name(number))
        self._remove_cgroups(number)
        self.numbers.remove(number)

    def logs(self):
        """What the services wrote, for a failure."""
        words = ["journalctl", "-q", "--no-pager", "-n", "40", "-u", "'ember@*'"]
        return "".join(f"== h{n}\n{self.on(n, *words, check=False).stdout}" for n in self.numbers)

    # ---- inventory

    def code_lines(self):
        download_wheels(self.wheels, self.code)
        return [f"dependencies = {json.dumps(f'wheels:{self.wheels}')}"]

    def place_lines(self, _number):
        return []

    def further_lines(self):
        options = [f"UserKnownHostsFile={self.base}/known_hosts", "StrictHostKeyChecking=yes"]
        return [
            "[ssh]",
            'user = "root"',
            f'key = "{self.base}/id"',
            f"options = {json.dumps(options)}",
        ]
