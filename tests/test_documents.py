"""Derived files equal what their sources give: nothing drifts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fs.app import documents
from fs.rpc import generate

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("path", documents.pages(), ids=lambda p: p.name)
def test_pages_are_fresh(path):
    assert path.read_text() == documents.pages()[path], "run `ember generate`"


def test_generated_code_is_fresh(tmp_path):
    generate.run_protoc(tmp_path)
    folder = generate.SCHEMA / "proto"
    made = {path.name: path.read_text() for path in tmp_path.glob("*_pb2.py*")}
    assert made == {p.name: p.read_text() for p in folder.glob("*_pb2.py*")}, "run `ember generate`"
    source = generate.services_source(folder)
    for arguments in (["check", "--fix", "--quiet"], ["format", "--quiet"]):
        done = subprocess.run(
            [Path(sys.executable).parent / "ruff", *arguments, "--stdin-filename", "fs/schema/services.py", "-"],
            input=source, capture_output=True, text=True, check=True, cwd=ROOT,
        )  # fmt: skip
        source = done.stdout
    assert source == (generate.SCHEMA / "services.py").read_text(), "run `ember generate`"


def test_every_knob_is_documented_somewhere():
    page = documents.config_page()
    assert "| retry_time_s_max | float |" in page
    assert "An operation that meets only retryable errors fails after this long." in page


@pytest.mark.parametrize(
    "page", sorted(ROOT.glob("*.md")) + sorted((ROOT / "specs").rglob("*.md")), ids=lambda p: p.name
)
def test_links_between_documents_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} points to {target}"
