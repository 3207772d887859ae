"""Settings of a running process: what is laid over what, whole or not at all,
and what is said of it.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fs.runtime.settings import Settings
from fs.runtime.settings_text import format_overlay, parse_change, parse_stored
from fs.schema.config import MgmtdSection, ProcessConfig, StorageSection, check_relations
from fs.schema.proto.common_pb2 import NodeRole, SettingsStatePb, StoredSettingsPb
from fs.schema.routing import Role
from fs.schema.status import FsError, Status
from fs.schema.stored_settings import LIVE

NORMAL, DIRTY, FAILED, STALE = (
    SettingsStatePb.SETTINGS_NORMAL,
    SettingsStatePb.SETTINGS_DIRTY,
    SettingsStatePb.SETTINGS_FAILED,
    SettingsStatePb.SETTINGS_STALE,
)
READS = "[storage]\nread_concurrency = {}\n"


def stored(text, version=1, role=Role.STORAGE):
    return StoredSettingsPb(role=NodeRole.ValueType(role), version=version, text=text)


def running(base=None, roles=(Role.STORAGE,)):
    settings = Settings(base or ProcessConfig(), roles)
    settings.start()
    return settings


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[storage]\n\nread_concurrency = 0\n", ["x, line 3", "read_concurrency", "1 to 1000000"]),
        ("[storage]\nread = 1\n", ["x, line 2", "storage.read", "unknown key"]),
        ("storage.read = 1\n", ["x, line 1", "unknown key"]),
        ("[storages]\n", ["storages", "unknown key"]),
        ("[kv]\nengine = 'memory'\n", ["x, line 2", "kv.engine", "its own file"]),
        ("[storage]\n[[storage.disks]]\npath = '/d'\n", ["storage.disks", "its own file"]),
        ("[mgmtd]\nnode_lease_s = 3.0\n", ["x, line 2", "all processes have to agree"]),
        ("[meta]\ngc_delay_s = 3.0\n", ["x, line 2", "storage does not use this section"]),
        ("read_concurrency = 3\n", ["x, line 1", "stands in a section"]),
        ("[storage\n", ["x", "not valid TOML", "line 1"]),
        ('[storage]\n"a\\nb" = 1\n', ["x", "unknown key"]),
        ("[storage]\nread_concurrency = " + "1" * 5000, ["x", "TOML", "digits"]),
        ("[storage]\nread_concurrency = " + "[" * 5000, ["x", "TOML", "recursion"]),
        ("# " + "x" * 40_000, ["longer than"]),
    ],
)
def test_a_text_is_refused_with_its_line_and_the_reason(text, words):
    with pytest.raises(FsError) as caught:
        parse_stored(text, Role.STORAGE, "x")
    assert caught.value.status is Status.BAD_CONFIG
    assert all(word in caught.value.detail for word in words), caught.value.detail


def test_a_change_of_a_process_is_of_live_settings_only():
    assert parse_change("[storage]\nread_concurrency = 3\n", "x")
    with pytest.raises(FsError, match="does not take it over"):
        parse_change("[storage]\nchecksum_block_bytes = 4096\n", "x")
    with pytest.raises(FsError, match="unknown key"):
        parse_change("[storage]\nchecksum = 4096\n", "x")


def test_stored_settings_win_over_the_file_and_own_changes_over_both():
    base = ProcessConfig(storage=StorageSection(read_concurrency=2, write_concurrency=3))
    settings, seen = running(base), []
    settings.watch(lambda new: seen.append(new.storage.read_concurrency))
    settings.take_stored(stored(READS.format(5)))
    assert settings.config.storage.write_concurrency == 3
    settings.change(READS.format(7), is_live_only=True)
    settings.take_stored(stored(READS.format(6), 2))
    assert settings.state == DIRTY
    settings.change("", is_live_only=False, is_reset=True)
    settings.take_stored(stored("", 3))
    assert seen == [5, 7, 6, 2]
    assert settings.config == base
    assert settings.state == NORMAL


def test_of_two_roles_the_later_one_wins():
    settings = running(roles=(Role.META, Role.MGMTD))
    for role, level in ((Role.META, "error"), (Role.MGMTD, "debug")):
        settings.take_stored(stored(f"[process]\nlog_level = '{level}'\n", role=role))
    assert settings.config.process.log_level == "error"
    settings.take_stored(stored(READS.format(5)))  # of a role that it does not have
    assert settings.config.storage.read_concurrency == ProcessConfig().storage.read_concurrency


def test_what_is_not_live_waits_for_a_restart():
    text = READS.format(5) + "checksum_block_bytes = 32768\n"
    settings = running()
    settings.take_stored(stored(text))
    assert settings.state == STALE
    assert list(settings.report().waiting_keys) == ["storage.checksum_block_bytes"]
    assert list(settings.report().last_change.live_keys) == ["storage.read_concurrency"]
    assert settings.config.storage.checksum_block_bytes == StorageSection().checksum_block_bytes
    anew = Settings(ProcessConfig(), [Role.STORAGE])
    anew.remember(*settings.to_remember())
    assert anew.start().storage.checksum_block_bytes == 32768
    assert anew.state == NORMAL
    assert anew.version(Role.STORAGE) == 1


def test_a_text_that_this_process_cannot_have_changes_nothing():
    """Its own file says more than the managers know: a manager that is slower to judge."""
    settings = running(ProcessConfig(mgmtd=MgmtdSection(node_failed_after_s=9.5)))
    settings.take_stored(stored(READS.format(5)))
    before, told = settings.config, []
    settings.watch(told.append)
    text = READS.format(6) + "link_failed_after_s = 9.0\n"
    assert "node_failed_after_s" in settings.try_stored(Role.STORAGE, text).problem
    settings.take_stored(stored(text, 2))
    report = settings.report()
    assert (settings.config, told, settings.state) == (before, [], FAILED)
    assert "link_failed_after_s" in report.problem
    assert report.last_change.problem
    assert [(v.version, v.refused_version) for v in report.versions] == [(1, 2)]
    settings.take_stored(stored(READS.format(8), 3))
    assert (settings.state, settings.config.storage.read_concurrency) == (NORMAL, 8)
    # The number again, of a store that was restored.
    settings.take_stored(stored(READS.format(9), 3))
    assert settings.config.storage.read_concurrency == 9


def test_a_process_that_cannot_begin_with_a_text_begins_without_it():
    base = ProcessConfig(mgmtd=MgmtdSection(node_failed_after_s=9.5))
    settings = Settings(base, [Role.STORAGE])
    text = "[storage]\nlink_failed_after_s = 9.0\n"
    # And a change from another release.
    settings.remember([stored(text, 2)], "[storage]\nread_concurrency = 0\n")
    assert settings.start() == base
    assert (settings.state, settings.version(Role.STORAGE)) == (FAILED, 2)
    settings.take_stored(stored("", 3))
    assert settings.state == NORMAL


def test_what_was_refused_is_taken_over_when_nothing_speaks_against_it_any_more():
    base = ProcessConfig(mgmtd=MgmtdSection(node_failed_after_s=9.5))
    settings = running(base)
    settings.take_stored(stored(READS.format(5) + "link_failed_after_s = 9.0\n"))
    assert settings.state == FAILED
    settings.change("[storage]\nlink_failed_after_s = 30.0\n", is_live_only=False)
    anew = Settings(base, [Role.STORAGE])
    anew.remember(*settings.to_remember())
    for one in (settings, anew):
        assert (one.state, one.report().versions[0].refused_version) == (DIRTY, 0)
        assert one.config.storage.read_concurrency == 5


def test_a_trial_changes_nothing():
    settings = running()
    before = settings.report()
    found = settings.try_stored(Role.STORAGE, READS.format(5) + "checksum_block_bytes = 32768\n")
    assert list(found.live_keys) == ["storage.read_concurrency"]
    assert list(found.waiting_keys) == ["storage.checksum_block_bytes"]
    assert settings.report() == before
    assert settings.config == ProcessConfig()


def test_a_refused_change_is_on_record_and_changes_nothing():
    settings = running()
    with pytest.raises(FsError, match="judges first"):
        settings.change("[storage]\nlink_failed_after_s = 1.0\n", is_live_only=True, wall_ns=7)
    assert settings.config == ProcessConfig()
    assert (settings.state, settings.report().last_change.wall_ns) == (NORMAL, 7)
    assert "judges first" in settings.report().last_change.problem


def test_kept_changes_outlive_the_process_and_others_do_not():
    settings = running()
    settings.change(READS.format(5), is_live_only=True)
    settings.change("[storage]\nwrite_concurrency = 5\n", is_live_only=False)
    anew = Settings(ProcessConfig(), [Role.STORAGE])
    anew.remember(*settings.to_remember())
    assert (anew.config.storage.read_concurrency, anew.config.storage.write_concurrency) == (4, 5)
    assert anew.state == DIRTY


LINES = {
    "storage.read_concurrency": st.integers(0, 9),
    "storage.resync_concurrency": st.integers(1, 9),
    "storage.link_failed_after_s": st.floats(5.0, 12.0),
    "storage.checksum_block_bytes": st.sampled_from([4096, 5000, 16384]),
    "process.log_level": st.sampled_from(["info", "debug", "loud"]),
}


@st.composite
def overlays(draw):
    values: dict = {}
    for name in draw(st.sets(st.sampled_from(sorted(LINES)))):
        section, _, key = name.partition(".")
        values.setdefault(section, {})[key] = draw(LINES[name])
    return values


@settings(max_examples=10)
@given(st.lists(st.tuples(st.booleans(), overlays()), max_size=5))
def test_whatever_is_asked_for_is_in_force_whole_or_not_at_all(steps):
    found = running()
    for number, (is_stored, values) in enumerate(steps, 1):
        before, text = found.config, format_overlay(values)
        is_fine = True
        if is_stored:
            found.take_stored(stored(text, number))
            is_fine = found.state != FAILED
        else:
            try:
                found.change(text, is_live_only=True)
            except FsError:
                is_fine = False
        check_relations(found.config)
        if not is_fine:
            assert found.config == before
        waiting = found.report().waiting_keys
        assert not LIVE & set(waiting)
        if not is_fine or is_stored:
            continue
        for section, keys in values.items():
            for key, value in keys.items():
                assert getattr(getattr(found.config, section), key) == value
