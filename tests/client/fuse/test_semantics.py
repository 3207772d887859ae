"""The examples of specs/semantics.md, run against a mount over the model file system."""

import os
import re
from pathlib import Path

import pytest

from .test_mount import Server

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="no /dev/fuse"),
]
PAGE = Path(__file__).parents[3] / "specs" / "semantics.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def mount_point(tmp_path_factory):
    path = tmp_path_factory.mktemp("semantics")
    server = Server(path)
    assert server.first_line == "ready"
    try:
        yield path
        assert server.stop()["sessions"] == 0
    finally:
        server.close()


def test_there_are_examples():
    assert len(EXAMPLES) >= 10


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_example(mount_point, index):
    mnt = mount_point / f"example{index}"
    mnt.mkdir()
    exec(compile(EXAMPLES[index], f"{PAGE.name}[{index}]", "exec"), {"mnt": mnt})
