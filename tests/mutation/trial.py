"""One mutant on trial: a forked process takes the changed code over
and runs the tests that reach it.

The parent has imported everything and started no thread.  In the child the code of one
function is exchanged in place, so everybody who imported the function before has the
changed one; then pytest runs in it.
"""

import importlib
import os
import resource
import signal
import sys
import time
import traceback
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from .mutants import Mutant, compiled
from .plan import PYTEST, ROOT

SURVIVED, KILLED, SLOW, UNREACHED = "survived", "killed", "killed by time", "no test reaches it"
CPU_S_MIN = 30
WALL_S_MAX = 300.0
MEMORY_BYTES_MAX = 8 << 30
POLL_S = 0.02
_CRASHED, _NOT_FOUND = 98, 99
"""Exit codes of a child in which pytest itself broke, and of one that did not find what to change;
pytest's are 0 to 5.
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """A child that runs."""

    mutant: Mutant
    pid: int
    began_s: float


def start(mutant: Mutant, tests: Sequence[str], *, cpu_s: float, folder: Path) -> Trial:
    """Fork a child that tries the tests on the mutant.

    Args:
        mutant: to be tried.
        tests: ids, in the order in which they are run.
        cpu_s: what the tests take without the change.
        folder: for what the tests write and what the child prints.
    """
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        status = _CRASHED
        try:
            status = _try(mutant, tests, cpu_s, folder)
        except LookupError:
            status = _NOT_FOUND
        except BaseException:  # noqa: BLE001 - whatever it is, it ends here
            traceback.print_exc()
        finally:
            os._exit(status)
    return Trial(mutant, pid, time.monotonic())


def outcome(trial: Trial) -> str:
    """Return how a trial ended; empty while it goes on."""
    pid, status = os.waitpid(trial.pid, os.WNOHANG)
    if not pid:
        if time.monotonic() - trial.began_s < WALL_S_MAX:
            return ""
        os.killpg(trial.pid, signal.SIGKILL)
        os.waitpid(trial.pid, 0)
        return SLOW
    code = os.waitstatus_to_exitcode(status)
    assert code != _NOT_FOUND, f"{trial.mutant}: not changed"
    if code < 0:
        return SLOW if -code in {signal.SIGXCPU, signal.SIGKILL} else KILLED
    return KILLED if code else SURVIVED


def _try(mutant: Mutant, tests: Sequence[str], cpu_s: float, folder: Path) -> int:
    os.setpgid(0, 0)
    limit_s = int(CPU_S_MIN + 4 * cpu_s)
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.open(folder / "out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    exchange(mutant)
    arguments = [*PYTEST, "-o", "timeout=60", f"--basetemp={folder / 'files'}", "--tb=line"]
    return int(pytest.main([*arguments, *tests]))


def exchange(mutant: Mutant) -> None:
    """Give the function of a mutant, and all that it defines, the changed code;
    raises LookupError.
    """
    file = ROOT / mutant.path
    codes = compiled(mutant, file.read_text(), str(file))
    module = importlib.import_module(mutant.path.removesuffix(".py").replace("/", "."))
    changed = 0
    for function in functions(module):
        code = codes.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
        if code is not None:
            changed += code != function.__code__
            function.__code__ = code
    if not changed:
        raise LookupError(str(mutant))


def functions(module: types.ModuleType) -> Iterator[types.FunctionType]:
    """Yield the functions and methods that a module defines, undecorated."""
    owners = [module]
    seen = set()
    while owners:
        owner = owners.pop()
        for value in list(vars(owner).values()):
            for found in _undecorated(value):
                if found.__module__ != module.__name__ or found in seen:
                    continue
                seen.add(found)
                if isinstance(found, type):
                    owners.append(found)
                else:
                    yield found


def _undecorated(value: object) -> Iterator[types.FunctionType | type]:
    if isinstance(value, property):
        for part in (value.fget, value.fset, value.fdel):
            yield from _undecorated(part)
    elif isinstance(value, staticmethod | classmethod):
        yield from _undecorated(value.__func__)
    elif isinstance(value, types.FunctionType):
        yield value
        yield from _undecorated(getattr(value, "__wrapped__", None))
    elif isinstance(value, type):
        yield value
