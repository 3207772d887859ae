"""A storage process starts with the disks that can be opened, and without any not at all."""

from types import SimpleNamespace

import pytest
import trio

from fs.app.storage import open_disks
from fs.runtime.real import ThreadRunBlocking
from fs.schema.config import DiskSection, ProcessConfig, StorageSection
from fs.schema.status import FsError, Status

PATHS = ["/a", "/b", "/c"]
PROCESS = SimpleNamespace(
    config=ProcessConfig(storage=StorageSection(disks=[DiskSection(path=p) for p in PATHS]))
)


def opener(errors):
    async def open_disk(index):
        if index in errors:
            raise FsError(errors[index], PATHS[index])
        return PATHS[index]

    return open_disk


@pytest.mark.parametrize(
    "status", [Status.FOREIGN_DISK, Status.BAD_DISK_FORMAT, Status.IO_ERROR, Status.NO_SPACE]
)
async def test_a_refused_disk_keeps_no_other_from_serving(status, caplog):
    engines = []
    await open_disks(PROCESS, engines, opener({1: status}))
    assert engines[::2] == ["/a", "/c"]
    with pytest.raises(FsError, match=r"get: the disk is not open: .*/b"):
        engines[1].get(1, 2)
    engines[1].close()
    assert "disk 1 (/b) is not in use" in caplog.text


async def test_without_any_disk_the_process_does_not_start():
    with pytest.raises(FsError, match="/a"):
        await open_disks(PROCESS, [], opener(dict.fromkeys(range(3), Status.FOREIGN_DISK)))


@pytest.mark.parametrize("status", [Status.ALREADY_RUNNING, Status.BAD_CONFIG])
async def test_what_is_not_the_disks_fault_ends_the_process(status):
    engines = []
    with pytest.raises(FsError, match=status.name):
        await open_disks(PROCESS, engines, opener({1: status}))
    assert engines == ["/a"]


async def test_a_process_that_is_asked_to_stop_opens_no_further_disk():
    run, engines = ThreadRunBlocking(), []

    async def open_disk(index):
        scope.cancel()  # while the disk is being opened
        return await run(lambda: PATHS[index])

    with trio.CancelScope() as scope:
        await open_disks(PROCESS, engines, open_disk)
    assert engines == ["/a"], "what was opened is there to be closed"
