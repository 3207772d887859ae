"""How a mount daemon takes in and answers requests of the kernel;
`device_twin` says what each function promises.
"""

from typing import Final

from .choice import serves
from .device_twin import ANSWER, PART_COUNT_MAX, READ_REQUEST

__all__ = [
    "ANSWER",
    "IS_COMPILED",
    "PART_COUNT_MAX",
    "READ_REQUEST",
    "answer_reads",
    "answer_request",
    "receive_reads",
    "take_request",
]

INTERFACE: Final = 2
"""Counts the changes of what the compiled functions take and return;
the same number stands in device.c.
"""

IS_COMPILED: Final = serves("_device", INTERFACE)

if IS_COMPILED:
    from ._device import answer_reads, answer_request, receive_reads, take_request
else:
    from .device_twin import answer_reads, answer_request, receive_reads, take_request
