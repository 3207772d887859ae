"""Records of earlier formats are read by the present services; see `records.py`."""

import io
import json

import pytest

from fs.admin.backup_format import MAGIC, BackupDecoder
from fs.admin.fsck import Check
from fs.meta import records as meta_records
from fs.meta.check import check
from fs.mgmtd import store as mgmtd_store
from fs.runtime.simulated import simulated_runtime
from fs.schema.status import FsError
from tests.meta.harness import World

from . import records
from .test_wire import is_within

FORMATS = {
    "meta": (2, meta_records.FORMAT_VERSION),
    "mgmtd": (1, mgmtd_store.FORMAT_VERSION),
}
"""The first format that was recorded, and the present one."""

RECORDED = {
    name: json.loads((records.HERE / f"{name}.json").read_text())
    for what, (first, last) in FORMATS.items()
    for name in (f"{what}-{version}" for version in range(first, last + 1))
}


@pytest.mark.parametrize("name", [n for n in RECORDED if n.startswith("meta-")])
async def test_a_service_tells_of_recorded_names_what_was_told_then(name, autojump_clock):  # noqa: ARG001
    record = RECORDED[name]
    world = World(await records.store_of(record))
    assert is_within(record["told"], await records.told_by_meta(world))
    assert await check(world.engine) == []


@pytest.mark.parametrize("name", [n for n in RECORDED if n.startswith("meta-")])
async def test_a_service_goes_on_with_recorded_names(name, autojump_clock):  # noqa: ARG001
    world = World(await records.store_of(RECORDED[name]))
    await world.initialise()
    world._request_count = 1000  # those of the recorded calls are remembered
    root, other = world.user(0), world.user(1000, 1000, client="d" * 32)
    d = (await root.lookup(records.ROOT, b"d")).inode_id
    await root.create(d, b"later")
    await root.rename(d, b"f", d, b"renamed")
    await other.unlink(d, b"renamed")
    (held,) = [e for e in (await root.list(d)).entries if e.name == records.HELD]
    await other.close(held.inode_id, f"{1:032x}")
    await root.remove_tree(records.ROOT, b"d")
    assert await check(world.engine) == []


@pytest.mark.parametrize("name", [n for n in RECORDED if n.startswith("meta-")])
async def test_a_check_takes_nothing_recorded_for_damage(name, autojump_clock):  # noqa: ARG001
    """What cannot be a record by now, an earlier release may have written."""
    engine = await records.store_of(RECORDED[name])
    report = await Check(engine, simulated_runtime(None, 1), is_paced=False).run(is_repair=False)
    assert [finding.line() for finding in report.findings] == []


@pytest.mark.parametrize("name", [n for n in RECORDED if n.startswith("mgmtd-")])
async def test_a_manager_reads_what_was_recorded(name):
    record = RECORDED[name]
    engine = await records.store_of(record)
    assert is_within(record["told"], await records.told_by_mgmtd(engine))


def kinds_of(record):
    return {bytes.fromhex(key)[:4] for key in record["rows"]}


def test_what_is_recorded_is_nearly_everything():
    """What no call leaves behind for long is in no record here:
    its form is tested where it is made.
    """
    known = {
        value
        for name, value in vars(meta_records).items()
        if isinstance(value, bytes) and len(value) == 4 and name.isupper()
    }
    (first,) = (n for n in RECORDED if n == f"meta-{meta_records.FORMAT_VERSION}")
    rare = {meta_records.TRUNCATION, meta_records.USAGE_FENCE, meta_records.LOCK_WAITS}
    assert known - kinds_of(RECORDED[first]) == rare
    managers = kinds_of(RECORDED[f"mgmtd-{mgmtd_store.FORMAT_VERSION}"])
    assert len(managers) >= 9


def test_a_recorded_backup_is_read():
    """`backup-1.bin` is what the release that introduced the format made of the records
    of `meta-2.json`.
    """
    record = RECORDED["meta-2"]
    with (records.HERE / "backup-1.bin").open("rb") as file:
        decoder = BackupDecoder(file.read, "backup-1.bin")
        rows = [row for block in decoder.blocks() for row in block]
    assert {key.hex(): value.hex() for key, value in rows} == record["rows"]
    assert decoder.head.meta_format == 2


def test_a_backup_of_a_later_format_is_refused_in_words():
    made = bytearray((records.HERE / "backup-1.bin").read_bytes())
    made[len(MAGIC)] = 9
    with pytest.raises(FsError, match="format version 9, this release knows 1"):
        BackupDecoder(io.BytesIO(made).read, "new")
