"""Which tree a mount shows, in words: `CLUSTER_ID`, or `CLUSTER_ID:/SUBDIR` for a directory of it.

Pure.

Lists of mounts show these words behind `emberfs:`, unless the mount was given another name.  Every
path of the mount has them as an attribute in any case (`TREE_ATTRIBUTE`), with the path that the
directory has now: lists of mounts show the one that it had when it was mounted.
"""

from typing import Final, NamedTuple

PREFIX: Final = "emberfs:"
TREE_ATTRIBUTE: Final = b"ember.tree"


class MountedTree(NamedTuple):
    """What is the root of a mount."""

    cluster_id: str
    subdir: str = ""
    """A directory of the file system; empty: its root."""

    @property
    def words(self) -> str:
        """See module head."""
        return f"{self.cluster_id}:{self.subdir}" if self.subdir else self.cluster_id


def parse_tree(words: str) -> MountedTree:
    """Return what `MountedTree.words` says; a cluster id has no colon."""
    cluster_id, _, subdir = words.partition(":")
    return MountedTree(cluster_id, subdir)


def tree_of_source(source: str) -> MountedTree | None:
    """Return what a list of mounts says of one; None: not for certain, as the mount has another
    name there, or shows a directory that may have been moved.
    """
    if not source.startswith(PREFIX):
        return None
    tree = parse_tree(source.removeprefix(PREFIX))
    return None if tree.subdir else tree
