"""Answers to the kernel, each noted with its bytes or its error;
`server` says when, and how long a request took.
"""

import errno
from collections.abc import Callable

from ..answers import errno_of
from . import protocol as p
from .device import Device, Request
from .name_requests import Reply, WantsErrno
from .protocol import Opcode
from .times import OperationTimes, name_of

_READ, _WRITE = int(Opcode.READ), int(Opcode.WRITE)


class Answering:
    """Of one mount.  Who calls sees to it that each request is answered once."""

    def __init__(self, device: Device, times: OperationTimes, on_stale: Callable[[], None]) -> None:
        """Call `on_stale` before the kernel is told ESTALE: it then asks once more, by name."""
        self._device = device
        self._times = times
        self._on_stale = on_stale

    def reply(self, request: Request, reply: Reply) -> None:
        """Answer with the buffers of a reply."""
        opcode = request.opcode
        if opcode == _READ:
            self._times.moved_bytes = count = sum(map(len, reply))
            self._times.read_bytes += count
        elif opcode == _WRITE:
            count = len(request.body) - p.WRITE_IN.size + len(request.data)
            self._times.moved_bytes = count
            self._times.written_bytes += count
        self._device.reply(request.unique, reply)

    def reply_error(self, request: Request, error_number: int) -> None:
        """Answer with an errno."""
        self._times.moved_bytes = 0
        self._times.note_error(request.opcode, error_number)
        if error_number == errno.ESTALE:
            self._on_stale()
        self._device.reply_error(request.unique, error_number)

    def refuse(self, request: Request, error: Exception) -> None:
        """Answer with what an error says; whatever nobody expects is logged, see `errno_of`."""
        if isinstance(error, WantsErrno):
            number = error.errno
        else:
            what = (request.node_id, request.body[:64])
            number = errno_of(error, name_of(request.opcode), what)
        self.reply_error(request, number)
