"""A mount daemon without a supervisor: started for mount(8) with a configuration of its own, and
left alone once the mount answers.

Nobody starts it again when it dies: what is to be kept running belongs to systemd (`ember@mountd`).
What a dead one leaves is cleared by the next mount at its place.

    /run/emberfs/mounts/NAME.toml, .log, .lock      as a user: /tmp/emberfs-mounts-UID
"""

import fcntl
import glob
import hashlib
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import structs

from ...runtime.config_file import read_config, write_config
from ...runtime.log import LOG_BYTES_VARIABLE
from ...schema.config import AuthSection, ProcessConfig, ProcessSection
from ...schema.status import FsError, Status
from ..machine.cluster_dir import ClusterDir, need_record
from ..machine.entry_modules import ENTRY_PACKAGE
from ..machine.running import commands
from ..mounts.mount_point import check_fuse, check_mount_point, is_automount
from ..mounts.mount_source import MountSource
from ..mounts.run_folder import made_folder, runtime_folder
from ..process.readiness import READY_VARIABLE
from ..supervision import interrupts, supervisor_link
from ..supervision.supervisor_link import last_line
from .cluster_plan import METRICS_ADDRESS, MountWishes, mount_config, wished_client
from .waits import SERVICE_TIMEOUT_S, ServiceFailedError

END_TIMEOUT_S: Final = 10.0
"""Of a daemon that did not come to serve."""
KEPT_S: Final = 30 * 24 * 3600.0
"""For so long what a daemon has said last."""
NAME_BYTES_MAX: Final = 64
"""Of a mount point's name, in those of its files."""
LOG_BYTES_MAX: Final = 16 * 1024 * 1024
"""The folder is in memory."""


def _forget_old(folder: Path) -> None:
    """Remove what is left of daemons that ended long ago: each place has files of its own."""
    served = {command.path for command in commands()}
    for path in folder.glob("*.toml"):
        with suppress(FileNotFoundError):  # somebody else does the same
            of_place = [*folder.glob(f"{glob.escape(path.stem)}.*")]
            age_s = time.time() - max((one.stat().st_mtime for one in of_place), default=math.inf)
            if path not in served and age_s > KEPT_S:
                for one in of_place:
                    one.unlink()


def _config_of(addresses: Sequence[str], settings: dict[str, str]) -> ProcessConfig:
    """Return the configuration that addresses and options of the mount make."""
    usual = ProcessSection()
    process = structs.replace(
        usual,
        cluster_id=settings.get("cluster_id", usual.cluster_id),
        mgmtd_addresses=list(addresses),
    )
    auth = AuthSection(
        key_file=settings.get("key_file", ""), token_file=settings.get("token_file", "")
    )
    return ProcessConfig(process=process, auth=auth)


def _config_in(directory: ClusterDir, mount_point: Path, wishes: MountWishes) -> ProcessConfig:
    """Return what the cluster of a directory would give a daemon of its own."""
    record = need_record(directory)
    if not supervisor_link.is_answering(directory):
        detail = f"no cluster runs in {directory.path}; start it: {directory.command('up')}"
        raise FsError(Status.NOT_RUNNING, detail)
    return mount_config(directory, record, mount_point, wishes)


def _config(
    source: MountSource, settings: dict[str, str], mount_point: Path, wishes: MountWishes
) -> ProcessConfig:
    """Return the configuration of the daemon; raises FsError(BAD_CONFIG)."""
    place = Path(source.place)
    if source.place and place.is_dir():
        config = _config_in(ClusterDir(place), mount_point, wishes)
    elif source.place:
        config = read_config(place)
    else:
        config = _config_of(source.addresses, settings)
    # The port of a configuration file is that of its own daemon.
    process = structs.replace(config.process, metrics_address=METRICS_ADDRESS, directory="")
    client = wished_client(config.client, mount_point, wishes)
    client = structs.replace(client, subdir=wishes.subdir or config.client.subdir, batch_socket="")
    return structs.replace(config, process=process, client=client)


def start(
    source: MountSource, settings: dict[str, str], mount_point: Path, wishes: MountWishes
) -> None:
    """Mount, and return when the mount answers.

    Args:
        source: a cluster that runs here, a configuration file, or addresses.
        settings: what addresses do not say.
        mount_point: where.
        wishes: how.

    Raises:
        FsError: BAD_CONFIG, BAD_MOUNT_POINT, FUSE_MISSING, START_FAILED, NOT_RUNNING; nothing is
            mounted then.
    """
    config = _config(source, settings, mount_point, wishes)
    folder = made_folder(runtime_folder())
    _forget_old(folder)
    digest = hashlib.sha256(os.fsencode(mount_point)).hexdigest()[:8]
    short_name = mount_point.name.encode()[:NAME_BYTES_MAX].decode(errors="ignore")
    path = folder / f"{short_name}-{digest}.toml"
    with _in_turn(path.with_suffix(".lock")):
        check_fuse()
        check_mount_point(mount_point)
        write_config(path, config)
        # There all wait for this mount but who is of the group that this command is of.
        with interrupts.put_off() as take_them:
            child, ready = _spawn(path, keeps_group=is_automount(mount_point))
            try:
                take_them()
                _wait_ready(child, ready, path.with_suffix(".log"))
            except BaseException:  # also Ctrl-C: it would go on by itself, and mount later
                _end(child)
                raise
            finally:
                os.close(ready)


@contextmanager
def _in_turn(path: Path) -> Iterator[None]:
    """Keep whoever else mounts at the same place waiting: he would take the daemon's files."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _spawn(config_path: Path, *, keeps_group: bool) -> tuple[subprocess.Popen[bytes], int]:
    """Start the daemon; return it and the end of a pipe on which it says that it serves."""
    ready_read, ready_write = os.pipe()
    try:
        with config_path.with_suffix(".log").open("wb") as log_file:
            child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-P", "-m", f"{ENTRY_PACKAGE}.mountd", str(config_path)],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                cwd="/",
                start_new_session=not keeps_group,
                pass_fds=[ready_write],
                env={
                    **os.environ,
                    READY_VARIABLE: str(ready_write),
                    LOG_BYTES_VARIABLE: str(LOG_BYTES_MAX),
                },
            )
    except BaseException:
        os.close(ready_read)
        raise
    finally:
        os.close(ready_write)
    return child, ready_read


def _wait_ready(child: "subprocess.Popen[bytes]", ready: int, log_path: Path) -> None:
    """Wait until the daemon says that it serves;
    raises ServiceFailedError with the last line of its log.
    """
    has_answer = bool(select.select([ready], [], [], SERVICE_TIMEOUT_S)[0])
    if has_answer and os.read(ready, 1):
        return
    reason = f"not ready after {SERVICE_TIMEOUT_S:g} s"
    if has_answer:
        reason = f"exit code {child.wait()}"
    raise ServiceFailedError("mount daemon", reason, last_line(log_path), log_path)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End a daemon that does not serve yet."""
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
