"""/dev/fuse: mounting it, reading requests from it, writing replies to it.

The descriptor does not block; `receive` waits.  One task receives at a time; replies and notices
may be written by any task or thread, each with one call, which the kernel takes whole.

Does not know what requests mean.
"""

import array
import ctypes
import errno
import logging
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import outcome
import trio

from ....kernels.device import (
    PART_COUNT_MAX,
    answer_reads,
    answer_request,
    receive_reads,
    take_request,
)
from ....runtime import readiness
from ....runtime.ports import Buffer
from ....runtime.recycled import RecycledMemory
from ....schema.lacks import is_lack, lacking
from ....schema.status import FsError, Status
from ..mount_options import flags_of
from .protocol import IN_HEADER, OUT_HEADER, WRITE_IN, Opcode
from .replacing import replace_dead

_log = logging.getLogger(__name__)

_DEVICE = Path("/dev/fuse")
_OF_ROOT: Final = ("rootmode=40000", "user_id=0", "group_id=0")
_CLOSED = -1
"""No descriptor."""

_HEADER_BYTES = IN_HEADER.size
_HEAD_BYTES = IN_HEADER.size + WRITE_IN.size
"""Of a WRITE, what comes before its bytes."""
_NO_DATA = memoryview(b"")
_MOUNT_TIMEOUT_S = 30.0

T = TypeVar("T")


class Request(NamedTuple):
    """One request of the kernel; `body` is what follows the header,
    and `data` what is large of that: both are the receiver's to keep.
    """

    unique: int
    opcode: int
    node_id: int
    uid: int
    gid: int
    pid: int
    body: bytes
    data: memoryview = _NO_DATA
    """Of a WRITE: its bytes, in memory of whole pages; empty: they are in `body`."""


_new: Final = tuple.__new__
"""Makes a request of all its fields, without the call that looks for defaults."""
_MISSING: Final = (_NO_DATA,)


class Device:
    """An open connection to the kernel; see module head."""

    def __init__(self, fd: int, write_bytes_max: int, memory: RecycledMemory | None = None) -> None:
        """Take over an open descriptor of /dev/fuse that carries a mount.

        Args:
            fd: closed by `close`.
            write_bytes_max: of the data of one WRITE.
            memory: where large WRITEs are received.
        """
        self._fd = fd
        os.set_blocking(fd, False)
        self._memory = memory or RecycledMemory(0)
        self._write_bytes_max = write_bytes_max
        self._short_bytes = _HEAD_BYTES + (write_bytes_max + 1) // 2
        """Requests of fewer are copied; what a longer one writes is handed on where it lies."""
        self._head = memoryview(bytearray(_HEAD_BYTES))
        self._data = self._memory.take(write_bytes_max)
        self._watch: readiness.Watch | None = None
        self._receiver: trio.lowlevel.Task | None = None
        self._look: Callable[[], object] | None = None

    def receive_now(self, count_max: int) -> tuple[bytes, Request | None]:
        """Return the READs that are there, up to `count_max`, as they came (`READ_REQUEST`),
        and what came behind them, if anything.

        Raises:
            EOFError: the mount is gone.
        """
        try:
            rows, count = receive_reads(self._fd, self._head, self._data, count_max)
        except OSError as error:
            if error.errno == errno.ENODEV:
                raise EOFError("unmounted") from error
            raise
        if count > 0:
            try:
                if count < self._short_bytes:
                    fields = take_request(self._head, self._data, count)
                    return rows, _new(Request, fields + _MISSING)
                return rows, self._long_request(count)
            except (MemoryError, OSError) as error:
                self._refuse_lack(count, error)
        elif count == 0 and not rows:
            raise EOFError("the other end is gone")
        return rows, None

    def _refuse_lack(self, count: int, error: MemoryError | OSError) -> None:
        """Tell a WRITE of so many bytes that has been received that there was no memory
        for what it writes; raises any other error.
        """
        _, opcode, unique, *_ = IN_HEADER.unpack_from(self._head)
        if opcode != Opcode.WRITE or not is_lack(error):
            raise error
        _log.warning("a WRITE of %d bytes: %r", count, error)
        self.reply_error(unique, lacking("WRITE", error).errno)

    def _long_request(self, count: int) -> Request:
        """Return the request of so many bytes that has been received."""
        more = count - _HEAD_BYTES
        length, opcode, unique, node_id, uid, gid, pid, _, _ = IN_HEADER.unpack_from(self._head)
        assert length == count, (length, count)
        if opcode == Opcode.WRITE:
            # No copy; a smaller part would hold much more memory than it has bytes.
            head = bytes(self._head[_HEADER_BYTES:])
            data, self._data = self._data[:more], self._memory.take(self._write_bytes_max)
            return Request(unique, opcode, node_id, uid, gid, pid, head, data)
        return _new(Request, take_request(self._head, self._data, count) + _MISSING)

    async def receive(self, look: Callable[[], T | None]) -> T:
        """Return what `look` does, once that is something;
        it is called again when there is more, maybe outside of any task.

        Raises:
            EOFError: as `look`: the mount is gone.
        """
        found = look()
        if found is not None:
            return found
        if self._watch is None:
            self._watch = readiness.watch(self._fd, self._readable)
        if self._watch is not None:
            self._receiver, self._look = trio.lowlevel.current_task(), look
            self._watch.begin()
            return await trio.lowlevel.wait_task_rescheduled(self._abort)  # type: ignore[no-any-return]
        while True:
            await trio.lowlevel.wait_readable(self._fd)
            found = look()
            if found is not None:
                return found

    def _readable(self) -> None:
        """There may be a request: have it done, or wake who receives."""
        task, look = self._receiver, self._look
        if task is None or look is None:
            assert self._watch is not None
            self._watch.stop()
            return
        result: outcome.Outcome[Any]
        try:
            found = look()
            if found is None:
                return
            result = outcome.Value(found)
        except BaseException as error:  # noqa: BLE001 - raised by the task that receives
            result = outcome.Error(error)
        self._receiver = self._look = None
        trio.lowlevel.reschedule(task, result)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._receiver = self._look = None
        return trio.lowlevel.Abort.SUCCEEDED

    def reply(self, unique: int, buffers: Sequence[Buffer]) -> None:
        """Answer a request with success; the buffers are free again when this returns."""
        if len(buffers) > PART_COUNT_MAX:
            buffers = (b"".join(buffers),)
        failure = answer_request(self._fd, unique, 0, tuple(buffers))
        if failure:
            _judge(failure)

    def answer(self, answers: bytes, memory: Buffer) -> list[tuple[int, int]]:
        """Answer requests (`ANSWER` by `ANSWER`) with parts of a memory,
        which is free again when this returns.

        Returns:
            Position and errno of each answer that the kernel refused, other than
            because nobody waits for it.
        """
        return answer_reads(self._fd, answers, memory)

    def reply_error(self, unique: int, error_number: int) -> None:
        """Answer a request with an errno."""
        failure = answer_request(self._fd, unique, error_number, ())
        if failure:
            _judge(failure)

    def notify(self, code: int, body: bytes) -> None:
        """Send a notice; may block while the kernel has requests under way,
        so never on the event loop.

        Raises:
            OSError: the kernel knows nothing of what the notice names, or the mount is gone.
        """
        os.write(self._fd, OUT_HEADER.pack(OUT_HEADER.size + len(body), code, 0) + body)

    def close(self) -> None:
        """Close the descriptor: what is still mounted answers ENOTCONN from now on.

        Nobody receives any more.
        """
        if self._watch is not None:
            self._watch.close(EOFError("unmounted"))
        fd, self._fd = self._fd, _CLOSED  # a late notice must not go into what gets its number next
        os.close(fd)


