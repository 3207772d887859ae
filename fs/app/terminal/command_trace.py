"""The trace of a command: each has one, and its errors name it,
so that logs of all processes can be searched for it.
"""

import os
from typing import Final

from ...client.connect import TRACEPARENT_VARIABLE
from ...runtime.ports import Runtime
from ...runtime.tracing import Span, Tracer, parse_traceparent

COMMAND: Final = "ember"
"""Name of a command's span."""


def begin_command(runtime: Runtime) -> Span:
    """Begin the trace of this command, or join the one that the environment names."""
    tracer = Tracer(runtime.clock, runtime.random)
    cause = parse_traceparent(os.environ.get(TRACEPARENT_VARIABLE, ""))
    return tracer.root(COMMAND) if cause is None else tracer.join(cause, COMMAND)
