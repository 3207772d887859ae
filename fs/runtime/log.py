r"""Log set-up of a process: to stderr or a file, as text or as JSON.

Text: one line per record.  A record's text may hold line ends (tracebacks do); they follow indented, so that every
line that begins with a time is one record.  Other control characters, which a peer's name may hold, are shown as
`\x1b`.  JSON: one object per line, whatever the record holds.

What is logged on behalf of a traced request says so: at the end of the text, or as `trace_id` and `span_id`.
"""

import json
import logging
import sys
import time
from pathlib import Path
from typing import Final

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
    """The same fields as an object of JSON: time, level, logger, message; trace_id, span_id, traceback if there are any."""

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


def set_up_logging(
    level: str = "info", path: Path | None = None, *, line_format: str = "text"
) -> None:
    """Send all records of this process at or above `level` to a file or to stderr.

    Replaces what was set up before.

    Args:
        level: debug, info, warning or error.
        path: appended to; None: stderr.
        line_format: text or json.
    """
    handler: logging.Handler
    handler = logging.StreamHandler(sys.stderr) if path is None else logging.FileHandler(path)
    handler.setFormatter(FORMATTERS[line_format]())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(LEVELS[level])
