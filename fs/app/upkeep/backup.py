"""`ember backup` and `ember restore`: files, progress and the choice of the store.

Does not know what is in a backup: fs/admin/backup.py and restore.py do.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, TYPE_CHECKING, BinaryIO, Final

import trio
from msgspec import structs

from ...admin.backup import BackupReport, write_backup
from ...admin.backup_format import BackupDecoder
from ...admin.restore import restore_backup
from ...runtime.config_file import read_config, write_config
from ...runtime.durable_file import sync_directory
from ...schema.config import KvSection
from ...schema.proto.backup_pb2 import BackupHeadPb
from ...schema.status import FsError, Status
from ..local.cluster_plan import server_configs
from ..machine.cluster_dir import (
    KV,
    ClusterDir,
    ClusterRecord,
    meta_names,
    mgmtd_names,
    need_record,
    save_record,
)
from ..process.release import RELEASE
from ..stores.foundationdb import parse_kv
from ..stores.store_access import (
    StoreChoice,
    check_exists,
    holder_name,
    is_running,
    open_chosen,
    parse_store,
    store_of_cluster,
)

if TYPE_CHECKING:
    from rich.progress import Progress

PIPE: Final = "-"


# ---- backup ------------------------------------------------------------------------------------


def backup(
    file: str, choice: StoreChoice, *, may_pause: bool, may_replace: bool, as_json: bool
) -> None:
    """Write a backup of a store into a file, which is there whole or not at all, or to stdout.

    Raises:
        FsError: as `write_backup`; EXISTS: the file is there and may not be
            replaced, or is no regular file.
        OSError: the file cannot be written; it names it.
    """
    check_exists(choice)
    with _target(file, may_replace=may_replace) as out, _progress("rows read") as step:
        report = trio.run(_backup, choice, out, may_pause, step)
    told = {
        "file": file,
        "cluster_id": choice.cluster_id,
        "store": choice.text,
        "row_count": report.row_count,
        "byte_count": report.byte_count,
        "read_version": report.read_version,
    }
    text = json.dumps(told) if as_json else _backup_text(file, choice, report)
    (sys.stderr if file == PIPE else sys.stdout).write(text + "\n")


def _backup_text(file: str, choice: StoreChoice, report: BackupReport) -> str:
    version = f" at version {report.read_version}" if report.read_version else ""
    where = "" if file == PIPE else f"{file}: "
    return f"{where}{report.row_count} records of {choice.text}{version}, {report.byte_count} bytes"


async def _backup(
    choice: StoreChoice, out: IO[bytes], may_pause: bool, step: Callable[[int], None]
) -> BackupReport:
    async def write(made: bytes) -> None:
        await trio.to_thread.run_sync(out.write, made)

    head = BackupHeadPb(cluster_id=choice.cluster_id, engine=choice.section.engine, release=RELEASE)
    async with open_chosen(choice) as store:
        return await write_backup(
            store.engine, store.runtime, write, head=head, may_pause=may_pause, on_progress=step
        )


@contextmanager
def _target(file: str, *, may_replace: bool) -> Iterator[IO[bytes]]:
    """Open where a backup goes: under a name of its own until it is whole and durable;
    only its owner may read it.

    Raises:
        FsError: EXISTS, before anything is written, and again at the end
            where one has come meanwhile.
    """
    if file == PIPE:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(file).absolute()
    _check_free(path, may_replace=may_replace)
    try:
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as out:
            try:
                yield out
                out.flush()
                os.fsync(out.fileno())
                _check_free(path, may_replace=may_replace)
                Path(out.name).replace(path)
                sync_directory(path.parent)
            finally:
                with suppress(OSError):  # it has its name
                    Path(out.name).unlink()
    except OSError as error:
        # Not of the temporary name.
        raise OSError(error.errno, error.strerror, str(path)) from error


def _check_free(path: Path, *, may_replace: bool) -> None:
    if path.is_file():
        if not may_replace:
            raise FsError(Status.EXISTS, f"{path} is a file; --force replaces it")
    elif path.is_symlink() or path.exists():
        raise FsError(Status.EXISTS, f"{path} is no regular file")


# ---- restore -----------------------------------------------------------------------------------


def restore(
    file: str,
    directory: ClusterDir | None,
    kv: str | None,
    *,
    is_check: bool,
) -> None:
    """Verify a backup and write it into an empty store;
    with a cluster's directory, make that its store.

    Args:
        file: the backup; `-`: stdin.
        directory: of a stopped cluster; None: only the store that `kv` names is touched.
        kv: the store; None: that of the cluster.
        is_check: whether to verify the backup only.

    Raises:
        FsError: BAD_BACKUP, KV_NOT_EMPTY, ALREADY_RUNNING; as the store.
    """
    with _source(file) as source, _progress("rows") as step:
        verified_count = _verify(file, source, step) if is_check or source.seekable() else 0
        if is_check:
            sys.stdout.write(f"{file}: whole, {verified_count} records\n")
            return
        decoder = BackupDecoder(source.read, file)
        choice = _goal(decoder.head.cluster_id, directory, kv)
        row_count = trio.run(_restore, choice, decoder, step)
    if directory is not None and kv is not None:
        use_store(directory, kv)
    sys.stdout.write(f"{choice.text}: {row_count} records of cluster {choice.cluster_id}\n")
    sys.stderr.write(age_note(decoder.head.started_ns, time.time_ns()))


def age_note(started_ns: int, now_ns: int) -> str:
    """Return what whoever restores is to know:
    what the chains have done since the backup, it does not tell.
    """
    then = datetime.fromtimestamp(started_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M UTC")
    hours = max(0, now_ns - started_ns) / 3.6e12
    return (
        f"ember: note: this is the state of {then}, {hours:.1f} h ago. If the cluster has worked "
        "since, unmount all clients; chains serve when those disks are there that can tell which "
        "copy is the newest. Then `ember admin chunks compare` shows whether all are equal\n"
    )


def _verify(file: str, source: BinaryIO, step: Callable[[int], None]) -> int:
    """Read a backup to its end, and go back where that is possible; return its number of rows."""
    begin = source.tell() if source.seekable() else 0
    decoder = BackupDecoder(source.read, file)
    for _ in decoder.blocks():
        step(decoder.row_count)
    if source.seekable():
        source.seek(begin)
    return decoder.row_count


def _goal(cluster_id: str, directory: ClusterDir | None, kv: str | None) -> StoreChoice:
    """Return the store to restore into."""
    if directory is None:
        assert kv is not None, "neither --dir nor --kv"
        return StoreChoice(parse_store(kv), cluster_id)
    record = need_record(directory)
    if record.cluster_id != cluster_id:
        raise FsError(
            Status.BAD_BACKUP,
            f"it is of cluster {cluster_id}; {directory.path} is cluster {record.cluster_id}",
        )
    if is_running(directory):
        detail = f"the cluster in {directory.path}; stop it first: {directory.command('down')}"
        raise FsError(Status.ALREADY_RUNNING, detail)
    if kv is None:
        return store_of_cluster(directory)
    changed = replace(record, kv=parse_kv(kv))
    return StoreChoice(_sections(directory, changed)[holder_name(changed)], cluster_id)


def _sections(directory: ClusterDir, record: ClusterRecord) -> dict[str, KvSection]:
    """Return where each process that uses the store finds it, by the cluster's record."""
    configs = server_configs(directory, record)
    users = {KV, *mgmtd_names(record), *meta_names(record)}
    return {name: config.kv for name, config in configs.items() if name in users}


