"""A metadata service over an engine, honest chunks, and callers that speak its RPCs."""

import errno
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest
import trio
from trio._core import _run
from xxhash import xxh3_64_intdigest

from fs.kv.api import KvEngine
from fs.kv.transact import snapshot_read
from fs.meta.init import initialise
from fs.meta.meta import Meta
from fs.meta.sessions import SessionPruner
from fs.rpc.api import Call, Identity
from fs.runtime.simulated import simulated_runtime
from fs.runtime.until_wait import begin_without_task
from fs.schema.config import MetaSection, ProcessConfig
from fs.schema.ids import ROOT_INODE_ID
from fs.schema.layout import FileRef
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.common_pb2 import CallerPb, InodePb
from fs.schema.proto.mgmtd_pb2 import ClientSessionPb, ListClientSessionsRsp
from fs.schema.routing import ChainTable, RoutingInfo
from fs.schema.status import FsError, Status
from tests.kv.stepping import wait_quiet

CALL = Call(Identity("test"), 1, float("inf"))
SECOND_NS = 1_000_000_000
ROOT = ROOT_INODE_ID
INLINE_BYTES_MAX = 4096
INLINE_TOTAL_BYTES_MAX = 10_000
"""What the fixture `inline_world` keeps inline: of one file, of all."""


def outside_any_task(function, *args):
    """Call a function as the event loop calls those that are told of what has come:
    there is no current task.
    """
    context = _run.GLOBAL_RUN_CONTEXT
    task = context.task
    del context.task
    try:
        assert not trio.lowlevel.in_trio_task()
        return function(*args)
    finally:
        context.task = task


class FakeChunks:
    """Lengths of files as their chunks would tell; everything asked of it is noted."""

    def __init__(self):
        self.lengths = {}
        self.used = {}
        self.truncated = []
        self.filled = []
        self.removed = []
        self.error = None
        self.before_truncate = None
        self.after_look = None

    def _fail(self):
        if self.error is not None:
            raise self.error

    async def remove_files(self, files: Sequence[FileRef]) -> None:
        self._fail()
        for file in files:
            self.removed.append(file.inode_id)
            self.lengths.pop(file.inode_id, None)

    async def truncate_file(
        self,
        file: FileRef,
        length: int,
        _truncate_ver: int,
        is_wanted: Callable[[], Awaitable[bool]],
    ) -> None:
        if self.before_truncate is not None:
            await self.before_truncate()
        self._fail()
        if not await is_wanted():
            return
        self.truncated.append((file.inode_id, length))
        self.lengths[file.inode_id] = min(self.lengths.get(file.inode_id, 0), length)

    async def fill_file(
        self,
        file: FileRef,
        data: bytes,
        _truncate_ver: int,
        is_wanted: Callable[[], Awaitable[bool]],
    ) -> None:
        assert 0 < len(data) <= file.layout.chunk_size_bytes
        if self.before_truncate is not None:
            await self.before_truncate()
        self._fail()
        if not await is_wanted():
            return
        self.filled.append((file.inode_id, bytes(data)))
        self.lengths[file.inode_id] = len(data)

    async def file_length(self, file: FileRef) -> tuple[int, int]:
        self._fail()
        length = self.lengths.get(file.inode_id, 0)
        used_bytes = self.used.get(file.inode_id, length)
        if self.after_look is not None:
            await self.after_look()
        return length, used_bytes

    async def space(self) -> tuple[int, int]:
        self._fail()
        return 1000, 400


class FakeRouting:
    def __init__(self, chain_count=4):
        table = ChainTable(1, 1, tuple(range(101, 101 + chain_count)))
        self.info = RoutingInfo(1, "test", chain_tables={(1, 1): table})

    async def wait_newer(self, _routing_version):
        await trio.sleep_forever()

    async def refresh(self):
        return self.info


class FakeMgmtd:
    def __init__(self):
        self.client_ids = []
        self.is_complete = True

    async def call(self, _method, _request, *, timeout_s=None):
        del timeout_s
        return ListClientSessionsRsp(
            sessions=[ClientSessionPb(client_id=c) for c in self.client_ids],
            is_complete=self.is_complete,
        )


def make_config(**changes) -> ProcessConfig:
    return ProcessConfig(meta=MetaSection(**changes))


