"""How the installer runs a program on a host: over ssh, or in a network namespace of this machine.

One operation: run words with some bytes as input, get what they print.  Files travel the same
way.  The OpenSSH client does the rest: one connection per host, held open (ControlMaster); who
the host is and who we are is ssh's business (known_hosts, agent, keys).  Nothing is asked: a host
that wants a password is not reached.
"""

import os
import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import trio

from ...schema.status import FsError, Status
from .inventory import HostPart, SshPart

CONNECT_TIMEOUT_S: Final = 10
SSH_FAILED: Final = 255
"""Exit code of ssh itself."""


@dataclass(frozen=True, slots=True)
class Done:
    """How a program ended."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def last_word(self) -> str:
        """The last line that it wrote about itself."""
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"exit code {self.code}"


class Transport(Protocol):
    """A way to one host."""

    async def run(self, words: list[str], given: bytes = b"", *, timeout_s: float) -> Done:
        """Run a program as root; raises FsError(RPC_CONNECT_FAILED, RPC_TIMEOUT),
        not for its exit code.
        """
        ...

    async def close(self) -> None:
        """Give the way up."""
        ...


async def _run(words: list[str], given: bytes, timeout_s: float, name: str) -> Done:
    with trio.move_on_after(timeout_s):
        done = await trio.run_process(
            words, stdin=given, capture_stdout=True, capture_stderr=True, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr.decode(errors="replace"))
    raise FsError(Status.RPC_TIMEOUT, f"{name}: nothing after {timeout_s:g} s")


class NamespaceTransport:
    """A host that is a network namespace: its files are ours, below a root of its own."""

    def __init__(self, host: HostPart) -> None:
        self._host = host

    async def run(self, words: list[str], given: bytes = b"", *, timeout_s: float) -> Done:
        """See `Transport`.  Unlike `ip netns exec` this stays in our mount namespace,
        so that mounts are seen.
        """
        where = f"--net=/run/netns/{self._host.namespace}"
        bare = ["env", "-i", f"PATH={os.environ.get('PATH', os.defpath)}"]  # as a login elsewhere
        words = ["nsenter", where, "--", *bare, *words]
        done = await _run(words, given, timeout_s, self._host.name)
        if done.stderr.startswith("nsenter:"):
            raise FsError(Status.RPC_CONNECT_FAILED, f"{self._host.name}: {done.last_word}")
        return done

    async def close(self) -> None:
        """See `Transport`."""


def ssh_words(host: HostPart, ssh: SshPart, control_path: str) -> list[str]:
    """Return the command line of ssh, to which the remote command is added.  Pure."""
    options = [
        "BatchMode=yes",
        f"ConnectTimeout={CONNECT_TIMEOUT_S}",
        "ServerAliveInterval=15",
        "ControlMaster=auto",
        f"ControlPath={control_path}",
        "ControlPersist=60",
    ]
    words = ["ssh", "-T", *(f"-o{option}" for option in [*ssh.options, *options])]
    if port := host.ssh_port or ssh.port:
        words.append(f"-p{port}")
    if user := host.ssh_user or ssh.user:
        words.append(f"-l{user}")
    if key := host.ssh_key or ssh.key:
        words.append(f"-i{Path(key).expanduser()}")
    return [*words, "--", host.ssh or host.address]


class SshTransport:
    """A host behind ssh."""

    def __init__(self, host: HostPart, ssh: SshPart) -> None:
        self._host = host
        self._folder = tempfile.TemporaryDirectory(prefix="ember-ssh-")
        self._words = ssh_words(host, ssh, f"{self._folder.name}/c")
        user = host.ssh_user or ssh.user
        self._as_root = ["sudo", "-n"] if user not in {"", "root"} else []

    async def run(self, words: list[str], given: bytes = b"", *, timeout_s: float) -> Done:
        """See `Transport`."""
        command = shlex.join([*self._as_root, *words])
        done = await _run([*self._words, command], given, timeout_s, self._host.name)
        if done.code == SSH_FAILED:
            detail = f"{self._host.name}: ssh {self._words[-1]}: {done.last_word}"
            raise FsError(Status.RPC_CONNECT_FAILED, detail)
        return done

    async def close(self) -> None:
        """See `Transport`."""
        words = [*self._words[:-2], "-Oexit", *self._words[-2:]]
        await trio.run_process(
            words, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._folder.cleanup()


def open_transport(host: HostPart, ssh: SshPart) -> Transport:
    """Return the way to a host."""
    return NamespaceTransport(host) if host.namespace else SshTransport(host, ssh)
