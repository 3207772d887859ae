"""What all parts of the file system stand on: its options, the connection, URLs and paths.

What this module does not do: ask a cluster anything.
"""

import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final

from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from fs.client.blocking import BlockingFs
from fs.client.entries import Identity

from ..clusters import (
    Place,
    connection,
    find_place,
    not_hosts,
    os_errors,
    split_short_url,
    split_url,
)
from ..urls import PROTOCOLS, is_url

_OWN_OPTIONS: Final = (
    "cluster",
    "hosts",
    "cluster_id",
    "uid",
    "gid",
    "groups",
    "token",
    "token_file",
    "auto_mkdir",
)
_LIKENESS: Final = 0.8


def _refuse_misspelt(options: Iterable[str]) -> None:
    """Raise TypeError for options that are nearly ours: fsspec's file systems ignore what they
    do not know, and without its option another cluster than the one that is meant would be used.
    """
    for name in options:
        for meant in get_close_matches(name, _OWN_OPTIONS, 1, _LIKENESS):
            raise TypeError(f"{name}=...: there is no such option: is {meant}=... meant?")


class EmberBase(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """See module head."""

    protocol = PROTOCOLS
    root_marker = "/"
    async_impl = False
    local_file = False

    def __init__(
        self,
        *,
        cluster: str | os.PathLike[str] | None = None,
        hosts: str | Sequence[str] = (),
        cluster_id: str = "",
        uid: int | None = None,
        gid: int | None = None,
        groups: Sequence[int] = (),
        token: str = "",
        token_file: str | os.PathLike[str] = "",
        auto_mkdir: bool = True,
        use_listings_cache: bool = False,
        for_hosts: str = "",
        **storage_options: Any,
    ) -> None:
        """Connect at the first use.

        Args:
            cluster: folder of a cluster that `ember up` started; default: the one that
                `ember` commands would find.
            hosts: addresses of managers instead, as in a URL.
            cluster_id: of the cluster at the hosts.
            uid: on whose behalf, with gid and groups; default: the token's user,
                without a token this process's.
            gid: of that user.
            groups: other groups of that user.
            token: what lets a user into a closed cluster, as `ember user token new` shows it.
            token_file: the file that it stands in; default: that of the
                environment, EMBERFS_TOKEN_FILE.
            auto_mkdir: make the directories that are missing above what is written, as programs
                expect that were written for object stores; False: refuse with
                FileNotFoundError, as a mount does.
            use_listings_cache: keep listings; also listings_expiry_time (seconds) and max_paths.
            for_hosts: what a URL has in place of hosts; the first name of its path, if
                cluster or hosts are given.
            storage_options: fsspec's own.

        Raises:
            TypeError: an option that is nearly one of these.
            ValueError: gid or groups without uid; `for_hosts` where nothing else says the cluster.
        """
        if for_hosts and not cluster and not hosts:
            raise not_hosts(f"{PROTOCOLS[0]}://{for_hosts}/", for_hosts)
        _refuse_misspelt(storage_options)
        super().__init__(use_listings_cache=use_listings_cache, **storage_options)
        self.auto_mkdir = auto_mkdir
        self._keeps_listings = use_listings_cache
        self._cluster, self._hosts, self._cluster_id = cluster, hosts, cluster_id
        self._token, self._token_file = token, os.fspath(token_file)
        if uid is None and (gid is not None or groups):
            raise ValueError("gid and groups are those of a uid: say uid=..., too")
        self._identity = (
            None if uid is None else Identity(uid, uid if gid is None else gid, tuple(groups))
        )
        self._found: Place | None = None

    def __repr__(self) -> str:
        """Return a line without credentials, for which nobody is asked."""
        found = self._found.cluster_id if self._found is not None else self._cluster_id
        return f"<EmberFileSystem of {self._cluster or found or 'the cluster that runs here'}>"

    @property
    def connection(self) -> BlockingFs:
        """The native client, shared by all instances of this process
        that mean the same cluster and user.

        Raises:
            OSError: there is no such cluster, or it does not answer.
        """
        if self._found is None:
            self._found = find_place(
                cluster=self._cluster,
                hosts=self._hosts,
                cluster_id=self._cluster_id,
                identity=self._identity,
                token=self._token,
                token_file=self._token_file,
            )
        with os_errors(f"ember://{','.join(self._found.addresses)}"):
            return connection(self._found)

    @property
    def fsid(self) -> str:
        """Names the cluster for ever."""
        if self._found is None:
            _ = self.connection
        assert self._found is not None
        return f"ember-{self._found.cluster_id}"

    def to_dict(self, *, include_password: bool = True) -> dict[str, Any]:
        """Return what describes this instance; without password: also without the token."""
        said: dict[str, Any] = super().to_dict(include_password=include_password)
        if not include_password:
            said.pop("token", None)
        return said

    # ---- URLs and paths --------------------------------------------------------------------------

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return split_short_url(stringify_path(path))[1]

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        for_hosts, _ = split_short_url(stringify_path(path))
        if for_hosts:
            return {"for_hosts": for_hosts}
        cluster_id, hosts, _ = split_url(stringify_path(path))
        return {
            key: value for key, value in (("cluster_id", cluster_id), ("hosts", hosts)) if value
        }

    def unstrip_protocol(self, name: str) -> str:
        """Return the URL of a path; with the cluster's id and hosts as far as they were given."""
        if is_url(name):
            return name
        authority = ""
        if self._cluster_id:
            hosts = self._hosts if isinstance(self._hosts, str) else ",".join(self._hosts)
            authority = f"{self._cluster_id}@{hosts}"
        return f"{PROTOCOLS[0]}://{authority}{self._strip_protocol(name)}"
