"""The check of a disk finds each kind of damage, names its place,
and repairs what the disk itself can tell.
"""

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from fs.app.upkeep.fsck_disk import fsck_disk
from fs.chunkengine import format as f
from fs.chunkengine.factory import memory_engine, open_engine
from fs.chunkengine.findings import Kind
from fs.chunkengine.fsck import check_disk
from fs.chunkengine.fsck_disk import check_path, repair_path
from fs.chunkengine.simulated_disk import SimulatedDataFiles, SimulatedDisk, SimulatedMetaStore
from fs.runtime.rocksdb_log import first_bad_byte
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError, Status

from .corrupt import run_lot

ROOT = Path(__file__).parents[2]
SECTION = StorageSection(checksum_block_bytes=4096)
CHUNKS = [(TargetId(t), ChunkId(InodeId(7), n)) for t in (1, 2) for n in (0, 1)]
A, B = (f.chunk_key(*chunk) for chunk in CHUNKS[:2])


def fill(engine) -> None:
    for n, chunk in enumerate(CHUNKS):
        data = random.Random(n).randbytes(10_000)
        engine.prepare_write(*chunk, version=1, chunk_size_bytes=1 << 16, offset=0, data=data)
        engine.commit(*chunk, version=1, chain_version=1)
    engine.prepare_write(
        *CHUNKS[0], version=2, chunk_size_bytes=1 << 16, offset=0, data=b"p", tag=b"whose"
    )
    engine.prepare_remove(*CHUNKS[3], version=2, tag=b"another's")


