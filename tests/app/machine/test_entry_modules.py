"""Modules that command lines of other releases name: they can be run where they always were."""

from pathlib import Path

import pytest

from fs.app.deploy import keeper
from fs.app.machine import entry_modules
from fs.app.machine.entry_modules import ENTRY_PACKAGE
from fs.app.machine.running import parse_command
from fs.app.mounts.helper_script import DEEDS, helper_text
from fs.app.supervisor import service_command

ROOT = Path(__file__).resolve().parents[3]
SERVICES = ["control", "mgmtd", "meta", "kv", "storage", "mountd"]
NAMES = ["main", "supervisor", *SERVICES, "mount_helper", "deploy.agent"]


@pytest.mark.parametrize("name", NAMES)
def test_a_module_that_command_lines_name_is_where_it_was(name):
    text = (ROOT / "fs/app" / f"{name.replace('.', '/')}.py").read_text()
    assert '\nif __name__ == "__main__":\n' in text
    assert f" {name.split('.')[0]}" in entry_modules.__doc__.replace(",", " ")


def test_the_keeper_is_run_by_its_path():
    assert Path(keeper.__file__) == ROOT / "fs/app/deploy/keeper.py"


def test_command_lines_say_what_those_of_other_releases_say():
    assert ENTRY_PACKAGE == "fs.app"
    for name in SERVICES:
        words = service_command(name, Path("/d/config/x.toml"))
        assert words[1:] == ["-P", "-m", f"fs.app.{name}", "/d/config/x.toml"]
        assert parse_command(words) == (name, "/d/config/x.toml")
    for deed in DEEDS:
        assert "fs.app.mount_helper" in helper_text(deed, "/opt/python")
