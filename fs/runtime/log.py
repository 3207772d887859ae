r"""Log set-up of a process: to stderr or a file, as text or as JSON.

Text: one line per record.  A record's text may hold line ends (tracebacks do); they follow
indented, so that every line that begins with a time is one record.  Other control characters, which
a peer's name may hold, are shown as `\x1b`.  JSON: one object per line, whatever the record holds.

What is logged on behalf of a traced request says so: at the end of the text,
or as `trace_id` and `span_id`.
"""

import json
import logging
import os
import stat
import sys
import time
from pathlib import Path
from typing import Final, TextIO

from . import tracing

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_CONTROLS: Final = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}


def _time_of(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


class LineFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z info  fs.storage.resync: text`, times in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line, and its traceback indented below."""
        level = record.levelname.lower()
        text = f"{_time_of(record)} {level:7} {record.name}: {record.getMessage()}"
        if tracing.live.count and (span := tracing.current()) is not None:
            text += f" (trace {span.trace_id.hex()})"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text.translate(_CONTROLS).replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """The same fields as an object of JSON: time, level, logger, message;
    trace_id, span_id, traceback if there are any.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        fields = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if tracing.live.count and (span := tracing.current()) is not None:
            fields["trace_id"] = span.trace_id.hex()
            fields["span_id"] = span.span_id.hex()
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


FORMATTERS: Final = {"text": LineFormatter, "json": JsonFormatter}

LOG_BYTES_VARIABLE: Final = "EMBERFS_LOG_BYTES_MAX"
"""Environment variable of a process whose stderr is a log of its own: how long that may become."""

STDERR: Final = 2
DESCRIPTORS: Final = (1, STDERR)
"""Of a process that whoever started it has write both to its log."""

ROTATION_PAUSE_S: Final = 60.0
"""After a new file could not be begun."""


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to stderr; when that is a file that has grown too large, begins a new one,
    keeping the last.

    No line is lost: the process's own descriptors are led to the new file, so that what else writes
    there, such as an interpreter that crashes, goes on there as well.
    """

    def __init__(self, bytes_max: int = 0) -> None:
        """Begin a new file beyond `bytes_max` bytes; 0: never."""
        super().__init__(sys.stderr)
        self._bytes_max = bytes_max
        self._next_try_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, then see how much there is."""
        super().emit(record)
        if not self._bytes_max:
            return
        now_s = time.monotonic()
        if now_s < self._next_try_s:
            return
        try:
            rotate(self._bytes_max)
        except OSError as error:
            # no descriptor is left, or the folder cannot be written to: until somebody helps
            self._next_try_s = now_s + ROTATION_PAUSE_S
            refused = f"no new log file is begun, next try in {ROTATION_PAUSE_S:g} s: {error}"
            super().emit(
                logging.makeLogRecord(
                    {
                        "name": __name__,
                        "levelno": logging.ERROR,
                        "levelname": "ERROR",
                        "msg": refused,
                    }
                )
            )


def rotate(bytes_max: int) -> None:
    """Have stderr begin a new file if its file is longer than `bytes_max`;
    the old one gets the name with `.1`.

    Does nothing when stderr is no file, or one that has been moved away; raises OSError.
    """
    now = os.fstat(STDERR)
    if not stat.S_ISREG(now.st_mode) or now.st_size <= bytes_max:
        return
    path = Path(f"/proc/self/fd/{STDERR}").readlink()
    if not path.exists() or not os.path.samestat(path.stat(), now):
        return
    path.replace(path.with_name(path.name + ".1"))
    begun = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, stat.S_IMODE(now.st_mode))
    try:
        for descriptor in DESCRIPTORS:
            if os.path.samestat(os.fstat(descriptor), now):
                os.dup2(begun, descriptor)
    finally:
        os.close(begun)


def set_up_logging(
    level: str = "info", path: Path | None = None, *, line_format: str = "text", bytes_max: int = 0
) -> None:
    """Send all records of this process at or above `level` to a file or to stderr.

    Replaces what was set up before.

    Args:
        level: debug, info, warning or error.
        path: appended to; None: stderr.
        line_format: text or json.
        bytes_max: when stderr is a file that is longer, a new one is begun; 0: never.
    """
    handler: logging.Handler
    handler = StderrHandler(bytes_max) if path is None else logging.FileHandler(path)
    handler.setFormatter(FORMATTERS[line_format]())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(LEVELS[level])


def set_log_level(level: str) -> None:
    """Send records at or above another level from now on: debug, info, warning or error."""
    logging.getLogger().setLevel(LEVELS[level])