def use_store(directory: ClusterDir, kv: str) -> None:
    """Have a stopped cluster work on another store from its next start on.

    Its old store stays as it is, and is used no more.
    """
    record = replace(need_record(directory), kv=parse_kv(kv))
    # The record comes last: a process believes its own file, so what is half done
    # never starts on the old store.
    for name, section in _sections(directory, record).items():
        path = directory.config_path(name)
        if path.exists():
            write_config(path, structs.replace(read_config(path), kv=section))
    save_record(directory, record)


async def _restore(choice: StoreChoice, decoder: BackupDecoder, step: Callable[[int], None]) -> int:
    async with open_chosen(choice) as store:
        return await restore_backup(store.engine, store.runtime, decoder, on_progress=step)


@contextmanager
def _source(file: str) -> Iterator[BinaryIO]:
    if file == PIPE:
        yield sys.stdin.buffer
        return
    with Path(file).open("rb") as source:
        yield source


# ---- both --------------------------------------------------------------------------------------


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many records were done."""
    if not sys.stderr.isatty():
        yield lambda _count: None
        return
    bar = _bar(what)
    task = bar.add_task("", total=None)
    with bar:
        yield lambda count: bar.update(task, completed=count)


def _bar(what: str) -> "Progress":
    """Return a spinner with a count; rich is loaded only for people who look."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    count = TextColumn("ember: {task.completed} " + what)
    console = Console(stderr=True, highlight=False, markup=False)
    return Progress(SpinnerColumn(), count, TimeElapsedColumn(), console=console)
