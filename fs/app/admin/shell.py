"""`ember admin shell`: many commands, typed, from a file or through a pipe.

Several commands stand on one line with `;` between them.  The word `fs`
may be left out: `ls` is `fs ls`.
"""

import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ...schema.status import FsError
from ..terminal.errors import error_line, first_error
from .standing import standing


class Shell:
    """Runs lines of one command tree."""

    def __init__(self, admin: typer.Typer, always: Iterable[str] = ()) -> None:
        """Run commands of `admin`; those that take `--dir` and do not say
        where get the words `always`.
        """
        self._admin = admin
        self._always = list(always)

    def run_line(self, line: str) -> int:
        """Run the commands of one line until one fails; print what is wrong with it;
        return its exit code.

        Empty lines and comments do nothing.
        """
        try:
            commands = [shlex.split(text, comments=True) for text in statements(line)]
        except ValueError as error:
            sys.stderr.write(f"ember: {error}\n")
            return 2
        for words in filter(None, commands):
            if code := self._run(words):
                return code
        return 0

    def _run(self, words: list[str]) -> int:
        words = self._completed(words)
        try:
            self._admin(words, prog_name="ember admin")
        except SystemExit as ended:  # how the command line says that it is done
            return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except (FsError, OSError, ExceptionGroup) as error:
            leaf = first_error(error)
            if not isinstance(leaf, FsError | OSError):
                raise
            sys.stderr.write(f"ember: {error_line(leaf)}\n")
            return 1
        return 0

    def _completed(self, words: list[str]) -> list[str]:
        """Return the words with those that go without saying."""
        tree: Any = typer.main.get_command(self._admin)
        if words[0] not in tree.commands and words[0] in tree.commands["fs"].commands:
            words = ["fs", *words]
        if {"--dir", "--config", "--help"} & set(words) or not takes_directory(tree, words):
            return words
        return words + self._always

    def run_all(self, name: str, lines: Iterable[str]) -> int:
        """Run lines until one fails, which is named; return the exit code."""
        for number, line in enumerate(lines, 1):
            if code := self.run_line(line):
                sys.stderr.write(f"ember: {name}:{number}: {line.strip()}: exit code {code}\n")
                return code
        return 0

    def converse(self) -> None:
        """Run what somebody types until Ctrl-D; an error ends nothing."""
        import readline  # noqa: F401, PLC0415 - gives `input` a history

        while True:
            try:
                self.run_line(input(f"ember admin {standing().directory}> "))
            except EOFError:
                return
            except KeyboardInterrupt:
                sys.stderr.write("\n")


def statements(line: str) -> Iterator[str]:
    """Yield the commands of a line, with `;` between them
    where it is neither quoted nor in a comment.
    """
    quote, begin, index = "", 0, 0
    while index < len(line):
        sign = line[index]
        if sign == "\\" and quote != "'":
            index += 1
        elif sign in {"'", '"'} and quote in {"", sign}:
            quote = "" if quote else sign
        elif not quote and sign == "#":
            break
        elif not quote and sign == ";":
            yield line[begin:index]
            begin = index + 1
        index += 1
    yield line[begin:]


def takes_directory(command: Any, words: list[str]) -> bool:
    """Tell whether the command of a tree that the words name has an option --dir."""
    for word in words:
        if not isinstance(command, TyperGroup):
            break
        command = command.commands.get(word, command)
    return any("--dir" in parameter.opts for parameter in command.params)


def shell_command(admin: typer.Typer) -> None:
    """Add the shell of a command tree to it."""

    @admin.command("shell")
    def shell(
        file: Annotated[
            Path | None, typer.Option(help="Run the commands of a file, one per line.")
        ] = None,
        directory: Annotated[
            Path | None, typer.Option("--dir", help="For every command that names none.")
        ] = None,
    ) -> None:
        """Run commands one after the other, without `ember admin` before each: `chain list; ls /`;
        end with Ctrl-D.

        `cd` and `fs --as` count for what follows.

        Commands from a file or a pipe end at the first that fails, which
        is named, with its exit code.

        Example: ember admin shell --file commands.txt
        """
        runner = Shell(admin, ["--dir", str(directory)] if directory else [])
        if file is not None:
            code = runner.run_all(str(file), file.read_text(encoding="utf-8").splitlines())
        elif sys.stdin.isatty():
            code = 0
            runner.converse()
        else:
            code = runner.run_all("stdin", sys.stdin)
        if code:
            raise typer.Exit(code)
