"""Paths that commands are given: what the file system calls them, and whose mount they are on.

A path is one of a mounted EmberFS, or, when it is on no mount, one of the file system itself.

Invariant: links above the last name are followed by this machine, as they may be absolute and then
mean nothing within the file system; so is the last one where the command is about what it leads to.

What this module does not do: choose a cluster (reach/which_cluster.py), look into the file system.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...schema.status import FsError, Status
from .mount_point import mounted_sources, mounted_tree


class OnMount(NamedTuple):
    """Where a path is."""

    mount_point: Path
    cluster_id: str
    inside: str
    """As the file system calls it."""


def on_mount(path: str, *, follow: bool = False) -> OnMount | None:
    """Return where a path is on a mount; None:
    on none, so that it is one of the file system itself.

    Args:
        path: as it was given.
        follow: a link is what it leads to.

    Raises:
        FsError: NOT_FOUND: a link leads from a mount to where none is.
    """
    head, name = os.path.split(path.rstrip("/"))
    if follow or name in {"", ".", ".."}:
        real = Path(os.path.realpath(path))
    else:
        real = Path(os.path.realpath(head), name)
    mounts = mounted_sources()
    found = _below(real, mounts)
    if found is None and _below(Path(os.path.abspath(path)), mounts) is not None:  # noqa: PTH100 - links are not followed
        detail = f"{path} leads to {real}, which is on no mount of EmberFS"
        raise FsError(Status.NOT_FOUND, detail)
    return found


def _below(path: Path, mounts: dict[str, str]) -> OnMount | None:
    for above in (path, *path.parents):
        source = mounts.get(str(above))
        if source is not None:
            tree = mounted_tree(str(above), source)
            below = f"/{path.relative_to(above)}" if path != above else ""
            return OnMount(above, tree.cluster_id, f"{tree.subdir}{below}" or "/")
    return None


def path_inside(path: str, *, follow: bool = False) -> str:
    """Return what a path is called in the file system; arguments and errors: see `on_mount`."""
    found = on_mount(path, follow=follow)
    return os.path.abspath(path) if found is None else found.inside  # noqa: PTH100 - links are for the file system


def mount_of(paths: Sequence[str], *, follow: bool = False) -> OnMount | None:
    """Return where the first of the paths that are on mounts is, None if none is.

    Raises:
        FsError: INVALID_ARGUMENT: they are on mounts of several clusters.
    """
    each = [on_mount(path, follow=follow) for path in paths]
    found = [one for one in each if one is not None]
    for other in found[1:]:
        if other.cluster_id != found[0].cluster_id:
            both = f"{found[0].mount_point} and {other.mount_point}"
            raise FsError(
                Status.INVALID_ARGUMENT, f"{both} are mounts of two clusters: one at a time"
            )
    return found[0] if found else None
