"""The metadata service of the model file system (fakes.py), as one client calls it."""

import re
from collections import defaultdict
from dataclasses import replace

import trio

from fs.meta import acl, file_locks
from fs.meta.lock_cycles import CycleSearch, LockWait
from fs.meta.ops.note_reads import time_noted
from fs.schema.ids import InodeId
from fs.schema.inode import (
    DirectoryPart,
    FilePart,
    Inode,
    InodeType,
    inode_to_pb,
)
from fs.schema.layout import MAX_FILE_LENGTH_BYTES
from fs.schema.name_lease import WAIT_S
from fs.schema.proto import meta_pb2
from fs.schema.status import FsError, Status

from .fake_inline import end_inline, fetched
from .fake_owner import with_owner

ENDING = "nobody's"
CHANGING = {
    "Create",
    "Mkdir",
    "Symlink",
    "Mknod",
    "Link",
    "Unlink",
    "Rmdir",
    "RemoveTree",
    "Rename",
}
PARENTS = "parent_inode_id", "old_parent_inode_id", "new_parent_inode_id"
DIRECTORY_LOCK_NAME = b"ember.lock"
USAGE_PREFIX = b"ember.usage."


class FakeMeta:
    """MetaCaller of one client."""

    def __init__(self, cluster, client_id):
        self.cluster = cluster
        self.client_id = client_id

    async def call(self, method, request, *, timeout_s=None):  # noqa: ARG002 - the port has it
        self.cluster.calls.append(method.name)
        if method.name == "Sync":
            self.cluster.inline.sign(request.caller)
        await trio.lowlevel.checkpoint()
        if self.cluster.meta_gate is not None:
            await self.cluster.meta_gate.wait()
        faults = self.cluster.meta_faults.get(method.name)
        if faults:
            raise faults.pop(0)
        await self._end_lease(method, request)
        name = re.sub(r"(?<!^)([A-Z])", r"_\1", method.name).lower()
        reply = await getattr(self, name)(request)
        if isinstance(reply, Inode):
            reply = meta_pb2.InodeRsp(inode=inode_to_pb(reply))
        assert isinstance(reply, method.reply_type), (method.name, reply)
        self._tell_directories(method, request, reply)
        if hasattr(reply, "inline_data"):
            self.cluster.inline.bring(request, method.name, reply)
        return reply

    async def fetch(self, method, request):
        return await fetched(self, method, request)

    async def _end_lease(self, method, request):
        """Who may change a name in what another client has the lease of waits for its end."""
        if method.name not in CHANGING:
            return
        for field in PARENTS:
            leases, directory_id = self.cluster.leases, getattr(request, field, 0)
            if leases.get(directory_id, self.client_id) != self.client_id:
                leases[directory_id] = ENDING
                await trio.sleep(WAIT_S)
                leases.pop(directory_id, None)

    def _tell_directories(self, method, request, reply):
        ids = [
            getattr(request, field)
            for field in PARENTS
            if hasattr(request, field) and method.name != "Lookup"
        ]
        if method.name in {"Lookup", "GetAttr"} and reply.inode.inode_id in self.cluster.leases:
            reply.inode.directory.lease_client_id = self.cluster.leases[reply.inode.inode_id]
        for inode_id in dict.fromkeys(ids):
            told = inode_to_pb(self.cluster.get(inode_id))
            told.directory.lease_client_id = self.cluster.leases.get(inode_id, "")
            reply.directories.append(told)

    async def lookup(self, r):
        if r.tells_removed and r.parent_inode_id not in self.cluster.inodes:
            raise FsError(Status.DIRECTORY_REMOVED, f"{r.parent_inode_id}")
        found = self.cluster.child(r.parent_inode_id, r.name)
        if not r.opens or found.file is None or not self.cluster.opens_ahead:
            return found
        reply = meta_pb2.InodeRsp(inode=inode_to_pb(found), is_opened=True)
        opened = meta_pb2.OpenReq(caller=r.caller, wants_read=True, takes_inline=True)
        self.cluster.inline.bring(opened, "Open", reply)
        return reply

    def _require_readable(self, inode_ids):
        for inode_id in self.cluster.damaged.intersection(inode_ids):
            raise FsError(Status.METADATA_DAMAGED, f"inode {inode_id}")

    async def get_attr(self, r):
        self._require_readable([r.inode_id])
        return self.cluster.get(r.inode_id)

    async def batch_get_attr(self, r):
        self._require_readable(r.inode_ids)
        found = [self.cluster.inodes.get(inode_id) for inode_id in r.inode_ids]
        replies = [None if inode is None else inode_to_pb(inode) for inode in found]
        return meta_pb2.BatchGetAttrRsp(inodes=[meta_pb2.InodeRsp(inode=one) for one in replies])

    async def stat_fs(self, _request):
        capacity_bytes, free_bytes = await self.cluster.chunks.space()
        return meta_pb2.StatFsRsp(
            capacity_bytes=capacity_bytes, free_bytes=free_bytes, inode_count=3
        )

    async def create(self, r):
        c = self.cluster
        c.get(r.parent_inode_id)
        existing = c.names[r.parent_inode_id].get(r.name)
        if existing is not None:
            if r.is_exclusive:
                raise FsError(Status.EXISTS, repr(r.name))
            inode = c.get(existing)
            if inode.is_dir:
                raise FsError(Status.IS_DIRECTORY, repr(r.name))
            c.open_session(existing, r.session, self.client_id)
            if not r.is_truncate:
                c.inline.leave_for(r, inode)
            inode = c.get(existing)
            if r.is_truncate and inode.file.length:
                inode = await c.truncate(inode, 0)
        else:
            file = FilePart(0, 0, c.layout, 1, 0)
            mode = r.mode & ~r.umask
            inode = c.add(r.caller, r.parent_inode_id, r.name, InodeType.FILE, mode, file=file)
            c.open_session(inode.inode_id, r.session, self.client_id)
        return meta_pb2.CreateRsp(inode=inode_to_pb(inode), was_created=existing is None)

    async def mkdir(self, r):
        part = DirectoryPart(InodeId(r.parent_inode_id), r.name)
        made = self.cluster.add(
            r.caller,
            r.parent_inode_id,
            r.name,
            InodeType.DIRECTORY,
            r.mode & ~r.umask,
            directory=part,
        )
        reply = meta_pb2.InodeRsp(inode=inode_to_pb(made))
        if r.wants_name_lease:
            self.cluster.leases[made.inode_id] = self.client_id
            reply.inode.directory.lease_client_id = self.client_id
        return reply

    async def symlink(self, r):
        return self.cluster.add(
            r.caller, r.parent_inode_id, r.name, InodeType.SYMLINK, 0o777, symlink_target=r.target
        )

    async def mknod(self, r):
        return self.cluster.add(
            r.caller,
            r.parent_inode_id,
            r.name,
            InodeType(r.type),
            r.mode & ~r.umask,
            rdev=r.rdev,
        )

    async def link(self, r):
        c = self.cluster
        c.require_expected(r)
        inode = c.get(r.inode_id)
        if r.name in c.names[r.parent_inode_id]:
            raise FsError(Status.EXISTS, repr(r.name))
        c.names[r.parent_inode_id][r.name] = r.inode_id
        c.touch(r.parent_inode_id)
        return c.put(inode, nlink=inode.nlink + 1)

    async def unlink(self, r):
        c = self.cluster
        inode = c.child(r.parent_inode_id, r.name)
        if inode.is_dir:
            raise FsError(Status.IS_DIRECTORY, repr(r.name))
        if r.keep_inode_id == inode.inode_id:
            c.open_session(inode.inode_id, r.keep_session, self.client_id)
        del c.names[r.parent_inode_id][r.name]
        c.touch(r.parent_inode_id)
        return meta_pb2.RemoveRsp(removed=inode_to_pb(await c.drop_link(inode)))

    async def rmdir(self, r):
        c = self.cluster
        inode = c.child(r.parent_inode_id, r.name)
        if not inode.is_dir:
            raise FsError(Status.NOT_DIRECTORY, repr(r.name))
        if c.names[inode.inode_id]:
            raise FsError(Status.NOT_EMPTY, repr(r.name))
        del c.names[r.parent_inode_id][r.name]
        del c.names[inode.inode_id]
        del c.inodes[inode.inode_id]
        c.touch(r.parent_inode_id, -1)
        return meta_pb2.RemoveRsp(removed=inode_to_pb(replace(inode, nlink=0)))

    async def remove_tree(self, r):
        c = self.cluster
        inode = c.child(r.parent_inode_id, r.name)
        if inode.inode_id != r.inode_id:
            raise FsError(Status.NOT_FOUND, repr(r.name))
        if r.caller.uid not in (0, inode.uid):
            raise FsError(Status.NOT_PERMITTED, repr(r.name))
        self._empty(inode.inode_id)
        return await self.rmdir(r)

    def _empty(self, directory_id):
        names = self.cluster.names
        for inode_id in names[directory_id].values():
            if inode_id in names:
                self._empty(inode_id)
                del names[inode_id]
            del self.cluster.inodes[inode_id]
        names[directory_id].clear()

    async def rename(self, r):
        c = self.cluster
        moved = c.child(r.old_parent_inode_id, r.old_name)
        target_id = c.names[r.new_parent_inode_id].get(r.new_name)
        reply = meta_pb2.RenameRsp()
        if r.no_replace and target_id is not None:
            raise FsError(Status.EXISTS, repr(r.new_name))
        if r.exchange:
            other = c.child(r.new_parent_inode_id, r.new_name)
            c.names[r.old_parent_inode_id][r.old_name] = other.inode_id
            other = self._reparent(other, r.old_parent_inode_id, r.old_name)
            reply.replaced.CopyFrom(inode_to_pb(other))
        elif target_id == moved.inode_id:
            reply.moved.CopyFrom(inode_to_pb(moved))
            return reply
        elif target_id is not None:
            old = c.get(target_id)
            if old.is_dir and c.names[target_id]:
                raise FsError(Status.NOT_EMPTY, repr(r.new_name))
            if old.is_dir:
                del c.names[target_id], c.inodes[target_id]
            else:
                if r.keep_inode_id == target_id:
                    c.open_session(target_id, r.keep_session, self.client_id)
                reply.replaced.CopyFrom(inode_to_pb(await c.drop_link(old)))
        if not r.exchange:
            del c.names[r.old_parent_inode_id][r.old_name]
        c.names[r.new_parent_inode_id][r.new_name] = moved.inode_id
        moved = self._reparent(moved, r.new_parent_inode_id, r.new_name)
        c.touch(r.old_parent_inode_id)
        c.touch(r.new_parent_inode_id)
        reply.moved.CopyFrom(inode_to_pb(moved))
        return reply

    def _reparent(self, inode, parent, name):
        if inode.is_dir:
            part = DirectoryPart(InodeId(parent), name)
            return self.cluster.put(inode, directory=part)
        return self.cluster.put(inode)

    async def open(self, r):
        c = self.cluster
        inode = c.get(r.inode_id)
        c.require_expected(r)
        if inode.is_dir and r.wants_write:
            raise FsError(Status.IS_DIRECTORY, f"{r.inode_id}")
        c.open_session(r.inode_id, r.session, self.client_id)
        if not r.is_truncate and inode.file is not None:
            c.inline.leave_for(r, inode)
        inode = c.get(r.inode_id)
        if r.is_truncate and inode.file.length:
            inode = await c.truncate(inode, 0)
        return inode

    async def sync(self, r):
        r.caller.client_id = self.client_id
        before = self.cluster.inodes.get(r.inode_id)
        told = await self.cluster.apply_sync(r)
        return with_owner(self.cluster, r, before, told) if r.HasField("owner") else told

    async def close(self, r):
        c = self.cluster
        inode = await c.apply_sync(r.sync)
        c.sessions.get(r.sync.inode_id, set()).discard(r.session_id)
        await c.collect(inode)
        return inode

    async def prune_sessions(self, r):
        c = self.cluster
        for ended in r.sessions:
            if not r.is_settled and ended.inode_id in c.inodes:
                inode = c.get(ended.inode_id)
                length, _ = await c.chunks.file_length(c.ref(inode))
                c.put_file(inode, length=max(length, inode.length))
            self.cluster.sessions.get(ended.inode_id, set()).discard(ended.session_id)
            if ended.inode_id in self.cluster.inodes:
                await self.cluster.collect(self.cluster.get(ended.inode_id))
        return meta_pb2.PruneSessionsRsp()

    async def note_reads(self, r):
        c, times = self.cluster, []
        for read in r.reads:
            inode = c.inodes.get(read.inode_id)
            if inode is not None:
                atime_ns = time_noted(c.clock_ns(), inode.atime_ns, read)
                inode = c.inodes[read.inode_id] = replace(inode, atime_ns=atime_ns)
            times.append(0 if inode is None else inode.atime_ns)
        return meta_pb2.NoteReadsRsp(atimes_ns=times)

    async def list(self, r):
        c = self.cluster
        names = sorted(n for n in c.names[r.inode_id] if n > r.after)
        page = names[: r.entry_count_max]
        parent_id = c.get(r.inode_id).directory.parent_inode_id
        reply = meta_pb2.ListRsp(has_more=len(names) > len(page), parent_inode_id=parent_id)
        for name in page:
            if not c.names[r.inode_id][name]:  # its record is damaged
                reply.entries.add(name=name)
                continue
            inode = c.get(c.names[r.inode_id][name])
            entry = reply.entries.add(name=name, inode_id=inode.inode_id, type=int(inode.type))
            is_wanted = r.with_inodes or (r.with_directories and inode.is_dir)
            if is_wanted and inode.inode_id not in c.damaged:
                entry.inode.CopyFrom(inode_to_pb(inode))
        if r.wants_directory:
            reply.directory.CopyFrom(inode_to_pb(c.get(r.inode_id)))
        return reply

    async def set_attr(self, r):
        c = self.cluster
        c.require_expected(r)
        inode = c.get(r.inode_id)
        wants_explicit = r.HasField("atime_ns") or r.HasField("mtime_ns")
        is_owner = r.caller.uid in (0, inode.uid)
        if not is_owner and (wants_explicit or r.HasField("mode")):
            raise FsError(Status.NOT_PERMITTED, f"{r.inode_id}")
        names = ("mode", "uid", "gid", "atime_ns", "mtime_ns", "iflags")
        changes = {name: getattr(r, name) for name in names if r.HasField(name)}
        if r.atime_now:
            changes["atime_ns"] = c.clock_ns()
        if r.mtime_now:
            changes["mtime_ns"] = c.clock_ns()
        if r.HasField("length"):
            if r.length > MAX_FILE_LENGTH_BYTES:
                raise FsError(Status.FILE_TOO_LARGE, f"{r.length}")
            hint = r.length_hint
            if r.HasField("length_hint") and hint.truncate_ver == inode.file.truncate_ver:
                inode = c.put_file(inode, length=max(inode.file.length, hint.length))
            length = max(r.length, inode.file.length) if r.only_lengthens else r.length
            inode = await c.truncate(inode, length)
        return c.put(inode, **changes)

    async def set_xattr(self, r):
        self.cluster.require_expected(r)
        if r.name == acl.ACCESS_NAME:
            return await self._set_acl(r)
        if r.name == DIRECTORY_LOCK_NAME:
            self.cluster.xattrs.pop((r.inode_id, r.name), None)
            if r.value == b"lock":
                holder = self.client_id.encode().rjust(32, b"0")  # as long as a real one
                self.cluster.xattrs[r.inode_id, r.name] = holder
            return meta_pb2.SetXattrRsp()
        exists = (r.inode_id, r.name) in self.cluster.xattrs
        if r.mode == meta_pb2.XATTR_CREATE and exists:
            raise FsError(Status.EXISTS, repr(r.name))
        if r.mode == meta_pb2.XATTR_REPLACE and not exists:
            raise FsError(Status.NO_ATTRIBUTE, repr(r.name))
        self.cluster.xattrs[r.inode_id, r.name] = r.value
        self._note_bare(r.inode_id)
        return meta_pb2.SetXattrRsp()

    def _note_bare(self, inode_id):
        held = {n for i, n in self.cluster.xattrs if i == inode_id}
        is_bare = self.cluster.knows_bare and held <= set(acl.NAMES)
        self.cluster.put(self.cluster.get(inode_id), is_bare=is_bare)

    async def _set_acl(self, r):
        message = inode_to_pb(self.cluster.get(r.inode_id))
        acl.set_access_acl(message, acl.unpack(r.value))
        self.cluster.xattrs.pop((r.inode_id, r.name), None)
        if message.HasField("acl"):
            self.cluster.xattrs[r.inode_id, r.name] = r.value
        self.cluster.put(self.cluster.get(r.inode_id), mode=message.mode)
        return meta_pb2.SetXattrRsp()

    async def get_xattr(self, r):
        value = self.cluster.xattrs.get((r.inode_id, r.name))
        if r.name.startswith(USAGE_PREFIX):
            value = str(self.cluster.usage(r.inode_id)[r.name.removeprefix(USAGE_PREFIX)]).encode()
        if value is None:
            raise FsError(Status.NO_ATTRIBUTE, repr(r.name))
        return meta_pb2.GetXattrRsp(value=value)

    async def list_xattrs(self, r):
        names = [n for i, n in self.cluster.xattrs if i == r.inode_id]
        return meta_pb2.ListXattrsRsp(names=names)

    async def remove_xattr(self, r):
        self.cluster.require_expected(r)
        if self.cluster.xattrs.pop((r.inode_id, r.name), None) is None:
            raise FsError(Status.NO_ATTRIBUTE, repr(r.name))
        self._note_bare(r.inode_id)
        return meta_pb2.RemoveXattrRsp()

    async def set_lock(self, r):
        wanted = self._wanted_lock(r)
        before = self.cluster.locks.get(r.inode_id, [])
        conflict = None if r.is_unlock else file_locks.conflict_of(before, wanted)
        if conflict is not None:
            if r.wait_id:
                self._begin_wait(LockWait(r.wait_id, r.inode_id, wanted), before)
            self.cluster.locks[r.inode_id] = file_locks.without_converted(before, wanted)
            return meta_pb2.SetLockRsp(conflict=file_locks.lock_to_pb(conflict))
        self.cluster.lock_waits.pop((wanted.holder, r.wait_id), None)
        change = file_locks.without_range if r.is_unlock else file_locks.with_lock
        self.cluster.locks[r.inode_id] = change(before, wanted)
        return meta_pb2.SetLockRsp(is_done=True)

    def _begin_wait(self, wait, locks):
        waits = self.cluster.lock_waits
        search = CycleSearch(wait.lock, locks)
        while search.owners:
            asked = [one for (owner, _), one in waits.items() if owner in search.owners]
            search.step(asked, defaultdict(list, self.cluster.locks))
        if search.is_found:
            raise FsError(Status.DEADLOCK, "crosswise")
        waits[wait.lock.holder, wait.wait_id] = wait

    async def end_lock_wait(self, r):
        owner = file_locks.Holder(self.client_id, r.owner)
        self.cluster.lock_waits.pop((owner, r.wait_id), None)
        return meta_pb2.EndLockWaitRsp()

    async def find_lock_conflict(self, r):
        deadline_s = trio.current_time() + r.wait_ms / 1000
        while True:
            locks = self.cluster.locks.get(r.inode_id, [])
            conflict = file_locks.conflict_of(locks, self._wanted_lock(r))
            if conflict is None:
                return meta_pb2.FindLockConflictRsp()
            if trio.current_time() >= deadline_s:
                return meta_pb2.FindLockConflictRsp(conflict=file_locks.lock_to_pb(conflict))
            await trio.sleep(0.05)

    def _wanted_lock(self, r):
        return replace(
            file_locks.lock_from_pb(r.lock),
            holder=file_locks.Holder(self.client_id, r.lock.owner),
        )

    async def reserve_append(self, r):
        c = self.cluster
        inode = c.inline.move(c.get(r.inode_id))
        offset = inode.file.length
        hint = r.length_hint
        if r.HasField("length_hint") and hint.truncate_ver == inode.file.truncate_ver:
            offset = max(offset, hint.length)
        mtime_ns = r.mtime_ns if r.HasField("mtime_ns") else c.clock_ns()
        inode = c.put_file(inode, length=offset + r.length, mtime_ns=mtime_ns)
        return meta_pb2.ReserveAppendRsp(offset=offset, inode=inode_to_pb(inode))

    async def extend_stripe(self, r):
        c = self.cluster
        inode = c.get(r.inode_id)
        if r.ends_inline:
            inode = end_inline(c, inode)
        inode = c.inline.move(inode)
        stripe = max(inode.file.dyn_stripe, r.dyn_stripe_min)
        inode = c.put_file(inode, dyn_stripe=stripe, ctime_ns=inode.ctime_ns)
        r.caller.client_id = self.client_id
        outcome = c.inline.end(r.caller, r.report_id)
        return meta_pb2.InodeRsp(inode=inode_to_pb(inode), inline_outcome=outcome)

    async def sync_meta(self, _request):
        self.cluster.durable_calls += 1
        return meta_pb2.SyncMetaRsp()

    async def access(self, r):
        inode = self.cluster.get(r.inode_id)
        if r.caller.uid != 0 and (inode.mode & r.mask) != r.mask:
            raise FsError(Status.ACCESS_DENIED, f"{r.inode_id}")
        return meta_pb2.AccessRsp()