class World:
    """One cluster's metadata: an engine, chunks, and any number of services over them."""

    def __init__(self, engine: KvEngine, *, new_engine=None, **config):
        self.engine = engine
        self._new_engine = new_engine
        self.chunks = FakeChunks()
        self.routing = FakeRouting()
        self.mgmtd = FakeMgmtd()
        self.config = make_config(**config)
        self._seed = 0
        self._request_count = self._served_count = 0
        self.meta = self.new_meta()

    def new_meta(self) -> Meta:
        """Another instance of the service, as after a restart."""
        self._seed += 1
        self.runtime = simulated_runtime(None, self._seed)
        return Meta(self.engine, self.runtime, self.config, self.routing, self.chunks, self.mgmtd)

    def pruner(self, now_ns: Callable[[], int]) -> SessionPruner:
        """What ends what clients that are gone have left, at a time of its own."""
        service = self.meta.service
        return SessionPruner(
            self.engine,
            self.config.meta,
            mgmtd=self.mgmtd,
            end_session=service.end_session,
            end_locks=service.end_locks,
            end_lock_waits=service.end_lock_waits,
            end_directory_lock=service.end_directory_lock,
            now_ns=now_ns,
        )

    async def initialise(self):
        await initialise(
            self.engine, runtime=self.runtime, cluster_id="emberfs", config=self.config.meta
        )

    async def fresh(self) -> "World":
        """Return a world of its own, on a new engine of the same kind."""
        made = World(await self._new_engine(), new_engine=self._new_engine)
        await made.initialise()
        return made

    async def wait_quiet(self) -> None:
        """Wait until every task waits for something else than the store."""
        store = getattr(self.engine, "inner", self.engine)
        await wait_quiet(lambda: getattr(store, "waiting_count", 0) > 0)

    async def dump(self) -> dict[bytes, bytes]:
        """Return everything in the store."""
        return dict(
            await snapshot_read(self.engine, lambda tr: tr.get_range(b"", b"\xff", snapshot=True))
        )

    def next_request_id(self) -> bytes:
        self._request_count += 1
        return self._request_count.to_bytes(16, "big")

    async def serve(self, name: str, request):
        """Serve a request as a server does: every other one is begun outside of any task,
        if it is of those that are.
        """
        service = self.meta.service
        method = getattr(service, name)
        self._served_count += 1
        camel = "".join(map(str.capitalize, name.split("_")))
        is_tried = self._served_count % 2 == 0 and camel in service.tried_methods
        # Faults may wait where the engine does not.
        if not is_tried or self.engine.faults is not None or not trio.lowlevel.in_trio_task():
            return await method(CALL, request)
        try:
            rest = outside_any_task(begin_without_task, method(CALL, request))
        except StopIteration as end:
            return end.value
        except RuntimeError:
            rest = method(CALL, request)
        return await rest

    def user(self, uid=0, gid=None, groups=(), client="c" * 32) -> "User":
        return User(self, uid, uid if gid is None else gid, tuple(groups), client)


def session(number: int, *, is_write=True) -> meta.FileSessionPb:
    return meta.FileSessionPb(session_id=f"{number:032x}", is_write=is_write)


