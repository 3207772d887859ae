"""Who makes a FUSE request: user, group and supplementary groups of the calling process.

Supplementary groups are read from /proc, which costs more than the request itself; they are
remembered for a second per (thread id, uid, gid).  A process may change its groups meanwhile: who
is refused is looked at again (`has_other_groups`), and so is whoever asks for a set-group-id bit,
which he would silently not get (`anew`).  Root passes every check and needs none.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ..vfs.ports import Caller

_log = logging.getLogger(__name__)

GROUPS_AGE_S_MAX = 1.0
_CALLER_COUNT_MAX = 4096
_ROOT = Caller(0, 0)


class Context(Protocol):
    """What the kernel says of a request's origin."""

    @property
    def pid(self) -> int:
        """Id of the calling thread."""

    @property
    def uid(self) -> int:
        """Its user for access to files."""

    @property
    def gid(self) -> int:
        """Its group for access to files."""


def groups_of(pid: int) -> tuple[int, ...]:
    """Return the supplementary groups of a process, ascending;
    none when it is gone or out of sight.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError as error:
        _log.debug("groups of process %d: %s", pid, error)
        return ()
    line = next((line for line in text.splitlines() if line.startswith("Groups:")), "Groups:")
    return tuple(sorted(int(word) for word in line.split()[1:]))


class Callers:
    """Turns request contexts into callers; see module head."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._cached: dict[tuple[int, int, int], tuple[float, Caller]] = {}

    def of(self, ctx: Context) -> Caller:
        """Return the caller of a request."""
        uid, gid = ctx.uid, ctx.gid
        if uid == 0 and gid == 0:
            return _ROOT
        key = (ctx.pid, uid, gid)
        now_s = self._now_s()
        found = self._cached.get(key)
        if found is not None and now_s < found[0]:
            return found[1]
        if len(self._cached) >= _CALLER_COUNT_MAX:
            self._cached.clear()
        caller = Caller(uid, gid, groups_of(ctx.pid))
        self._cached[key] = (now_s + GROUPS_AGE_S_MAX, caller)
        return caller

    def anew(self, ctx: Context) -> Caller:
        """Return the caller of a request with the groups that it has by now."""
        self._cached.pop((ctx.pid, ctx.uid, ctx.gid), None)
        return self.of(ctx)

    def has_other_groups(self, ctx: Context) -> bool:
        """Return whether the caller of a request has other groups by now than were remembered;
        these count from here on.
        """
        found = self._cached.get((ctx.pid, ctx.uid, ctx.gid))
        return found is not None and self.anew(ctx).groups != found[1].groups
