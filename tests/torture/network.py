"""A network of our own: one namespace for this process, one per process of the cluster,
and rules that cut them apart.

Nothing of it is visible outside, and all of it is gone when the processes in it
are: the namespaces have no names.
"""

import ctypes
import os
import subprocess
import threading
import time
from typing import Final

CLONE_NEWNET: Final = 0x4000_0000
HUB: Final = "hub"
PORT: Final = 7000
NFT_TABLE: Final = "inet torture"


def run(*words: object, text: str | None = None) -> str:
    """Run a tool that must succeed."""
    done = subprocess.run(
        [str(w) for w in words], input=text, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip() or done.stdout}")
    return done.stdout


class Network:
    """A bridge in this process's namespace, and a namespace behind it for each name."""

    def __init__(self) -> None:
        """Leave the machine's network for good; to be called before any thread is started."""
        assert threading.active_count() == 1, "other threads would stay in the machine's network"
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, f"a network namespace of our own: {os.strerror(number)}")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", HUB, "type", "bridge")
        run("ip", "addr", "add", "10.99.0.254/24", "dev", HUB)
        run("ip", "link", "set", HUB, "up")

    def add(self, name: str) -> str:
        """Make the namespace of a process; return its address."""
        number = len(self._holders) + 1
        holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"]
        )
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{holder.pid}/ns/net") == own:
            time.sleep(0.01)
        self._holders[name] = holder
        run("ip", "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0",
            "netns", holder.pid)  # fmt: skip
        run("ip", "link", "set", f"v{number}", "master", HUB, "up")
        self.inside(name, "ip", "link", "set", "lo", "up")
        self.inside(name, "ip", "addr", "add", f"{self.ip(name)}/24", "dev", "eth0")
        self.inside(name, "ip", "link", "set", "eth0", "up")
        return f"tcp:{self.ip(name)}:{PORT}"

    def ip(self, name: str) -> str:
        """Return the address of a process."""
        return f"10.99.0.{[*self._holders].index(name) + 1}"

    def enter(self, name: str) -> list[str]:
        """Return the words that run a command in the namespace of a process;
        the files stay ours.
        """
        return ["nsenter", f"--net=/proc/{self._holders[name].pid}/ns/net"]

    def inside(self, name: str, *words: object, text: str | None = None) -> str:
        """Run a tool in the namespace of a process."""
        return run(*self.enter(name), *words, text=text)

    # ---- faults; `heal` ends all of them

    def _rules(self, name: str, *, into: str = "", out_of: str = "") -> None:
        """Replace the rules of a process: those for what arrives and for what it sends."""
        rules = [f"add table {NFT_TABLE}", f"delete table {NFT_TABLE}", f"add table {NFT_TABLE}"]
        for chain, hook, rule in (("i", "input", into), ("o", "output", out_of)):
            if rule:
                rules.append(
                    f"add chain {NFT_TABLE} {chain} {{ type filter hook {hook} priority 0; }}"
                )
                rules.append(f"add rule {NFT_TABLE} {chain} {rule}")
        self.inside(name, "nft", "-f", "-", text="\n".join(rules) + "\n")

    def isolate(self, name: str) -> None:
        """Nothing gets in or out."""
        self._rules(name, into='iifname "eth0" drop', out_of='oifname "eth0" drop')

    def deafen(self, name: str) -> None:
        """It sends, and hears nothing."""
        self._rules(name, into='iifname "eth0" drop')

    def mute(self, name: str) -> None:
        """It hears, and nothing that it sends arrives."""
        self._rules(name, out_of='oifname "eth0" drop')

    def deafen_to(self, name: str, peer: str) -> None:
        """It does not hear one other, whom it reaches; everybody else is not concerned."""
        self._rules(name, into=f"ip saddr {self.ip(peer)} drop")

    def mute_to(self, name: str, peer: str) -> None:
        """It does not reach one other, whom it hears; everybody else is not concerned."""
        self._rules(name, out_of=f"ip daddr {self.ip(peer)} drop")

    def cut(self, name: str, peer: str) -> None:
        """The two do not reach each other, everybody else reaches both."""
        self._rules(
            name, into=f"ip saddr {self.ip(peer)} drop", out_of=f"ip daddr {self.ip(peer)} drop"
        )

    def lose(self, name: str, percent: int) -> None:
        """Of what it sends and what arrives, so many packets of a hundred are lost."""
        rule = f"numgen random mod 100 < {percent} drop"
        self._rules(name, into=rule, out_of=rule)

    def reset(self, name: str) -> None:
        """Every connection in use breaks; new ones can be made when it is healed."""
        self._rules(name, into="meta l4proto tcp reject with tcp reset")

    def narrow(self, name: str, kbit_per_s: int) -> None:
        """What it sends is slow."""
        self.inside(name, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf",
                    "rate", f"{kbit_per_s}kbit", "burst", "32k", "latency", "400ms")  # fmt: skip

    def heal(self, name: str) -> None:
        """End every fault of a process."""
        self._rules(name)
        words = [*self.enter(name), "tc", "qdisc", "del", "dev", "eth0", "root"]
        subprocess.run(words, check=False, capture_output=True)  # there may be none

    def close(self) -> None:
        """End the namespaces."""
        for holder in self._holders.values():
            holder.kill()
            holder.wait()