@dataclass
class User:
    """Somebody with a uid at one client; every method is one RPC."""

    world: World
    uid: int
    gid: int
    groups: tuple
    client: str
    request_id: bytes | None = None
    is_repeat: bool = False
    last_request_id: bytes = field(default=b"", init=False)

    def caller(self) -> CallerPb:
        self.last_request_id = self.request_id or self.world.next_request_id()
        return CallerPb(
            uid=self.uid,
            gid=self.gid,
            groups=self.groups,
            client_id=self.client,
            request_id=self.last_request_id,
            is_repeat=self.is_repeat,
        )

    async def call(self, name: str, request):
        if isinstance(request, meta.CloseReq):
            request.sync.caller.CopyFrom(self.caller())
        else:
            request.caller.CopyFrom(self.caller())
        # What the wire would do: nothing is shared between the two sides.
        request = type(request).FromString(request.SerializeToString())
        return await self.world.serve(name, request)

    async def lookup(self, parent, name, **fields) -> InodePb:
        request = meta.LookupReq(parent_inode_id=parent, name=name, **fields)
        return (await self.call("lookup", request)).inode

    async def attr(self, inode_id) -> InodePb:
        return (await self.call("get_attr", meta.GetAttrReq(inode_id=inode_id))).inode

    async def create(self, parent, name, mode=0o644, **fields) -> InodePb:
        return (await self.create_rsp(parent, name, mode, **fields)).inode

    async def create_rsp(self, parent, name, mode=0o644, **fields) -> meta.CreateRsp:
        request = meta.CreateReq(parent_inode_id=parent, name=name, mode=mode, **fields)
        return await self.call("create", request)

    async def mkdir(self, parent, name, mode=0o755, **fields) -> InodePb:
        request = meta.MkdirReq(parent_inode_id=parent, name=name, mode=mode, **fields)
        return (await self.call("mkdir", request)).inode

    async def makedirs(self, parent, path, mode=0o755, **fields) -> meta.MakeDirectoriesRsp:
        request = meta.MakeDirectoriesReq(parent_inode_id=parent, path=path, mode=mode, **fields)
        return await self.call("make_directories", request)

    async def symlink(self, parent, name, target) -> InodePb:
        request = meta.SymlinkReq(parent_inode_id=parent, name=name, target=target)
        return (await self.call("symlink", request)).inode

    async def mknod(self, parent, name, type_, mode=0o644, rdev=0) -> InodePb:
        request = meta.MknodReq(parent_inode_id=parent, name=name, type=type_, mode=mode, rdev=rdev)
        return (await self.call("mknod", request)).inode

    async def link(self, inode_id, parent, name) -> InodePb:
        request = meta.LinkReq(inode_id=inode_id, parent_inode_id=parent, name=name)
        return (await self.call("link", request)).inode

    async def unlink(self, parent, name, **fields) -> InodePb:
        request = meta.UnlinkReq(parent_inode_id=parent, name=name, **fields)
        return (await self.call("unlink", request)).removed

    async def rmdir(self, parent, name) -> InodePb:
        request = meta.RmdirReq(parent_inode_id=parent, name=name)
        return (await self.call("rmdir", request)).removed

    async def remove_tree(self, parent, name, inode_id=0) -> InodePb:
        request = meta.RemoveTreeReq(parent_inode_id=parent, name=name, inode_id=inode_id)
        return (await self.call("remove_tree", request)).removed

    async def rename(self, old, old_name, new, new_name, **fields) -> meta.RenameRsp:
        request = meta.RenameReq(
            old_parent_inode_id=old,
            old_name=old_name,
            new_parent_inode_id=new,
            new_name=new_name,
            **fields,
        )
        return await self.call("rename", request)

    async def open(self, inode_id, **fields) -> InodePb:
        return (await self.call("open", meta.OpenReq(inode_id=inode_id, **fields))).inode

    async def sync(self, inode_id, **fields) -> InodePb:
        return (await self.call("sync", meta.SyncReq(inode_id=inode_id, **fields))).inode

    async def close(self, inode_id, session_id="", **fields) -> InodePb:
        request = meta.CloseReq(
            sync=meta.SyncReq(inode_id=inode_id, **fields), session_id=session_id
        )
        return (await self.call("close", request)).inode

    async def set_attr(self, inode_id, **fields) -> InodePb:
        return (await self.call("set_attr", meta.SetAttrReq(inode_id=inode_id, **fields))).inode

    async def list(self, inode_id, **fields) -> meta.ListRsp:
        return await self.call("list", meta.ListReq(inode_id=inode_id, **fields))

    async def names(self, inode_id):
        return [entry.name for entry in (await self.list(inode_id)).entries]

    async def usage(self, inode_id) -> meta.GetUsageRsp:
        return await self.call("get_usage", meta.GetUsageReq(inode_id=inode_id))

    async def set_quota(self, inode_id, bytes_max, inodes_max) -> meta.SetQuotaRsp:
        quota = meta.QuotaPb(bytes_max=bytes_max, inodes_max=inodes_max)
        return await self.call("set_quota", meta.SetQuotaReq(inode_id=inode_id, quota=quota))

    async def reserve(self, inode_id, length) -> meta.InodeRsp:
        request = meta.ReserveSpaceReq(inode_id=inode_id, length=length)
        return await self.call("reserve_space", request)

    async def append(self, inode_id, length, **fields) -> meta.ReserveAppendRsp:
        request = meta.ReserveAppendReq(inode_id=inode_id, length=length, **fields)
        return await self.call("reserve_append", request)


def hint(length, truncate_ver=0) -> meta.LengthHintPb:
    return meta.LengthHintPb(length=length, truncate_ver=truncate_ver)


def inline_report(data: bytes, data_ver=0, truncate_ver=0, **fields) -> dict:
    """Fields of a report that brings all bytes of a file."""
    return {
        "has_new_data": True,
        "length_hint": hint(len(data), truncate_ver),
        "inline_data": data,
        "inline_checksum": xxh3_64_intdigest(data),
        "inline_data_ver": data_ver,
        **fields,
    }


class refused:  # noqa: N801 - reads like pytest.raises
    """Expects one status; `errno` names what an application would see."""

    def __init__(self, status: Status, errno_name: str = ""):
        self.status = status
        self.errno_name = errno_name
        self._inner = pytest.raises(FsError)

    def __enter__(self):
        self._info = self._inner.__enter__()
        return self._info

    def __exit__(self, *exc):
        swallowed = self._inner.__exit__(*exc)
        assert self._info.value.status is self.status, self._info.value
        if self.errno_name:
            assert errno.errorcode[self._info.value.errno] == self.errno_name
        return swallowed
