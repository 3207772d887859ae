"""Which clusters and mount daemons run on this machine: read from the command lines in /proc.

Tells what runs of a cluster also when its folder of sockets and state was removed.  Only
processes that the caller may signal count.  Does not talk to any of them
(supervision/supervisor_link.py), and starts and stops nothing.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from ...runtime.config_file import readable_config
from ...runtime.mount_table import Mounted, is_same_place, mount_at
from ...schema.config import ProcessConfig
from ...schema.status import FsError, Status
from .cluster_dir import RECORD_NAME, ClusterDir
from .entry_modules import ENTRY_PACKAGE
from .process_id import ProcessId, is_alive, process_id, real_user

PROC: Final = Path("/proc")
_USER_ID: Final = "user_id="
"""An option of mounts of FUSE."""
_SERVICES: Final = ("control", "kv", "mgmtd", "meta", "storage", "mountd")


@dataclass(frozen=True, slots=True)
class Command:
    """A process of EmberFS, by what it was started with."""

    identity: ProcessId
    role: str
    """supervisor, or the name of a service."""
    path: Path
    """Of a supervisor the cluster's directory, of a service its configuration file."""
    uid: int = 0
    """Of whoever has started it."""

    @property
    def directory(self) -> Path | None:
        """The cluster directory it belongs to; None for a service with a file of its own."""
        found = self.path if self.role == "supervisor" else self.path.parent.parent
        return found if (found / RECORD_NAME).exists() else None


def parse_command(words: list[str]) -> tuple[str, str] | None:
    """Return (role, path) of a command line of EmberFS; None for any other.

    Two forms: `python -m fs.app.ROLE PATH ...` and `python .../ember ROLE --config PATH`.
    """
    for index, word in enumerate(words):
        role, rest = word.removeprefix(f"{ENTRY_PACKAGE}."), words[index + 1 :]
        if role != word and role in {"supervisor", *_SERVICES} and rest:
            return role, rest[0]
        if Path(word).name == "ember" and rest and rest[0] in _SERVICES:
            return _after_config(rest)
    return None


def _after_config(words: list[str]) -> tuple[str, str] | None:
    """Return (role, file) of `ROLE --config FILE` or `ROLE --config=FILE`."""
    for word, following in pairwise([*words[1:], ""]):
        path = following if word == "--config" else word.partition("--config=")[2]
        if path:
            return words[0], path
    return None


def _command_of(entry: Path) -> Command | None:
    """Return the command of one folder of /proc; None for strangers, other users and the ended."""
    identity = process_id(int(entry.name))
    try:
        if identity is None or os.geteuid() not in {0, entry.stat().st_uid}:
            return None
        words = os.fsdecode((entry / "cmdline").read_bytes()).split("\0")
        found = parse_command(words)
        if found is None:
            return None
        path = Path(os.readlink(entry / "cwd"), found[1])  # noqa: PTH115
        return Command(identity, found[0], path, real_user(identity.pid))
    except OSError:  # it ended while we looked
        return None


def commands() -> list[Command]:
    """Return every process of EmberFS that this user may signal, by pid."""
    pids = sorted(int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())
    found = (_command_of(PROC / str(pid)) for pid in pids)
    return [command for command in found if command is not None]


def mount_daemon_at(mount_point: Path) -> tuple[Command, ProcessConfig] | None:
    """Return the mount daemon whose configuration names this mount point, and the configuration."""
    return next(_mount_daemons_at(mount_point), None)


def mount_daemons_at(mount_point: Path) -> list[tuple[Command, ProcessConfig]]:
    """Return all of them: one that was unmounted may still be writing."""
    return list(_mount_daemons_at(mount_point))


def _mount_daemons_at(mount_point: Path) -> Iterator[tuple[Command, ProcessConfig]]:
    servers = servers_of(mount_point)
    for command in commands():
        if command.role != "mountd" or command.uid not in servers:
            continue
        config = readable_config(command.path)
        if config is None:
            # Gone or changed since its start, or of another release: it cannot be the one.
            continue
        if is_same_place(config.client.mount_point, mount_point):
            yield command, config


def servers_of(mount_point: Path) -> set[int]:
    """Return whose daemons may serve a place, where root asks: his own, and those of the user who
    has mounted there, or whose directory it is.

    Anybody can start a process with any command line.
    """
    if os.geteuid() != 0:
        return {os.geteuid()}
    mounters = _mounters(mount_at(mount_point))
    if mounters:
        return {0, *mounters}
    try:
        return {0, mount_point.lstat().st_uid}
    except OSError:
        return {0}


def _mounters(mounted: Mounted | None) -> list[int]:
    """Return who has mounted, if the kernel says it."""
    said = [one for one in mounted.options if one.startswith(_USER_ID)] if mounted else []
    return [int(one.removeprefix(_USER_ID)) for one in said]


def refuse_others_mount(mount_point: Path) -> None:
    """Say so where an EmberFS mount is another user's, whose daemon this one does not find.

    Raises:
        FsError: NOT_PERMITTED.
    """
    mounted = mount_at(mount_point)
    mounters = _mounters(mounted)
    if mounted is None or mounted.kind != "fuse.ember" or not mounters:
        return
    if os.geteuid() not in {0, *mounters}:
        detail = f"{mount_point} is a mount of user {mounters[0]}: be that one, or root"
        raise FsError(Status.NOT_PERMITTED, detail)


def read_state(directory: ClusterDir) -> dict[str, dict[str, Any]]:
    """Return what the last supervisor knew, by service name;
    empty when there is nothing to read.
    """
    try:
        state = json.loads(directory.state_path.read_text())
        return {service["name"]: service for service in state["services"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def left_running(directory: ClusterDir) -> dict[str, dict[str, Any]]:
    """Return the services of a cluster that run, by name, in the form of the state file.

    That file need not know of them: the disk was full, its folder was removed, or the
    supervisor died before it wrote.
    """
    found = {
        name: service
        for name, service in read_state(directory).items()
        if service["pid"] and is_alive(ProcessId(service["pid"], service["start_ticks"]))
    }
    for command in _of_cluster(directory):
        if command.role == "supervisor" or command.path.stem in found:
            continue
        config = readable_config(command.path) if command.role == "mountd" else None
        found[command.path.stem] = {
            "role": command.role,
            "mount_point": config.client.mount_point if config is not None else "",
            "pid": command.identity.pid,
            "start_ticks": command.identity.start_ticks,
        }
    return found


def supervisor_of(directory: ClusterDir) -> ProcessId | None:
    """Return the supervisor of a cluster, whether or not its socket is still there."""
    found = [c.identity for c in _of_cluster(directory) if c.role == "supervisor"]
    return found[0] if found else None


def _of_cluster(directory: ClusterDir) -> list[Command]:
    place = directory.path.resolve()
    try:
        owners = {os.geteuid(), place.stat().st_uid}
    except OSError:  # it is gone
        owners = {os.geteuid()}
    # Anybody can start a process with any command line.
    own = [c for c in commands() if c.uid in owners]
    return [c for c in own if c.directory is not None and c.directory.resolve() == place]


def cluster_directories() -> list[Path]:
    """Return the directories of all clusters of which anything runs."""
    return sorted({path for command in commands() if (path := command.directory) is not None})
