"""The store that a process is configured with keeps its promises without being asked."""

import errno

import pytest
import trio

from fs.app.process.compose import Process, new_identity
from fs.app.stores.store import open_local_store, open_store
from fs.kv.memory import MemoryEngine
from fs.kv.remote import RemoteEngine
from fs.rpc.channel import open_channels
from fs.rpc.transport import SocketNetwork
from fs.runtime.real import real_runtime
from fs.schema.config import (
    KvSection,
    ProcessConfig,
    RpcSection,
    check_message_size,
    check_relations,
)
from fs.schema.layout import MIB
from fs.schema.status import FsError, Status


@pytest.fixture
async def process(tmp_path):
    config = ProcessConfig(kv=KvSection(path=str(tmp_path / "a" / "kv")))
    runtime = real_runtime(SocketNetwork())
    identity = new_identity(config, runtime)
    async with open_channels(runtime, identity, config.rpc) as channels:
        yield Process(config, runtime, identity, channels, trio.Event())


async def test_commits_that_nobody_waits_for_become_durable(process):
    """The background flush runs in every process that holds a store."""
    async with open_local_store(process) as engine:
        tr = engine.transaction()
        tr.set(b"a", b"1")
        await tr.commit()
        with trio.fail_after(60):
            while engine._synced_version < engine.version:  # noqa: ASYNC110 - it tells nobody
                await trio.sleep(0.01)


async def fail(process):
    async with open_local_store(process) as engine:
        engine._poison("a flush that failed")
        engine._version += 1
        engine._has_unsynced.set()
        await trio.sleep_forever()


async def test_a_store_that_fails_ends_the_process(process):
    with pytest.raises(FsError) as caught, trio.fail_after(60):
        await fail(process)
    assert caught.value.status is Status.IO_ERROR


async def test_an_error_of_the_process_is_not_said_of_its_store(process):
    """An address in use was reported as an error of the store's directory."""
    with pytest.raises(OSError, match="in use"):
        async with open_local_store(process):
            raise OSError(errno.EADDRINUSE, "in use")


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        (KvSection(engine="memory"), MemoryEngine),
        (KvSection(engine="remote", address="unix:/nowhere"), RemoteEngine),
    ],
)
async def test_the_configured_engine_is_opened(process, section, kind):
    process.config = ProcessConfig(kv=section)
    async with open_store(process) as engine:
        assert isinstance(engine, kind)


async def test_a_store_needs_a_path(process):
    process.config = ProcessConfig()
    with pytest.raises(FsError) as caught:
        async with open_store(process):
            pass
    assert caught.value.status is Status.BAD_CONFIG


def test_a_remote_store_needs_an_address_and_large_messages():
    for config in (
        ProcessConfig(kv=KvSection(engine="remote")),
        ProcessConfig(
            kv=KvSection(engine="remote", address="unix:/x"), rpc=RpcSection(message_bytes_max=MIB)
        ),
    ):
        with pytest.raises(FsError) as caught:
            check_relations(config)
        assert caught.value.status is Status.BAD_CONFIG
    with pytest.raises(FsError):
        check_message_size(ProcessConfig(rpc=RpcSection(message_bytes_max=MIB)))
