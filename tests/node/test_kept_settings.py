"""What a process remembers of its settings from one start to the next."""

import pytest
import trio

from fs.node.kept_settings import FILE_NAME, KeptSettings, read_remembered
from fs.rpc.api import Identity
from fs.rpc.core_service import CoreService
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime.settings import Settings
from fs.runtime.simulated import simulated_runtime
from fs.schema.config import ProcessConfig
from fs.schema.proto import core_pb2 as core
from fs.schema.proto.common_pb2 import NodeRole, SettingsStatePb, StoredSettingsPb
from fs.schema.routing import Role
from fs.schema.status import FsError, Status

READS = "[storage]\nread_concurrency = 9\n"


def kept_in(directory):
    settings = Settings(ProcessConfig(), [Role.STORAGE])
    remembered = read_remembered(str(directory))
    settings.remember(remembered.settings(), remembered.changes)
    settings.start()
    runtime = simulated_runtime(MemoryNetwork(seed=1).endpoint("x"), 7)
    return KeptSettings(settings, runtime, directory=str(directory or ""))


def core_of(kept):
    identity = Identity("c", 1, "i")
    clock = simulated_runtime(MemoryNetwork(seed=1).endpoint("x"), 7).clock
    return CoreService(identity, clock, [], changeable=kept)


async def test_what_was_heard_and_changed_is_there_at_the_next_start(tmp_path, autojump_clock):  # noqa: ARG001
    kept = kept_in(tmp_path)
    async with trio.open_nursery() as nursery:
        await nursery.start(kept.run)
        kept.hear([StoredSettingsPb(role=NodeRole.STORAGE, version=4, text=READS)])
        while not (tmp_path / FILE_NAME).exists():  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    request = core.ChangeSettingsReq(text="[storage]\nwrite_concurrency = 3\n")
    reply = await core_of(kept).change_settings(None, request)
    assert list(reply.change.live_keys) == ["storage.write_concurrency"]
    assert reply.settings.state == SettingsStatePb.SETTINGS_DIRTY
    anew = kept_in(tmp_path).settings
    assert anew.version(Role.STORAGE) == 4
    section = anew.config.storage
    assert (section.read_concurrency, section.write_concurrency) == (9, 3)


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"format_version": 2}', b'{"stored": 1}', b'{"changes": "\xff"}']
)
async def test_a_file_that_cannot_be_read_is_left_out(tmp_path, content):
    (tmp_path / FILE_NAME).write_bytes(content)
    assert kept_in(tmp_path).settings.config == ProcessConfig()


async def test_without_a_directory_only_changes_for_the_life_of_the_process_are_taken():
    kept = kept_in("")
    with pytest.raises(FsError, match="live-only") as caught:
        await kept.change(READS, is_live_only=False, is_reset=False)
    assert caught.value.status is Status.BAD_CONFIG
    await kept.change(READS, is_live_only=True, is_reset=False)
    assert kept.settings.config.storage.read_concurrency == 9


async def test_a_change_that_cannot_be_remembered_is_told(tmp_path):
    kept = kept_in(tmp_path / "missing")
    with pytest.raises(FsError, match="not remembered") as caught:
        await kept.change(READS, is_live_only=False, is_reset=False)
    assert caught.value.status is Status.IO_ERROR
    assert kept.settings.config.storage.read_concurrency == 9


async def test_core_tries_without_changing():
    core_service = core_of(kept_in(""))
    request = core.TrySettingsReq(role=NodeRole.STORAGE, text=READS)
    reply = await core_service.try_settings(None, request)
    assert list(reply.change.live_keys) == ["storage.read_concurrency"]
    with pytest.raises(FsError, match="role"):
        await core_service.try_settings(None, core.TrySettingsReq(role=NodeRole.META))
    told = await core_service.get_config(None, core.GetConfigReq())
    assert told.settings.state == SettingsStatePb.SETTINGS_NORMAL
