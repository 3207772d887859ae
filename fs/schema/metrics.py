"""Every metric of every process: name, kind, labels, meaning, and which processes show it.  Pure.

What a process shows is read when somebody asks (fs/runtime/figures.py).  specs/metrics.md is made
from this table; a test compares it with what a running cluster shows.

Names are those of Prometheus: `ember_`, the part that is measured, what, and the unit; counters end
with `_total` and grow from 0 at the start of the process.
"""

from typing import Final

from .metric import Metric, Shower, counter, gauge, histogram

# ---- every process -------------------------------------------------------------------------------

_ALL: Final = Shower.ALL

PROCESS_INFO: Final = gauge(
    "ember_process_info",
    _ALL,
    "1; the labels say who this is. The node id of clients is 0.",
    "role", "cluster_id", "node_id", "release",
)  # fmt: skip
PROCESS_LOOP_WAIT: Final = gauge(
    "ember_process_event_loop_wait_seconds",
    _ALL,
    "How long the reading of these metrics waited for its turn on the event loop.",
)
PROCESS_BLOCKS: Final = gauge(
    "ember_process_python_blocks",
    _ALL,
    "Pieces of memory, of 512 bytes at most, that Python has in use. If this goes on growing, the "
    "process keeps something of what it has done; process_resident_memory_bytes also tells of what "
    "was in use once.",
)
SERVER_DURATION: Final = histogram(
    "ember_rpc_server_request_duration_seconds",
    _ALL,
    "Requests served, from having been received to the reply having been sent.",
    "method",
    occasion="not for mount daemons, which serve nobody",
)
SERVER_IN_FLIGHT: Final = gauge(
    "ember_rpc_server_requests_in_flight", _ALL, "Requests being served.", "method",
    occasion="as above",
)  # fmt: skip
SERVER_RECEIVED: Final = counter(
    "ember_rpc_server_received_bytes_total", _ALL, "Messages and payloads of requests.", "method",
    occasion="as above",
)  # fmt: skip
SERVER_SENT: Final = counter(
    "ember_rpc_server_sent_bytes_total", _ALL, "Messages and payloads of replies.", "method",
    occasion="as above",
)  # fmt: skip
SERVER_ERRORS: Final = counter(
    "ember_rpc_server_errors_total",
    _ALL,
    "Requests answered with a status other than OK; CANCELLED: not answered, because the caller "
    "gave up or went away.",
    "method",
    "status",
    occasion="once there was one",
)
SERVER_SLOW: Final = counter(
    "ember_rpc_server_slow_requests_total",
    _ALL,
    "Requests that took longer than process.slow_request_s; the log names some of them.",
    "method",
    occasion="once there was one",
)
SERVER_USER_RECEIVED: Final = counter(
    "ember_rpc_server_user_received_bytes_total",
    _ALL,
    "Of the requests of clients that proved a user's token, by that user.",
    "uid",
    occasion="in a closed cluster",
)
SERVER_USER_SENT: Final = counter(
    "ember_rpc_server_user_sent_bytes_total", _ALL, "As above, of the replies.", "uid",
    occasion="in a closed cluster",
)  # fmt: skip
SERVER_CONNECTIONS: Final = gauge(
    "ember_rpc_server_connections", _ALL, "Connections that others have to this process.",
    occasion="not for mount daemons",
)  # fmt: skip
SERVER_LENT: Final = counter(
    "ember_rpc_server_lent_bytes_total",
    _ALL,
    "Payloads that were read from the memory of callers on the same machine, in place of being "
    "sent (rpc.lend_bytes_min).",
    occasion="not for mount daemons",
)
SERVER_LENT_REPLIES: Final = counter(
    "ember_rpc_server_lent_reply_bytes_total",
    _ALL,
    "Payloads of replies that callers on the same machine read from the memory of this process, "
    "in place of being sent (rpc.lend_bytes_min).",
    occasion="not for mount daemons",
)
SERVER_LENT_RANGES: Final = counter(
    "ember_rpc_server_lent_range_bytes_total",
    _ALL,
    "Of these, what callers read from the files of this process, which did not read it.",
    occasion="not for mount daemons",
)
SERVER_LENT_HELD: Final = gauge(
    "ember_rpc_server_lent_reply_held_bytes",
    _ALL,
    "Of all these, what callers have not returned yet.",
    occasion="not for mount daemons",
)
SERVER_BUFFERS_USED: Final = gauge(
    "ember_rpc_server_buffer_used_bytes", _ALL, "Receive buffers that hold payloads.",
    occasion="not for mount daemons",
)  # fmt: skip
SERVER_BUFFERS_IDLE: Final = gauge(
    "ember_rpc_server_buffer_idle_bytes",
    _ALL,
    "Receive buffers kept for the next payloads, and slabs that read replies share.",
    occasion="not for mount daemons",
)
CLIENT_DURATION: Final = histogram(
    "ember_rpc_client_call_duration_seconds",
    _ALL,
    "Calls of this process to others, connecting included; each try counts.",
    "method",
    occasion="not for kv processes, which call nobody",
)
CLIENT_IN_FLIGHT: Final = gauge(
    "ember_rpc_client_calls_in_flight",
    _ALL,
    "Calls that wait for their replies.",
    "method",
    occasion="not for kv processes, which call nobody",
)
CLIENT_SENT: Final = counter(
    "ember_rpc_client_sent_payload_bytes_total",
    _ALL,
    "Payloads of calls, without messages.",
    "method",
    occasion="not for kv processes, which call nobody",
)
CLIENT_RECEIVED: Final = counter(
    "ember_rpc_client_received_payload_bytes_total",
    _ALL,
    "Payloads of replies, without messages.",
    "method",
    occasion="not for kv processes, which call nobody",
)
CLIENT_ERRORS: Final = counter(
    "ember_rpc_client_errors_total",
    _ALL,
    "Calls that failed, by status; CANCELLED: given up by their caller.",
    "method", "status",
    occasion="once there was one",
)  # fmt: skip

