"""Directories and names: made, moved, copied, removed; whole trees in one step on the server."""

import errno
import posixpath
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fs.schema.status import FsError, Status

from ..clusters import os_errors
from ..urls import is_url
from .listing import Listing

T = TypeVar("T")


class Names(Listing):
    """See module head."""

    def mkdir(self, path: Any, create_parents: bool = True, mode: int = 0o755, **_kw: Any) -> None:
        """Make a directory, with those above it that are missing."""
        path = self._strip_protocol(path)
        if create_parents:
            self._makedirs(self._parent(path), mode, exist_ok=True)
        with os_errors(path):
            self.connection.mkdir(path, mode)
        self._changed(path)

    def makedirs(self, path: Any, exist_ok: bool = False, mode: int = 0o755) -> None:
        """Make a directory and those above it that are missing."""
        self._makedirs(self._strip_protocol(path), mode, exist_ok=exist_ok)

    def _makedirs(self, path: str, mode: int, *, exist_ok: bool) -> None:
        if path == self.root_marker:
            if not exist_ok:
                raise FileExistsError(errno.EEXIST, "this is the root", path)
            return
        with os_errors(path):
            if exist_ok:
                self.connection.makedirs(path, mode)
            else:
                self.connection.makedirs(self._parent(path), mode)
                self.connection.mkdir(path, mode)
        self._changed(path)

    def rmdir(self, path: Any) -> None:
        """Remove an empty directory."""
        path = self._strip_protocol(path)
        with os_errors(path):
            self.connection.rmdir(path)
        self._changed(path)

    def rm_file(self, path: Any) -> None:
        """Remove a name that is no directory."""
        path = self._strip_protocol(path)
        with os_errors(path):
            self.connection.unlink(path)
        self._changed(path)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove paths, which may hold wildcards; a whole tree in one step on the server."""
        if maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        removed: list[str] = []
        for one in self.expand_path(path):
            if any(one.startswith(f"{above}/") for above in removed):
                continue
            with os_errors(one):
                if not self.connection.stat(one, follow=False).is_dir:
                    self.connection.unlink(one)
                elif recursive:
                    self.connection.remove_tree(one)
                    removed.append(one)
                else:
                    raise FsError(Status.IS_DIRECTORY, "say recursive=True to remove it")
            self._changed(one)
        if removed:
            self.dircache.clear()

    def mv(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = True,
        maxdepth: int | None = None,
        **_kwargs: Any,
    ) -> None:
        """Rename on the server, files and directories alike; into `path2` when that is a directory.

        Raises:
            ValueError: maxdepth: a directory is moved whole.
        """
        del recursive  # a rename takes along what lies below
        if maxdepth is not None:
            raise ValueError("a directory is moved whole: maxdepth cannot be kept")
        if isinstance(path1, list) and isinstance(path2, list):
            pairs = list(zip(self._strip_protocol(path1), self._strip_protocol(path2), strict=True))
        else:
            into = str(path2).endswith("/") or self.isdir(path2)
            target = self._strip_protocol(path2)
            old = self.expand_path(path1)
            if len(old) > 1 and not into:
                raise NotADirectoryError(errno.ENOTDIR, "several paths need a directory", target)
            pairs = [
                (one, posixpath.join(target, posixpath.basename(one)) if into else target)
                for one in old
            ]
        for old_path, new_path in pairs:
            if old_path == new_path:
                continue
            with os_errors(old_path, new_path):
                # Nothing is made for what is not there.
                self.connection.stat(old_path, follow=False)
                self._below_directories(
                    new_path, partial(self.connection.rename, old_path, new_path)
                )
            self._changed(old_path, new_path)
            self.dircache.clear()  # of all that lay below, too

    def cp_file(self, path1: Any, path2: Any, **_kwargs: Any) -> None:
        """Copy a file through this client, in large pieces; make a directory;
        copy a link to a directory as a link.
        """
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        own = self.connection
        with os_errors(path1, path2):
            if not own.stat(path1).is_dir:
                copy: Callable[[], object] = partial(own.copy_file, path1, path2)
            elif own.stat(path1, follow=False).is_dir:
                copy = partial(own.mkdir, path2, exist_ok=True)
            else:
                copy = partial(own.symlink, own.readlink(path1), path2)
            self._below_directories(path2, copy)
        self._changed(path2)

    def link(self, path1: Any, path2: Any, **_kwargs: Any) -> None:
        """Give a file one more name."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        with os_errors(path1, path2):
            self.connection.link(path1, path2)
        self._changed(path2)

    def symlink(self, path1: str, path2: Any, **_kwargs: Any) -> None:
        """Make a symbolic link at `path2`; the target, absolute or relative, is taken as it is."""
        target = str(path1)
        if is_url(target):
            target = self._strip_protocol(target)
        path2 = self._strip_protocol(path2)
        with os_errors(target, path2):
            self.connection.symlink(target, path2)
        self._changed(path2)

    def chmod(self, path: Any, mode: int, **_kwargs: Any) -> None:
        """Change the permissions of what a path leads to."""
        path = self._strip_protocol(path)
        with os_errors(path):
            self.connection.set_attributes(path, mode=mode)
        self._changed(path)

    def _below_directories(self, path: str, make: Callable[[], T]) -> T:
        """Make something at a path; again with the directories above it when these
        are missing and wanted.

        Raises:
            FsError: of making it.
        """
        try:
            return make()
        except FsError as error:
            if error.status is not Status.NOT_FOUND or not self.auto_mkdir:
                raise
            # Also when they are there by now: another thread may just have made them.
            self._makedirs(self._parent(path), 0o755, exist_ok=True)
            return make()
