from .frames_twin import Buffer, Fields

INTERFACE: int

def make_header(
    version: int,
    kind: int,
    flags: int,
    request_id: int,
    service: int,
    method: int,
    status: int,
    timeout_ms: int,
    message_bytes: int,
    payload_bytes: int,
    /,
) -> bytes: ...
def take_header(
    buffer: Buffer,
    start: int,
    version: int,
    kind_max: int,
    message_bytes_max: int,
    payload_bytes_max: int,
    /,
) -> Fields | None: ...
