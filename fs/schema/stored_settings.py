"""Which settings the managers may keep for a role, and which a running process takes over.  Pure.

A process runs with its own file, over which is laid what the managers keep for its roles, over
which are laid the changes made to this process alone (fs/runtime/settings.py).

Never kept by the managers (`refusal` says why) is
    - what makes a process itself: its id, addresses, directories, disks, keys;
    - what it needs before it can be told anything: the store, the transport;
    - the times of failure detection and of election, which no two processes may see differently,
      not even while one after the other is started anew.
"""

from collections.abc import Mapping
from typing import Final

from .routing import Role

ROLES: Final[Mapping[str, Role]] = {
    "mgmtd": Role.MGMTD,
    "meta": Role.META,
    "storage": Role.STORAGE,
    "mount": Role.CLIENT,
}
"""Who has stored settings, by the name that people use;
a native client that is no mount has none.
"""

ROLE_NAMES: Final = {role: name for name, role in ROLES.items()}

SECTIONS: Final[Mapping[Role, tuple[str, ...]]] = {
    Role.MGMTD: ("process", "mgmtd", "trace"),
    Role.META: ("process", "meta", "client", "trace"),
    Role.STORAGE: ("process", "storage", "trace"),
    Role.CLIENT: ("process", "client", "trace"),
}
"""What a role uses of what may be kept for it; meta is a client of the storage nodes."""

TEXT_BYTES_MAX: Final = 32 * 1024
NOTE_LENGTH_MAX: Final = 200

LIVE: Final = frozenset(
    {
        "process.log_level",
        "process.slow_request_s",
        "trace.sample_rate",
        "mgmtd.probe_timeout_s",
        "mgmtd.replace_after_s",
        "mgmtd.move_stall_s",
        "mgmtd.moves_max",
        "mgmtd.moves_per_node_max",
        "mgmtd.move_free_fraction_min",
        "mgmtd.rotate_after_s",
        "mgmtd.rotations_max",
        "meta.gc_delay_s",
        "meta.gc_interval_s",
        "meta.gc_batch_count",
        "meta.session_scan_interval_s",
        "meta.session_grace_s",
        "meta.trash_expiry_s",
        "meta.trash_scan_interval_s",
        "meta.trash_free_fraction_min",
        "storage.forward_timeout_s",
        "storage.forward_retry_s",
        "storage.link_failed_after_s",
        "storage.resync_interval_s",
        "storage.resync_concurrency",
        "storage.resync_bytes_per_s_max",
        "storage.scrub_bytes_per_s_max",
        "storage.compact_bytes_per_s_max",
        "storage.read_concurrency",
        "storage.write_concurrency",
        "storage.low_space_fraction",
        "client.retry_time_s_max",
        "client.retry_pause_s",
        "client.retry_pause_s_max",
        "client.call_timeout_s",
        "client.batch_count_max",
        "client.batch_bytes_max",
        "client.requests_per_node_max",
        "client.write_buffer_bytes",
        "client.dirty_bytes_max",
        "client.write_back_interval_s",
        "client.unmount_time_s_max",
        "client.leased_names_max",
        "client.readahead_bytes_max",
        "client.readahead_total_bytes_max",
        "client.verify_reads",
    }
)
"""Taken over by a running process, safely at every moment of it;
every other setting waits for its restart.

Wait on purpose: what the kernel has been told for a while (attribute and name timeouts), what
programs rely on while they run (durable_close), what is fixed when a disk or a file system is made.
"""

_OWN: Final = frozenset(
    {
        "process.cluster_id",
        "process.node_id",
        "process.listen",
        "process.mgmtd_addresses",
        "process.metrics_address",
        "process.is_open_metrics_allowed",
        "process.status_page",
        "process.status_page_names",
        "process.directory",
        "process.log_format",
        "meta.event_log_directory",
        "storage.disks",
        "client.mount_point",
        "client.subdir",
        "client.mount_source",
        "client.mount_options",
        "client.batch_socket",
        "trace.otlp_endpoint",
    }
)

DETECTION: Final = frozenset(
    f"mgmtd.{key}"
    for key in (
        "heartbeat_interval_s",
        "node_lease_s",
        "node_failed_after_s",
        "primary_lease_s",
        "primary_extend_interval_s",
    )
)
"""The times by which deaths are told, which all processes have to see alike."""


def refusal(role: Role, section: str, key: str) -> str:
    """Return why the managers do not keep a setting for a role;
    empty: they may, if there is such a setting.
    """
    name = f"{section}.{key}"
    if section in {"kv", "rpc", "auth"}:
        return "a process needs it before it can be told anything; it stands in its own file"
    if name in _OWN:
        return "it makes a process itself, and stands in its own file"
    if name in DETECTION:
        return "all processes have to agree on it at every moment: it stands in their own files"
    if section not in SECTIONS[role]:
        used = ", ".join(SECTIONS[role])
        return f"{ROLE_NAMES[role]} does not use this section; it uses {used}"
    return ""
