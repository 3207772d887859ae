"""Mutants of whole chunks that are brought to a syncing successor together; see mutants.py."""

from collections.abc import Sequence
from typing import Any

import trio

import fs.storage.resync as resync_module
import fs.storage.service as service_module
from fs.schema.ids import ChunkId

from .broken import mutant


@mutant("isolate", "partition", "kill_storage", "lose_reply", is_wide=True, volley_count=20)
def replaced_under_any_chain_version() -> None:
    """A syncing target commits whole chunks of a group
    that was sent under another version of its chain.
    """
    real = service_module.StorageService.replace_group

    async def replace_group(self: Any, call: Any, request: Any) -> Any:
        made = type(request)()
        made.CopyFrom(request)
        chain = self._context.targets.look().chains.get(request.updates[0].chain_id)
        for one in made.updates:
            one.chain_version = chain.chain_version if chain is not None else one.chain_version
        return await real(self, call, made)

    service_module.StorageService.replace_group = replace_group  # type: ignore[method-assign]


@mutant("kill_storage", "power_loss", is_wide=True, volley_count=20)
def replaced_without_locks() -> None:
    """The locks of chunks are let go while their group is on its way:
    a later version may be overtaken by the older one.
    """
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
