r"""Text of others on a terminal: names of files, hosts and programs are chosen by users, and are not to speak to it.

Control characters are shown as `\x1b`, as in logs; what looks like markup of tables is shown as it is.
"""

from typing import Final

from rich.text import Text

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


def printable(text: str) -> str:
    """Return a line as it can be printed."""
    return text.translate(_CONTROLS)


def cell(text: str) -> Text:
    """Return a cell of a table that shows exactly this text, which may have several lines."""
    return Text("\n".join(map(printable, text.split("\n"))))
