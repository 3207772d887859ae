"""What all tests share: which examples property tests try, and figures, printed at the end of the run.

Property tests try the same examples in every run, so that a run says something about the change it was made for; with
EMBER_TEST_RANDOM set they look for new ones.  What such a run finds becomes an `@example` or a test of its own.
"""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

FIGURE = "figure"

BUSY = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
"""A machine that others use, too, is slow at drawing examples, and that is no fault of the test."""
settings.register_profile("same", derandomize=True, **BUSY)
settings.register_profile("random", print_blob=True, **BUSY)
settings.load_profile("random" if os.environ.get("EMBER_TEST_RANDOM") else "same")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in what a shell begins in the background; programs that tests begin, and interrupt, would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def report_figure(record_property):
    """Return a function that takes one line of text to show at the end of the run, also when tests run side by side."""
    return lambda text: record_property(FIGURE, text)


def pytest_terminal_summary(terminalreporter):
    """Print the figures, in the order in which the tests ended."""
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
