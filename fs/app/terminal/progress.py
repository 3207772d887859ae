"""One line that says what is going on: live on a terminal, one line per step elsewhere."""

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.status import Status


class Progress:
    """Shows steps on stderr; the last one is finished by `close`."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._live = _live_line() if sys.stderr.isatty() else None

    def step(self, text: str) -> None:
        """Begin the next step."""
        if self._live is not None:
            self._live.update(f"ember: {text}")
            self._live.start()
        else:
            sys.stderr.write(f"ember: {text}\n")
            sys.stderr.flush()

    def close(self, text: str = "") -> None:
        """Finish: on a terminal the live line gives way to `text` and the time it took."""
        if self._live is not None:
            self._live.stop()
            if text:
                sys.stderr.write(f"ember: {text} in {time.monotonic() - self._started_s:.1f} s\n")


def _live_line() -> "Status":
    """Return a line with a spinner; rich is loaded only for people who look."""
    from rich.console import Console  # noqa: PLC0415
    from rich.status import Status  # noqa: PLC0415

    return Status("", console=Console(stderr=True, highlight=False, markup=False))
