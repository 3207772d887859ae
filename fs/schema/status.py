"""The one registry of operating errors: every situation that some caller reacts to.

An operating error is raised as `FsError(Status.X, "values")`, crosses the wire as its number and
reaches an application as its errno.  Bugs are assertions and are not listed here.

Invariants:
    - Numbers and names never change meaning; new ones are appended within their hundred.
    - `definite` means: the operation certainly had no effect.  A caller that gets an indefinite
      status must treat the outcome as unknown and may repeat only under the same request id.
"""

import errno
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final


class Retry(Enum):
    """What a client may do about a status without asking its user."""

    NEVER = "never"
    SAME = "same"  # the same peer, after a short pause
    OTHER = "other"  # another peer that can serve the request, if there is one
    ROUTING = "routing"  # after fetching newer routing info


class Status(IntEnum):
    """Number of a status on the wire; `spec(status)` gives its meaning."""

    OK = 0
    # 1xx: remote calls
    RPC_CONNECT_FAILED = 100
    RPC_CONNECTION_LOST = 101
    RPC_TIMEOUT = 102
    RPC_CANCELLED = 103
    RPC_BAD_FRAME = 104
    RPC_BAD_VERSION = 105
    RPC_UNKNOWN_METHOD = 106
    RPC_TOO_LARGE = 107
    RPC_WRONG_CLUSTER = 108
    RPC_UNAUTHENTICATED = 109
    RPC_BAD_REQUEST = 110
    RPC_OVERLOADED = 111
    RPC_WRONG_NODE = 112
    INTERNAL_ERROR = 113
    RPC_NOT_ALLOWED = 114
    RPC_UNCHECKED = 115
    RPC_NOT_LENT = 116
    OUT_OF_RESOURCES = 117
    # 2xx: key-value layer
    KV_CONFLICT = 200
    KV_TOO_OLD = 201
    KV_COMMIT_UNKNOWN = 202
    KV_TRANSACTION_TOO_LARGE = 203
    KV_KEY_TOO_LARGE = 204
    KV_VALUE_TOO_LARGE = 205
    KV_TIMED_OUT = 206
    KV_UNAVAILABLE = 207
    KV_BAD_FORMAT = 208
    KV_UNREACHABLE = 209
    KV_DAMAGED = 210
    KV_NOT_EMPTY = 211
    KV_EMPTY = 212
    # 3xx: metadata
    NOT_FOUND = 300
    EXISTS = 301
    NOT_DIRECTORY = 302
    IS_DIRECTORY = 303
    NOT_EMPTY = 304
    ACCESS_DENIED = 305
    NOT_PERMITTED = 306
    TOO_MANY_SYMLINKS = 307
    NAME_TOO_LONG = 308
    TOO_MANY_LINKS = 309
    FILE_TOO_LARGE = 310
    INVALID_ARGUMENT = 311
    NO_ATTRIBUTE = 312
    NOT_SUPPORTED = 313
    CROSS_DEVICE = 314
    STALE = 315
    BUSY = 316
    NO_LOCK = 317
    READ_ONLY = 318
    RANGE_TOO_SMALL = 319
    QUOTA_EXCEEDED = 320
    BAD_FILE = 321
    NOT_REGULAR = 322
    ARGUMENT_TOO_LARGE = 323
    NO_LOCKS_LEFT = 324
    LOCK_HELD = 325
    BEYOND_END = 326
    METADATA_DAMAGED = 327
    BEING_RUN = 328
    DEADLOCK = 329
    DIRECTORY_REMOVED = 330
    # 4xx: storage
    ROUTING_MISMATCH = 400
    NOT_SERVING = 401
    LEASE_EXPIRED = 402
    NOT_HEAD = 403
    CHUNK_NOT_FOUND = 404
    CHECKSUM_MISMATCH = 405
    DUPLICATE_UPDATE = 406
    CHANNEL_BUSY = 407
    MISSING_UPDATE = 408
    STALE_UPDATE = 409
    COMMITTED_UPDATE = 410
    NO_SPACE = 411
    IO_ERROR = 412
    TARGET_OFFLINE = 413
    TARGET_UNKNOWN = 414
    BAD_DISK_FORMAT = 415
    FOREIGN_DISK = 416
    CHUNK_DIVERGED = 417
    CHAIN_UNAVAILABLE = 418
    SYNC_REFUSED = 419
    SUPERSEDED_UPDATE = 420
    OUTCOME_UNKNOWN = 421
    CHUNK_DAMAGED = 422
    WRITES_LOST = 423
    CHECKSUM_BLOCKS_DIFFER = 424
    OLD_DISK_IMAGE = 425
    # 5xx: cluster manager
    NOT_PRIMARY = 500
    LEASE_LOST = 501
    NODE_UNKNOWN = 502
    STALE_HEARTBEAT = 503
    CHAIN_UNKNOWN = 504
    CHAIN_TABLE_UNKNOWN = 505
    CONFLICTING_CHANGE = 506
    NODE_FAILED = 507
    UNSAFE_CHANGE = 508
    NODE_DISABLED = 509
    MOVE_UNKNOWN = 510
    USER_UNKNOWN = 511
    # 6xx: processes and configuration
    BAD_CONFIG = 600
    ALREADY_RUNNING = 601
    NOT_RUNNING = 602
    BAD_MOUNT_POINT = 603
    FUSE_MISSING = 604
    BAD_CLUSTER_DIR = 605
    START_FAILED = 606
    SHUTTING_DOWN = 607
    CHECK_FAILED = 608
    BAD_BACKUP = 609
    NOT_FLUSHED = 612


