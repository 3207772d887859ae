"""The generated code is the schema's."""

from pathlib import Path

import fs.schema
from fs.rpc import generate


def test_generated_code_is_fresh(tmp_path, monkeypatch):
    schema = tmp_path / "schema"
    (schema / "proto").mkdir(parents=True)
    (schema / "__init__.py").touch()
    original = Path(fs.schema.__file__).parent
    configuration = original.parent.parent / "pyproject.toml"
    (tmp_path / "pyproject.toml").write_text(configuration.read_text())
    for source in (original / "proto").glob("*.proto"):
        (schema / "proto" / source.name).write_text(source.read_text())
    monkeypatch.setattr(generate, "SCHEMA", schema)
    generate.main()
    for made in [*schema.glob("proto/*_pb2.py*"), schema / "services.py"]:
        kept = original / made.relative_to(schema)
        assert made.read_text().split() == kept.read_text().split(), f"{kept.name} is stale"


def test_constant_names():
    assert generate.constant_name("ListXattrs") == "LIST_XATTRS"
    assert generate.constant_name("Echo") == "ECHO"
