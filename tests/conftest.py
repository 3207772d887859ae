"""What all tests share: figures that a test measured are printed at the end of the run."""

import pytest

FIGURE = "figure"


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
