"""Which kernels are compiled in this process: what `ember version` and benchmarks say."""

from typing import Final

from . import batches, reads

_KERNELS: Final = {"batches": batches.IS_COMPILED, "reads": reads.IS_COMPILED}


def kernels_in_use() -> str:
    """Return one or a few words: compiled, Python, or which are which."""
    if len(set(_KERNELS.values())) == 1:
        return _word(is_compiled=_KERNELS["reads"])
    return ", ".join(f"{name} {_word(is_compiled=value)}" for name, value in _KERNELS.items())


def _word(*, is_compiled: bool) -> str:
    return "compiled" if is_compiled else "Python"
