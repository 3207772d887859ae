"""Bytes of tensors: read into and written from without a copy.

What this module does not do: other devices than the processor.
"""

import ctypes

import torch


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the processor, writable;
    the caller keeps the tensor alive.
    """
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(bytearray())
    assert is_plain(tensor), (
        "only contiguous tensors, not seen conjugated or negated, are their bytes"
    )
    assert tensor.device.type == "cpu", tensor.device
    return memoryview((ctypes.c_ubyte * size).from_address(tensor.data_ptr())).cast("B")


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the values of a tensor are its bytes in memory, one after the other."""
    return bool(tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the processor whose bytes in memory are its values;
    without a copy where it is one.
    """
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def landing(size: int) -> torch.Tensor:
    """Return `size` uninitialised bytes for a batch:
    in a loader's worker, of the memory that it shares with its parent.

    A batch that is read there is not copied again on its way to the training process.
    """
    if size == 0 or torch.utils.data.get_worker_info() is None:
        return torch.empty(size, dtype=torch.uint8)
    shared = torch.UntypedStorage._new_shared(size)  # noqa: SLF001 - as torch's own collate function
    return torch.empty(0, dtype=torch.uint8).set_(shared)


def stack_neighbours(samples: list[torch.Tensor]) -> torch.Tensor:
    """Collate function: return the samples as one tensor,
    without a copy if they lie one after the other in memory.

    Samples of the data sets of `emberfs.torch.datasets` do, if they are of one size and decoded by
    views (`sample.view(torch.float32)`).

    Raises:
        RuntimeError: they differ in shape.
    """
    first = samples[0]
    step = first.numel()
    at, storage = first.storage_offset(), first.untyped_storage().data_ptr()
    if all(
        sample.shape == first.shape
        and sample.dtype == first.dtype
        and sample.is_contiguous()
        and sample.untyped_storage().data_ptr() == storage
        and sample.storage_offset() == at + number * step
        for number, sample in enumerate(samples)
    ):
        return first.as_strided((len(samples), *first.shape), (step, *first.stride()), at)
    return torch.stack(samples)
