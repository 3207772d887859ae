"""Inline files of the model file system (fakes.py):
the bytes that its metadata service keeps, and how they go to a chunk.
"""

from dataclasses import dataclass, field, replace

from xxhash import xxh3_64_intdigest

from fs.schema.inode import inode_to_pb
from fs.schema.proto import meta_pb2
from fs.schema.status import FsError, Status

READERS = {"Open", "Create", "ResolvePath", "BatchResolvePath"}


@dataclass
class FakeInline:
    """The part of FakeCluster that deals with inline files; `bytes_max` 0: none are made."""

    cluster: object
    bytes_max: int = 0
    data: dict[int, bytes] = field(default_factory=dict)
    outcomes: dict[tuple[str, bytes], bool] = field(default_factory=dict)
    """By client and request id, whether a report's bytes were taken, where that is remembered."""
    signed_count: int = 0
    moved_count: int = 0
    refused_count: int = 0
    asked_count: int = 0
    """Files whose bytes were brought to who has them open already."""
    gives_many: bool = True
    """Bytes of many files come as a payload; services of earlier releases do not know of that."""
    reply_bytes_max: int = 4 << 20
    """Of the bytes of many files."""

    @staticmethod
    def checksum_of(data):
        return xxh3_64_intdigest(data)

    def __contains__(self, inode_id):
        return inode_id in self.data

    def bring(self, request, method_name, reply):
        """Put into a reply of a file what its asker takes."""
        inode = self.cluster.inodes.get(reply.inode.inode_id)
        if not getattr(request, "takes_inline", False) or inode is None:
            return
        if hasattr(reply, "inline_bytes_max") and getattr(request, "wants_write", False):
            reply.inline_bytes_max = self.bytes_max
        if reply.inode.inode_id in self.data and getattr(request, "wants_read", True):
            self.asked_count += method_name == "GetAttr"
            reply.inode.CopyFrom(inode_to_pb(inode))
            reply.inline_data = self.data[inode.inode_id]
            reply.inline_checksum = self.checksum_of(reply.inline_data)

    def pack(self, request, slots):
        """Return the bytes of many files as a payload,
        and say in the replies about them which are there.
        """
        payload = []
        if not self.gives_many:
            return payload
        left = min(request.payload_bytes_max, self.reply_bytes_max)
        for slot in slots:
            data = self.data.get(slot.inode.inode_id)
            if data is None or inode_to_pb(self.cluster.get(slot.inode.inode_id)) != slot.inode:
                continue
            left -= len(data)
            if left < 0:
                break
            slot.inline_checksum, slot.is_in_payload = self.checksum_of(data), True
            payload.append(data)
        return payload

    def leave_for(self, request, inode):
        """Move what somebody opens who does not take it."""
        if request.wants_read and not request.takes_inline:
            self.move(inode)

    def move(self, inode):
        """Have the bytes of a file in a chunk; return the file."""
        data = self.data.pop(inode.inode_id, None)
        if data is None:
            return self.cluster.get(inode.inode_id)
        self.moved_count += 1
        inode = self.cluster.get(inode.inode_id)
        inode = self.cluster.put_file(
            inode,
            is_inline=False,
            dyn_stripe=1,
            truncate_ver=inode.file.truncate_ver + 1,
            ctime_ns=inode.ctime_ns,
        )
        self.cluster.chunks.put(self.cluster.ref(inode), 0, data)
        return inode

    def drop(self, inode):
        """Forget the bytes of a file that becomes empty or goes; return it."""
        if self.data.pop(inode.inode_id, None) is None:
            return inode
        return self.cluster.put_file(
            inode,
            is_inline=False,
            length=0,
            truncate_ver=inode.file.truncate_ver + 1,
            data_ver=inode.file.data_ver + 1,
            mtime_ns=self.cluster.clock_ns(),
        )

    def sign(self, caller):
        """Give a request its id, as a client does before its first try."""
        if not caller.request_id:
            self.signed_count += 1
            caller.request_id = b"%016d" % self.signed_count

    def take_once(self, request):
        """Do what a report with bytes asks for, the first time that it comes;
        None: it is refused.
        """
        caller = request.caller
        who = caller.client_id, caller.request_id
        if who in self.outcomes:
            return self.cluster.get(request.inode_id) if self.outcomes[who] else None
        inode = self.take(request)
        if caller.request_id and (inode is not None or caller.is_repeat):
            self.outcomes[who] = inode is not None
        return inode

    def end(self, caller, report_id):
        """Return what has become of a report, which is refused from now on unless it was taken."""
        if not report_id:
            return meta_pb2.INLINE_NOT_KNOWN
        was_taken = self.outcomes.setdefault((caller.client_id, report_id), False)
        return meta_pb2.INLINE_TAKEN if was_taken else meta_pb2.INLINE_NOT_TAKEN

    def take(self, request):
        """As `take_once`, of what has not come before."""
        inode, data = self.cluster.get(request.inode_id), request.inline_data
        hint, part = request.length_hint, inode.file
        assert request.has_new_data and hint.length == len(data)
        if xxh3_64_intdigest(data) != request.inline_checksum:
            raise FsError(Status.INVALID_ARGUMENT, "checksum")
        owners = {
            self.cluster.owners[session_id]
            for session_id in self.cluster.sessions.get(inode.inode_id, ())
        }
        is_taken = (
            0 < len(data) <= self.bytes_max
            and owners == {request.caller.client_id}
            and (not part.length or part.is_inline)
            and (part.data_ver, part.truncate_ver) == (request.inline_data_ver, hint.truncate_ver)
        )
        if not is_taken:
            self.refused_count += 1
            return None
        held = [k for k, c in self.cluster.chunks.chunks.items() if k[0] == inode.inode_id and c]
        assert not held, f"inode {inode.inode_id} is made inline and has bytes in chunks {held}"
        self.data[inode.inode_id] = data
        return self.cluster.put_file(
            inode, length=len(data), is_inline=True, dyn_stripe=0, data_ver=part.data_ver + 1
        )


