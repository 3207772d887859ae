"""Which modules are tried, and which tests can tell:
those that run the changed line, found by running them once.

A group of modules belongs to one folder of tests.  The quick tests of the folder are run once
under coverage, each with its own context; what is kept per test are its seconds of CPU time, and
per line the tests that ran it.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import coverage
import pytest

from .mutants import Mutant

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {
    "tests/rpc": [
        "fs/rpc/frame.py",
        "fs/rpc/handshake.py",
        "fs/rpc/frame_sender.py",
        "fs/rpc/framed_stream.py",
        "fs/rpc/connection.py",
        "fs/rpc/reply_payloads.py",
        "fs/rpc/server_connection.py",
        "fs/rpc/answers_at_once.py",
        "fs/rpc/method_runs.py",
        "fs/rpc/replies.py",
        "fs/rpc/serving.py",
        "fs/rpc/welcome.py",
        "fs/rpc/credentials.py",
        "fs/rpc/guard.py",
    ],
    "tests/node": ["fs/node/user_guard.py"],
    "tests/storage": [
        "fs/storage/replica.py",
        "fs/storage/write_path.py",
        "fs/storage/preparing.py",
        "fs/storage/answers.py",
        "fs/storage/forward.py",
        "fs/storage/outgoing.py",
        "fs/storage/settle.py",
        "fs/storage/resync.py",
        "fs/storage/channels.py",
    ],
    "tests/chunkengine": [
        "fs/chunkengine/allocator.py",
        "fs/chunkengine/ledger.py",
        "fs/chunkengine/record_cache.py",
        "fs/chunkengine/block_readers.py",
        "fs/chunkengine/versions.py",
        "fs/chunkengine/damage.py",
        "fs/chunkengine/content.py",
        "fs/chunkengine/engine.py",
        "fs/chunkengine/epochs.py",
        "fs/chunkengine/updates.py",
        "fs/chunkengine/recovery.py",
        "fs/chunkengine/format.py",
    ],
    "tests/mgmtd": ["fs/mgmtd/chain_state.py", "fs/mgmtd/lease.py", "fs/mgmtd/chain_changes.py"],
}
PYTEST = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
QUICK = "not slow and not mount and not fdb"
TRY_S_MAX = 6.0
"""CPU seconds of tests for one mutant; what is left out then are its slowest tests."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What the tests of one folder reach."""

    seconds: dict[str, float]
    """CPU time by test."""
    tests: dict[str, dict[int, list[str]]]
    """Tests by path and line."""

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests to try, those named after the module first,
        then the quick ones first.
        """
        lines = self.tests[mutant.path]
        found = lines.get(mutant.line) or lines.get(mutant.statement_line, [])
        own = f"test_{Path(mutant.path).stem}.py"
        chosen, sum_s = [], 0.0
        for test in sorted(found, key=lambda t: (own not in t, self.seconds[t])):
            sum_s += self.seconds[test]
            if chosen and sum_s > TRY_S_MAX:
                break
            chosen.append(test)
        return chosen


class _Watch:
    """Plugin of pytest: gives each test a context and takes its time."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self._measured = measured

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        self._measured.switch_context(item.nodeid)
        began_s = time.process_time()
        yield
        self.seconds[item.nodeid] = time.process_time() - began_s
        self._measured.switch_context("")

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.append(report.nodeid)


def find_reach(folder: str, file: Path) -> None:
    """Run the quick tests of a folder and write what they reach;
    for a process that does nothing else.
    """
    measured = coverage.Coverage(data_file=None, branch=False, config_file=False,
                                 include=[str(ROOT / path) for path in GROUPS[folder]])  # fmt: skip
    watch = _Watch(measured)
    measured.start()
    try:
        pytest.main([*PYTEST, "-m", QUICK, folder], plugins=[watch])
    finally:
        measured.stop()
    assert not watch.failed, watch.failed
    found = measured.get_data()
    tests = {}
    for path in GROUPS[folder]:
        lines = found.contexts_by_lineno(str(ROOT / path))
        tests[path] = {line: sorted(set(names) - {""}) for line, names in lines.items()}
    file.write_text(json.dumps({"seconds": watch.seconds, "tests": tests}))


def read_reach(file: Path) -> Reach:
    found = json.loads(file.read_text())
    tests = {
        path: {int(line): names for line, names in lines.items()}
        for path, lines in found["tests"].items()
    }
    return Reach(found["seconds"], tests)
