"""Command lines of EmberFS are told from others, and the daemon of a mount is found."""

from pathlib import Path

import pytest

from fs.app import running
from fs.app.process_id import ProcessId
from fs.app.running import Command, mount_daemon_at, parse_command


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python -P -m fs.app.supervisor /data --no-restart", ("supervisor", "/data")),
        (
            "python -P -m fs.app.storage /d/config/storage-1.toml",
            ("storage", "/d/config/storage-1.toml"),
        ),
        ("python /usr/bin/ember mountd --config /etc/m.toml", ("mountd", "/etc/m.toml")),
        ("python /usr/bin/ember meta --config=m.toml", ("meta", "m.toml")),
        ("python /usr/bin/ember status --dir /data", None),
        ("python /usr/bin/ember mountd", None),
        ("python /usr/bin/ember mountd --config", None),
        ("vi fs.app.supervisor", None),
        ("grep fs.app.main /data", None),
        ("", None),
    ],
)
def test_command_lines(line, expected):
    assert parse_command(line.split(" ")) == expected


def test_the_daemon_of_a_mount_is_found_beside_one_of_another_release(monkeypatch, tmp_path):
    def daemon(name, text):
        (tmp_path / name).write_text(text)
        return Command(ProcessId(1, 1), "mountd", tmp_path / name)

    running_now = [
        daemon("newer.toml", "[client]\nof_a_newer_release = 1\n"),
        Command(ProcessId(1, 1), "mountd", tmp_path / "gone.toml"),
        daemon("other.toml", '[client]\nmount_point = "/mnt/other"\n'),
        daemon("ours.toml", '[client]\nmount_point = "/mnt/ours"\n'),
    ]
    monkeypatch.setattr(running, "commands", lambda: running_now)
    command, config = mount_daemon_at(Path("/mnt/ours"))
    assert command == running_now[-1]
    assert config.client.mount_point == "/mnt/ours"
    assert mount_daemon_at(Path("/mnt/nowhere")) is None
