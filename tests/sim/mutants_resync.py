"""Mutants of whole chunks that are brought to a syncing successor together; see mutants.py."""

from collections.abc import Sequence
from typing import Any

import trio

import fs.storage.resync as resync_module
from fs.schema.ids import ChunkId

from .broken import mutant


@mutant("kill_storage", "power_loss", is_wide=True, volley_count=20)
def replaced_without_locks() -> None:
    """The locks of chunks are let go while their group is on its way: a later version may be overtaken by the older one."""
    real = resync_module.transfer_together

    async def transfer_together(
        context: Any, place: Any, chunk_ids: Sequence[ChunkId], *args: Any, **options: Any
    ) -> dict[ChunkId, int]:
        locks = place.target.locks
        for chunk_id in chunk_ids:
            locks.release(chunk_id)
        try:
            return await real(context, place, chunk_ids, *args, **options)
        finally:
            with trio.CancelScope(shield=True):  # the caller lets them go, also when it dies
                for chunk_id in chunk_ids:
                    await locks.hold(chunk_id).__aenter__()

    resync_module.transfer_together = transfer_together