# ---- members of the cluster ----------------------------------------------------------------------

_MEMBER: Final = Shower.MEMBER

NODE_LEASE_MARGIN: Final = gauge(
    "ember_node_lease_margin_seconds",
    _MEMBER,
    "Until this node has to stop serving if no heartbeat is answered; negative: it has stopped.",
)
NODE_ROUTING_VERSION: Final = gauge(
    "ember_node_routing_version", _MEMBER, "Version of the routing info that this node acts on."
)

# ---- storage -------------------------------------------------------------------------------------

_STORAGE: Final = Shower.STORAGE

DISK_CAPACITY: Final = gauge(
    "ember_storage_disk_capacity_bytes", _STORAGE, "Size of the file system of a disk.", "disk"
)
DISK_FREE: Final = gauge(
    "ember_storage_disk_free_bytes", _STORAGE, "What new chunks may still take on a disk.", "disk"
)
DISK_ALLOCATED: Final = gauge(
    "ember_storage_disk_allocated_bytes", _STORAGE, "Of data files on a disk.", "disk"
)
DISK_USED: Final = gauge(
    "ember_storage_disk_used_bytes",
    _STORAGE,
    "Blocks in use on a disk; the rest of what is allocated is kept at hand for new versions.",
    "disk",
)
DISK_FAILED: Final = gauge(
    "ember_storage_disk_failed", _STORAGE, "1: the disk is out of service.", "disk"
)
DISK_SLOW: Final = gauge(
    "ember_storage_disk_slow", _STORAGE, "1: far slower than usual, for some time.", "disk"
)
DISK_PACE: Final = gauge(
    "ember_storage_disk_pace_seconds",
    _STORAGE,
    "Mean duration of reads and writes of up to one MiB, or per MiB, in the last window.",
    "disk",
)
DISK_INSIDE: Final = gauge(
    "ember_storage_disk_calls_in_flight", _STORAGE, "Calls into a disk's engine, now.", "disk"
)
DISK_WAITING: Final = gauge(
    "ember_storage_disk_queued_calls",
    _STORAGE,
    "Reads and writes that wait for their turn at a disk.",
    "disk", "direction",
)  # fmt: skip
STORAGE_BUFFERS_USED: Final = gauge(
    "ember_storage_read_buffer_used_bytes", _STORAGE, "Buffers of read replies under way."
)
STORAGE_BUFFERS_IDLE: Final = gauge(
    "ember_storage_read_buffer_idle_bytes",
    _STORAGE,
    "Small buffers kept for the next read replies.",
)
TARGET_STATE: Final = gauge(
    "ember_storage_target_state",
    _STORAGE,
    "1 for the local state that a target is in, 0 for the others.",
    "target",
    "state",
)
TARGET_CHAIN: Final = gauge(
    "ember_storage_target_chain",
    _STORAGE,
    "1; the chain that a target belongs to.",
    "target", "chain",
    occasion="once it belongs to one",
)  # fmt: skip
TARGET_USED: Final = gauge(
    "ember_storage_target_used_bytes", _STORAGE, "What a target takes on its disk.", "target"
)
TARGET_READ: Final = counter(
    "ember_storage_target_read_bytes_total", _STORAGE, "Read for clients from a target.", "target"
)
TARGET_WRITTEN: Final = counter(
    "ember_storage_target_written_bytes_total",
    _STORAGE,
    "Written to a target by updates, of clients and of the predecessor.",
    "target",
)
TARGET_UNSETTLED: Final = gauge(
    "ember_storage_target_unsettled_chunks", _STORAGE, "Chunks with an update under way.", "target"
)
TARGET_DAMAGED: Final = gauge(
    "ember_storage_target_damaged_chunks",
    _STORAGE,
    "Damaged copies that wait for their repair.",
    "target",
)
TARGET_FOUND: Final = counter(
    "ember_storage_target_damaged_copies_total", _STORAGE, "Copies found damaged.", "target"
)
TARGET_REPAIRED: Final = counter(
    "ember_storage_target_repaired_copies_total", _STORAGE, "Copies repaired.", "target"
)
TARGET_LOST: Final = counter(
    "ember_storage_target_lost_chunks_total",
    _STORAGE,
    "Chunks that were found to be whole on no target of their chain.",
    "target",
)
TARGET_DIFFERENCES: Final = counter(
    "ember_storage_target_differences_total",
    _STORAGE,
    "Chunks of which the successor had more, less or other content, with nothing under way.",
    "target",
)
TARGET_ELSEWHERE: Final = counter(
    "ember_storage_target_reads_elsewhere_total",
    _STORAGE,
    "Reads of damaged copies that another replica answered.",
    "target",
)
TARGET_RESYNC_RUNNING: Final = gauge(
    "ember_storage_resync_running",
    _STORAGE,
    "1: the target brings its successor up to date.",
    "target",
)
TARGET_RESYNC_DONE: Final = gauge(
    "ember_storage_resync_compared_bytes",
    _STORAGE,
    "Of the present resync of the successor, or of the last: bytes of chunks done with.",
    "target",
)
TARGET_RESYNC_SENT: Final = gauge(
    "ember_storage_resync_transferred_bytes",
    _STORAGE,
    "Of these, bytes that had to be sent.",
    "target",
)
TARGET_SCRUB_PASSES: Final = counter(
    "ember_storage_scrub_passes_total", _STORAGE, "Passes of the scrub over a target.", "target"
)
TARGET_SCRUB_BYTES: Final = counter(
    "ember_storage_scrub_read_bytes_total", _STORAGE, "Read by the scrub from a target.", "target"
)

