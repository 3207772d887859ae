"""A storage process starts with the disks that can be opened, and without any not at all."""

import os
import threading
from types import SimpleNamespace

import pytest
import trio

from fs.app.storage import _open, open_disks
from fs.chunkengine import flush_probe
from fs.rpc.transport import SocketNetwork
from fs.runtime.disk_hang import HangJudge
from fs.runtime.real import ThreadRunBlocking, real_runtime
from fs.schema.config import DiskSection, ProcessConfig, StorageSection
from fs.schema.status import FsError, Status
from fs.storage.disk_calls import DiskCalls, watched

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


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
async def test_a_disk_that_takes_no_byte_is_refused_instead_of_opened(
    tmp_path, monkeypatch, caplog, call
):
    """Its opening would wait with the interpreter lock in its hand, and nobody could say a word."""
    caplog.set_level("INFO")
    answers = threading.Event()
    hung = SimpleNamespace(pwrite=os.pwrite, fdatasync=os.fdatasync, close=os.close)
    setattr(hung, call, lambda *_: answers.wait())
    monkeypatch.setattr(flush_probe, "os", hung)
    monkeypatch.setattr(HangJudge, "learn_device", lambda _: None)  # others may use the device
    path, runtime = str(tmp_path), real_runtime(SocketNetwork())
    process = SimpleNamespace(
        config=ProcessConfig(storage=StorageSection(disks=[DiskSection(path=path)])),
        identity=SimpleNamespace(node_id=1),
    )
    calls = DiskCalls(runtime, path, 0.5)
    with trio.fail_after(20):
        async with watched([calls], runtime):
            try:
                with pytest.raises(FsError, match="does not answer") as caught:
                    await _open(process, DiskSection(path=path), None, calls)
            finally:
                answers.set()
            assert caught.value.status is Status.IO_ERROR
            assert f"opening disk {path}" in caplog.text
            while calls.lost_count:  # noqa: ASYNC110 - the thread opens the disk, and another closes it
                await trio.sleep(0.05)
