"""Listings of a mount that offers `3fs-virt`:
what the root really has of that name is shown as what the name leads to.
"""

from ...rpc.api import UnderWay
from ...schema.ids import ROOT_INODE_ID
from .core import VfsCore
from .directory import PAGE_ENTRY_COUNT, Directories, DirectoryEntry, OnListed
from .hf3fs_removal import TREE_NAME
from .hf3fs_tree import Hf3fsTree
from .ports import Caller


class HidingDirectories(Directories):
    """See module head and `Directories`."""

    def __init__(self, core: VfsCore, tree: Hf3fsTree) -> None:
        super().__init__(core)
        self._top = tree.lookup(ROOT_INODE_ID, TREE_NAME, Caller(0, 0))

    async def readdir(
        self,
        handle_id: int,
        cookie: int,
        count_max: int = PAGE_ENTRY_COUNT,
        *,
        is_short: bool = False,
        is_bare: bool = False,
        waited_s: float = 0.0,
    ) -> list[DirectoryEntry]:
        """See Directories."""
        page = await super().readdir(
            handle_id, cookie, count_max, is_short=is_short, is_bare=is_bare, waited_s=waited_s
        )
        return self._hidden(handle_id, page)

    def readdir_now(
        self, handle_id: int, cookie: int, count_max: int, *, is_bare: bool = False
    ) -> list[DirectoryEntry] | None:
        """See Directories."""
        page = super().readdir_now(handle_id, cookie, count_max, is_bare=is_bare)
        return None if page is None else self._hidden(handle_id, page)

    def begin_readdir(
        self,
        handle_id: int,
        cookie: int,
        count_max: int,
        on_end: OnListed,
        *,
        is_short: bool,
        is_bare: bool = False,
    ) -> UnderWay | None:
        """See Directories."""

        def end(page: list[DirectoryEntry] | None, error: Exception | None) -> None:
            on_end(None if page is None else self._hidden(handle_id, page), error)

        return super().begin_readdir(
            handle_id, cookie, count_max, end, is_short=is_short, is_bare=is_bare
        )

    def _hidden(self, handle_id: int, page: list[DirectoryEntry]) -> list[DirectoryEntry]:
        directory = self._open.get(handle_id)
        if directory is None or directory.inode_id != ROOT_INODE_ID:
            return page
        return [
            found._replace(told=self._top) if found.name == TREE_NAME else found for found in page
        ]
