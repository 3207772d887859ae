"""Answers to READs that nobody waits for by himself: of what was read ahead, and of many at once.

Does not decide which these are, nor read anything.
"""

import logging
from collections.abc import Callable

import trio

from ...read_table import ReadTable
from ..answers import errno_of
from .answering import Answering
from .device import Device, Request
from .operations import Operations
from .times import OperationTimes
from .together import NODE_ID, UNIQUE, ReadsTogether, Row, request_of

_log = logging.getLogger(__name__)


class ReadAnswers:
    """Of one mount."""

    def __init__(
        self, device: Device, operations: Operations, answering: Answering, times: OperationTimes
    ) -> None:
        self._device = device
        self._operations = operations
        self._refuse = answering.refuse
        self._times = times

    def is_ahead(self, row: Row) -> bool:
        """Answer a READ, if all of it was read ahead;
        only then look at what to read ahead next, while the reader works.
        """
        began_s = trio.current_time()
        try:
            data = self._operations.ahead_now(row)
        except Exception as error:  # noqa: BLE001 - the usual way, which comes next, meets and tells it
            _log.debug("a read that cannot be answered at once: %s", error)
            return False
        if data is None:
            return False
        self._device.reply(row[UNIQUE], (data,))
        try:
            self._operations.note_ahead(row)
        except Exception as error:  # noqa: BLE001 - the edge of the loop; who reads on meets it, if it lasts
            errno_of(error, "readahead", row[NODE_ID])
        self._times.note_reads((row,), len(data), began_s)
        return True

    def is_added(self, row: Row, reads: ReadsTogether) -> bool:
        """Add a READ to others, if it has only to be asked of storage;
        else return False, with nothing done.
        """
        try:
            return self._operations.begin_read(row, reads)
        except Exception as error:  # noqa: BLE001 - the usual way, which comes next, meets and tells it
            _log.debug("a read that cannot be begun: %s", error)
            return False

    def reply(
        self, reads: ReadsTogether, table: ReadTable, is_killed: Callable[[Request], bool]
    ) -> None:
        """Answer reads that have become a table, and are read;
        `is_killed` is asked of callers that got a signal.
        """
        answers = reads.answers(is_killed)
        for position, number in self._device.answer(answers, table.view):
            request = request_of(reads.rows[position])
            self._refuse(request, OSError(number, "the kernel refused what was read"))
        self._times.note_reads(reads.rows, reads.byte_count, reads.began_s)

    def refuse(self, reads: ReadsTogether, error: Exception) -> None:
        """Answer all of some reads with what an error says."""
        for request in reads.requests():
            self._refuse(request, error)
