"""Requests whose callers may get a signal while they wait, and which of them are given up for it.

The kernel says when a caller that waits got a signal.  What happens then:
    - A request with effects is never given up: half of one could leave an
      open file or a session behind.
    - One without effect ends with EINTR at once when the signal kills its caller,
      and after INTERRUPT_AFTER_S when the signal asks the caller to end (such as
      Ctrl-C), which he may handle.
    - Any other signal waits.  Programs expect that a look-up is not disturbed by,
      say, a timer.  One that is would fail, whatever the program has told the kernel
      about calls that a signal meets.
    - The kernel tells of the first signal only.  So the caller of a request that had one is looked
      at again until the request is answered.

Invariant: what is given up is cancelled once.  The scope that it was done in tells of it
(`take_given_up`): whoever serves the request answers.

Not done here: answering.
"""

from collections.abc import Callable

import trio

from . import protocol as p
from .begun import BegunRequest
from .device import Request
from .protocol import Opcode
from .together import ReadsTogether

INTERRUPT_AFTER_S = 1.0
_LOOKS_PER_WAIT = 4

WITHOUT_EFFECT = frozenset(
    {
        Opcode.LOOKUP,
        Opcode.GETATTR,
        Opcode.STATX,
        Opcode.READLINK,
        Opcode.ACCESS,
        Opcode.READ,
        Opcode.READDIR,
        Opcode.READDIRPLUS,
        Opcode.STATFS,
        Opcode.GETXATTR,
        Opcode.LISTXATTR,
        Opcode.LSEEK,
        Opcode.SETLKW,
    }
)
_ENDED_AT_ONCE = frozenset({Opcode.SETLKW})
"""What any signal may end: a wait that can last for good, of a call known for EINTR."""

Scope = trio.CancelScope | BegunRequest
"""That of the worker which serves a request; what was begun without one is its own."""


class _Interruptible:
    """A request that may be given up."""

    __slots__ = ("began_s", "is_interrupted", "is_to_end", "request", "scope")

    def __init__(self, request: Request, began_s: float, scope: Scope) -> None:
        self.request = request
        self.began_s = began_s
        self.scope = scope
        self.is_interrupted = False
        self.is_to_end = False
        """Its caller was asked to end.

        That stays: another thread of its program may have acted on the signal.
        """


class Interrupts:
    """The requests of one mount that may be given up; see module head.

    Of one trio program, and atomic between its awaits.
    """

    def __init__(
        self,
        now_s: Callable[[], float],
        is_killed: Callable[[int], bool],
        is_told_to_end: Callable[[int], bool],
    ) -> None:
        """Begin with no requests.

        Args:
            now_s: a clock that only goes on.
            is_killed: whether a signal ends the thread with this id.
            is_told_to_end: whether it has one waiting that asks it to.
        """
        self._now_s = now_s
        self._is_killed = is_killed
        self._is_told_to_end = is_told_to_end
        self._entries: dict[int, _Interruptible] = {}
        self._given_up: dict[Scope, Request] = {}
        self._has_waiting = trio.Event()
        self._held: dict[ReadsTogether, float] = {}
        """Reads under way that are only done by themselves, and can be given up,
        when they are not done together; and since when.
        """

    def hold(self, reads: ReadsTogether) -> None:
        """Note in `reads` which of them get a signal, from now on."""
        self._held[reads] = self._now_s()

    def let_go(self, reads: ReadsTogether) -> None:
        """Note nothing any more: they are about to be answered."""
        self._held.pop(reads, None)

    def take_over(self, reads: ReadsTogether, request: Request, scope: Scope) -> None:
        """Let one of `reads` be given up, by cancelling `scope`,
        as if it had been let since they are held.
        """
        entry = _Interruptible(request, self._held[reads], scope)
        self._entries[request.unique] = entry
        if request.unique in reads.interrupted:
            self._note_signal(entry)

    def is_killed(self, request: Request) -> bool:
        """Return whether a signal ends the caller of a request."""
        return self._is_killed(request.pid)

    def add(self, request: Request, scope: Scope, waited_s: float = 0.0) -> None:
        """Let a request that has waited for so long be given up, by cancelling `scope`,
        from now on; one that is here already stays what it is.
        """
        if request.unique not in self._entries:
            began_s = self._now_s() - waited_s
            self._entries[request.unique] = _Interruptible(request, began_s, scope)

    def move(self, request: Request, scope: Scope) -> None:
        """Have a request, if it may be given up, done in another scope."""
        if (entry := self._entries.get(request.unique)) is not None:
            entry.scope = scope

    def remove(self, request: Request) -> None:
        """Let a request not be given up any more: it is about to be answered."""
        self._entries.pop(request.unique, None)

    def take_given_up(self, scope: Scope) -> Request | None:
        """Return the request that was given up in this scope, if any, and forget that it was."""
        return self._given_up.pop(scope, None)

    def give_up_all(self) -> None:
        """Give up whatever may be: nobody waits for it any more."""
        for entry in list(self._entries.values()):
            self._give_up(entry)

    def hear(self, interrupt: Request) -> None:
        """Take in what the kernel says of a caller: INTERRUPT."""
        # A request that is not there any more has just been answered;
        # this one itself gets no answer.
        (unique,) = p.INTERRUPT_IN.unpack_from(interrupt.body)
        entry = self._entries.get(unique)
        if entry is not None:
            self._note_signal(entry)
            return
        for reads in self._held:
            if reads.has(unique):
                reads.interrupted.add(unique)

    def _note_signal(self, entry: _Interruptible) -> None:
        if entry.request.opcode in _ENDED_AT_ONCE:
            self._give_up(entry)
        elif not self._ends(entry):
            entry.is_interrupted = True
            self._has_waiting.set()

    def _ends(self, entry: _Interruptible) -> bool:
        """Look at the caller of a request; return whether it has been given up."""
        pid = entry.request.pid
        entry.is_to_end = entry.is_to_end or self._is_told_to_end(pid)
        has_waited = self._now_s() - entry.began_s >= INTERRUPT_AFTER_S
        is_given_up = (entry.is_to_end and has_waited) or self._is_killed(pid)
        if is_given_up:
            self._give_up(entry)
        return is_given_up

    async def watch(self) -> None:
        """Give up what is to be given up later, until cancelled."""
        while True:
            await self._has_waiting.wait()
            self._has_waiting = trio.Event()
            while waiting := [e for e in self._entries.values() if e.is_interrupted]:
                await trio.sleep(INTERRUPT_AFTER_S / _LOOKS_PER_WAIT)
                for entry in waiting:
                    if self._entries.get(entry.request.unique) is entry:
                        self._ends(entry)

    def _give_up(self, entry: _Interruptible) -> None:
        self._given_up[entry.scope] = entry.request
        entry.scope.cancel()
