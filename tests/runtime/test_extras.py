"""The remedy for a missing package is a command that can be pasted."""

import sys
import tomllib
from pathlib import Path

import pytest

from fs.runtime.extras import install_command

ROOT = Path(__file__).parents[2]


def test_it_names_the_interpreter_that_lacks_the_package():
    """`pip install ...` went into another environment than the one of `./ember`."""
    assert install_command("plot") == f"{sys.executable} -m pip install 'emberfs[plot]'"


@pytest.mark.parametrize("extra", ["parquet", "plot", "otel", "foundationdb", "placement"])
def test_extras_that_are_named_exist(extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extra in project["optional-dependencies"]
