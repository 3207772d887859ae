"""The life of a deployed cluster, stage by stage, with the commands of specs/deploying.md.

    python -m tests.deploy [--from CHECKOUT] [STAGE ...]

The long form, without stages: 3 hosts, 5 under load, one lost and replaced, upgraded,
restored from a backup; a deploy and an upgrade are cut off on the way.  --from begins
with the code of another checkout.

A program writes and checks files on a mount all the time: no byte may be wrong, no call may fail.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from fs.app.deploy.inventory import FIRST_NODE_IDS

from .hosts import EMBER, ROOT, copy_code, inventory, run

PAGE = ROOT / "specs" / "deploying.md"
LOAD = Path(__file__).with_name("load.py")
FIRST = "kv mgmtd meta storage mount"
SMALL = {1: FIRST, 2: "storage", 3: "storage"}
WITH_MANAGERS = {1: FIRST, 2: "mgmtd meta storage", 3: "mgmtd storage"}
WAIT_S = 240


def commands(heading):
    """Return the commands below a heading of the page, in order,
    without what is said beside them.
    """
    _, _, text = PAGE.read_text().partition(f"## {heading}\n")
    text = text.partition("\n## ")[0]
    return [
        line[4:].split("  #")[0].strip() for line in text.splitlines() if line.startswith("    ")
    ]


def raise_wire_version(frame):
    """Make code that speaks one wire version more than it does."""
    text = frame.read_text()
    (known,) = re.findall(r"(?m)^VERSION_MAX: Final = (\d+)$", text)
    frame.write_text(
        text.replace(f"VERSION_MAX: Final = {known}", f"VERSION_MAX: Final = {int(known) + 1}")
    )


class Life:
    """A cluster on hosts, and the program that works on it."""

    def __init__(self, hosts, members, *, pause_s=0.0):
        """The program rests for `pause_s` after each file that it writes."""
        self.hosts = hosts
        self.pause_s = pause_s
        self.members = dict(members)
        self.load = None
        self.is_restored = False
        self.lost = 0

    def say(self, text):
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    def page(self, heading, *, words=None, check=True):
        """Run the commands of a part of the page where the operator is; return what they print."""
        printed = []
        for line in commands(heading):
            for old, new in (words or {}).items():
                line = line.replace(old, new)  # noqa: PLW2901 - the page's words for this place
            printed.append(self.operator(line, check=check).stdout)
        return printed

    def operator(self, line, *, check=True):
        inside = ["nsenter", f"--net=/run/netns/{self.hosts.hub}", "--", "bash", "-c", line]
        path = f"{EMBER.parent}:{os.environ['PATH']}"
        began_s = time.monotonic()
        done = run(
            *inside, check=False, cwd=self.hosts.base, env={**os.environ, "PATH": path}, timeout=900
        )
        self.say(f"{time.monotonic() - began_s:6.1f} s  {line}")
        if check and done.returncode:
            raise AssertionError(
                f"{line}: {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.hosts.logs()}"
            )
        return done

    def nodes(self):
        """Return the nodes by id, as the manager sees them."""
        told = self.operator("ember admin node list --config training.toml --json").stdout
        return {node["node_id"]: node for node in json.loads(told)}

    # ---- the program

    @property
    def path(self):
        return self.hosts.mount(1) / "load"

    def begin_load(self):
        Path(f"{self.path}.round").unlink(missing_ok=True)  # the one before counted, too
        self.load = subprocess.Popen(
            [sys.executable, LOAD, self.path, str(self.pause_s)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def rounds(self):
        path = Path(f"{self.path}.round")
        return int(path.read_text() or 0) if path.exists() else 0

    def wait_load(self, count=3):
        """Wait until the program has written some more; it may not have ended."""
        goal, ends = self.rounds() + count, time.monotonic() + WAIT_S
        while self.rounds() < goal:
            assert self.load.poll() is None, self.load.communicate()
            assert time.monotonic() < ends, f"the program hangs\n{self.hosts.logs()}"
            time.sleep(0.1)

    def end_load(self):
        Path(f"{self.path}.stop").write_text("")
        told, wrong = self.load.communicate(timeout=WAIT_S)
        assert self.load.returncode == 0, wrong
        Path(f"{self.path}.stop").unlink()
        self.say(f"{int(told)} files written and checked")

    def close(self):
        if self.load is not None and self.load.poll() is None:
            self.load.kill()
            self.load.wait()

    # ---- stages

    def install(self, *, is_cut_off=False):
        """Three hosts from nothing, perhaps at the second attempt; then there is nothing to do."""
        for number in self.members:
            self.hosts.add(number)
        inventory(self.hosts, self.members)
        shown = self.operator(commands("Install")[0]).stdout
        assert "h2: install" in shown and not self.hosts.root(2).joinpath("opt/emberfs").exists()
        if is_cut_off:
            self.cut_off("making nodes")
        assert self.page("Install")[2] == "nothing to do\n"
        self.begin_load()
        self.wait_load()
        self.look()

    def look(self):
        """The cluster as a whole, and its metadata and chunks checked,
        from the operator's machine.
        """
        told = json.loads(self.operator("ember status --config training.toml --json").stdout)
        assert told["is_healthy"] and len(told["mounts"]) == 1, told
        checked = json.loads(self.operator("ember fsck --config training.toml --json").stdout)
        assert checked["is_clean"] and checked["chunk_count"], checked

    def cut_off(self, step, what="deploy"):
        """Begin a deploy or an upgrade, and interrupt it at a step."""
        inside = ["nsenter", f"--net=/run/netns/{self.hosts.hub}", "--"]
        words = [*inside, EMBER, "cluster", what, self.hosts.base / "inventory.toml", "--yes"]
        begun = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        said = ""
        while step not in said:
            line = begun.stderr.readline()
            assert line, said
            said += line
        begun.send_signal(signal.SIGINT)
        rest = begun.communicate(timeout=WAIT_S)[1]
        assert begun.returncode == 130, said + rest
        self.say(f"interrupted at {step!r}")

    def grow(self, *numbers):
        """More hosts while the program works; each gets its share."""
        for number in numbers:
            self.hosts.add(number)
        self.members |= dict.fromkeys(numbers, "storage")
        inventory(self.hosts, self.members)
        self.page("Grow")
        self.wait_load()
        found = self.nodes()
        assert all(found[10_000 + number]["targets"] for number in self.members), found

    def acting(self):
        """Return the number of the host whose manager acts."""
        told = self.operator("ember admin cluster show --config training.toml --json").stdout
        return json.loads(told)["primary"] - FIRST_NODE_IDS["mgmtd"]

    def lose_acting_manager(self):
        """The host of the manager that acts vanishes: another one takes over;
        the first host has the store, and stays.
        """
        if self.acting() == 1:
            self.operator("ember cluster stop inventory.toml mgmtd --only h1 --yes")
            self.wait_load()
            assert self.acting() != 1
            self.operator("ember cluster deploy inventory.toml --yes")
        self.lost = self.acting()
        self.lose(self.lost)
        assert self.acting() != self.lost

    def lose(self, number):
        """A host vanishes; the program goes on."""
        self.hosts.lose(number)
        self.wait_load()
        ends = time.monotonic() + WAIT_S
        while self.nodes()[10_000 + number]["state"] != "failed":
            assert time.monotonic() < ends
            time.sleep(1)  # each time a command is started
        said = self.operator("ember cluster deploy inventory.toml --yes", check=False)
        assert said.returncode == 1 and f"ember: h{number}: " in said.stderr, said

    def replace(self, number):
        """A machine with empty disks in its place."""
        self.hosts.wipe(number)
        self.hosts.add(number)
        self.page("A lost host")
        self.wait_load()
        assert {node["state"] for node in self.nodes().values()} == {"connected"}

    def leave(self, number):
        """A host leaves in order while the program works;
        it keeps no key, and nothing is left to do.
        """
        self.page("A host that leaves", words={"HOST": f"h{number}"})
        self.wait_load()
        assert not (self.hosts.root(number) / "etc/emberfs/cluster.key").exists()
        known = self.nodes()
        assert 10_000 + number not in known and {n["state"] for n in known.values()} == {
            "connected"
        }
        del self.members[number]
        inventory(self.hosts, self.members)
        assert self.operator(commands("Install")[1]).stdout == "nothing to do\n"

    def rotate(self):
        """A new key while the program works, at the second attempt;
        the old one opens nothing then, the new one all.
        """
        path = self.hosts.base / "training.key"
        old = path.read_text()
        self.cut_off("connecting by the new key", "rotate-key")
        both = path.read_text().splitlines()[1:]
        assert both[1:] == old.splitlines()[1:]
        self.page("A key that got away")
        self.wait_load()
        assert path.read_text().splitlines()[1:] == both[:1]
        for number in self.members:
            kept = self.hosts.root(number) / "etc/emberfs/cluster.key"
            assert kept.read_text() == path.read_text()
            assert kept.stat().st_mode & 0o777 == 0o600
        assert {node["state"] for node in self.nodes().values()} == {"connected"}
        assert self.operator(commands("Install")[1]).stdout == "nothing to do\n"
        new = path.read_text()
        path.write_text(old)
        refused = self.operator("ember admin node list --config training.toml", check=False)
        path.write_text(new)
        assert refused.returncode == 1 and "RPC_UNAUTHENTICATED" in refused.stderr, refused

    def upgrade(self, version):
        """Other code, side by side; the program goes on on its old mount, then on a new one."""
        shutil.rmtree(self.hosts.code)
        copy_code(ROOT, self.hosts.code)
        project = self.hosts.code / "pyproject.toml"
        named, count = re.subn(
            r'(?m)^version = ".*"$', f'version = "{version}"', project.read_text()
        )
        assert count == 1
        project.write_text(named)
        raise_wire_version(self.hosts.code / "fs/rpc/frame.py")
        before = self.operator("ember cluster deploy inventory.toml --yes", check=False)
        assert before.returncode == 1 and "ember cluster upgrade first" in before.stderr
        self.cut_off("restarting kv of h1", "upgrade")
        time.sleep(3)  # into the stop, or the start
        self.page("Upgrade")
        self.wait_load()
        assert {node["release"] for node in self.nodes().values()} == {version}
        versions = {p.name for p in (self.hosts.root(1) / "opt/emberfs").iterdir()}
        assert len(versions - {"current"}) == 2
        self.end_load()
        self.operator("ember cluster upgrade inventory.toml --yes --mounts")
        assert self.operator("ember cluster upgrade inventory.toml").stdout == "nothing to do\n"
        self.begin_load()
        self.wait_load()

    def restore(self):
        """The metadata of a backup in place of what has happened since."""
        self.end_load()
        kept, late = self.hosts.mount(1) / "kept", self.hosts.mount(1) / "late"
        content = os.urandom(5_000_000)
        kept.write_bytes(content)
        words = {"HOST": self.hosts.address(1), "/var/lib": f"{self.hosts.root(1)}/var/lib"}
        backup, *rest = commands("Metadata from a backup")
        self.operator(backup.replace("HOST", words["HOST"]))
        late.write_text("made after the backup")
        for line in rest:
            self.operator(line.replace("/var/lib", words["/var/lib"]))
        self.is_restored = True
        assert kept.read_bytes() == content and not late.exists()
        self.page("Stop, and start again")
        assert kept.read_bytes() == content
        self.begin_load()
        self.wait_load()

    def judge(self):
        """Nothing is wrong, and all replicas are equal."""
        self.end_load()
        told = self.operator("ember admin doctor --config training.toml --json", check=False).stdout
        found = [finding for finding in json.loads(told) if finding["severity"] != "notice"]
        # A restored store counts losses for every chain, since nobody knows what it has missed.
        assert not [
            f for f in found if not (self.is_restored and f["subject"].startswith("chain"))
        ], found
        self.operator("ember admin chunks compare --config training.toml")


STAGES = {
    "install": lambda life: life.install(is_cut_off=True),
    "grow": lambda life: life.grow(4, 5),
    "lose": Life.lose_acting_manager,
    "replace": lambda life: life.replace(life.lost),
    "leave": lambda life: life.leave(4),
    "rotate": Life.rotate,
    "upgrade": lambda life: life.upgrade("0.1.0+next"),
    "restore": Life.restore,
    "judge": Life.judge,
}
"""Of the long form, in order; each but the first needs those before it,
though some may be left out.
"""
