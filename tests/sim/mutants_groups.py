"""Mutants of writes that go through a chain together; see mutants.py."""

from typing import Any

import fs.storage.update_group as group_module
from fs.storage.forward import Forwarded

from .broken import mutant


@mutant("kill_storage", "lose_reply", volley_count=20)
def group_committed_whatever_the_successor_says() -> None:
    """A group is committed here also if the successor has not acknowledged it."""
    real = group_module.forward_together

    async def forward_together(*args: Any, **options: Any) -> list[Forwarded | None]:
        place = args[0].targets.place(args[2])
        told = await real(*args, **options)
        return [one or Forwarded(place.chain.chain_version, None) for one in told]

    group_module.forward_together = forward_together