@dataclass(frozen=True, slots=True)
class StatusSpec:
    """Meaning of one status."""

    meaning: str
    errno: int
    definite: bool
    retry: Retry


def _s(
    meaning: str, errno_: int, *, definite: bool = True, retry: Retry = Retry.NEVER
) -> StatusSpec:
    return StatusSpec(meaning, errno_, definite, retry)


SPECS: Final[dict[Status, StatusSpec]] = {
    Status.OK: _s("success", 0),
    Status.RPC_CONNECT_FAILED: _s(
        "the peer could not be connected", errno.EHOSTUNREACH, retry=Retry.OTHER
    ),
    Status.RPC_CONNECTION_LOST: _s(
        "the connection broke before the reply", errno.EIO, definite=False, retry=Retry.OTHER
    ),
    Status.RPC_TIMEOUT: _s(
        "no reply before the deadline", errno.ETIMEDOUT, definite=False, retry=Retry.OTHER
    ),
    Status.RPC_CANCELLED: _s("the caller cancelled the call", errno.EINTR, definite=False),
    Status.RPC_BAD_FRAME: _s("the peer sent bytes that are no frame", errno.EPROTO, definite=False),
    Status.RPC_BAD_VERSION: _s("the peers have no protocol version in common", errno.EPROTO),
    Status.RPC_UNKNOWN_METHOD: _s("the peer does not offer this method", errno.ENOSYS),
    Status.RPC_TOO_LARGE: _s("a frame exceeds the size limit", errno.EMSGSIZE),
    Status.RPC_WRONG_CLUSTER: _s("the peer belongs to another cluster", errno.EPROTO),
    Status.RPC_UNAUTHENTICATED: _s("the peer did not prove who it is", errno.EACCES),
    Status.RPC_BAD_REQUEST: _s("the request does not decode or breaks a limit", errno.EINVAL),
    Status.RPC_OVERLOADED: _s(
        "the peer refuses more requests for now", errno.EAGAIN, retry=Retry.SAME
    ),
    Status.RPC_WRONG_NODE: _s(
        "another node answers at this address", errno.EHOSTUNREACH, retry=Retry.ROUTING
    ),
    Status.INTERNAL_ERROR: _s(
        "the peer failed on a bug of its own", errno.EIO, definite=False, retry=Retry.OTHER
    ),
    Status.RPC_NOT_ALLOWED: _s("the caller may not ask for this", errno.EPERM),
    Status.RPC_UNCHECKED: _s(
        "it cannot be found out now who the caller is", errno.EAGAIN, retry=Retry.SAME
    ),
    Status.RPC_NOT_LENT: _s(
        "a payload could not be read from the memory that its caller lent",
        errno.EIO,
        retry=Retry.SAME,
    ),
    Status.OUT_OF_RESOURCES: _s(
        "a process has no memory, thread or descriptor for it now",
        errno.EIO,
        definite=False,
        retry=Retry.OTHER,
    ),
    Status.KV_CONFLICT: _s(
        "a concurrent transaction changed what this one read", errno.EAGAIN, retry=Retry.SAME
    ),
    Status.KV_TOO_OLD: _s(
        "the transaction lived longer than its snapshot", errno.EAGAIN, retry=Retry.SAME
    ),
    Status.KV_COMMIT_UNKNOWN: _s(
        "the transaction may or may not have committed", errno.EIO, definite=False, retry=Retry.SAME
    ),
    Status.KV_TRANSACTION_TOO_LARGE: _s("the transaction exceeds the size limit", errno.EFBIG),
    Status.KV_KEY_TOO_LARGE: _s("a key exceeds the size limit", errno.EINVAL),
    Status.KV_VALUE_TOO_LARGE: _s("a value exceeds the size limit", errno.EINVAL),
    Status.KV_TIMED_OUT: _s(
        "the transaction did not finish in time", errno.ETIMEDOUT, definite=False, retry=Retry.SAME
    ),
    Status.KV_UNAVAILABLE: _s(
        "the key-value store does not answer", errno.EIO, definite=False, retry=Retry.SAME
    ),
    Status.KV_BAD_FORMAT: _s("the key-value store has an unknown format version", errno.EIO),
    Status.KV_UNREACHABLE: _s(
        "the key-value store could not be asked", errno.EIO, retry=Retry.SAME
    ),
    Status.KV_DAMAGED: _s("the key-value store is damaged or lacks synced commits", errno.EIO),
    Status.KV_NOT_EMPTY: _s("the key-value store holds something already", errno.EEXIST),
    Status.KV_EMPTY: _s("the key-value store holds nothing of its cluster", errno.EIO),
    Status.NOT_FOUND: _s("no such object", errno.ENOENT),
    Status.EXISTS: _s("the name exists already", errno.EEXIST),
    Status.NOT_DIRECTORY: _s("a path component is not a directory", errno.ENOTDIR),
    Status.IS_DIRECTORY: _s("the object is a directory", errno.EISDIR),
    Status.NOT_EMPTY: _s("the directory is not empty", errno.ENOTEMPTY),
    Status.ACCESS_DENIED: _s("the mode bits refuse the access", errno.EACCES),
    Status.NOT_PERMITTED: _s("only the owner or root may do this", errno.EPERM),
    Status.TOO_MANY_SYMLINKS: _s("too many symbolic links on the path", errno.ELOOP),
    Status.NAME_TOO_LONG: _s("a name or path is too long", errno.ENAMETOOLONG),
    Status.TOO_MANY_LINKS: _s("the object has too many hard links", errno.EMLINK),
    Status.FILE_TOO_LARGE: _s("the offset is beyond the largest file length", errno.EFBIG),
    Status.INVALID_ARGUMENT: _s("an argument cannot be used", errno.EINVAL),
    Status.NO_ATTRIBUTE: _s("no such extended attribute", errno.ENODATA),
    Status.NOT_SUPPORTED: _s("the operation is not supported", errno.ENOTSUP),
    Status.CROSS_DEVICE: _s("the two names are on different file systems", errno.EXDEV),
    Status.STALE: _s("the object was removed meanwhile", errno.ESTALE),
    Status.BUSY: _s("the object is in use", errno.EBUSY),
    Status.NO_LOCK: _s("another client holds the directory lock", errno.ENOLCK),
    Status.READ_ONLY: _s("the file system is read-only", errno.EROFS),
    Status.RANGE_TOO_SMALL: _s("the buffer is too small for the value", errno.ERANGE),
    Status.QUOTA_EXCEEDED: _s("a quota is exhausted", errno.EDQUOT),
    Status.BAD_FILE: _s("the file was not opened for this", errno.EBADF),
    Status.NOT_REGULAR: _s("the object is not a regular file", errno.EINVAL),
    Status.ARGUMENT_TOO_LARGE: _s("a value exceeds its size limit", errno.E2BIG),
    Status.NO_LOCKS_LEFT: _s("the file has as many locks as it can have", errno.ENOLCK),
    Status.LOCK_HELD: _s("somebody else holds a lock on these bytes", errno.EAGAIN),
    Status.BEYOND_END: _s("nothing is there from this offset on", errno.ENXIO),
    Status.METADATA_DAMAGED: _s(
        "a metadata record is damaged or contradicts another: `ember fsck` says how much, and "
        "repairs",
        errno.EIO,
    ),
    Status.BEING_RUN: _s("the file is a program that is running", errno.ETXTBSY),
    Status.DEADLOCK: _s("whoever holds a lock on these bytes waits for the caller", errno.EDEADLK),
    Status.DIRECTORY_REMOVED: _s("the directory that was to be searched was removed", errno.ENOENT),
    Status.ROUTING_MISMATCH: _s(
        "sender and receiver hold different chain versions", errno.EAGAIN, retry=Retry.ROUTING
    ),
    Status.NOT_SERVING: _s("the target does not serve now", errno.EAGAIN, retry=Retry.ROUTING),
    Status.LEASE_EXPIRED: _s(
        "the node's lease has run out; it must not serve", errno.EAGAIN, retry=Retry.ROUTING
    ),
    Status.NOT_HEAD: _s("updates go to the head of the chain", errno.EAGAIN, retry=Retry.ROUTING),
    Status.CHUNK_NOT_FOUND: _s("the chunk does not exist", errno.ENOENT),
    Status.CHECKSUM_MISMATCH: _s(
        "stored or received bytes do not match their checksum", errno.EIO, retry=Retry.OTHER
    ),
    Status.DUPLICATE_UPDATE: _s("a newer update of the same channel was seen", errno.EIO),
    Status.CHANNEL_BUSY: _s(
        "the same update is being executed", errno.EAGAIN, definite=False, retry=Retry.SAME
    ),
    Status.MISSING_UPDATE: _s(
        "the replica lacks an earlier update", errno.EIO, retry=Retry.ROUTING
    ),
    Status.STALE_UPDATE: _s("the update is already pending", errno.EIO),
    Status.COMMITTED_UPDATE: _s("the update is already committed", errno.EIO),
    Status.NO_SPACE: _s("no space left on a storage target", errno.ENOSPC),
    Status.IO_ERROR: _s("the disk failed", errno.EIO, definite=False, retry=Retry.OTHER),
    Status.TARGET_OFFLINE: _s("the target is offline", errno.EIO, retry=Retry.ROUTING),
    Status.TARGET_UNKNOWN: _s("the node has no such target", errno.EIO, retry=Retry.ROUTING),
    Status.BAD_DISK_FORMAT: _s("the disk has an unknown or damaged format", errno.EIO),
    Status.FOREIGN_DISK: _s("the disk belongs to another node or cluster", errno.EIO),
    Status.CHUNK_DIVERGED: _s("replicas of the chunk contradict each other", errno.EIO),
    Status.CHAIN_UNAVAILABLE: _s("no target of the chain serves", errno.EIO, retry=Retry.ROUTING),
    Status.SYNC_REFUSED: _s(
        "the target is not in a state to be resynced", errno.EAGAIN, retry=Retry.ROUTING
    ),
    Status.SUPERSEDED_UPDATE: _s(
        "a later attempt of the same sender has voided this one", errno.EAGAIN, retry=Retry.SAME
    ),
    Status.OUTCOME_UNKNOWN: _s(
        "the update may or may not have been executed",
        errno.EIO,
        definite=False,
        retry=Retry.ROUTING,
    ),
    Status.CHUNK_DAMAGED: _s(
        "no replica has the bytes of the chunk; write it anew or remove it", errno.EIO
    ),
    Status.WRITES_LOST: _s(
        "all replicas lost power before the sync: acknowledged bytes are gone, write them again",
        errno.EIO,
    ),
    Status.CHECKSUM_BLOCKS_DIFFER: _s(
        "disks of one chain were formatted with checksum blocks of different sizes",
        errno.EIO,
        retry=Retry.ROUTING,
    ),
    Status.OLD_DISK_IMAGE: _s(
        "the disk is an older image of the one that served", errno.EIO, retry=Retry.ROUTING
    ),
    Status.NOT_PRIMARY: _s("this manager is not the primary", errno.EAGAIN, retry=Retry.OTHER),
    Status.LEASE_LOST: _s("this manager lost the primary's lease", errno.EAGAIN, retry=Retry.OTHER),
    Status.NODE_UNKNOWN: _s("no such node is registered", errno.ENOENT),
    Status.STALE_HEARTBEAT: _s("a newer heartbeat of the node was seen", errno.EAGAIN),
    Status.CHAIN_UNKNOWN: _s("no such chain", errno.ENOENT, retry=Retry.ROUTING),
    Status.CHAIN_TABLE_UNKNOWN: _s("no such chain table", errno.ENOENT, retry=Retry.ROUTING),
    Status.CONFLICTING_CHANGE: _s("the change contradicts what exists", errno.EEXIST),
    Status.NODE_FAILED: _s("the node was declared failed", errno.EAGAIN, retry=Retry.SAME),
    Status.UNSAFE_CHANGE: _s("the change would cost an up-to-date copy", errno.EBUSY),
    Status.NODE_DISABLED: _s("an operator has disabled the node", errno.EPERM),
    Status.MOVE_UNKNOWN: _s("the move does not exist or has ended", errno.ENOENT),
    Status.USER_UNKNOWN: _s("no such user", errno.ENOENT),
    Status.BAD_CONFIG: _s("the configuration is not valid", errno.EINVAL),
    Status.ALREADY_RUNNING: _s("it runs already", errno.EBUSY),
    Status.NOT_RUNNING: _s("it does not run", errno.ESRCH),
    Status.BAD_MOUNT_POINT: _s("the mount point cannot be used", errno.ENOTDIR),
    Status.FUSE_MISSING: _s("FUSE is not available here", errno.ENODEV),
    Status.BAD_CLUSTER_DIR: _s("the cluster directory cannot be used", errno.EINVAL),
    Status.START_FAILED: _s("a service did not start", errno.EIO),
    Status.NOT_FLUSHED: _s(
        "a mount ended before all that it had buffered was written; write it again", errno.EIO
    ),
    Status.SHUTTING_DOWN: _s("the service is stopping", errno.EAGAIN, retry=Retry.OTHER),
    Status.CHECK_FAILED: _s("a check found damage", errno.EIO),
    Status.BAD_BACKUP: _s("the backup cannot be used", errno.EINVAL),
}

assert set(SPECS) == set(Status), set(Status) - set(SPECS)


def spec(status: Status) -> StatusSpec:
    """Return the meaning of `status`."""
    return SPECS[status]


class FsError(Exception):
    """An operating error: something that may happen, with its registered status.

    `detail` names the thing and the values (which node, target, chunk, path); it is for people,
    never parsed.
    """

    def __init__(self, status: Status, detail: str = "") -> None:
        assert status is not Status.OK, "success is not an error"
        super().__init__(status, detail)
        self.status = status
        self.detail = detail

    @property
    def errno(self) -> int:
        """The errno an application sees."""
        return SPECS[self.status].errno

    @property
    def definite(self) -> bool:
        """True when the operation certainly had no effect."""
        return SPECS[self.status].definite

    @property
    def retry(self) -> Retry:
        """What a client may do without asking its user."""
        return SPECS[self.status].retry

    def __str__(self) -> str:
        meaning = SPECS[self.status].meaning
        return f"{self.status.name}: {meaning}" + (f" ({self.detail})" if self.detail else "")
