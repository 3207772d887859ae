"""The command line itself."""

import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import typer

from fs.app.commands.groups import GROUPS
from fs.app.commands.sections import SECTIONS
from fs.app.main import app, path
from fs.app.process.release import RELEASE
from fs.kernels.in_use import kernels_in_use
from fs.schema.status import FsError, Status


@pytest.mark.parametrize("words", [["--version"], ["version"]])
def test_the_release_is_printed(words, capsys):
    with pytest.raises(SystemExit) as ended:
        app(words)
    assert not ended.value.code
    assert capsys.readouterr().out == f"{RELEASE}\nkernels: {kernels_in_use()}\n"


def test_programs_are_told_the_release_and_of_each_kernel(capsys):
    with pytest.raises(SystemExit) as ended:
        app(["version", "--json"])
    assert not ended.value.code
    said = json.loads(capsys.readouterr().out)
    assert said["release"] == RELEASE
    assert {"reads", "writes", "frames"} <= set(said["kernels"]["is_compiled"])


def test_the_list_of_commands_tells_whole_lines(capsys):
    with pytest.raises(SystemExit):
        app(["--help"], prog_name="ember")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 50
    assert not [line for line in lines if line.endswith("...") and "Usage: " not in line]


@pytest.mark.parametrize("name", [*GROUPS])
def test_groups_look_like_the_rest_and_tell_whole_lines(name, capsys):
    """A wrong word is told in lines without frames,
    and no line of a list of commands ends in dots.
    """
    load = GROUPS[name]
    told = []
    for words in (["--help"], ["--no-such-option"]):
        with pytest.raises(SystemExit) as ended:
            load()(words, prog_name=f"ember {name}")
        printed = capsys.readouterr()
        told.append((ended.value.code, printed.out + printed.err))
    assert [code for code, _ in told] == [0, 2]
    assert "--install-completion" not in told[0][1]
    assert "Error: No such option: --no-such-option" in told[1][1]
    lines = [line for _, text in told for line in text.splitlines() if "Usage: " not in line]
    assert not [line for line in lines if line.endswith(("...", "\u2502"))]


def test_the_lists_tell_whole_summaries():
    """Was "Print the path of an inode: of a directory at once,"."""
    waiting = [typer.main.get_command(one) for one in (app, *(load() for load in GROUPS.values()))]
    cut_off = []
    while waiting:
        for name, one in getattr(waiting.pop(), "commands", {}).items():
            waiting.append(one)
            if not one.get_short_help_str(limit=1000).endswith("."):
                cut_off.append(name)
    assert not cut_off


def test_every_command_stands_in_one_section_of_the_help():
    commands = typer.main.get_command(app).commands
    placed = [name for names in SECTIONS.values() for name in names]
    assert sorted(placed) == sorted(name for name, one in commands.items() if not one.hidden)


def test_a_command_without_a_section_is_shown_all_the_same(capsys, monkeypatch):
    monkeypatch.delitem(SECTIONS, "Files and directories")
    with pytest.raises(SystemExit):
        app(["--help"], prog_name="ember")
    said = capsys.readouterr().out
    assert re.search(r"^Other:\n(  .*\n)*  rm +Move files", said, re.MULTILINE)


@pytest.mark.parametrize("number", ["18446744073709551616", "99999999999999999999"])
def test_a_number_that_no_inode_has_is_refused(number, capsys):
    with pytest.raises(SystemExit) as ended:
        app(["path", number])
    assert ended.value.code == 2
    assert "18446744073709551615" in capsys.readouterr().err


def test_an_inode_that_is_not_there_is_said_as_it_was_asked_for(monkeypatch):
    """The number was told in hexadecimal, and that the inode was removed meanwhile."""

    def paths_of(_inode_id):
        raise FsError(Status.STALE, "inode 0x3b9ac9ff")

    client = nullcontext(SimpleNamespace(paths_of=paths_of))
    monkeypatch.setattr("fs.app.reach.meant_cluster.connected", lambda _: client)
    with pytest.raises(FsError, match="inode 999999999: removed, or never made") as caught:
        path(999999999)
    assert caught.value.status is Status.NOT_FOUND


@pytest.mark.parametrize("words", [["umount"], ["mount"], ["stat"], ["profile"], ["up", "--mount"]])
def test_a_mount_point_is_taken_without_asking_who_serves_it(words, tmp_path, monkeypatch):
    """Where its cluster hangs, each question waits for as long as a client tries."""
    asked = []

    def ask(path, *more, **named):
        asked.append(path)
        return stat(path, *more, **named)

    stat = os.stat
    monkeypatch.setattr(os, "stat", ask)
    name, *options = words
    command = typer.main.get_command(app).commands[name]
    parsed = command.make_context(name, [*options, str(tmp_path)]).params
    assert tmp_path in parsed.values()
    assert str(tmp_path) not in [os.fspath(path) for path in asked if not isinstance(path, int)]


NOHUP = """
import signal
from fs.app import main

main._end_like_ctrl_c()
print([one.name for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
       if signal.getsignal(one) is signal.default_int_handler])
"""


@pytest.mark.thorough
def test_a_terminal_that_is_closed_does_not_end_what_nohup_began():
    """SIGINT does, though shells have what they begin in the background ignore it."""
    for words, heard in (
        ([], ["SIGINT", "SIGTERM", "SIGHUP"]),
        (["nohup"], ["SIGINT", "SIGTERM"]),
    ):
        # Tests may run under nohup themselves.
        command = ["env", "--default-signal=HUP", *words, sys.executable, "-c", NOHUP]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        assert said.stdout == f"{heard}\n"
