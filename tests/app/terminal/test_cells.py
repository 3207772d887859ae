"""What users chose as names reaches a terminal as it is written, and says nothing to it."""

import io
import re

import pytest
import typer
from rich.console import Console
from rich.table import Table

from fs.app.terminal.amounts import age_text, bytes_text
from fs.app.terminal.cells import cell, print_table, say_name, table
from fs.app.terminal.listing import EXIT_DECLINED, confirm, print_facts, print_rows

NAMES = [
    ("end[/b]", "end[/b]"),  # which ended the whole listing
    ("[red]tape", "[red]tape"),
    ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
    ("a\x1b[2Jb\r", r"a\x1b[2Jb\x0d"),
]


@pytest.mark.parametrize(("name", "shown"), NAMES)
def test_tables_show_names_as_they_are(name, shown, capsys):
    print_rows([{"name": name}], {"name": None}, as_json=False)
    print_facts({"name": name}, as_json=False)
    confirm([name], dry_run=False, yes=True)
    text = capsys.readouterr().out
    assert text.count(shown) == 3
    assert "\x1b" not in text


@pytest.mark.parametrize(("name", "shown"), NAMES)
@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_line_is_exact_for_programs_only(name, shown, is_terminal, monkeypatch):
    """A terminal obeyed names, and a program got them without their sequences."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr("sys.stdout", stream)
    say_name(name)
    stream.flush()
    assert stream.buffer.getvalue().decode() == (shown if is_terminal else name) + "\n"


@pytest.mark.parametrize("width", [20, 60])
def test_a_narrow_terminal_cuts_off_nothing(width):
    path = "/data/" + "verylongname" * 8
    shown = Console(width=width, file=io.StringIO())
    rich = table("directory", "bytes", "limit")
    rich.add_row(cell(path), "1.5 GiB", "-")
    shown.print(rich)
    text = shown.file.getvalue()
    assert "\u2026" not in text
    rows = [line.split("\u2502")[1].strip() for line in text.splitlines() if line[:1] == "\u2502"]
    assert "".join(rows) == path


def a_wide_table() -> Table:
    rich = table("node id", "address", "state", "tags")
    rich.add_row(cell("11"), cell("unix:/var/lib/emberfs/run/storage-1.sock"), cell("connected"))
    rich.add_row(cell("12"), cell("unix:/var/lib/emberfs/run/storage-2.sock"), cell("failed"))
    return rich


def printed_on_terminal(rich: Table, columns: int, monkeypatch) -> str:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("TERM", raising=False)
    print_table(rich)
    return terminal.getvalue()


def test_a_narrow_terminal_shows_row_below_row(monkeypatch):
    """Were eleven columns of four letters each, at 60 columns of a terminal."""
    text = printed_on_terminal(a_wide_table(), 60, monkeypatch)
    cells = [line.replace("|", "\u2502").split("\u2502") for line in text.splitlines()]
    assert [(row[1].strip(), row[2].strip()) for row in cells if len(row) > 2] == [
        ("node id", "11"),
        ("address", "unix:/var/lib/emberfs/run/storage-1.sock"),
        ("state", "connected"),
        ("node id", "12"),
        ("address", "unix:/var/lib/emberfs/run/storage-2.sock"),
        ("state", "failed"),
    ]
    assert max(map(len, text.splitlines())) <= 60


def test_a_terminal_that_is_wide_enough_shows_a_table(monkeypatch):
    text = printed_on_terminal(a_wide_table(), 90, monkeypatch)
    assert sum("storage-" in line and "node id" not in line for line in text.splitlines()) == 2
    assert "tags" in text


def test_names_and_values_are_folded(monkeypatch):
    rich = table("key", "value")
    rich.add_row("process.mgmtd_addresses", "tcp:10.0.0.1:7001 " * 8)
    assert "key" in printed_on_terminal(rich, 60, monkeypatch)


def test_a_value_with_its_unit_leaves_it_out_of_the_name(capsys):
    """Was "age s", of "5m55s"."""
    row = {"age_s": 355.0, "used_bytes": 9, "bytes_per_s": 3, "is_slow": False}
    columns = {"age_s": age_text, "used_bytes": None, "bytes_per_s": bytes_text}
    print_rows([row], columns, as_json=False)
    print_facts({"used_bytes": "9 B", "length_bytes": 9, "is_slow": False}, as_json=False)
    words = [re.findall(r"[A-Za-z0-9]+", line) for line in capsys.readouterr().out.splitlines()]
    heads, _row, *facts = filter(None, words)
    assert " ".join(heads) == "age used bytes bytes per s"
    assert [" ".join(line) for line in facts] == ["used 9 B", "length bytes 9", "is slow no"]


def test_nobody_to_ask_is_a_no(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(typer.Exit) as caught:
        confirm(["all of it is removed for good"], dry_run=False, yes=False)
    assert caught.value.exit_code == EXIT_DECLINED
    printed = capsys.readouterr()
    assert printed.out.endswith("[y/N]: \n")
    assert "say --yes" in printed.err


def test_an_interrupted_question_is_an_interruption(monkeypatch):
    def interrupted(*_args, **_options):
        try:
            raise KeyboardInterrupt  # noqa: TRY301 - as prompts do
        except KeyboardInterrupt:
            raise typer.Abort from None

    monkeypatch.setattr(typer, "confirm", interrupted)
    with pytest.raises(KeyboardInterrupt):
        confirm([], dry_run=False, yes=False)
