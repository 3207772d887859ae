"""Tables in files: both forms hold the same rows, and a file is whole or not there."""

import json
import sys

import pytest

from fs.admin.table_file import BATCH_ROWS, Column, Format, open_table
from fs.schema.status import FsError, Status

COLUMNS = {"number": Column.UINT64, "name": Column.BYTES, "is_odd": Column.BOOL}


def row(number):
    return {"number": number, "name": b"n\xff%d" % number, "is_odd": bool(number % 2)}


@pytest.mark.slow
def test_both_forms_hold_all_rows(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    count = BATCH_ROWS + 3
    for form in Format:
        with open_table(tmp_path / form.value, COLUMNS, form) as writer:
            for number in range(2**64 - count, 2**64):
                writer.add(row(number))
        assert writer.row_count == count
    table = parquet.read_table(tmp_path / "parquet")
    assert table.num_rows == count
    assert table.slice(count - 1).to_pylist() == [row(2**64 - 1)]
    last = json.loads((tmp_path / "jsonl").read_text().splitlines()[-1])
    assert last["name"].encode(errors="surrogateescape") == row(2**64 - 1)["name"]


@pytest.mark.parametrize("form", Format)
def test_what_is_interrupted_leaves_what_was_there(tmp_path, form):
    path = tmp_path / "table"
    path.write_text("before")

    def fill():
        with open_table(path, COLUMNS, form) as writer:
            writer.add(row(1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill()
    assert [p.name for p in tmp_path.iterdir()] == ["table"]
    assert path.read_text() == "before"


def test_without_pyarrow_the_other_form_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(FsError) as caught, open_table(tmp_path / "x", COLUMNS, Format.PARQUET):
        pass
    assert caught.value.status is Status.NOT_SUPPORTED
    assert "--format jsonl" in caught.value.detail
    assert not list(tmp_path.iterdir())
