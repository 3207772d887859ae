"""Configuration files: round trips, and refusals that name file, key and what is allowed."""

import string

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fs.meta.inline import REPLY_BYTES_MAX
from fs.runtime.config_file import format_config, parse_config, read_config, write_config
from fs.schema.config import (
    MESSAGE_BYTES_USED_MIN,
    DiskSection,
    ProcessConfig,
    ProcessSection,
    StorageSection,
)
from fs.schema.status import FsError, Status

text = st.text(st.characters(codec="utf-8"), max_size=30)


def test_defaults_come_back(tmp_path):
    path = tmp_path / "c.toml"
    write_config(path, ProcessConfig())
    assert read_config(path) == ProcessConfig()
    assert [p.name for p in tmp_path.iterdir()] == ["c.toml"]
    path.write_text("")
    assert read_config(path) == ProcessConfig()


@pytest.mark.slow
@given(
    process=st.builds(
        ProcessSection,
        listen=text,
        mgmtd_addresses=st.lists(text, max_size=3),
        node_id=st.integers(0, 2**32 - 1),
    ),
    fraction=st.floats(0, 1),
    disks=st.lists(st.tuples(text, st.lists(st.integers(0, 2**63 - 1), max_size=3)), max_size=3),
)
def test_any_config_comes_back(tmp_path_factory, process, fraction, disks):
    config = ProcessConfig(
        process=process,
        storage=StorageSection(
            low_space_fraction=fraction,
            disks=[DiskSection(path=path, target_ids=ids) for path, ids in disks],
        ),
    )
    path = tmp_path_factory.getbasetemp() / "any.toml"
    write_config(path, config)
    assert read_config(path) == config


def test_messages_that_earlier_releases_allowed_hold_small_files(caplog, tmp_path):
    path = tmp_path / "c.toml"
    config = parse_config("[rpc]\nmessage_bytes_max = 65536\n", path)
    assert config.rpc.message_bytes_max == MESSAGE_BYTES_USED_MIN
    assert config.meta.inline_bytes_max < REPLY_BYTES_MAX < MESSAGE_BYTES_USED_MIN
    assert f"{path}: rpc.message_bytes_max (65536) is less than the bytes of many" in caplog.text
    assert parse_config("", path) == ProcessConfig()


@pytest.mark.parametrize(
    ("body", "used", "words"),
    [
        (
            "[rpc]\npayload_bytes_max = 4194304\n",
            64 << 20,
            "(4194304) is less than the largest chunk",
        ),
        (
            "[rpc]\npayload_bytes_max = 67108864\n[client]\nbatch_bytes_max = 67108865\n",
            67108865,
            "(67108864) is less than client.batch_bytes_max",
        ),
    ],
)
def test_frames_that_earlier_releases_allowed_are_made_larger(caplog, tmp_path, body, used, words):
    """A process that is upgraded has to start with the file it has."""
    path = tmp_path / "c.toml"
    config = parse_config(body + "call_timeout_s = 7.0\n" * (used == 64 << 20), path)
    assert config.rpc.payload_bytes_max == used
    assert used > 64 << 20 or config.rpc.call_timeout_s == 7.0
    assert f"{path}: rpc.payload_bytes_max {words}: {used} is used" in caplog.text
    caplog.clear()
    write_config(path, config)
    assert read_config(path) == config
    assert not caplog.text


@pytest.mark.parametrize(
    ("body", "key", "words"),
    [
        ("[rpcs]\n", "rpcs", ["unknown key; is rpc meant?", "allowed: process, rpc, kv"]),
        ("[meta]\ntrash_expry_s = 3\n", "meta", ["is trash_expiry_s meant?"]),
        ("[process]\nnode = 3\n", "process.node", ["unknown key", "cluster_id, node_id, listen"]),
        ("[process]\nnode_id = 'x'\n", "process.node_id", ["whole number 0 to 4294967295", "str"]),
        ("[process]\nnode_id = -1\n", "process.node_id", ["allowed: whole number 0 to"]),
        ("[process]\nlog_level = 'loud'\n", "process.log_level", ["debug|info|warning|error"]),
        ("[process]\ncluster_id = ''\n", "process.cluster_id", ["of length 1 to 64"]),
        ("[rpc]\ncall_timeout_s = 0.0\n", "rpc.call_timeout_s", ["number 0.001 to 86400"]),
        ("[client]\nverify_reads = 1\n", "client.verify_reads", ["true or false"]),
        ("[client]\ndirty_bytes_max = 1\n", "client.dirty_bytes_max", ["at least 1048576"]),
        ("[storage]\ndisks = 3\n", "storage.disks", ["list of section with keys path"]),
        (
            "[[storage.disks]]\npath='a'\n[[storage.disks]]\ntarget_ids=[1]\n",
            "storage.disks[",
            ["path", "required"],
        ),
        ("[[storage.disks]]\npaths='a'\n", "storage.disks[", ["paths: unknown key", "target_ids"]),
        ("rpc = 7\n", "rpc", ["section with keys message_bytes_max"]),
        ("[rpc\n", "", ["not valid TOML", "line 1"]),
        # A client that asked again for longer than services remember it could
        # have its request done twice.
        ("[client]\nretry_time_s_max = 301\n", "client.retry_time_s_max", ["0.001 to 300.0"]),
        ("[meta]\nidempotency_expiry_s = 599\n", "meta.idempotency_expiry_s", ["600.0 to 86400.0"]),
        # What a whole chunk does not fit into would never let a target of large chunks sync.
        ("[rpc]\npayload_bytes_max = 1048575\n", "rpc.payload_bytes_max", ["67108864 to"]),
        ("[rpc]\npayload_bytes_max = '64M'\n", "rpc.payload_bytes_max", ["67108864 to"]),
        ("[mgmtd]\nnode_lease_s = 5.9\n", "mgmtd.node_lease_s", ["node_failed_after_s"]),
    ],
)
def test_refusals_name_file_key_and_what_is_allowed(tmp_path, body, key, words):
    path = tmp_path / "node.toml"
    path.write_text(body)
    with pytest.raises(FsError) as caught:
        read_config(path)
    detail = caught.value.detail
    assert caught.value.status is Status.BAD_CONFIG
    assert detail.startswith(f"{path}: {key}")
    assert "\n" not in detail
    for word in words:
        assert word in detail


def test_unreadable_files(tmp_path):
    for path, word in ((tmp_path / "none", "No such file"), (tmp_path, "directory")):
        with pytest.raises(FsError, match=word):
            read_config(path)
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    with pytest.raises(FsError, match="not UTF-8"):
        read_config(tmp_path / "b")
    with pytest.raises(FsError, match="cannot be written"):
        write_config(tmp_path / "none" / "c", ProcessConfig())


@given(st.text(string.printable, max_size=60))
def test_any_text_is_read_or_refused_in_one_line(tmp_path_factory, body):
    path = tmp_path_factory.getbasetemp() / "x"
    try:
        parse_config(body, path)
    except FsError as error:
        found = error
    else:
        return
    assert found.status is Status.BAD_CONFIG
    assert "\n" not in str(found)


def test_every_key_is_written():
    sections = msgspec.to_builtins(ProcessConfig())
    written = format_config(ProcessConfig())
    for section, keys in sections.items():
        assert f"[{section}]" in written
        for key in keys:
            assert f"\n{key} = " in written
