"""The guides of deploy/guides: their commands are ours, their figures are what the commands print,
and following them helps.

Commands are read out of the pages: lines of ```sh blocks.  The disasters happen to one cluster, one
after the other, when EMBER_TEST_SCALE=full asks for it: it takes a minute of processor time.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fs.app.commands.placement_commands import placement
from tests.app.by_hand import EMBER, SERVERS, ByHand
from tests.app.command_lines import parsed

GUIDES = Path(__file__).resolve().parents[2] / "deploy" / "guides"
PAGES = {path.stem: path.read_text() for path in GUIDES.glob("*.md")}
IS_FULL = os.environ.get("EMBER_TEST_SCALE", "short") == "full"
WAIT_S_MAX = 180.0


def blocks(text, kind="sh"):
    """Return the lines of each block of a kind."""
    found = re.findall(rf"^ *```{kind}\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [[line.strip() for line in block.splitlines()] for block in found]


def sections(text):
    """Return the lines of commands below each heading, by heading;
    those before the first under ''.
    """
    places = [(0, ""), *((m.start(), m[1]) for m in re.finditer(r"^## (.*)$", text, re.MULTILINE))]
    ends = [*(place for place, _ in places[1:]), len(text)]
    return {
        name: [line for block in blocks(text[begin:end]) for line in block]
        for (begin, name), end in zip(places, ends, strict=True)
    }


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_one_of_ours(page):
    lines = [line for kind in ("sh", "sh by hand") for b in blocks(PAGES[page], kind) for line in b]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("ember ")]
    assert commands
    for command in commands:
        parsed(command)
    other = {line.split()[0] for line in lines if not line.startswith("ember ")}
    assert other <= {"systemctl", "rm", "#"}


def test_links_lead_somewhere():
    for page, text in PAGES.items():
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (GUIDES / target).exists(), f"{page} points to {target}"


def ember(*words, cwd=None, codes=(0,)):
    done = subprocess.run(
        [EMBER, *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode in codes, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def printed_by(line):
    """Run an `ember placement` command in this process; return what it prints."""
    words = shlex.split(line)
    assert words[:2] == ["ember", "placement"]
    # Figures are those of a whole search.
    patience = ["--time", "3000"] if words[2] == "make" else []
    done = CliRunner().invoke(placement, [*words[2:], *patience], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tables_of_the_guide_are_what_its_commands_make(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = {
        (section, line.split()[2]): printed_by(line)
        for section, lines in sections(PAGES["README"]).items()
        for line in lines
    }
    three = {row["kind"]: row for row in json.loads(printed["Three machines", "simulate"])}
    assert three["disk"]["returned_after_s"] == pytest.approx(6000)
    assert three["disk"]["feeds_by_disk_max"] == 1
    assert three["disk"]["fatal_sets"] == "24 of 220"
    assert (three["disk"]["chains_lost_then"], three["node"]["targets_lost"]) == (1, 24)
    assert three["node"]["reads_factor_max"] == pytest.approx(1.5)
    assert three["node"]["returned_after_s"] == pytest.approx(6000)
    found = printed_by("ember placement simulate twelve.json --target-mb 1000000 --json")
    disk, node, rack = json.loads(found)
    assert disk["replaced_after_s"] == pytest.approx(1000)
    assert (disk["feeds_by_node_max"], disk["fatal_sets"], disk["chains_lost_then"]) == (
        1,
        "192 of 142880",
        1,
    )
    assert (node["targets_lost"], node["feeds_by_node_max"], node["feeds_by_disk_max"]) == (
        48,
        6,
        1,
    )
    assert node["reads_factor_max"] == pytest.approx(1.11, abs=0.006)
    assert (node["replaced_after_s"], node["returned_after_s"]) == pytest.approx((1200, 9600))
    assert (node["fatal_sets"], node["chains_lost_then"]) == ("96 of 220", 4)
    assert (rack["chains_lost"], rack["feeds_by_node_max"]) == (0, 16)
    assert rack["reads_factor_max"] == pytest.approx(1.33, abs=0.006)
    assert rack["replaced_after_s"] == pytest.approx(3200)


class Disasters:
    """One cluster to which everything happens."""

    def __init__(self, base):
        self.hand = ByHand(base)
        self.machine = "mgmtd"
        self.content = os.urandom(2_000_000)

    def start(self):
        hand = self.hand
        waiting = [hand.start(name) for name in SERVERS]
        hand.init()
        hand.wait_ready(*waiting)
        hand.mount_with_the_key()
        hand.wait_ready(hand.start("mount"))
        self.wait_serving("storage-1", "storage-2", "storage-3")
        (hand.mount / "file").write_bytes(self.content)

    def wait_serving(self, *names):
        end_s = time.monotonic() + WAIT_S_MAX
        for name in names:
            while (found := self.hand.probe(name, "--serving"))[0]:
                assert time.monotonic() < end_s, found
                time.sleep(0.5)

    def kill(self, name):
        child = self.hand.running.pop(name)
        child.send_signal(signal.SIGKILL)
        child.wait(10)

    def lose_disk(self, name):
        disks = self.hand.base / name / "disks"
        shutil.rmtree(disks)
        (disks / "0").mkdir(parents=True)

    # What a page's headings and comments stand for.

    def a_machine_is_lost(self):
        self.kill("storage-3")
        shutil.rmtree(self.hand.base / "storage-3")
        self.hand.add_storage(4)

    def managers_are_lost(self):
        self.kill("mgmtd")

    def all_copies_of_a_chain_are_away(self):
        for name in ("storage-2", "storage-4"):
            self.hand.stop(name)
        (self.hand.mount / "later").write_bytes(self.content[::-1])
        self.hand.stop("storage-1")
        for name in ("storage-2", "storage-4"):
            self.hand.wait_ready(self.hand.start(name))

    def a_new_file_system_is_mounted_at_the_path_of_the_old_one_empty(self):
        self.lose_disk(self.machine)

    def happen(self, said):
        name = re.sub(r"\W+", "_", said).strip("_").lower()
        getattr(self, name, lambda: None)()

    def follow(self, line):
        """Do what a line says, on the machine of the process that was named last."""
        if line.startswith("#"):
            return self.happen(line)
        if line.startswith("systemctl"):
            _, action, unit = line.split()
            self.machine = unit.removeprefix("ember@")
            if action == "stop":
                return self.hand.stop(self.machine)
            return self.hand.wait_ready(self.hand.start(self.machine))
        words = [self.here(word) for word in shlex.split(line)]
        if words[0] == "rm":
            subprocess.run(words, check=True)
            return None
        if words[1] == "probe":
            return self.wait_serving(Path(words[-1]).stem)
        if "config" in parsed(words[1:])[1]:
            words += ["--config", str(self.hand.file("mgmtd"))]
        ember(*words[1:], cwd=self.hand.base, codes=(0, 3) if "doctor" in words else (0,))
        return None

    def here(self, word):
        word = re.sub(r"/etc/emberfs/([\w-]+)\.toml", rf"{self.hand.base}/\1.toml", word)
        return word.replace("/var/lib/emberfs", f"{self.hand.base}/{self.machine}/state")

    def check(self):
        assert (self.hand.mount / "file").read_bytes() == self.content


@pytest.mark.slow
@pytest.mark.mount
@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")
@pytest.mark.skipif(not IS_FULL, reason="a minute of processor time: EMBER_TEST_SCALE=full")
def test_following_the_disaster_guide_helps(tmp_path):
    cluster = Disasters(tmp_path)
    try:
        cluster.start()
        for heading, lines in sections(PAGES["disaster"]).items():
            if lines:
                cluster.happen(heading)
            for line in lines:
                cluster.follow(line)
            cluster.check()
        cluster.wait_serving("storage-1", "storage-2", "storage-4")
        assert (cluster.hand.mount / "later").read_bytes() == cluster.content[::-1]
    except BaseException:
        print(cluster.hand.logs())
        raise
    finally:
        cluster.hand.end()
