"""Log lines."""

import json
import logging
import re
import subprocess
import sys

import pytest

from fs.runtime.log import set_up_logging


@pytest.fixture(autouse=True)
def _restore():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    root.handlers.clear()
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_one_record_one_line_and_tracebacks_indented(tmp_path):
    path = tmp_path / "log"
    set_up_logging("info", path)
    set_up_logging("info", path)
    log = logging.getLogger("fs.some.module")
    log.debug("hidden")
    log.info("target %d\nsecond", 7)
    try:
        int("bad")
    except ValueError:
        log.exception("failed")
    lines = path.read_text().splitlines()
    assert lines[0].endswith("Z info    fs.some.module: target 7")
    assert lines[1] == "    second"
    assert lines[2].endswith("error   fs.some.module: failed")
    assert all(line.startswith("    ") for line in lines[3:])
    assert lines[-1].strip() == "ValueError: invalid literal for int() with base 10: 'bad'"


def test_a_name_cannot_play_with_the_terminal_that_shows_it(tmp_path):
    set_up_logging("info", tmp_path / "log")
    logging.getLogger("x").warning("peer %s\there", "a\x1b[2J\rb\x9bc\u00e9")
    text = (tmp_path / "log").read_text()
    assert text.endswith("x: peer a\\x1b[2J\\x0db\\x9bc\u00e9\there\n")


def test_stderr_is_the_default(capsys):
    set_up_logging("warning")
    logging.getLogger("x").warning("seen")
    logging.getLogger("x").info("not seen")
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "warning x: seen" in captured.err


def test_json_is_an_object_per_record(tmp_path):
    path = tmp_path / "log"
    set_up_logging("info", path, line_format="json")
    log = logging.getLogger("fs.some.module")
    log.warning("target %d\nsecond \udcff", 7)
    try:
        int("bad")
    except ValueError:
        log.exception("failed")
    first, second = map(json.loads, path.read_text().splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "warning",
        "logger": "fs.some.module",
        "message": "target 7\nsecond \udcff",
    }
    assert second["traceback"].splitlines()[-1].startswith("ValueError: invalid literal")


WRITER = """
import logging, os
from pathlib import Path
from fs.runtime.log import set_up_logging
set_up_logging(bytes_max=2000)
for number in range(170):
    if number == 150:
        Path("one.log.1").rmdir()
        logging.getLogger().handlers[0]._next_try_s = 0.0  # as if a minute had passed
    if number == 100:
        Path("one.log.1").unlink()
        Path("one.log.1").mkdir()  # which no file can replace
    logging.warning("line %03d", number)
    if number % 10 == 0:
        os.write(1, b"said %03d\\n" % number)
    if number == 99:
        kept = Path("one.log.1").read_text()
        Path("kept").write_text(kept)
"""


def test_a_log_that_grows_is_begun_anew_and_no_line_is_lost(tmp_path):
    path = tmp_path / "one.log"
    with path.open("ab") as log_file:
        command = [sys.executable, "-c", WRITER]
        subprocess.run(command, stdout=log_file, stderr=log_file, check=True, cwd=tmp_path)
    kept = (tmp_path / "kept").read_text().splitlines()
    tried = (tmp_path / "one.log.1").read_text().splitlines()
    lines = [*kept, *tried, *path.read_text().splitlines()]
    numbers = [line[-3:] for line in lines if re.search(r" warning .*line \d{3}$", line)]
    assert numbers == [f"{n:03d}" for n in range(170)][-len(numbers) :]
    assert 80 < len(numbers) < 170  # an older file has been replaced
    assert len([line for line in kept if "line" in line]) > 10
    assert {"said 090", "said 160"} <= set(lines)
    (told,) = [line for line in lines if "no new log file is begun" in line]
    assert " error " in told and "next try in 60 s" in told and told in tried
