"""Command lines of EmberFS are told from others, and the daemon of a mount is found."""

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from fs.app.local.bring_down import unmount
from fs.app.machine import running
from fs.app.machine.cluster_dir import RECORD_NAME, ClusterDir
from fs.app.machine.process_id import ProcessId, real_user
from fs.app.machine.running import Command, mount_daemon_at, mount_daemons_at, parse_command
from fs.app.monitoring.mount_stat import metrics_of_mount
from fs.runtime import mount_table
from fs.schema.status import FsError, Status


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


def daemon_of(uid, path, text):
    path.write_text(text)
    return Command(ProcessId(uid + 1, 1), "mountd", path, uid)


@pytest.mark.parametrize(
    ("options", "owner", "served_by"),
    [
        ("rw,user_id=0,group_id=0", 1000, [0]),
        ("rw,user_id=1000,group_id=1000", 0, [0, 1000]),
        (None, 1000, [0, 1000]),
        (None, 0, [0]),
        (None, None, [0]),
    ],
)
def test_a_stranger_who_says_that_he_serves_a_mount_is_not_believed(
    monkeypatch, tmp_path, options, owner, served_by
):
    """Anybody can start a process with such a command line: root waited for it, and wrote into
    what it named as its configuration.
    """
    place, table = tmp_path / "place", tmp_path / "mounts"
    said = f"x {place} fuse.ember {options} 0 0\n" if options is not None else ""
    table.write_text("proc /proc proc rw 0 0\n" + said)
    text = f'[client]\nmount_point = "{place}"\n'
    running_now = [daemon_of(uid, tmp_path / f"{uid}.toml", text) for uid in (666, 0, 1000)]
    monkeypatch.setattr(running, "commands", lambda: running_now)
    monkeypatch.setattr(mount_table, "TABLE", table)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    if owner is not None:
        place.mkdir()
        status = SimpleNamespace(st_uid=owner)
        monkeypatch.setattr(Path, "lstat", lambda path: status if path == place else None)
    assert [command.uid for command, _ in mount_daemons_at(place)] == served_by


@pytest.mark.parametrize("act", [metrics_of_mount, partial(unmount, None)])
def test_a_mount_of_somebody_else_is_not_said_to_be_none(monkeypatch, tmp_path, act):
    """`ember umount` said that nothing is mounted there, and `ember stat` that nobody serves it."""
    place, table = tmp_path / "place", tmp_path / "mounts"
    place.mkdir()
    table.write_text(f"x {place} fuse.ember rw,user_id=0,allow_other 0 0\n")
    monkeypatch.setattr(running, "commands", list)
    monkeypatch.setattr(mount_table, "TABLE", table)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(FsError, match=f"{place} is a mount of user 0") as refused:
        act(place)
    assert refused.value.status is Status.NOT_PERMITTED
    table.write_text("")
    with pytest.raises(FsError) as refused:
        act(place)
    assert refused.value.status in {Status.BAD_MOUNT_POINT, Status.NOT_RUNNING}


def test_who_has_started_a_process():
    assert real_user(os.getpid()) == os.getuid()
    with pytest.raises(OSError, match="No such"):
        real_user(0)


@pytest.mark.parametrize(("owner", "believed"), [(0, [0]), (1000, [0, 1000])])
def test_a_stranger_who_says_that_he_supervises_a_cluster_is_not_believed(
    monkeypatch, tmp_path, owner, believed
):
    """He kept root from starting it."""
    (tmp_path / RECORD_NAME).touch()
    running_now = [
        Command(ProcessId(uid + 1, 1), "supervisor", tmp_path, uid) for uid in (666, 0, 1000)
    ]
    monkeypatch.setattr(running, "commands", lambda: running_now)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(Path, "stat", lambda *_, **_named: SimpleNamespace(st_uid=owner))
    found = running._of_cluster(ClusterDir(tmp_path))
    monkeypatch.undo()
    assert [command.uid for command in found] == believed
