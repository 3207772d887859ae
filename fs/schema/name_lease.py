"""How long a client may know names of a directory without asking,
and what others do meanwhile (decisions 0152, 0161).  Pure.

Invariant: WAIT_S is longer than LEASE_S by more than two clocks drift apart in that time.
"""

from typing import Final

LEASE_S: Final = 0.1
"""From when the client sent the request whose reply tells of the lease."""
WAIT_S: Final = 0.12
"""From when the mark that ends it is committed, or was seen, until others may change names."""
TOLD_AGE_S_MAX: Final = 1.0
"""A lease is told of only right after a change of the directory, which stamped it with the time."""
IDLE_S: Final = 10.0
"""After so long without a change nobody waits, whatever the wall clocks of two services say,
as long as they are less than 8 s apart.
"""
SURE_S: Final = 1.0
"""No store that has lost its last changes, of a machine that lost its power or from a backup,
serves again sooner than this after it did last.
"""
