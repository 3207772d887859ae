"""A start waits for what is down, says so, and ends at once when it is asked to."""

import os
import resource
import signal
import subprocess
import sys
from functools import partial
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from fs.app.process.compose import DESCRIPTORS_MAX
from fs.app.process.starting import (
    TELL_AFTER_S,
    TELL_INTERVAL_S,
    tell_until_joined,
    wait_for,
    wait_for_store,
)
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime.config_file import write_config
from fs.runtime.simulated import simulated_runtime
from fs.schema.config import (
    ClientSection,
    DiskSection,
    KvSection,
    ProcessConfig,
    ProcessSection,
    StorageSection,
)
from fs.schema.status import FsError, Status


class Heard:
    """A link to systemd that remembers."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def say(self, word: str) -> None:
        self.words.append(word)


@pytest.fixture
def process():
    runtime = simulated_runtime(MemoryNetwork(seed=1).endpoint("x"), 1)
    config = ProcessConfig(kv=KvSection(engine="remote", address="unix:/x"))
    return SimpleNamespace(runtime=runtime, config=config, systemd=Heard(), has_served=False)


async def fail_until(up_s, status):
    if trio.current_time() < up_s:
        raise FsError(status, "starting")
    return "up"


@pytest.mark.parametrize(
    "status",
    [Status.KV_UNREACHABLE, Status.KV_UNAVAILABLE, Status.KV_TIMED_OUT, Status.RPC_TIMEOUT],
)
async def test_what_is_away_is_waited_for_and_told(process, caplog, autojump_clock, status):
    del autojump_clock
    caplog.set_level("INFO")
    up_s = trio.current_time() + TELL_INTERVAL_S + 30.0
    assert await wait_for_store(process, partial(fail_until, up_s, status)) == "up"
    assert trio.current_time() >= up_s
    first, second, last = [record.getMessage() for record in caplog.records]
    assert (
        first.startswith("waiting for the key-value store remote:unix:/x since ") and "UTC" in first
    )
    assert status.name in first and second == first, "a line at once, and one a minute"
    assert last.startswith("the key-value store remote:unix:/x answers, after ")
    assert process.systemd.words[0] == f"STATUS={first}"
    assert process.systemd.words[-1] == "STATUS=starting"


async def test_why_nobody_answers_is_told_as_soon_as_it_is_known(process, caplog, autojump_clock):
    """Was: no answer yet, for a minute, whatever had been answered after a second."""
    del autojump_clock
    membership = SimpleNamespace(trouble="", wait_joined=trio.Event().wait)
    with trio.move_on_after(TELL_INTERVAL_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell_until_joined, process, membership)
            await trio.sleep(3 * TELL_AFTER_S)
            membership.trouble = "NODE_UNKNOWN: make it known"
    first, second = [record.getMessage() for record in caplog.records]
    assert first.endswith("no answer yet") and second.endswith("NODE_UNKNOWN: make it known")


async def test_what_a_peer_says_cannot_tell_systemd_anything(process, autojump_clock):
    del autojump_clock
    up_s = trio.current_time() + 2 * TELL_AFTER_S

    async def attempt():
        if trio.current_time() < up_s:
            raise FsError(Status.KV_UNREACHABLE, "starting\nREADY=1")

    await wait_for(process, "x", attempt)
    assert not any("\n" in word for word in process.systemd.words), process.systemd.words


async def test_what_answers_soon_is_not_worth_a_line(process, caplog, autojump_clock):
    del autojump_clock
    caplog.set_level("INFO")
    up_s = trio.current_time() + TELL_AFTER_S / 2
    await wait_for(process, "x", partial(fail_until, up_s, Status.KV_UNREACHABLE))
    assert not caplog.records and not process.systemd.words


async def test_what_no_waiting_cures_is_told_at_once(process, autojump_clock):
    del autojump_clock
    with pytest.raises(FsError) as caught:
        await wait_for(process, "x", partial(fail_until, 1e9, Status.RPC_WRONG_CLUSTER))
    assert caught.value.status is Status.RPC_WRONG_CLUSTER


def configs(path: Path) -> dict[str, ProcessConfig]:
    """Return one of each process that has nobody to talk to."""
    section = ProcessSection(
        node_id=1,
        listen=f"unix:{path}/me.sock",
        mgmtd_addresses=[f"unix:{path}/mgmtd.sock"],
        directory=str(path),
    )
    kv = KvSection(engine="remote", address=f"unix:{path}/kv.sock")
    disks = StorageSection(disks=[DiskSection(path=str(path / "disk"))])
    client = ClientSection(mount_point=str(path / "mnt"))
    return {
        "mgmtd": ProcessConfig(process=section, kv=kv),
        "meta": ProcessConfig(process=section, kv=kv),
        "control": ProcessConfig(process=section, kv=kv),
        "storage": ProcessConfig(process=section, storage=disks, kv=kv),
        "mountd": ProcessConfig(process=section, client=client),
    }


@pytest.mark.slow
@pytest.mark.parametrize("role", ["mgmtd", "meta", "control", "storage", "mountd"])
def test_a_process_that_waits_says_so_and_ends_when_asked(tmp_path, role):
    (tmp_path / "disk").mkdir()
    (tmp_path / "mnt").mkdir()
    path = tmp_path / "config.toml"
    write_config(path, configs(tmp_path)[role])
    with subprocess.Popen(
        [
            "sh",
            "-c",
            'ulimit -Sn 512; exec "$@"',
            "sh",
            sys.executable,
            "-m",
            f"fs.app.{role}",
            path,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        try:
            said = list(takewhile(lambda line: "waiting for " not in line, child.stdout))
            soft, hard = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)
            assert soft == min(hard, DESCRIPTORS_MAX), "a large disk takes more than shells allow"
            os.kill(child.pid, signal.SIGTERM)
            rest = child.stdout.read()
            assert child.wait(60) == 0, [*said, rest]
            assert "SIGTERM: stopping" in rest, "it did not end before it was asked to"
            assert "Traceback" not in rest and rest.count("stop not announced") <= 1, rest
        finally:
            child.kill()
