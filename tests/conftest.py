"""What all tests share: which examples property tests try, and figures,
printed at the end of the run.

Property tests try the same examples in every run, so that a run says something about the change it
was made for; with EMBER_TEST_RANDOM set they look for new ones.  What such a run finds becomes an
`@example` or a test of its own.
"""

import gc
import os
import re
import shutil
import signal
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from inspect import iscoroutinefunction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from fs.app.reach.entry import NO_ENTRY, set_entry

FIGURE = "figure"
WORKER_ENDS = pytest.StashKey[dict[str, float]]()
"""When each worker had nothing left to do."""
SHARED = "until_last_use"
"""The fixture of what tests share for as long as one of them is still to come."""
SHARED_ENDS = pytest.StashKey[ExitStack | None]()
"""Ends all of that; None once it has."""
AFTER_SHARED = pytest.StashKey[bool]()
"""Of a test after which no other uses any of it."""
LONG = ("timeout", "mount", "slow", "thorough")
"""Marks of tests that take long, longest first: those with a limit of their own need it."""
CLOCKS = {"mock_clock", "autojump_clock"}
LEFT_OUT = re.compile(r"not \w+( and not \w+)*")
"""Options `-m` by which a file is left out where one of the marks named
is that of all its tests.
"""
MARKS_OF_FILE = re.compile(r"^pytestmark = (.*?)(?=^[^\s\])}])", re.MULTILINE | re.DOTALL)
MARKS_OF_MOUNTS = "NEEDS_MOUNT"
"""Stands for several marks (tests/client/user/serving.py)."""
GARBAGE_THRESHOLDS = (20_000, 10, 10)
"""Of objects, and of collections of younger ones: Python's own are 700, 10, 10."""

QUICK_S = 0.005
"""Of the parts of a test, `--durations` names none that took less."""

BUSY = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
"""A machine that others use, too, is slow at drawing examples, and that is no fault of the test."""
settings.register_profile("same", derandomize=True, **BUSY)
settings.register_profile("random", print_blob=True, **BUSY)
CHOSEN = "random" if os.environ.get("EMBER_TEST_RANDOM") else "same"
settings.register_profile("few", settings.get_profile(CHOSEN), max_examples=20)
"""Of the fast part (`--hypothesis-profile=few`): the first of the examples that the whole tries."""
settings.load_profile(CHOSEN)


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in what a shell begins in the background; programs that tests begin,
    # and interrupt, would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session):
    """Have workers send what somebody reads, and no more:
    six messages about each test took a twentieth of all time.

    A report in a file (`--junitxml`) is made of all of them, and so is what `-v` shows.
    """
    option = session.config.option
    if option.verbose > 0 or option.xmlpath:
        return
    for plugin in session.config.pluginmanager.get_plugins():
        if hasattr(plugin, "sendevent"):
            plugin.sendevent = needed_only(plugin.sendevent)


def needed_only(send):
    """Return what sends the same, but not that a test begins or has ended,
    nor that its surroundings were quickly made or removed.
    """

    def send_needed(name, **parts):
        match name:
            case "logstart" | "logfinish":
                return
            case "testreport" if _is_unread(parts["data"]):
                return
        send(name, **parts)

    return send_needed


