"""What one mount tells whoever watches, as attributes of it:
traces for `ember admin trace`, settings for `ember admin config get`.

    ember.settings               the settings that it runs with, as JSON
    ember.trace.SECONDS.AFTER    watch for so long from now (0: no longer; empty: as before), and
                                 tell the spans beyond number AFTER

Meanwhile every request of the kernel and every batch is traced.  Does not keep spans:
fs/runtime/span_keeper.py does.
"""

import os
import re
from typing import Final

from ...runtime.span_keeper import SpanKeeper
from ...schema.status import FsError, Status
from .ports import Caller

SETTINGS_ATTRIBUTE: Final = b"ember.settings"
TRACE_ATTRIBUTE: Final = b"ember.trace."
_NAME: Final = re.compile(rb"ember\.trace\.(\d{0,6})\.(\d{1,18})")

VALUE_BYTES_MAX: Final = 60_000
"""An attribute may have 64 KiB."""


def require_own_user(caller: Caller, what: str) -> None:
    """Raise FsError(NOT_PERMITTED) for whoever may not look."""
    if caller.uid not in {0, os.geteuid()}:
        raise FsError(Status.NOT_PERMITTED, f"the {what} of a mount are for its own user")


def look_at_spans(spans: SpanKeeper, name: bytes, caller: Caller) -> bytes:
    """Return the value of an attribute whose name begins with TRACE_ATTRIBUTE.

    Raises:
        FsError: NOT_PERMITTED: the caller may not look; NO_ATTRIBUTE: it is none of these names.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise FsError(Status.NO_ATTRIBUTE, f"{name!r}")
    require_own_user(caller, "traces")
    if found[1]:
        spans.watch(float(found[1]), 1.0)
    return spans.told(int(found[2]), VALUE_BYTES_MAX)
