"""The example programs run, and notice when they would be wrong."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.timeout(600)  # processes start slowly on a busy machine
EXAMPLES = Path(__file__).resolve().parent.parent / "deploy" / "examples"


@pytest.fixture
def sort(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import sort  # noqa: PLC0415 - an example, not a package

    yield sort
    if sort._client is not None:
        sort._client.close()
        sort._client = None


@pytest.mark.slow
def test_records_are_sorted_by_several_processes(tmp_path):
    place, beside = tmp_path / "one", tmp_path / "two"
    command = [
        sys.executable,
        str(EXAMPLES / "sort.py"),
        "--dir",
        str(place),
        "--beside",
        str(beside),
        "--records",
        "25001",
        "--processes",
        "2",
        "--chunk-mib",
        "1",
        "--json",
        "--keep",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert set(results) == {str(place), str(beside)}
    assert all(taken["sort"] > 0 for taken in results.values())

    def whole(folder):
        return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))

    given, made = whole(place / "input"), whole(place / "output")
    records = [given[at : at + 100] for at in range(0, len(given), 100)]
    assert len(records) == 25001
    assert made == b"".join(sorted(records, key=lambda record: record[:10]))
    assert made == whole(beside / "output")
    assert not (place / "runs").exists()


def test_keys_that_agree_in_eight_bytes_are_ordered_by_the_rest(sort):
    source = np.random.Generator(np.random.Philox(key=3))
    records = source.integers(0, 3, (500, 100), dtype=np.uint8)
    records[:, :6] = 0
    order = sort.order_of(records)
    rows = [row[:10].tobytes() for row in records[order]]
    assert rows == sorted(rows)


def test_the_checksum_sees_every_byte_and_no_order(sort):
    source = np.random.Generator(np.random.Philox(key=4))
    records = source.integers(0, 256, (300, 100), dtype=np.uint8)
    total = sort.checksum(records)
    assert sort.checksum(records[::-1]) == total
    for at in (0, 9, 10, 50, 99):
        changed = records.copy()
        changed[7, at] ^= 1
        assert sort.checksum(changed) != total
    exchanged = records.copy()
    exchanged[3, :4], exchanged[3, 4:8] = records[3, 4:8], records[3, :4]
    assert sort.checksum(exchanged) != total
    repeated = records.copy()
    repeated[0] = repeated[1]
    assert sort.checksum(repeated) != total


@pytest.mark.thorough
def test_output_that_is_wrong_is_found(sort, tmp_path):
    sort.begin_worker(str(tmp_path))

    class Here:
        map = staticmethod(map)

    def changed(name, change):
        sorting = sort.Sorting(tmp_path / name, 700, 300)
        sorting.prepare()
        sorting.generate(Here)
        sorting.sort(Here, lambda _: _Nothing())
        sorting.validate(Here)
        change(tmp_path / name / "output")
        with pytest.raises(sort.UnsortedError) as failed:
            sorting.validate(Here)
        return str(failed.value)

    def exchange(folder):
        content = bytearray((folder / "00001").read_bytes())
        content[:200] = content[100:200] + content[:100]
        (folder / "00001").write_bytes(content)

    def swap_parts(folder):
        (folder / "00000").rename(folder / "x")
        (folder / "00001").rename(folder / "00000")
        (folder / "x").rename(folder / "00001")

    def flip(folder):
        content = bytearray((folder / "00002").read_bytes())
        content[-1] ^= 1
        (folder / "00002").write_bytes(content)

    def cut(folder):
        content = (folder / "00002").read_bytes()
        (folder / "00002").write_bytes(content[:-100])

    assert "00001: is not in order" in changed("a", exchange)
    assert "stands before" in changed("b", swap_parts)
    assert "with checksum" in changed("c", flip)
    assert "699 records" in changed("d", cut)


class _Nothing:
    def __enter__(self):
        return None

    def __exit__(self, *_):
        return None
