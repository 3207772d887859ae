"""What every process does around its own work: the cluster's key read again, settings passed on."""

import random
from types import SimpleNamespace

import pytest
import trio

from fs.app.process.compose import Process, log_end, read_keys_again
from fs.app.process.kept_settings import begin_by_asking, begin_from_store
from fs.app.process.roots import kept_settings
from fs.kv.memory import MemoryEngine
from fs.kv.transact import transact
from fs.mgmtd.settings_book import SettingsBook, settings_key, with_settings
from fs.rpc.credential_files import read_keys, write_new_key
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime.secret_file import write_secret_file
from fs.runtime.simulated import simulated_runtime
from fs.schema.config import AuthSection, ProcessConfig, ProcessSection
from fs.schema.routing import Role
from fs.schema.status import FsError, Status
from fs.schema.stored_settings import ROLES


class Taker:
    """Stands where keys are taken over."""

    def __init__(self):
        self.keys = None

    def take(self, keys):
        self.keys = [key.key_id for key in keys]


@pytest.fixture
def takers():
    guard, channels = Taker(), Taker()
    return (
        guard,
        channels,
        SimpleNamespace(replace_keys=guard.take),
        SimpleNamespace(replace_secrets=channels.take),
    )


def test_keys_are_taken_over_by_both_sides(tmp_path, takers, caplog):
    caplog.set_level("INFO")
    guard, channels, *ports = takers
    write_new_key(tmp_path / "key", random.Random(1))
    (key,) = read_keys(tmp_path / "key")
    read_keys_again(AuthSection(key_file=str(tmp_path / "key")), *ports)
    assert guard.keys == channels.keys == [key.key_id]
    assert key.key_id[1:].hex() in caplog.text and key.value.hex() not in caplog.text


@pytest.mark.parametrize("text", ["", "ab\n", "00" * 32 + "\n" + "x\n"])
def test_a_mistake_changes_nothing(tmp_path, takers, caplog, text):
    guard, channels, *ports = takers
    write_secret_file(tmp_path / "key", text)
    read_keys_again(AuthSection(key_file=str(tmp_path / "key")), *ports)
    read_keys_again(AuthSection(key_file=str(tmp_path / "none")), *ports)
    read_keys_again(AuthSection(token_file=str(tmp_path / "none")), *ports)
    assert guard.keys is channels.keys is None
    assert caplog.text.count("the keys stay as they are") == 2


def test_who_begins_to_follow_late_misses_nothing():
    """A mount's session brings settings before the vfs is made by those of the start."""
    runtime = simulated_runtime(MemoryNetwork(seed=1).endpoint("x"), 7)
    kept = kept_settings("mountd", ProcessConfig(), runtime)
    process = Process(kept.settings.start(), runtime, None, None, None, kept=kept)
    seen = []
    process.follow(lambda new: seen.append(new.client.batch_count_max))
    kept.settings.change("[client]\nbatch_count_max = 7\n", is_live_only=True)
    assert seen == [7]
    process.follow(lambda new: seen.append(new.client.batch_count_max))
    assert seen == [7, 7]
    nobody = kept_settings("kv", ProcessConfig(), runtime)
    assert nobody.settings.roles == ()


async def test_a_process_begins_with_the_newest_settings_that_it_could_take_over(
    tmp_path,
    monkeypatch,
    autojump_clock,  # noqa: ARG001
):
    """Of version 2 no process can make anything, which only processes know;
    nobody answers the third time.
    """
    runtime = simulated_runtime(MemoryNetwork(seed=1).endpoint("x"), 7)
    monkeypatch.setattr("fs.app.process.kept_settings.ask_for_settings", nobody_answers)
    section = ProcessSection(directory=str(tmp_path), mgmtd_addresses=["unix:x"])
    config = ProcessConfig(process=section)
    engine, book = MemoryEngine(runtime.clock), SettingsBook()
    found = []
    for text in ("[meta]\ngc_batch_count = 7\n", "[meta]\nchunk_size_bytes = 500000\n", None):
        kept = kept_settings("meta", config, runtime)
        process = Process(config, runtime, None, None, None, kept=kept)
        if text is None:
            await begin_by_asking(process)
        else:
            after = with_settings(book, ROLES["meta"], text, note="", based_on_version=0, now_ns=1)
            await transact(engine, writer(book.records(after)), runtime=runtime)
            book = after
            await begin_from_store(process, engine)
        with trio.move_on_after(5) as scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(kept.run)
                while not (tmp_path / "settings.json").exists():  # noqa: ASYNC110 - virtual time
                    await trio.sleep(0.1)
                nursery.cancel_scope.cancel()
        assert not scope.cancelled_caught
        found.append((process.config.meta.gc_batch_count, kept.settings.version(Role.META)))
    assert found == [(7, 1), (7, 2), (7, 1)]


async def test_a_process_keeps_what_it_has_while_the_newest_settings_are_lost(
    tmp_path,
    autojump_clock,  # noqa: ARG001
):
    """It began with those before, which somebody had done away with."""
    runtime = simulated_runtime(MemoryNetwork(seed=1).endpoint("x"), 7)
    config = ProcessConfig(process=ProcessSection(directory=str(tmp_path)))
    engine, book = MemoryEngine(runtime.clock), SettingsBook()
    found = []
    for text in ("[meta]\ngc_batch_count = 7\n", "[meta]\ngc_batch_count = 8\n", None):
        records = [(settings_key(ROLES["meta"], 2), b"\xff")]
        if text is not None:
            after = with_settings(book, ROLES["meta"], text, note="", based_on_version=0, now_ns=1)
            records, book = book.records(after), after
        await transact(engine, writer(records), runtime=runtime)
        kept = kept_settings("meta", config, runtime)
        process = Process(config, runtime, None, None, None, kept=kept)
        await begin_from_store(process, engine)
        async with trio.open_nursery() as nursery:
            await nursery.start(kept.run)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        found.append((process.config.meta.gc_batch_count, kept.settings.version(Role.META)))
    assert found == [(7, 1), (8, 2), (8, 2)]


async def nobody_answers(_link, _settings):
    return None


def writer(records):
    async def body(tr):
        for key, value in records:
            tr.set(key, value)

    return body


@pytest.mark.parametrize(
    ("errors", "code", "said"),
    [
        ([FsError(Status.NOT_FLUSHED, "of inode 7")], 1, ["NOT_FLUSHED"]),
        ([MemoryError("no room")], 70, ["MemoryError: no room"]),
        (
            [MemoryError("no room"), FsError(Status.NOT_FLUSHED, "of inode 7")],
            1,
            ["MemoryError: no room", "NOT_FLUSHED"],
        ),
    ],
)
def test_what_could_not_be_flushed_hides_no_bug(caplog, errors, code, said):
    """What people are shown, the last line, is not all that the log has."""
    assert log_end(ExceptionGroup("of a nursery", errors)) == code
    found = caplog.text
    assert [found.find(text) >= 0 for text in said] == [True] * len(said), found
    assert [*sorted(said, key=found.rfind)] == said
    assert "NOT_FLUSHED" in said or "NOT_FLUSHED" not in found


def test_one_error_alone_ends_a_process_too(caplog):
    assert log_end(FsError(Status.IO_ERROR, "x")) == 1
    assert "IO_ERROR" in caplog.text
