"""Runs spin on the models of specs/models:
translate, compile, search exhaustively, read the summary.
"""

import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

MODELS = Path(__file__).resolve().parents[2] / "specs" / "models"

PROPERTIES = {
    "LINEARIZABLE": "rfloor",
    "KEPT": "acked",
    "EXACTLY_ONCE": "!=gx[j]",
    "ONE_VALUE": "(gx[",
    "ONE_HEAD": "(k<=1)",
    "HEALED": "cur[0]",
    "ONE_PRIMARY": "reign[0]",
    "NO_STALE_WRITE": "sver==iver",
    "FENCED": "lastout",
    "PROGRESS": "acceptance cycle",
}
"""What pan prints of each property's assertion; the first that fits names the property."""


@dataclass(frozen=True)
class Search:
    """One model with its bounds; `ltl`: the liveness property is checked instead
    of the assertions.
    """

    name: str
    model: str
    bounds: str
    ltl: bool = False

    @property
    def defines(self) -> list[str]:
        return [f"-D{bound}" for bound in self.bounds.split()] + (["-DLTL"] if self.ltl else [])


@dataclass(frozen=True)
class Outcome:
    """What pan said; `broken`: the property that it found a counterexample for, "" for none."""

    states: int
    depth: int
    seconds: float
    broken: str
    message: str

    def __str__(self) -> str:
        found = f"BROKEN {self.broken}: {self.message}" if self.broken else "no error"
        return f"{self.states:,} states, depth {self.depth:,}, {self.seconds:.1f} s: {found}"


def missing() -> str:
    """Say what is not installed, "" if nothing."""
    return " and ".join(program for program in ("spin", "gcc") if not shutil.which(program))


def run(
    search: Search,
    mutant: str = "",
    *,
    is_long: bool = False,
    memory_mb: int = 8000,
    keep: Path | None = None,
) -> Outcome:
    """Search the whole state space, or up to the first counterexample.

    Args:
        search: what to check.
        mutant: a planted error, without `MUTANT_`.
        is_long: worth compiling well.
        memory_mb: bound of pan; reaching it is an error, never a silent end.
        keep: where to leave pan's files, with the trail of a counterexample.
    """
    with TemporaryDirectory() as folder:
        outcome = _run_in(Path(folder), search, mutant, memory_mb, is_long=is_long)
        if keep is not None:
            shutil.copytree(folder, keep, dirs_exist_ok=True)
        return outcome


def _run_in(folder: Path, search: Search, mutant: str, memory_mb: int, *, is_long: bool) -> Outcome:
    planted = [f"-DMUTANT_{mutant}"] if mutant else []
    made = _call(["spin", "-a", *search.defines, *planted, str(MODELS / search.model)], folder)
    assert (folder / "pan.c").exists(), made
    # Up to a few hundred thousand states compiling costs more than searching.
    level = "-O1" if is_long else "-O0"
    kind = ["-DNFAIR=4"] if search.ltl else ["-DSAFETY"]
    options = ["-DNOREDUCE", f"-DMEMLIM={memory_mb}", *kind]
    _call(["gcc", level, "-w", *options, "-o", "pan", "pan.c"], folder)
    started_s = time.perf_counter()
    said = _call(["./pan", "-m2000000", "-w22", *(["-a", "-f"] if search.ltl else ["-E"])], folder)
    seconds = time.perf_counter() - started_s
    assert not re.search(r"max search depth too small|out of memory|pan: reached", said), said
    return _outcome(said, seconds)


def _call(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _outcome(said: str, seconds: float) -> Outcome:
    states = re.search(r"([\d.e+]+) states, stored", said)
    depth = re.search(r"depth reached (\d+), errors: (\d+)", said)
    assert states and depth, said
    message = re.search(r"^pan:1: (.*)$", said, re.MULTILINE)
    if depth[2] == "0":
        return Outcome(int(float(states[1])), int(depth[1]), seconds, "", "")
    assert message, said
    broken = next((name for name, text in PROPERTIES.items() if text in message[1]), "MODEL")
    return Outcome(int(float(states[1])), int(depth[1]), seconds, broken, message[1])