def _judge(failure: int) -> None:
    """Raise what the device has refused an answer with."""
    # ENOENT: its caller gave up meanwhile.  ENODEV: the mount is gone,
    # and so is everybody who waits.
    if failure not in (errno.ENOENT, errno.ENODEV):
        raise OSError(failure, os.strerror(failure))


def mount_device(
    mount_point: Path, options: Sequence[str], source: str, generic: Sequence[str] = ()
) -> int:
    """Mount and return the descriptor; by the system call as root, else by fusermount3.

    Args:
        mount_point: a checked one.
        options: what FUSE is told.
        source: what stands for the file system in lists of mounts.
        generic: what the kernel is told of any mount (`mount_options`).

    Raises:
        FsError: BAD_MOUNT_POINT: refused; FUSE_MISSING: no device, or no fusermount3 for a user.
    """
    if os.geteuid() == 0:
        return _mount_as_root(mount_point, options, source, flags_of(generic))
    named = f"fsname={_escaped(source)}"
    return _mount_as_user(mount_point, [*options, *generic, named, "subtype=ember"])


def _escaped(source: str) -> str:
    """Return a name as fusermount3 reads it."""
    return source.replace("\\", "\\\\").replace(",", "\\,")


def replace_mount(
    mount_point: Path, options: Sequence[str], source: str, generic: Sequence[str] = ()
) -> int | None:
    """As `mount_device`, in the place of a dead mount;
    None: only root can, on a kernel that lets him, and all is as it was.
    """
    if os.geteuid() != 0:
        return None
    fd = _opened()
    told = [f"source={source}", *_OF_ROOT, *options]
    try:
        if replace_dead(mount_point, fd, told, flags_of(generic)):
            return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _opened() -> int:
    try:
        return os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise FsError(Status.FUSE_MISSING, f"{_DEVICE}: {error.strerror}") from error


def _mount_as_root(mount_point: Path, options: Sequence[str], source: str, flags: int) -> int:
    fd = _opened()
    given = ",".join((f"fd={fd}", *_OF_ROOT, *options))
    libc = ctypes.CDLL(None, use_errno=True)
    target = os.fsencode(mount_point)
    if libc.mount(os.fsencode(source), target, b"fuse.ember", flags, given.encode()) != 0:
        reason = os.strerror(ctypes.get_errno())
        os.close(fd)
        raise FsError(
            Status.BAD_MOUNT_POINT, f"{mount_point}: the kernel refused the mount ({reason})"
        )
    return fd


def _mount_as_user(mount_point: Path, options: Sequence[str]) -> int:
    program = shutil.which("fusermount3")
    if program is None:
        raise FsError(Status.FUSE_MISSING, "fusermount3, which mounts for users, is not installed")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done = subprocess.run(  # noqa: S603 - a fixed program and our own mount point
            [program, "-o", ",".join(options), "--", str(mount_point)],
            env=os.environ | {"_FUSE_COMMFD": str(theirs.fileno())},
            pass_fds=(theirs.fileno(),),
            check=False,
            capture_output=True,
            text=True,
            timeout=_MOUNT_TIMEOUT_S,
        )
        if done.returncode != 0:
            detail = f"{mount_point}: fusermount3 refused: {done.stderr.strip()}"
            raise FsError(Status.BAD_MOUNT_POINT, detail)
        return _received_descriptor(ours)


def _received_descriptor(sender: socket.socket) -> int:
    fds = array.array("i")
    _, ancillary, _, _ = sender.recvmsg(1, socket.CMSG_SPACE(fds.itemsize))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: fds.itemsize])
    if not fds:
        raise FsError(Status.BAD_MOUNT_POINT, "fusermount3 handed over no descriptor")
    os.set_inheritable(fds[0], False)
    return fds[0]
