from .device_twin import Buffer

INTERFACE: int

def receive_reads(
    fd: int, head: bytearray | memoryview, data: bytearray | memoryview, count_max: int, /
) -> tuple[bytes, int]: ...
def answer_reads(fd: int, answers: Buffer, memory: Buffer, /) -> list[tuple[int, int]]: ...