async def fetched(meta, method, request):
    """Do as `MetaCaller.fetch`, by what a fake's `call` does without payloads."""
    inline, is_of_paths = meta.cluster.inline, method.name == "BatchResolvePath"
    reply = await meta.call(method, request)
    if not inline.gives_many or not request.HasField("payload_bytes_max"):
        return reply, memoryview(b"")
    slots = reply.resolved if is_of_paths else reply.inodes
    for slot in slots:
        slot.ClearField("inline_data")
    payload = inline.pack(request, slots)
    inline.asked_count += 0 if is_of_paths else len(payload)
    return reply, memoryview(bytearray(b"".join(payload)))


def refusal(inode):
    """Return the reply to a report whose bytes have to go to chunks."""
    return meta_pb2.InodeRsp(inode=inode_to_pb(inode), is_inline_refused=True)


def without_bytes(request):
    """Return a report without what has been done of it."""
    rest = meta_pb2.SyncReq.FromString(request.SerializeToString())
    rest.has_new_data = False
    rest.ClearField("inline_data")
    rest.ClearField("length_hint")
    return rest


def end_inline(cluster, inode):
    """Have any report with bytes that was sent before be refused."""
    if inode.length or inode.file.is_inline:
        return inode
    return cluster.put(inode, file=replace(inode.file, data_ver=inode.file.data_ver + 1))


async def change(cluster, how, theirs):
    """What others do to the file between the report and its repeat."""
    inode_id = cluster.names[1][b"f"]
    inode = cluster.get(inode_id)
    if how == "inline":
        cluster.inline.data[inode_id] = theirs
        cluster.put_file(inode, length=len(theirs), data_ver=inode.file.data_ver + 1)
        return
    inode = cluster.inline.move(inode) if how == "in a chunk" else cluster.inline.drop(inode)
    inode = cluster.put_file(inode, dyn_stripe=1)
    cluster.chunks.put(cluster.ref(inode), 0, theirs)
    length = max(inode.length, len(theirs))
    cluster.put_file(inode, length=length, data_ver=inode.file.data_ver + 1)


class Refusing:
    """Metadata that refuses a repeat, whatever it did with the first try,
    and may not know of outcomes either.
    """

    def __init__(self, cluster, *, takes_first, knows=True):
        self._inline, self._takes_first, self._knows = cluster.inline, takes_first, knows
        self._take, self._end = cluster.inline.take_once, cluster.inline.end
        cluster.inline.take_once, cluster.inline.end = self.take_once, self.end

    def take_once(self, request):
        if request.caller.is_repeat or not self._takes_first:
            return None
        return self._take(request)

    def end(self, caller, report_id):
        outcome = self._end(caller, report_id)
        return outcome if self._knows else meta_pb2.INLINE_NOT_KNOWN