RELAYED_LINKS: Final = gauge(
    "ember_storage_relayed_links",
    _STORAGE,
    "Clients, and metadata services, that do not reach another storage node, counted for each: "
    "this one has passed requests on to it within the last minute. How many requests say the "
    "metrics of remote calls, by the method Storage.Relay.",
)

# ---- meta ----------------------------------------------------------------------------------------

_META: Final = Shower.META

GC_FOUND: Final = gauge(
    "ember_meta_gc_due",
    _META,
    "Removals that the last look found due; at most meta.gc_batch_count are looked at. "
    "Those with 64 MiB and more per name are counted as large.",
    "kind",
)
GC_LAG: Final = gauge(
    "ember_meta_gc_lag_seconds", _META, "For how long the oldest of these has been due.", "kind"
)
GC_WAITING: Final = gauge(
    "ember_meta_gc_waiting",
    _META,
    "Removals that wait to be collected in the whole cluster, due or not,"
    " as the last count of all found; 4,096 are counted in each meta.gc_interval_s.",
    "kind",
)
GC_WAITING_BYTES: Final = gauge(
    "ember_meta_gc_waiting_bytes",
    _META,
    "Bytes of the files among them: what is still in removed directories is not counted, "
    "nor what earlier releases removed.",
    "kind",
)
GC_DONE: Final = counter(
    "ember_meta_gc_done_total", _META, "Names and inodes of removed things that were deleted."
)
FILE_SESSIONS: Final = gauge(
    "ember_meta_file_sessions",
    _META,
    "Files open for writing in the whole cluster, as the last look at all of them found.",
)
INLINE_BYTES: Final = gauge(
    "ember_meta_inline_bytes",
    _META,
    "Of files whose bytes are in the metadata store, in the whole cluster, as this service saw "
    "last.",
)
NAME_LEASES_ENDED: Final = counter(
    "ember_meta_name_leases_ended_total",
    _META,
    "Leases of directories that were taken from one client since another one was about to add a "
    "name.",
)
NAME_LEASES_WAITED: Final = counter(
    "ember_meta_name_leases_waited_total",
    _META,
    "Those of them for whose end somebody waited, 0.12 s each.",
)
EVENTS_DROPPED: Final = counter(
    "ember_meta_events_dropped_total",
    _META,
    "Lines of the event log that had no room in its queue.",
)

