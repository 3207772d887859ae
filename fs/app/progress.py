"""One line that says what is going on: live on a terminal, one line per step elsewhere."""

import sys
import time


class Progress:
    """Shows steps on stderr; the last one is finished by `close`."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._started_s = time.monotonic()
        self._current = ""

    def step(self, text: str) -> None:
        """Begin the next step."""
        if self._is_terminal:
            sys.stderr.write(f"\r\033[Kember: {text} ...")
        else:
            sys.stderr.write(f"ember: {text}\n")
        sys.stderr.flush()
        self._current = text

    def close(self) -> None:
        """Finish: clear the live line."""
        if self._is_terminal and self._current:
            elapsed_s = time.monotonic() - self._started_s
            sys.stderr.write(f"\r\033[Kember: done in {elapsed_s:.1f} s\n")
            sys.stderr.flush()