class Bench:
    """A closed simulated disk whose records can be changed behind the engine's back."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        engine = memory_engine(self.disk, cluster_id="c", node_id=1, section=SECTION)
        fill(engine)
        engine.close()
        self.meta, self.files = SimulatedMetaStore(self.disk), SimulatedDataFiles(self.disk)

    def record(self, key: f.ChunkKey) -> f.ChunkRecord:
        return f.ChunkRecord.unpack(self.meta.get(f.CHUNK_PREFIX + key))

    def put(self, key: bytes, value: bytes | None) -> None:
        self.meta.write_synced([(key, value)])

    def put_record(self, key: f.ChunkKey, **changes: object) -> None:
        self.put(f.CHUNK_PREFIX + key, replace(self.record(key), **changes).pack())

    def findings(self, **options: bool):
        return list(check_disk(self.meta, self.files, **options))

    def kinds(self) -> list[Kind]:
        return sorted({finding.kind for finding in self.findings()})

    def repair(self) -> None:
        for finding in self.findings():
            self.meta.write(finding.fix)


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    assert made.findings() == []
    return made


def group_of(bench: Bench, key: f.ChunkKey) -> bytes:
    position = bench.record(key).position
    classes = f.size_class_of_position(position), f.group_of_position(position)
    return f.group_key(f.group_id(*classes))


def flip_bitmap(bench: Bench, bit: int) -> None:
    stored = group_of(bench, A)
    bits = int.from_bytes(bench.meta.get(stored), "little") ^ 1 << bit
    bench.put(stored, bits.to_bytes(32, "little"))


def position_of(bench: Bench, key: f.ChunkKey) -> bytes:
    return f.position_key(bench.record(key).position)


REPAIRABLE = {
    "a block too many in the bitmap": (lambda b: flip_bitmap(b, 99), [Kind.LOST_BLOCK]),
    "a block missing in the bitmap": (lambda b: flip_bitmap(b, 1), [Kind.UNMARKED_BLOCK]),
    "a short bitmap": (lambda b: b.put(group_of(b, A), b"\1"), [Kind.BAD_RECORD]),
    "a lost bitmap": (lambda b: b.put(group_of(b, A), None), [Kind.UNMARKED_BLOCK]),
    "no owner": (lambda b: b.put(position_of(b, B), None), [Kind.WRONG_OWNER]),
    "a wrong owner": (lambda b: b.put(position_of(b, B), A), [Kind.WRONG_OWNER]),
    "an owner of nothing": (
        lambda b: b.put(f.position_key(f.make_position(0, 0, 77)), A),
        [Kind.STRAY_OWNER],
    ),
    "an owner record that is none": (
        lambda b: b.put(f.POSITION_PREFIX + b"x", A),
        [Kind.BAD_RECORD],
    ),
    "wrong used bytes": (lambda b: b.put(f.used_key(1), f.pack_u64(5)), [Kind.WRONG_USED]),
    "no used bytes": (lambda b: b.put(f.used_key(1), None), [Kind.WRONG_USED]),
    "short used bytes": (lambda b: b.put(f.used_key(1), b"5"), [Kind.BAD_RECORD]),
    "no target record": (lambda b: b.put(f.target_key(2), None), [Kind.NO_TARGET]),
    "a lost chunk": (
        lambda b: b.put(f.CHUNK_PREFIX + B, None),
        [Kind.LOST_BLOCK, Kind.STRAY_OWNER, Kind.WRONG_USED],
    ),
    "two chunks in one block": (
        lambda b: b.put_record(B, position=b.record(A).position),
        [Kind.DOUBLE_USE, Kind.LOST_BLOCK, Kind.STRAY_OWNER, Kind.WRONG_USED],
    ),
}

FINAL = {
    "no format": (lambda b: b.put(f.FORMAT_KEY, None), [Kind.BAD_FORMAT]),
    "a format that is none": (lambda b: b.put(f.FORMAT_KEY, b"{"), [Kind.BAD_FORMAT]),
    "a short epoch": (lambda b: b.put(f.EPOCH_KEY, b"1"), [Kind.BAD_FORMAT]),
    "a key of no kind": (lambda b: b.put(b"\x7f", b""), [Kind.UNKNOWN_RECORD]),
    "a key behind a single one": (lambda b: b.put(b"\x05\x01", b""), [Kind.UNKNOWN_RECORD]),
    "a chunk key of the wrong length": (lambda b: b.put(b"\x01xyz", b""), [Kind.BAD_RECORD]),
    "an undo key of the wrong length": (lambda b: b.put(b"\x06xyz", b""), [Kind.BAD_RECORD]),
    "a note without a key": (lambda b: b.put(b"\x09" + bytes(8), b""), [Kind.BAD_RECORD]),
    "a target of no state": (lambda b: b.put(f.target_key(1), b"?"), [Kind.BAD_RECORD]),
}

BAD_FIELDS = {
    "version": 0, "length": 9_999, "digest": 1, "checksums": b"", "chunk_size_bytes": 100,
    "position": f.NO_POSITION,
}  # fmt: skip


@pytest.mark.parametrize("name", REPAIRABLE)
def test_what_the_rest_of_the_disk_tells_is_repaired(bench, name) -> None:
    spoil, kinds = REPAIRABLE[name]
    spoil(bench)
    assert bench.kinds() == kinds
    assert {x.kind for x in bench.findings(has_data=False)} == set(kinds)
    bench.repair()
    assert [x.line() for x in bench.findings() if not x.is_notice] == []


@pytest.mark.parametrize("name", FINAL)
def test_what_cannot_be_told_is_reported(bench, name) -> None:
    spoil, kinds = FINAL[name]
    spoil(bench)
    assert bench.kinds() == kinds
    bench.repair()
    assert bench.kinds() == kinds


@pytest.mark.parametrize("field", BAD_FIELDS)
def test_a_record_that_contradicts_itself_is_reported(bench, field) -> None:
    bench.put_record(B, **{field: BAD_FIELDS[field]})
    found = [x for x in bench.findings() if x.kind is Kind.BAD_RECORD]
    assert [(x.target_id, x.chunk_id, list(x.fix)) for x in found] == [(1, CHUNKS[1][1], [])]
    bench.put(f.CHUNK_PREFIX + B, b"short")
    assert Kind.BAD_RECORD in bench.kinds()


def test_a_rotten_block_is_named_to_the_byte_and_marked_as_damaged(bench) -> None:
    file_id, start = f.place_of(bench.record(B).position)
    bench.disk.flip_bit(file_id, start + 9_000)
    (found,) = bench.findings()
    assert (found.kind, found.chunk, found.offset) == (Kind.BAD_DATA, B, start + 8192)
    assert found.file == f.file_name(file_id)
    assert bench.findings(has_data=False) == []
    bench.repair()
    assert bench.kinds() == [Kind.DAMAGED]
    engine = memory_engine(bench.disk, cluster_id="c", node_id=1, section=SECTION)
    assert engine.get(*CHUNKS[1]).is_damaged
    with pytest.raises(FsError, match="CHECKSUM_MISMATCH"):
        engine.read_whole(*CHUNKS[1])
    assert engine.repair(*CHUNKS[1], version=1, data=random.Random(1).randbytes(10_000))
    engine.close()
    assert bench.findings() == []


def test_the_loser_of_a_block_keeps_its_version_without_the_block(bench) -> None:
    bench.put_record(B, position=bench.record(A).position)
    bench.repair()
    engine = memory_engine(bench.disk, cluster_id="c", node_id=1, section=SECTION)
    assert engine.get(*CHUNKS[1]).is_damaged
    assert engine.read_whole(*CHUNKS[0]) == random.Random(0).randbytes(10_000)
    engine.prepare_remove(*CHUNKS[1], version=2)
    engine.commit(*CHUNKS[1], version=2, chain_version=1)
    engine.close()
    assert bench.findings() == []


def test_a_short_and_an_unreadable_file_are_told_apart(bench) -> None:
    file_id, start = f.place_of(bench.record(B).position)

    def fail(step: str) -> None:
        raise FsError(Status.IO_ERROR, step)

    bench.disk.on_step = fail
    assert bench.kinds() == [Kind.TORN, Kind.UNREADABLE]
    bench.disk.on_step = None
    bench.disk.files[file_id].live.size = start + 5_000
    found = [x for x in bench.findings() if x.kind is Kind.SHORT_FILE]
    assert (B, start + 5_000) in {(x.chunk, x.offset) for x in found}


@pytest.fixture
def path(tmp_path):
    engine = open_engine(tmp_path / "disk", cluster_id="c", node_id=1, section=SECTION)
    fill(engine)
    engine.close()
    return tmp_path / "disk"


def run(path, capsys, **options: bool) -> tuple[int, dict]:
    wanted = {"is_repair": False, "as_json": True, "has_data": True} | options
    code = fsck_disk(path, **wanted)
    text = capsys.readouterr().out
    return code, json.loads(text) if text else {}


def test_the_command_reports_repairs_and_tells_by_its_exit_code(path, capsys) -> None:
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    code, summary = run(path, capsys)
    assert (code, summary["chunk_count"], summary["findings"]) == (0, 4, [])
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before
    with (path / "64k/00").open("r+b") as file:
        file.write(b"rotten")
    code, summary = run(path, capsys)
    (found,) = summary["findings"]
    assert (code, found["kind"], found["file"], found["can_repair"]) == (
        1,
        "bad-data",
        "64k/00",
        True,
    )
    assert run(path, capsys, has_data=False)[0] == 0
    code, summary = run(path, capsys, is_repair=True)
    assert (code, summary["repaired_count"], summary["left_count"]) == (0, 1, 0)
    code, summary = run(path, capsys)
    assert (code, summary["notice_count"]) == (0, 1)
    assert fsck_disk(path, is_repair=False, as_json=False, has_data=True) == 0
    assert "damaged: target 1" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_disk_in_use_is_left_alone(path, capsys) -> None:
    program = (
        "import sys; from fs.chunkengine.meta_rocksdb import RocksMetaStore as R; from pathlib "
        "import Path;"
        "s = R(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read(); s.close()"
    )
    command = [sys.executable, "-c", program, str(path / "meta")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as child:
        assert child.stdout.readline() == b"open\n"
        assert fsck_disk(path, is_repair=True, as_json=False, has_data=True) == 2
        assert "ALREADY_RUNNING" in capsys.readouterr().err
        child.stdin.close()
    assert fsck_disk(path, is_repair=False, as_json=False, has_data=True) == 0


@pytest.mark.thorough
def test_no_engine_opens_a_disk_that_is_being_checked(path) -> None:
    program = (
        "import sys; from fs.chunkengine.meta_rocksdb import RocksMetaStore as R; from pathlib "
        "import Path;"
        "R(Path(sys.argv[1]))"
    )
    with (path / "64k/00").open("r+b") as file:
        file.write(b"rotten")
    findings = check_path(path)
    next(findings)
    command = [sys.executable, "-c", program, str(path / "meta")]
    tried = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    findings.close()
    assert "ALREADY_RUNNING" in tried.stderr


def test_what_is_no_disk_is_refused(tmp_path, capsys) -> None:
    assert fsck_disk(tmp_path, is_repair=False, as_json=False, has_data=True) == 2
    assert "FOREIGN_DISK" in capsys.readouterr().err


def test_a_foreign_file_and_a_lost_data_file_are_found(path) -> None:
    (path / "64k/ZZ").write_bytes(b"?")
    assert [x.line() for x in check_path(path)] == ["foreign-file: 64k/ZZ byte 0: not a data file"]
    (path / "64k/ZZ").unlink()
    (path / "64k/00").unlink()
    assert {x.kind for x in check_path(path)} == {Kind.SHORT_FILE, Kind.TORN}
    assert not (path / "64k/00").exists()


def test_a_repair_needs_no_engine(path) -> None:
    shutil.rmtree(path / "64k")
    assert repair_path(path, list(check_path(path))) == 4
    assert {x.kind for x in check_path(path)} == {Kind.DAMAGED, Kind.TORN}


def test_every_byte_of_a_list_of_files_counts(path) -> None:
    (manifest,) = (path / "meta").glob("MANIFEST-*")
    data = manifest.read_bytes()
    assert first_bad_byte(data) is None
    for at in range(len(data)):
        assert first_bad_byte(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is not None
    assert first_bad_byte(data[:-1]) is not None
    assert first_bad_byte(data + b"\0") is not None


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_bytes_changed_at_random_are_found(seed, tmp_path) -> None:
    """`python -m tests.chunkengine.corrupt` is the long form."""
    outcome = run_lot(seed, 12, tmp_path)
    assert outcome["found"] == 12, outcome
    assert outcome["MISSED"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_without_checksums_random_changes_are_missed(seed, tmp_path, monkeypatch) -> None:
    """The control: a check that trusts the data misses some."""
    monkeypatch.setattr("fs.chunkengine.fsck_data.DataCheck.verify", lambda *_: None)
    outcome: Counter[str] = run_lot(seed, 12, tmp_path)
    assert outcome["data MISSED"] > 0
