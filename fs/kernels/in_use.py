"""Which kernels are compiled in this process: what `ember version` and benchmarks say."""

from typing import Final

from . import batches, device, direct, frames, lent, read_messages, reads, writes
from .choice import REFUSED

_KERNELS: Final = {
    "batches": batches.IS_COMPILED,
    "device": device.IS_COMPILED,
    "direct": direct.IS_COMPILED,
    "frames": frames.IS_COMPILED,
    "lent": lent.IS_COMPILED,
    "read_messages": read_messages.IS_COMPILED,
    "reads": reads.IS_COMPILED,
    "writes": writes.IS_COMPILED,
}


def kernel_facts() -> dict[str, object]:
    """Return of each whether it is compiled, and why one that is there does not serve."""
    return {"is_compiled": dict(_KERNELS), "refused": dict(REFUSED)}


def kernels_in_use() -> str:
    """Return a few words: compiled, Python, or which are which;
    and why one that is there does not serve.
    """
    if len(set(_KERNELS.values())) == 1:
        words = _word(is_compiled=_KERNELS["reads"])
    else:
        words = ", ".join(f"{name} {_word(is_compiled=value)}" for name, value in _KERNELS.items())
    return words + "".join(f" ({name}: {reason})" for name, reason in REFUSED.items())


def _word(*, is_compiled: bool) -> str:
    return "compiled" if is_compiled else "Python"
