"""Workers tell of each test what is shown, and not five things more."""

from types import SimpleNamespace

import pytest

from tests.conftest import needed_only, pytest_sessionstart

PASSED = {"when": "setup", "outcome": "passed", "duration": 0.001, "sections": []}


@pytest.fixture
def sent():
    return []


def send_into(sent):
    return lambda name, **parts: sent.append((name, parts))


@pytest.mark.parametrize(
    "change",
    [
        {"when": "call"},
        {"outcome": "failed"},
        {"outcome": "skipped"},
        {"duration": 0.1},
        {"sections": [("Captured stdout setup", "a line")]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_is_shown_is_sent(sent, change):
    needed_only(send_into(sent))("testreport", data=PASSED | change)
    assert sent == [("testreport", {"data": PASSED | change})]


def test_how_far_a_worker_is_is_sent(sent):
    """Else the others would not know what is left for them."""
    needed_only(send_into(sent))("runtest_protocol_complete", item_index=7, duration=0.1)
    assert sent == [("runtest_protocol_complete", {"item_index": 7, "duration": 0.1})]


def test_what_nobody_reads_is_not_sent(sent):
    send = needed_only(send_into(sent))
    send("logstart", nodeid="tests/test_x.py::test_y", location=("tests/test_x.py", 1, "test_y"))
    send("logfinish", nodeid="tests/test_x.py::test_y", location=("tests/test_x.py", 1, "test_y"))
    for when in ("setup", "teardown"):
        send("testreport", data=PASSED | {"when": when})
    assert not sent


@pytest.mark.parametrize(
    ("option", "is_all"), [((0, None), False), ((1, None), True), ((0, "report.xml"), True)]
)
def test_where_each_step_is_wanted_all_of_it_is_sent(sent, option, is_all):
    verbose, xmlpath = option
    worker = SimpleNamespace(sendevent=send_into(sent))
    plugins = SimpleNamespace(get_plugins=lambda: [object(), worker])
    options = SimpleNamespace(verbose=verbose, xmlpath=xmlpath)
    config = SimpleNamespace(option=options, pluginmanager=plugins)
    pytest_sessionstart(SimpleNamespace(config=config))
    worker.sendevent("logstart", nodeid="tests/test_x.py::test_y", location=("x", 1, "y"))
    assert bool(sent) is is_all


def test_workers_of_xdist_send_by_what_is_replaced(request):
    """Or else nothing is spared, and nobody notices."""
    config = request.config
    if not hasattr(config, "workerinput"):
        return
    workers = [p for p in config.pluginmanager.get_plugins() if hasattr(p, "sendevent")]
    (worker,) = workers
    is_all = config.option.verbose > 0 or config.option.xmlpath
    assert is_all or worker.sendevent.__qualname__.startswith("needed_only")
