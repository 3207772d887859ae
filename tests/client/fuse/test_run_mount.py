"""A mount that fails or is cancelled at any step of its start ends, and leaves nothing behind."""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import random
from pathlib import Path

import pytest
import trio

from fs.client.fuse import mount
from fs.client.vfs.ports import NoKernelCache
from fs.client.vfs.vfs import Vfs
from fs.runtime.ports import Runtime
from fs.schema.config import ClientSection
from fs.schema.status import FsError, Status
from tests.client.fakes import FakeClock, FakeCluster, run_inline

PLACE = Path("/nowhere")


class StubFrontend:
    """Without a kernel: serves until it is terminated, or fails at once."""

    kernel_cache = NoKernelCache()

    def __init__(self, error=None):
        self.error = error
        self.terminated = trio.Event()
        self.closings = 0

    def say(self, figures):
        """Tell nothing."""

    def replace(self, mount_point, source):
        pass

    def mount(self, mount_point, source):
        pass

    async def serve(self):
        if self.error is not None:
            raise self.error
        await self.terminated.wait()

    def terminate(self):
        self.terminated.set()

    def close(self, *, is_unmounted):
        del is_unmounted
        self.closings += 1


class StubBatchServer:
    """Takes its time before it listens."""

    error = None

    def __init__(self, vfs, section):
        pass

    def say(self, figures):
        """Tell nothing."""

    async def run(self, *, task_status):
        await trio.sleep(1)
        if self.error is not None:
            raise self.error
        task_status.started()
        await trio.sleep_forever()


class Lab:
    """One mount over stubs and a real vfs."""

    def __init__(self):
        clock = FakeClock()
        self.cluster = cluster = FakeCluster(clock)
        self.runtime = Runtime(clock, None, run_inline, random.Random(1))
        self.section = ClientSection()
        self.vfs = Vfs(cluster.meta(), cluster.store(), self.runtime, self.section)
        self.frontend = StubFrontend()

    async def run(self, **more):
        """Run the mount; fail the test when it does not end."""
        with trio.fail_after(3600):
            await mount.run_mount(
                self.vfs,
                PLACE,
                runtime=self.runtime,
                section=self.section,
                cluster_id="model",
                **more,
            )


@pytest.fixture
def lab(monkeypatch):
    lab = Lab()
    monkeypatch.setattr(mount, "_frontend", lambda *_: lab.frontend)
    monkeypatch.setattr(mount, "check_mount_point", lambda _: None)
    monkeypatch.setattr(mount, "set_read_ahead", lambda *_: None)
    monkeypatch.setattr(mount, "umount", lambda _: True)
    monkeypatch.setattr(mount, "BatchServer", StubBatchServer)
    monkeypatch.setattr(trio.to_thread, "run_sync", _run_here)
    return lab


async def _run_here(function, *arguments, **_options):
    """In no thread: the clock of these tests jumps while one works, past every time limit."""
    await trio.lowlevel.checkpoint()
    return function(*arguments)


def _fail(*_):
    raise OSError("injected")


async def test_the_first_stat_fails(lab, monkeypatch, autojump_clock):
    monkeypatch.setattr(mount, "set_read_ahead", _fail)
    with pytest.RaisesGroup(OSError, flatten_subgroups=True):
        await lab.run()
    assert lab.frontend.closings == 1


async def test_a_cluster_that_cannot_answer_yet_ends_the_start_with_its_status(lab, autojump_clock):
    lab.cluster.meta_faults["GetAttr"] = [FsError(Status.RPC_CONNECT_FAILED, "no service")]
    with pytest.RaisesGroup(
        pytest.RaisesExc(FsError, check=lambda e: e.status is Status.RPC_CONNECT_FAILED),
        flatten_subgroups=True,
    ):
        await lab.run()
    assert lab.frontend.closings == 1


async def test_cancelled_while_the_cluster_cannot_answer(lab, autojump_clock):
    """A thread that asked by way of the kernel could not be cancelled:
    nor could the process end.
    """
    lab.cluster.meta_gate = trio.Event()
    with trio.move_on_after(1) as scope:
        await lab.run()
    assert scope.cancelled_caught
    assert lab.frontend.closings == 1


async def test_the_server_of_batches_fails(lab, monkeypatch, autojump_clock):
    monkeypatch.setattr(StubBatchServer, "error", OSError("injected"))
    with pytest.RaisesGroup(OSError, flatten_subgroups=True):
        await lab.run()
    assert lab.frontend.closings == 1


async def test_the_main_loop_fails(lab, autojump_clock):
    lab.frontend.error = OSError("injected")
    with pytest.RaisesGroup(OSError, flatten_subgroups=True):
        await lab.run()
    assert lab.frontend.closings == 1


@pytest.mark.parametrize("after_s", [0, 0.5, 1.5])
async def test_cancelled_while_it_starts(lab, autojump_clock, after_s):
    """Before the vfs runs, while the server of batches starts, and when all is up."""
    with trio.move_on_after(after_s) as scope:
        await lab.run()
    assert scope.cancelled_caught
    assert lab.frontend.closings == 1


@pytest.mark.parametrize("can_replace", [True, False])
async def test_a_dead_mount_stands_until_the_new_one_is_there(
    lab, monkeypatch, autojump_clock, can_replace
):
    """Whoever meets the bare directory in between writes out of everybody's sight."""
    done = []

    def replace(_place, _source):
        done.append("replace")
        return can_replace

    monkeypatch.setattr(lab.frontend, "replace", replace)
    monkeypatch.setattr(lab.frontend, "mount", lambda *_: done.append("mount"))
    monkeypatch.setattr(mount, "detach", lambda _: done.append("detach"))
    monkeypatch.setattr(mount, "check_mount_point", lambda _: done.append("check"))
    with trio.move_on_after(5):
        await lab.run(replaces=True)
    assert done == (["replace"] if can_replace else ["replace", "detach", "check", "mount"])
