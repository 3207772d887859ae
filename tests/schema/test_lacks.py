"""What a process could not have is told from bugs, bad requests and bad disks."""

import errno
import subprocess
import sys

import pytest
from google.protobuf.message import DecodeError, EncodeError

from fs.schema.lacks import is_lack, lack_among
from fs.schema.status import FsError, Retry, Status, spec

LACKS = [
    MemoryError(),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ENFILE, "Too many open files in system"),
    RuntimeError("can't start new thread"),
    DecodeError("Error parsing message with type 'ember.Any': Arena alloc failed"),
    EncodeError("Failed to serialize proto"),
]
NONE = [
    OSError(errno.EIO, "Input/output error"),
    OSError(errno.ENOSPC, "No space left on device"),
    BlockingIOError(errno.EAGAIN, "again"),
    RuntimeError("the nursery is closed"),
    DecodeError("Error parsing message with type 'ember.Any': Wire format was corrupt"),
    AssertionError("can't start new thread"),
    FsError(Status.IO_ERROR, "Cannot allocate memory"),
]


@pytest.mark.parametrize("error", LACKS, ids=repr)
def test_what_passes_is_a_lack(error):
    assert is_lack(error)
    assert lack_among(error) is error
    group = ExceptionGroup("", [error, ExceptionGroup("", [FsError(Status.RPC_CANCELLED)])])
    assert lack_among(group) is error


@pytest.mark.parametrize("error", NONE, ids=repr)
def test_what_will_not_pass_is_none(error):
    assert not is_lack(error)
    assert lack_among(error) is None


def test_a_bug_beside_a_lack_is_a_bug():
    group = ExceptionGroup("", [MemoryError(), ZeroDivisionError()])
    assert lack_among(group) is None
    assert not is_lack(group)


def test_a_lack_is_asked_for_again_and_leaves_the_outcome_open():
    """And an old release, which does not know the number,
    takes it for INTERNAL_ERROR (tests/rpc/test_frame.py).
    """
    assert spec(Status.OUT_OF_RESOURCES).retry is Retry.OTHER
    assert not spec(Status.OUT_OF_RESOURCES).definite


WITHOUT_MEMORY = """
import resource
from google.protobuf.message import DecodeError, EncodeError
from fs.schema.lacks import is_lack
from fs.schema.proto import storage_pb2

message = storage_pb2.UpdateGroupReq()
for _ in range(300_000):
    message.updates.add()
packed = message.SerializeToString()  # more than the heap has free
limits = resource.getrlimit(resource.RLIMIT_AS)
errors = []
for attempt in (lambda: storage_pb2.UpdateGroupReq.FromString(packed), message.SerializeToString):
    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, limits[1]))
    try:
        kept = [attempt() for _ in range(100)]
    except (MemoryError, DecodeError, EncodeError) as error:
        errors.append(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
assert len(errors) == 2, errors
assert all(map(is_lack, errors)), errors
"""


@pytest.mark.thorough
def test_what_protobuf_says_without_memory_is_known():
    """Its words may change with a release of it."""
    subprocess.run([sys.executable, "-c", WITHOUT_MEMORY], check=True)
