"""How a mount daemon takes in and answers small READs of the kernel; `device_twin` says what each function promises."""

from typing import Final

from .choice import serves
from .device_twin import ANSWER, READ_REQUEST

__all__ = ["ANSWER", "IS_COMPILED", "READ_REQUEST", "answer_reads", "receive_reads"]

INTERFACE: Final = 1
"""Counts the changes of what the compiled functions take and return; the same number stands in device.c."""

IS_COMPILED: Final = serves("_device", INTERFACE)

if IS_COMPILED:
    from ._device import answer_reads, receive_reads
else:
    from .device_twin import answer_reads, receive_reads
