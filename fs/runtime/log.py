"""Log set-up of a process: one line per record, to stderr or a file.

A record's text may hold line ends (tracebacks do); they follow indented, so that every line that
begins with a time is one record.
"""

import logging
import sys
import time
from pathlib import Path
from typing import Final

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class LineFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z info  fs.storage.resync: text`, times in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line, and its traceback indented below."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        level = record.levelname.lower()
        text = f"{seconds}.{int(record.msecs):03d}Z {level:7} {record.name}: {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text.replace("\n", "\n    ")


def set_up_logging(level: str = "info", path: Path | None = None) -> None:
    """Send all records of this process at or above `level` to a file or to stderr.

    Replaces what was set up before.

    Args:
        level: debug, info, warning or error.
        path: appended to; None: stderr.
    """
    handler: logging.Handler
    handler = logging.StreamHandler(sys.stderr) if path is None else logging.FileHandler(path)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(LEVELS[level])
