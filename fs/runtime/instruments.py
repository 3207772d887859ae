"""trio's table of instruments, asked without a call.

trio asks it twice in each turn of its loop, twice for each step of a task, and whenever one is
woken, whether anybody wants to be told; it is the owner of a dictionary, so each time a function is
called, of seventy-five in a turn.  Here it is a dictionary itself.

Relies on what trio calls of the table (`Runner.instruments`), which is not public;
readiness.py says which trio is known.
"""

from typing import Any

from trio._core._instrumentation import Instruments
from trio.abc import Instrument


class PlainInstruments(dict[str, dict[Instrument, None]]):
    """See module head; who is told, and how one begins and ends to be, is trio's."""

    @property
    def data(self) -> "PlainInstruments":
        """Return where trio's own functions keep it."""
        return self

    add_instrument: Any = Instruments.add_instrument
    remove_instrument: Any = Instruments.remove_instrument
    call: Any = Instruments.call
