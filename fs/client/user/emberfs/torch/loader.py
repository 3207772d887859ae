"""A DataLoader that can stop at any batch and go on with the next one, in another process, exactly.

Purpose: a training job that is killed resumes with the data that it would have seen.  The state is
small: epoch, and batches handed out; everything else follows from the seed (`emberfs.order`).

What this module does not do: restore random transformations of samples:
derive their seeds from the sample.
"""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, Sampler

from ..order import EpochOrder, need_shares, share
from .datasets import RecordStream, rank_and_world


class BlockSampler(Sampler[list[int]]):
    """Batches of sample numbers in shuffled blocks, an equal share for each rank;
    pass it as `batch_sampler`.

    Args:
        count: samples in the data set.
        batch_size: samples per batch.
        block: neighbouring samples that stay together; 1: a perfect shuffle.
        window: blocks whose samples are mixed.
        seed: of the order; the same on all ranks; None: not shuffled.
        rank: of this process, and `world`, their number: default, those of torch.distributed.
        world: see `rank`.
        drop_last: leave out the last batch of an epoch if it is smaller.

    Raises:
        ValueError: no such rank, or fewer samples than ranks.
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        *,
        block: int = 64,
        window: int = 16,
        seed: int | None = 0,
        rank: int | None = None,
        world: int | None = None,
        drop_last: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch size {batch_size} must be at least 1")
        self._count, self.batch_size = count, batch_size
        self._block, self._window, self._seed = block, window, seed
        found = rank_and_world()
        self.rank = found[0] if rank is None else rank
        self.world = found[1] if world is None else world
        need_shares(count, self.rank, self.world)
        self._drop_last = drop_last
        self._epoch = self._batches = 0

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value}" for name, value in self.shape().items())
        return f"<BlockSampler of rank {self.rank}: {said}>"

    def __len__(self) -> int:
        """Return the batches of a whole epoch."""
        each = self._count // self.world
        return each // self.batch_size if self._drop_last else -(-each // self.batch_size)

    def shape(self) -> dict[str, Any]:
        """Return what a position means nothing without."""
        order = {"block": self._block, "window": self._window, "seed": self._seed}
        return {"samples": self._count, **order, "batch_size": self.batch_size, "world": self.world}

    def set_position(self, epoch: int, batches: int) -> None:
        """Let the next iteration begin after `batches` batches of an epoch."""
        self._epoch, self._batches = epoch, batches

    def __iter__(self) -> Iterator[list[int]]:
        order = EpochOrder(self._count, self._block, self._window, self._seed, self._epoch)
        begin, end = share(self._count, self.rank, self.world)
        batch: list[int] = []
        for index in order.between(min(begin + self._batches * self.batch_size, end), end):
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self._drop_last:
            yield batch


class ResumableLoader(DataLoader[Any]):
    """A DataLoader over a `RecordStream`, or with a `BlockSampler`,
    that remembers what it has handed out.

    `state_dict()` between two batches describes the next one; epochs are counted, each has an order
    of its own.  With a `BlockSampler` a state may be loaded with another number of workers; a
    `RecordStream` shares data out over them, so there it must be the same.  Ranks, batch size,
    number of samples and how they are shuffled must be the same with both.

    Args:
        dataset: see above.
        options: as of DataLoader.
    """

    def __init__(self, dataset: Any, **options: Any) -> None:
        super().__init__(dataset, **options)
        if not isinstance(dataset, RecordStream) and not isinstance(
            self.batch_sampler, BlockSampler
        ):
            raise TypeError(
                "a resumable loader needs a RecordStream or batch_sampler=BlockSampler()"
            )
        self._epoch = self._batches = 0

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs to go on after the batches handed out so far."""
        return {"epoch": self._epoch, "batches": self._batches, **self._shape()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on there.

        Raises:
            ValueError: the state is of other data, or of a loader that orders or
                shares it out in another way.
        """
        mine = self._shape()
        theirs = {name: state.get(name) for name in mine}
        if theirs != mine:
            raise ValueError(f"the state was saved with {theirs}, this loader has {mine}")
        self._epoch, self._batches = state["epoch"], state["batches"]

    def __iter__(self) -> Any:
        return self._counted()

    def _counted(self) -> Iterator[Any]:
        shape = self._shape()
        if isinstance(self.dataset, RecordStream):
            self.dataset.set_position(self._epoch, self._batches, shape["batch_size"])
        else:
            self.batch_sampler.set_position(self._epoch, self._batches)
        for batch in super().__iter__():
            self._batches += 1
            yield batch
        self._epoch, self._batches = self._epoch + 1, 0

    def _shape(self) -> dict[str, Any]:
        """Return what must not change between saving and loading."""
        if isinstance(self.dataset, RecordStream):
            return {
                **self.dataset.shape(),
                "batch_size": self.batch_size or 1,
                "workers": max(self.num_workers, 1),
            }
        shape: dict[str, Any] = self.batch_sampler.shape()
        return shape
