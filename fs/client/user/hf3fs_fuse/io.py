"""What programs written for 3FS import from its module of this name; see `emberfs.usrbio`."""

import hf3fs_py_usrbio as h3fio
from emberfs.usrbio import (
    IorPriority,
    client_of,
    deregister_fd,
    extract_mount_point,
    find_iovec,
    force_fsync,
    hardlink,
    ioring,
    iovec,
    make_ioring,
    make_iovec,
    punch_hole,
    read_file,
    register_fd,
)

__all__ = [
    "IorPriority",
    "client_of",
    "deregister_fd",
    "extract_mount_point",
    "find_iovec",
    "force_fsync",
    "h3fio",
    "hardlink",
    "ioring",
    "iovec",
    "make_ioring",
    "make_iovec",
    "punch_hole",
    "read_file",
    "register_fd",
]
