"""Mutants of what clients do by path and through a vfs; see mutants.py."""

from typing import Any

import trio

import fs.client.native_file as native_file_module
import fs.client.vfs.files as files_module
import fs.client.vfs.held as held_module
import fs.meta.by_path as by_path_module

from .broken import mutant, nothing


@mutant("slow_network")
def directory_found_before_the_change() -> None:
    """A change by path happens in the directory that the path led to some time before."""
    real, known = by_path_module._find, dict[tuple[str, bytes, bytes], int]()

    async def find(tr: Any, ctx: Any, path: bytes) -> int:
        key = ctx.caller.client_id, ctx.caller.request_id, path
        if key not in known:
            known[key] = await real(tr, ctx, path)
            await trio.sleep(0.5)
        return known[key]

    by_path_module._find = find


@mutant("kill_storage", "step_clock")
def removed_files_read_as_holes() -> None:
    """Who has a file open for reading is not told that it was removed."""
    native_file_module.require_still_there = nothing


@mutant("kill_control", "slow_network")
def removed_while_opened_not_kept() -> None:
    """A file whose last name goes while it is opened is kept by no session of its mount:
    neither by that of the open, nor by one that comes since the kernel does not forget the file.
    """
    files_module.Files._is_unkept = lambda _self, _inode_id: False  # type: ignore[method-assign]
    held_module.HeldFiles.note = lambda _self, _inode_id, _caller: None  # type: ignore[method-assign]


@mutant("kill_storage", "slow_network")
def close_does_not_wait() -> None:
    """A close of a mount returns while what was written is still on its way."""
    files_module.Files.flush = nothing  # type: ignore[method-assign]
