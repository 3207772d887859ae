"""Ctrl-C while a command still loads: one line, as later.

To be imported before all that takes time.

Ends the process by the signal, as Python does with an interruption that nobody catches;
every other error goes its way.
"""

import sys
from types import TracebackType


def tell(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Say what ended the process; as `sys.excepthook`."""
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("ember: interrupted\n")
    else:
        sys.__excepthook__(kind, error, traceback)


sys.excepthook = tell
