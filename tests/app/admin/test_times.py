"""How long, as it is said on the command line."""

import pytest

from fs.app.admin import garbage, nodes
from fs.app.terminal.amounts import parse_time_s
from fs.schema.status import FsError, Status


def test_minutes_hours_and_days_are_understood():
    said = [parse_time_s(text, "--for", days_max=30) for text in ("30m", "4h", "30d")]
    assert said == [1800, 4 * 3600, 30 * 86_400]


@pytest.mark.parametrize("text", ["", "4", "h", "0h", "-1h", "1.5h", "4h ", "9" * 40 + "d"])
def test_what_is_no_time_is_told_with_its_option(text):
    with pytest.raises(FsError) as caught:
        parse_time_s(text, "--for", days_max=30)
    assert caught.value.status is Status.INVALID_ARGUMENT and caught.value.detail.startswith(
        "--for "
    )


@pytest.mark.parametrize(
    ("command", "text", "most"),
    [
        (lambda text: garbage.pause(for_=text), "8d", "7d"),
        (lambda text: nodes.maintenance_on(12, for_=text), "31d", "30d"),
    ],
)
def test_nothing_is_held_up_for_longer_than_people_remember(monkeypatch, command, text, most):
    for module in (garbage, nodes):
        monkeypatch.setattr(module, "find", lambda *_: None)
    with pytest.raises(FsError) as caught:
        command(text)
    assert caught.value.detail == f"--for {text}: at most {most}"