# ---- the key-value store, as its users see it ----------------------------------------------------

KV_COMMITS: Final = counter(
    "ember_kv_transactions_total",
    Shower.MEMBER,
    "Transactions that committed, by the service that ran them.",
    "service",
    occasion="managers and metadata services only",
)
KV_RETRIES: Final = counter(
    "ember_kv_transaction_retries_total",
    Shower.MEMBER,
    "Runs of transactions that had to be repeated, by the reason.",
    "service", "status",
    occasion="once there was one",
)  # fmt: skip
KV_SNAPSHOTS: Final = gauge(
    "ember_kv_served_snapshots",
    Shower.KV,
    "Snapshots of the store held for transactions of other processes.",
)

KV_STORE_COMMITS: Final = counter(
    "ember_kv_store_commits_total", Shower.KV, "Commits of this process's store, of all its users."
)
KV_STORE_REFUSED: Final = counter(
    "ember_kv_store_refused_commits_total",
    Shower.KV,
    "Commits that did not happen (KV_CONFLICT, KV_TOO_OLD, NO_SPACE), or of which nobody knows "
    "(KV_COMMIT_UNKNOWN).",
    "status",
    occasion="once there was one",
)
KV_STORE_FLUSHES: Final = histogram(
    "ember_kv_store_flush_duration_seconds",
    Shower.KV,
    "Flushes of its log: each makes all commits before it durable.",
)
KV_STORE_BYTES: Final = gauge(
    "ember_kv_store_bytes", Shower.KV, "Size of the store's files, its log included."
)
KV_STORE_LOG_BYTES: Final = gauge(
    "ember_kv_store_log_bytes",
    Shower.KV,
    "Size of its log: what a start has to read again at most.",
)

# ---- mgmtd ---------------------------------------------------------------------------------------

_MGMTD: Final = Shower.MGMTD
_PRIMARY: Final = Shower.PRIMARY

IS_PRIMARY: Final = gauge(
    "ember_mgmtd_is_primary", _MGMTD, "1: this manager is the acting primary."
)
PRIMARY_LEASE_MARGIN: Final = gauge(
    "ember_mgmtd_primary_lease_margin_seconds",
    _PRIMARY,
    "Until this primary has to stop acting if its lease is not extended.",
)
ROUTING_VERSION: Final = gauge(
    "ember_mgmtd_routing_version", _PRIMARY, "Version of the published routing info."
)
CHAINS: Final = gauge(
    "ember_mgmtd_chains",
    _PRIMARY,
    "Chains by state: complete, degraded (fewer targets serve than there are), unavailable (none "
    "serves).",
    "state",
)
CHAIN_TARGETS: Final = gauge(
    "ember_mgmtd_chain_targets", _PRIMARY, "Members of chains by public state.", "state"
)
CHAINS_OUT_OF_ORDER: Final = gauge(
    "ember_mgmtd_chains_out_of_order",
    _PRIMARY,
    "Chains that do not serve in their preferred order.",
)
LOSSES: Final = gauge(
    "ember_mgmtd_chain_losses",
    _PRIMARY,
    "How often, over all chains, what no sync had covered may have been lost.",
)
NODES: Final = gauge(
    "ember_mgmtd_nodes", _PRIMARY, "Registered nodes by role and state.", "role", "state"
)
MOVES: Final = gauge("ember_mgmtd_moves", _PRIMARY, "Moves of targets by state.", "state")
CLIENT_SESSIONS: Final = gauge("ember_mgmtd_client_sessions", _PRIMARY, "Clients known.")
TABLE_CHAINS: Final = gauge(
    "ember_mgmtd_chain_table_chain",
    _PRIMARY,
    "1 for each chain of each chain table: to sum what targets say by table.",
    "table", "chain",
)  # fmt: skip