def _is_unread(report):
    return (
        report["when"] != "call"
        and report["outcome"] == "passed"
        and report["duration"] < QUICK_S
        and not report["sections"]
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Let the collector of garbage leave alone what stays until the end:
    modules and tests, a million objects.

    What comes later it looks through less often than it would by itself, which took a
    twentieth of all tests' time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(*GARBAGE_THRESHOLDS)


def pytest_ignore_collect(collection_path, config):
    """Leave files alone of which no test is wanted:
    each worker would import what they need, such as torch, for nothing.
    """
    unwanted = config.option.markexpr
    if collection_path.suffix != ".py" or not LEFT_OUT.fullmatch(unwanted):
        return None
    names = set(re.findall(r"not (\w+)", unwanted))
    return True if names & marks_of_file(collection_path.read_text()) else None


def marks_of_file(text):
    """Return the marks that a file of tests gives all of them, whatever the circumstances."""
    found = MARKS_OF_FILE.search(text)
    if found is None or " if " in found[1]:
        return set()
    return set(re.findall(r"\bmark\.(\w+)", found[1].replace(MARKS_OF_MOUNTS, "mark.mount")))


def pytest_collection_modifyitems(config, items):
    """Where several workers share the files, begin with those that take long:
    short ones are left for the end.

    Long are those that a mark says so of; they stay in their order, since neighbours share
    clusters.  Of the others those with many tests come first.  So all workers end at about the same
    time, which they do not in xdist's own order, by the number of tests alone.
    """
    _check_clocks(items)
    if not hasattr(config, "workerinput"):
        return
    ranks: dict[Path, int] = {}
    for item in items:
        rank = next((n for n, mark in enumerate(LONG) if item.get_closest_marker(mark)), len(LONG))
        ranks[item.path] = min(rank, ranks.get(item.path, rank))
    counts = Counter(item.path for item in items)

    def place(item):
        rank = ranks[item.path]
        return rank, -counts[item.path] if rank == len(LONG) else 0

    items.sort(key=place)


def pytest_collection_finish(session):
    """Note which tests come after the last that uses what is ended early;
    their order is final now.
    """
    session.config.stash[SHARED_ENDS] = ExitStack()
    users = [n for n, item in enumerate(session.items) if SHARED in _fixtures(item)]
    for item in session.items[max(users, default=-1) + 1 :]:
        item.stash[AFTER_SHARED] = True


def pytest_runtest_setup(item):
    """End what is shared before the first test that comes after its users.

    A worker takes the files in their order, so none of its later ones uses it.  Clusters that stood
    idle until the end of a run took a thirtieth of the processors.
    """
    stack = item.config.stash[SHARED_ENDS]
    if stack is None and SHARED in _fixtures(item):
        raise pytest.UsageError(f"{item.nodeid}: what it shares was ended: it ran out of order")
    if stack is not None and AFTER_SHARED in item.stash:
        item.config.stash[SHARED_ENDS] = None
        stack.close()


@pytest.fixture(scope="session")
def until_last_use(request):
    """Return the stack onto which is put what is to be ended after the last test that uses it,
    not only with the session.
    """
    with request.config.stash[SHARED_ENDS] as stack:
        yield stack


def _fixtures(item):
    info = getattr(item, "_fixtureinfo", None)
    return info.names_closure if info else ()


def _check_clocks(items):
    """Refuse tests whose fixtures ask for a clock that they do not ask for:
    it would not act, and they would wait in real time.
    """
    for item in items:
        if item.get_closest_marker("real_time"):
            continue
        clocks = CLOCKS.intersection(_fixtures(item))
        if (
            clocks
            and iscoroutinefunction(item.function)
            and not clocks & set(item._fixtureinfo.argnames)
        ):
            raise pytest.UsageError(f"{item.nodeid}: ask for {' or '.join(clocks)}, too")


@pytest.fixture(autouse=True)
def nothing_said_before():
    """Have no test reach the cluster that a line of a shell in another one has named:
    a shell's next line does.

    Forgotten at its end, too: what a module shares is made before the next test begins.
    """
    set_entry(NO_ENTRY)
    yield
    set_entry(NO_ENTRY)


@pytest.fixture(scope="session")
def disk_folder():
    """A folder on a disk, for tests that ask what the system has cached:
    `ember test` puts `tmp_path` in memory where it can.
    """
    made = Path(tempfile.mkdtemp(prefix="ember-test-", dir="/var/tmp"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def disk_path(disk_folder):
    """A fresh folder there."""
    made = Path(tempfile.mkdtemp(dir=disk_folder))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def report_figure(record_property):
    """Return a function that takes one line of text to show at the end of the run,
    also when tests run side by side.
    """
    return lambda text: record_property(FIGURE, text)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Note when a worker ends."""
    node.config.stash.setdefault(WORKER_ENDS, {})[node.gateway.id] = time.monotonic()


def pytest_terminal_summary(terminalreporter):
    """Print the figures, in the order in which the tests ended,
    and how long workers were idle at the end.
    """
    figures = [
        text
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        if report.when == "call"
        for name, text in report.user_properties
        if name == FIGURE
    ]
    if figures:
        terminalreporter.section("figures")
    for text in figures:
        terminalreporter.write_line(text)
    ends = terminalreporter.config.stash.get(WORKER_ENDS, {})
    if len(ends) > 1:
        idle = ", ".join(f"{name} {max(ends.values()) - end:.0f} s" for name, end in ends.items())
        terminalreporter.write_line(f"idle before the last worker ended: {idle}")
