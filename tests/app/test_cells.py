"""What users chose as names reaches a terminal as it is written, and says nothing to it."""

import io

import pytest
import typer
from rich.console import Console

from fs.app.cells import cell, say_name, table
from fs.app.listing import EXIT_DECLINED, confirm, print_facts, print_rows

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


def test_nobody_to_ask_is_a_no(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(typer.Exit) as caught:
        confirm(["all of it is removed for good"], dry_run=False, yes=False)
    assert caught.value.exit_code == EXIT_DECLINED
    assert "say --yes" in capsys.readouterr().err


def test_an_interrupted_question_is_an_interruption(monkeypatch):
    def interrupted(*_args, **_options):
        try:
            raise KeyboardInterrupt  # noqa: TRY301 - as prompts do
        except KeyboardInterrupt:
            raise typer.Abort from None

    monkeypatch.setattr(typer, "confirm", interrupted)
    with pytest.raises(KeyboardInterrupt):
        confirm([], dry_run=False, yes=False)