# ---- mount daemons -------------------------------------------------------------------------------

_MOUNT: Final = Shower.MOUNT
_DIRECT: Final = "with client.fuse_frontend direct"

MOUNT_DURATION: Final = histogram(
    "ember_mount_operation_duration_seconds",
    _MOUNT,
    "Requests of the kernel, from having been received to having been answered; setlkw waits for "
    "a lock.",
    "operation",
    occasion=_DIRECT,
)
MOUNT_ERRORS: Final = counter(
    "ember_mount_operation_errors_total",
    _MOUNT,
    "Requests of the kernel that were answered with an errno; ENOENT is what every search along a "
    "path makes.",
    "operation",
    "errno",
    occasion=_DIRECT,
)
MOUNT_READ: Final = counter(
    "ember_mount_read_bytes_total",
    _MOUNT,
    "Read by the kernel; what it has in its page cache, and batches, it does not ask for here.",
    occasion=_DIRECT,
)
MOUNT_WRITTEN: Final = counter(
    "ember_mount_written_bytes_total", _MOUNT, "Written by the kernel; not by batches.",
    occasion=_DIRECT,
)  # fmt: skip
MOUNT_DIRTY: Final = gauge(
    "ember_mount_dirty_bytes",
    _MOUNT,
    "Written by programs, and buffered or on their way to storage.",
)
MOUNT_DIRTY_MAX: Final = gauge(
    "ember_mount_dirty_max_bytes",
    _MOUNT,
    "client.dirty_bytes_max: writers wait when it is reached.",
)
MOUNT_READAHEAD: Final = gauge(
    "ember_mount_readahead_bytes", _MOUNT, "Fetched ahead of readers, or on their way."
)
MOUNT_UNREACHED: Final = gauge(
    "ember_mount_unreached_nodes",
    _MOUNT,
    "Storage nodes that cannot be connected to from here though the manager hears them; others "
    "pass requests on to them.",
)
MOUNT_OPEN: Final = gauge(
    "ember_mount_open_inodes", _MOUNT, "Files that are open, or were and still have bytes to send."
)
MOUNT_KNOWN: Final = gauge(
    "ember_mount_known_inodes", _MOUNT, "Inodes that the kernel holds in its caches."
)
MOUNT_BATCH_PROGRAMS: Final = gauge(
    "ember_mount_batch_programs", _MOUNT, "Programs connected for batches.", occasion=_DIRECT
)
MOUNT_BATCH_MEMORY: Final = gauge(
    "ember_mount_batch_memory_bytes", _MOUNT, "Memory that they share with the mount.",
    occasion=_DIRECT,
)  # fmt: skip

MOUNT_BATCHES: Final = counter(
    "ember_mount_batches_total", _MOUNT, "Batches of rings that were begun.", occasion=_DIRECT
)
MOUNT_BATCH_ENTRIES: Final = counter(
    "ember_mount_batch_entries_total", _MOUNT, "Entries of rings that were taken.", occasion=_DIRECT
)  # fmt: skip
MOUNT_BATCH_WAKES: Final = counter(
    "ember_mount_batch_wakeups_total",
    _MOUNT,
    "How often the bell of a ring was heard: fewer than batches when programs are ahead.",
    occasion=_DIRECT,
)
MOUNT_BATCH_OPEN: Final = gauge(
    "ember_mount_batch_entries_in_flight",
    _MOUNT,
    "Entries of rings that were taken and not completed.",
    occasion=_DIRECT,
)
MOUNT_CACHE_HITS: Final = counter(
    "ember_mount_cache_hits_total",
    _MOUNT,
    "Answered from what the mount has: attributes that a reply had told of, bytes read ahead, or "
    "what a name leads to, or that it is absent, in a directory of which it has the lease "
    "(present names: those that a removal was expected to follow), or opens for reading that meta "
    "had answered with the look-up. What the kernel has in its caches it does not ask for.",
    "cache",
)
MOUNT_CACHE_MISSES: Final = counter(
    "ember_mount_cache_misses_total", _MOUNT, "As above, had to be asked for.", "cache"
)
MOUNT_AHEAD_BYTES: Final = counter(
    "ember_mount_readahead_bytes_total",
    _MOUNT,
    "Fetched ahead of readers: more than they read is too much.",
)

METRICS: Final = tuple(value for value in list(vars().values()) if isinstance(value, Metric))
"""All, in the order of the documentation."""
