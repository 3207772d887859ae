"""Every knob of every process: default, unit (in the name), bounds;
relations asserted in one place.  Pure.

A process is configured by one TOML file with the sections below; unknown keys, wrong types
and values out of bounds are refused with file, key and allowed values
(fs/runtime/config_file.py reads it).

Invariants (`check_relations`):
    - A node stops serving before the manager may give its chains to others, also when their clocks
      drift: node_lease_s is at most certain_s(node_failed_after_s).
    - Several heartbeats fit into a lease.
    - A batch of reads fits into a frame, as does any chunk.
"""

from ipaddress import ip_address
from typing import Annotated, Final

from msgspec import Meta, Struct

from .layout import CHUNK_SIZE_BYTES_MAX, CHUNK_SIZE_BYTES_MIN, GIB, KIB, MIB, STRIPE_SIZE_MAX
from .status import FsError, Status

Seconds = Annotated[float, Meta(ge=0.001, le=86_400.0)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
ChunkSize = Annotated[int, Meta(ge=CHUNK_SIZE_BYTES_MIN, le=CHUNK_SIZE_BYTES_MAX)]

OUTCOMES_KEPT_S: Final = 600.0
"""For so long at the least metadata remembers what became of a request."""


class Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections."""


class ProcessSection(Section, frozen=True):
    """[process]: who this process is and whom it talks to."""

    cluster_id: Annotated[str, Meta(min_length=1, max_length=64)] = "emberfs"
    """Names the cluster; processes of another one are refused."""
    node_id: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    """Of a server: no other process of the cluster has the same."""
    listen: str = "tcp:127.0.0.1:0"
    """`tcp:HOST:PORT` or `unix:/PATH`."""
    mgmtd_addresses: list[str] = []
    """Where the managers listen, each as `listen` says it."""
    log_level: Annotated[str, Meta(pattern="^(debug|info|warning|error)$")] = "info"
    """The least urgent lines that are written to the log."""
    log_format: Annotated[str, Meta(pattern="^(text|json)$")] = "text"
    """text: a line for people; json: an object per line, with the keys time, level, logger,
    message, trace_id, span_id, traceback.
    """
    slow_request_s: Annotated[float, Meta(ge=0.0, le=3600.0)] = 5.0
    """A request that took longer is logged, at most one line per method and second; 0: none is."""
    metrics_address: Annotated[str, Meta(pattern="^(|tcp:.+:[0-9]+)$")] = ""
    """`tcp:HOST:PORT` where Prometheus, or anybody else,
    gets the metrics of this process by HTTP (specs/metrics.md); port 0: a free one; empty: nowhere.
    """
    is_open_metrics_allowed: bool = False
    """True: serve metrics, which ask nobody for a key, beyond this machine."""
    status_page: Annotated[str, Meta(pattern="^(off|local|open)$")] = "local"
    """Whom a manager shows its status page beside the metrics, without a key:
    nobody, browsers of this machine, everybody whom metrics_address reaches.
    """
    status_page_names: list[str] = []
    """Names besides those of its machine and addresses under which browsers may ask for the page,
    such as that of a proxy.
    """
    directory: str = ""
    """Where the process keeps its own state; empty: it keeps none."""
    look_before_sleep_s: Annotated[float, Meta(ge=0.0, le=0.01)] = 0.0003
    """For so long a metadata service or mount daemon whose last waits were shorter looks for what
    comes next before it sleeps, unless others want its core: being woken takes longer.  0: it
    sleeps at once.  Others always do.
    """


class RpcSection(Section, frozen=True):
    """[rpc]: limits of the framed transport."""

    message_bytes_max: Annotated[int, Meta(ge=64 * KIB, le=256 * MIB)] = 16 * MIB
    """What is less than 8 MiB is taken for that:
    messages bring bytes of small files, and of many.
    """
    payload_bytes_max: Annotated[int, Meta(ge=CHUNK_SIZE_BYTES_MAX, le=1024 * MIB)] = 256 * MIB
    """The largest chunk fits: whole chunks are written, and copied to targets that were away."""
    connection_count_max: Count = 4096
    """Connections that a process serves at once; further ones are refused (RPC_OVERLOADED)."""
    inflight_per_connection_max: Count = 1024
    """Requests of one connection that run at once; further ones are refused (RPC_OVERLOADED)."""
    lend_bytes_min: Annotated[int, Meta(ge=0, le=1024 * MIB)] = 256 * KIB
    """Payloads from this size on that a process of this machine and user is asked to read from the
    memory of who has them, in place of sending them over the Unix socket: of requests from the
    caller's, of replies from the server's.  0: none; who has that setting reads none either.
    """
    handshake_timeout_s: Seconds = 5.0
    """A peer that has not said and proved who it is within this is sent away."""
    connect_timeout_s: Seconds = 3.0
    """How long a process waits for a connection to another one."""
    call_timeout_s: Seconds = 30.0
    """How long a call waits for its reply, where nothing else says so."""


class KvSection(Section, frozen=True):
    """[kv]: the transactional store below mgmtd and meta."""

    engine: Annotated[str, Meta(pattern="^(rocksdb|remote|foundationdb|memory)$")] = "rocksdb"
    """rocksdb: the store in `path`, of this process alone; remote: that of the kv process
    at `address`; foundationdb: the cluster that `cluster_file` names; memory: none.
    """
    path: str = ""
    """Directory of the embedded store (rocksdb)."""
    address: str = ""
    """`unix:/PATH` or `tcp:HOST:PORT` of the kv process."""
    group_sync_interval_s: Seconds = 0.05
    """How long commits may gather before one flush makes them durable."""
    retry_time_s_max: Seconds = 10.0
    """A transaction that conflicts, or whose store is away, is not begun again after this long."""
    disk_hang_s: Annotated[float, Meta(ge=0.0, le=3600.0)] = 10.0
    """A process whose embedded store waits for its disk for so long, while the device completes
    nothing, ends, and so does one that waits for twelve times that in any case: its callers are
    refused, and turn to others.  0: never.  See storage.disk_hang_s.
    """
    cluster_file: str = "/etc/foundationdb/fdb.cluster"
    """Of FoundationDB; its client library rewrites it when the coordinators change."""
    open_timeout_s: Seconds = 15.0
    """A process that FoundationDB does not answer for so long does not start."""
    tls_certificate_path: str = ""
    """PEM file; the tls_ settings are for FoundationDB, empty:
    as FDB_TLS_* in the environment says.
    """
    tls_key_path: str = ""
    """PEM file with the key of that certificate."""
    tls_ca_path: str = ""
    """PEM file with the authorities that peers' certificates are checked against."""
    tls_verify_peers: str = ""
    """Conditions on the peer's certificate, as FoundationDB writes them:
    Check.Valid=1,S.O=Example.
    """
    trace_directory: str = ""
    """Where FoundationDB's client library writes trace files; empty: nowhere."""


class AuthSection(Section, frozen=True):
    """[auth]: what proves who a process is, and what it asks
    of others (specs/authentication.md).
    """

    key_file: str = ""
    """File of mode 0600 with the cluster's key, or two while one replaces the other, the new one
    first; only for processes of the cluster, which read it again on SIGHUP.  Empty: the process
    asks nothing of its peers, and may listen on this machine only.
    """
    token_file: str = ""
    """File of mode 0600 with a user's token: for clients and mount daemons, instead of key_file."""
    token_check_interval_s: Annotated[float, Meta(ge=0.1, le=3600.0)] = 5.0
    """How often a process of the cluster asks the manager whether the tokens it serves still hold.

    A revoked or expired one ends within this; when no manager answers for three times as long,
    tokens count for nothing until one does.
    """
    is_open_network_allowed: bool = False
    """True: listen beyond this machine without a key, and serve whoever comes."""


class MgmtdSection(Section, frozen=True):
    """[mgmtd]: failure detection and the manager's own lease."""

    heartbeat_interval_s: Seconds = 1.0
    """A node tells the manager how it is, and renews its lease, this often."""
    node_lease_s: Seconds = 4.8
    """A node serves at most this long after it sent its last answered heartbeat."""
    node_failed_after_s: Seconds = 6.0
    """A node is declared failed this long after its last heartbeat arrived."""
    primary_lease_s: Seconds = 3.0
    """A primary that falls silent is replaced after this long.

    Together with the two intervals it is less than `node_lease_s`: so nodes hear the next primary
    before they would have to stop serving.
    """
    primary_extend_interval_s: Seconds = 0.5
    """The primary extends its lease, and other managers look at it, this often."""
    chain_scan_interval_s: Seconds = 0.25
    """The primary looks this often which nodes are silent and which chains have to change."""
    client_session_s: Seconds = 60.0
    """A client that has been silent for this long has lost its client session."""
    probe_timeout_s: Seconds = 1.0
    """How long a manager waits for an answer when it tries whether a process is gone."""
    replace_after_s: Annotated[float, Meta(ge=0.0, le=30 * 86_400.0)] = 600.0
    """A target that has been offline for so long is replaced by another one; 0: never.

    Longer than a server takes to start anew, since copying a disk costs hours
    of its neighbours' bandwidth.
    """
    move_stall_s: Seconds = 120.0
    """A target that is to join a chain and has been away for so long is given up
    for another one.
    """
    moves_max: Count = 8
    """Targets being replaced, drained or spread at once."""
    moves_per_node_max: Count = 2
    """Of these, coming to one node or copied from it;
    how fast is storage.resync_bytes_per_s_max.
    """
    move_free_fraction_min: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.1
    """No move leaves less than this fraction of a disk free."""
    rotate_after_s: Annotated[float, Meta(ge=0.0, le=30 * 86_400.0)] = 60.0
    """A chain of three or more that nothing has happened to for so long is brought a step nearer
    to its preferred order, which its table is even in; 0: never.
    """
    rotations_max: Count = 2
    """Chains that are on such a step at once."""


class MetaSection(Section, frozen=True):
    """[meta]: metadata service."""

    gc_delay_s: Annotated[float, Meta(ge=0.0, le=30 * 86_400.0)] = 60.0
    """How long a removed file's chunks stay, for readers on other mounts that still have it open.

    Half as long again, 30 s at most, while users ask the service for something.  5 s at most where
    less than a tenth of the space is free.
    """
    gc_interval_s: Seconds = 1.0
    """How often a service looks for removed files whose chunks are due."""
    gc_batch_count: Count = 128
    """Removals, and names in the trash, that are looked at together."""
    session_scan_interval_s: Seconds = 10.0
    """How often a service looks for file sessions whose clients are gone."""
    session_grace_s: Seconds = 60.0
    """A file session younger than this is never pruned."""
    idempotency_expiry_s: Annotated[float, Meta(ge=OUTCOMES_KEPT_S, le=86_400.0)] = 1800.0
    """How long outcomes are remembered for who asks again: longer than any client does."""
    trash_expiry_s: Annotated[float, Meta(ge=1.0, le=30 * 86_400.0)] = 3 * 86_400.0
    """How long the trash keeps what was moved there without saying for how long."""
    trash_scan_interval_s: Seconds = 10.0
    """How often a service looks for names in the trash whose time is over."""
    trash_free_fraction_min: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """With less free space than this fraction the trash is emptied before its time, what
    is due first at first, one name per scan; 0: never, for what was promised to be kept is kept.
    """
    event_log_directory: str = ""
    """Where this process writes a line of JSON for each change of names (specs/events.md);
    empty: nowhere.
    """
    event_log_bytes_max: Annotated[int, Meta(ge=4 * KIB)] = 64 * MIB
    """A file that has reached this is put aside."""
    event_log_file_count: Annotated[int, Meta(ge=1, le=1000)] = 8
    """Kept, the newest included."""
    chunk_size_bytes: ChunkSize = 1 * MIB
    """Of the root's default layout, at initialisation; a power of two."""
    stripe_size: Annotated[int, Meta(ge=1, le=STRIPE_SIZE_MAX)] = 16
    """Of the root's default layout; cut to the length of the chain table at initialisation."""
    inline_bytes_max: Annotated[int, Meta(ge=0, le=64 * KIB)] = 64 * KIB
    """Files that are no longer than this when they are closed are kept in the metadata store;
    0: none.  Those that are there stay.
    """
    inline_total_bytes_max: Annotated[int, Meta(ge=0)] = 4 * GIB
    """With so many bytes of them there, further ones go to chunks."""


class DiskSection(Section, frozen=True):
    """One entry of [[storage.disks]]."""

    path: str
    """Directory of the disk, which nothing else uses."""
    target_ids: list[int] = []
    """Targets that the disk holds from the beginning; no other disk of the cluster has the same."""


class StorageSection(Section, frozen=True):
    """[storage]: disks, replication, resync."""

    disks: list[DiskSection] = []
    """One entry for each disk."""
    forward_timeout_s: Seconds = 30.0
    """A head gives up passing an update on after this long; the client then retries."""
    forward_retry_s: Seconds = 0.05
    """Pause before an update is passed on again, after a try that failed."""
    link_failed_after_s: Seconds = 10.0
    """A target that gets no answer from its neighbour in the chain, nor a connection to it,
    leaves after this long.
    """
    resync_interval_s: Seconds = 0.2
    """How often a process looks for successors that have to be brought up to date."""
    resync_concurrency: Count = 8
    """Per process: chunks that are copied to successors at once."""
    resync_bytes_per_s_max: Annotated[int, Meta(ge=0)] = 0
    """Per process: how fast chunks are copied to successors that are brought up
    to date; 0: no limit.
    """
    scrub_bytes_per_s_max: Annotated[int, Meta(ge=0)] = 8 * MIB
    """Per process: how fast all chunks are reread to find damaged copies; 0: they are not."""
    compact_bytes_per_s_max: Annotated[int, Meta(ge=0)] = 16 * MIB
    """Per disk: how fast chunks are moved out of sparse groups of blocks, to give space back;
    0: they are not.
    """
    space_at_hand_bytes_max: Annotated[int, Meta(ge=0)] = 4 * GIB
    """Per disk: space of removed chunks that is kept for new ones, on ext4 and XFS, but no more
    than a quarter of what is free; the file system of the disk shows it as used, EmberFS as
    free.  Where a host finds space at the first write, new chunks are written twice as fast
    there.  0: all is given back.
    """
    read_concurrency: Count = 4
    """Per disk: calls that read at once; further ones wait."""
    write_concurrency: Count = 16
    """Per disk: calls that write at once; further ones wait."""
    direct_write_bytes_min: Annotated[int, Meta(ge=0)] = 1 * MIB
    """New versions of chunks of at least this many bytes go to the disk past the page cache,
    without a copy, on ext4 and XFS; the first to read one then reads it from the disk; 0: never.
    """
    disk_hang_s: Annotated[float, Meta(ge=0.0, le=3600.0)] = 10.0
    """A disk with a call under way for so long, whose device completes nothing meanwhile, is taken
    out of service; one with a call of twelve times that in any case; 0: never.  Where no device is
    known, as of ZFS, only the time counts: there it is to be twice the longest flush.
    """
    direct_read_bytes_min: Annotated[int, Meta(ge=0)] = 1 * MIB
    """Reads of at least this many bytes that are not in the page cache, and were not
    asked for lately, take them from the disk past it, on ext4 and XFS; read once more
    they go through it; 0: never.
    """
    reject_create_free_bytes_min: Annotated[int, Meta(ge=0)] = 64 * MIB
    """Below this much free space new chunks are refused with NO_SPACE."""
    low_space_fraction: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.05
    """A disk with less than this fraction free counts as low on space:
    chains with a target on it make no rotation.
    """
    checksum_block_bytes: Annotated[int, Meta(ge=4 * KIB, le=1 * MIB)] = 16 * KIB
    """Of new disks; one that is formatted keeps its own.

    It belongs to the cluster: disks of one chain must have the same, so a cluster stays
    with what it was made with, 4096 since `ember up` and `ember cluster deploy` write it
    down, by this default before.  A copy on a disk of another size is put out of service,
    and told (`ember admin doctor`).
    """


NEW_CHECKSUM_BLOCK_BYTES: Final = 4 * KIB
"""storage.checksum_block_bytes of clusters that are made now.

The setting's own default is that of clusters made when nothing wrote it down.
"""


class ClientSection(Section, frozen=True):
    """[client]: native client and mount."""

    mount_point: str = ""
    """Of a mount daemon: the empty directory to mount at."""
    subdir: Annotated[str, Meta(pattern="^(|/.*[^/])$")] = ""
    """The directory of the file system that is mounted, as its own path; it must be there.

    Empty: all of it.
    """
    mount_source: str = ""
    """What stands for the file system in lists of mounts.

    Empty: emberfs:, the cluster's id, and a colon and subdir if that is given.
    """
    mount_options: list[str] = []
    """What mount(8) knows of any file system, such as ro, noexec or noatime.

    Unless suid or dev stand here, set-id bits and device files do not act.
    """
    retry_time_s_max: Annotated[float, Meta(ge=0.001, le=300.0)] = 120.0
    """An operation that meets only retryable errors fails after this long.

    Services know for longer what they have done for a client: beyond that, a repeat could be done
    twice.  Who lives and is slow is waited for, 10 minutes at the most.
    """
    retry_pause_s: Seconds = 0.02
    """Pause before the second try of an operation; each further pause is up to twice the last."""
    retry_pause_s_max: Seconds = 1.0
    """The longest pause between two tries."""
    call_timeout_s: Annotated[float, Meta(ge=0.001, le=300.0)] = 10.0
    """Of one try; as with retry_time_s_max, a longer one could outlast what services know."""
    batch_count_max: Count = 128
    """Reads in one request to a storage node."""
    batch_bytes_max: Annotated[int, Meta(ge=64 * KIB, le=256 * MIB)] = 8 * MIB
    """Bytes of the reads in one request to a storage node."""
    requests_per_node_max: Count = 8
    """Requests of one kind that are under way to one storage node; further ones wait."""
    channel_count: Annotated[int, Meta(ge=1, le=65_535)] = 1024
    """Updates that one client has under way at once; further ones wait."""
    write_buffer_bytes: Annotated[int, Meta(ge=4 * KIB, le=64 * MIB)] = 1 * MIB
    """Bytes in a row that are gathered before they are sent:
    as many whole chunks as fit, one at least.
    """
    dirty_bytes_max: Annotated[int, Meta(ge=1 * MIB)] = 256 * MIB
    """Written bytes that a mount holds; then writers wait until storage has taken some."""
    write_back_interval_s: Seconds = 5.0
    """What was written is sent to storage, and its length to meta,
    at the latest after this long.
    """
    durable_close: bool = True
    """Closing a file that was written makes it survive power loss, as fsync does;
    False: as after write_back.
    """
    unmount_time_s_max: Seconds = 45.0
    """How long an orderly unmount tries to write what is buffered;
    what it could not write then is lost, and told.
    """
    readahead_bytes_max: Annotated[int, Meta(ge=0, le=256 * MIB)] = 24 * MIB
    """How far a mount reads ahead of one open file; 0: it does not."""
    readahead_total_bytes_max: Annotated[int, Meta(ge=0)] = 256 * MIB
    """The same for all open files together."""
    kernel_readahead_bytes: Annotated[int, Meta(ge=0, le=256 * MIB)] = 1 * MIB
    """What the kernel reads ahead of programs, and around the faults of mappings;
    only root can set it; 0: as it is by itself (128 KiB).
    """
    attr_timeout_s: Annotated[float, Meta(ge=0.0, le=3600.0)] = 1.0
    """How long the kernel may use attributes of files."""
    dir_entry_timeout_s: Annotated[float, Meta(ge=0.0, le=3600.0)] = 1.0
    """How long the kernel may use names and attributes of directories."""
    entry_timeout_s: Annotated[float, Meta(ge=0.0, le=3600.0)] = 0.0
    """Of names that are no directories: 0 asks meta at every open, which close-to-open needs."""
    listed_timeout_s: Annotated[float, Meta(ge=0.0, le=3600.0)] = 1.0
    """Of names that a listing showed: stat may use them for so long,
    open makes sure that they still hold.
    """
    negative_timeout_s: Annotated[float, Meta(ge=0.0, le=3600.0)] = 0.0
    """How long the kernel may take a name for absent that it has looked up
    in vain; 0: not at all.
    """
    leased_names_max: Annotated[int, Meta(ge=0, le=16_777_216)] = 65_536
    """Names kept of directories that this mount has made,
    so that it is known without a call what they lead to, and that others are absent; 0: none.
    """
    verify_reads: bool = True
    """Check the checksum of every read again on arrival."""
    max_background: Count = 64
    """READs of several pages of the page cache that storage is asked for at a time, but for small
    ones that are asked for together; further ones wait in the mount.  From three quarters of it
    on the kernel reads ahead less.
    """
    atime: Annotated[str, Meta(pattern="^(relatime|noatime)$")] = "relatime"
    """Which reads set the time of access: the first one after a change and the first one
    of a day (relatime), or none (noatime).
    """
    fuse_frontend: Annotated[str, Meta(pattern="^(direct|libfuse)$")] = "direct"
    """Who talks to the kernel: EmberFS itself (direct), or pyfuse3 (libfuse),
    which is slower and knows fewer operations.
    """
    hf3fs_tree: bool = False
    """Offer programs written for 3FS the directory 3fs-virt in the root of the mount:
    a link made in its rm-rf removes what it names, at once; one in iovs registers memory.
    """
    hf3fs_segments_max: Count = 1024
    """Segments of memory that one user may have registered in 3fs-virt/iovs;
    all users may have four times as many.  Each takes a descriptor of the mount daemon.
    """
    batch_socket: str = ""
    """Where programs reach the mount for batches: a path, for containers to share;
    empty: a name in the kernel's own space.
    """
    batch_memory_bytes_max: Annotated[int, Meta(ge=1 * MIB)] = 64 * GIB
    """Memory that one user's programs may have shared with this mount at the same time; it is taken
    as far as it is used.  Those of all users have at most twice that: who comes while others have
    some gets half of what these leave of it.
    """


class TraceSection(Section, frozen=True):
    """[trace]: which requests are followed through all processes,
    and who is told (specs/tracing.md).
    """

    sample_rate: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Share of the operations that begin in this process (of a mount's kernel, of rings,
    of the native client, removals) that are traced. What others send is traced if they say so.
    """
    otlp_endpoint: Annotated[str, Meta(pattern="^(|https?://.+)$")] = ""
    """Where spans go by HTTP, in OpenTelemetry's protocol: http://collector:4318/v1/traces;
    needs emberfs[otel].  Empty: nowhere, they only mark the lines of the log.
    """


class ProcessConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    process: ProcessSection = ProcessSection()
    rpc: RpcSection = RpcSection()
    kv: KvSection = KvSection()
    mgmtd: MgmtdSection = MgmtdSection()
    meta: MetaSection = MetaSection()
    storage: StorageSection = StorageSection()
    client: ClientSection = ClientSection()
    auth: AuthSection = AuthSection()
    trace: TraceSection = TraceSection()


LEASE_MARGIN_S = 0.5
"""Covers the time between judging a lease and acting on it."""

CLOCK_DRIFT_MAX = 0.1
"""Monotonic clocks run at most this much faster or slower than time."""


def certain_s(watched_s: float) -> float:
    """Return the longest lease that has ended for its owner
    before anybody else has counted `watched_s`.

    The owner's clock may be as slow, and the other's as fast, as CLOCK_DRIFT_MAX allows.
    """
    drifted_s = watched_s * (1 - CLOCK_DRIFT_MAX) / (1 + CLOCK_DRIFT_MAX)
    return min(drifted_s, watched_s - LEASE_MARGIN_S)


def check_relations(config: ProcessConfig) -> None:
    """Check what no single bound can say.

    Raises:
        FsError: BAD_CONFIG naming the keys and the rule they break.
    """
    mgmtd = config.mgmtd
    lease_s_max = certain_s(mgmtd.node_failed_after_s)
    if mgmtd.node_lease_s > lease_s_max:
        raise FsError(
            Status.BAD_CONFIG,
            f"mgmtd.node_lease_s ({mgmtd.node_lease_s}) may be at most {lease_s_max:.2f}, to end "
            f"before mgmtd.node_failed_after_s ({mgmtd.node_failed_after_s}) on clocks that drift",
        )
    if mgmtd.node_failed_after_s >= config.storage.link_failed_after_s:
        raise FsError(
            Status.BAD_CONFIG,
            f"storage.link_failed_after_s ({config.storage.link_failed_after_s}) must be more than"
            f" mgmtd.node_failed_after_s ({mgmtd.node_failed_after_s}): the manager judges first",
        )
    if mgmtd.heartbeat_interval_s * 3 > mgmtd.node_lease_s:
        raise FsError(
            Status.BAD_CONFIG,
            f"mgmtd.node_lease_s ({mgmtd.node_lease_s}) must hold three times"
            f" mgmtd.heartbeat_interval_s ({mgmtd.heartbeat_interval_s})",
        )
    if mgmtd.primary_extend_interval_s * 3 > mgmtd.primary_lease_s:
        raise FsError(
            Status.BAD_CONFIG,
            f"mgmtd.primary_lease_s ({mgmtd.primary_lease_s}) must hold three times"
            f" mgmtd.primary_extend_interval_s ({mgmtd.primary_extend_interval_s})",
        )
    if config.kv.engine == "remote":
        _check_remote_store(config)
    if config.client.batch_bytes_max > config.rpc.payload_bytes_max:
        raise FsError(
            Status.BAD_CONFIG,
            f"client.batch_bytes_max ({config.client.batch_bytes_max}) may be at most"
            f" rpc.payload_bytes_max ({config.rpc.payload_bytes_max})",
        )
    check_closed(config)
    check_metrics_address(config)
    check_subdir(config.client)
    block = config.storage.checksum_block_bytes
    size = config.meta.chunk_size_bytes
    for name, value in (("storage.checksum_block_bytes", block), ("meta.chunk_size_bytes", size)):
        if value & (value - 1):
            raise FsError(Status.BAD_CONFIG, f"{name} ({value}) must be a power of two")


def is_on_this_machine(address: str) -> bool:
    """Return whether only processes of this machine can reach an address;
    a host name other than localhost counts as beyond.
    """
    kind, _, rest = address.partition(":")
    host = rest.rpartition(":")[0].strip("[]")
    if kind != "tcp" or host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def check_closed(config: ProcessConfig) -> None:
    """Check that nobody beyond this machine is served without a key; raises FsError(BAD_CONFIG)."""
    auth, listen = config.auth, config.process.listen
    if auth.key_file and auth.token_file:
        raise FsError(
            Status.BAD_CONFIG, "auth.key_file and auth.token_file: a process proves one of them"
        )
    if auth.key_file or auth.is_open_network_allowed or is_on_this_machine(listen):
        return
    raise FsError(
        Status.BAD_CONFIG,
        f"process.listen ({listen}) reaches beyond this machine, so it needs auth.key_file;"
        " `ember key new FILE` makes one for all processes of the cluster",
    )


def check_subdir(client: ClientSection) -> None:
    """Check that a mount of a directory is asked for nothing that belongs to the root;
    raises FsError(BAD_CONFIG).
    """
    if not client.subdir:
        return
    if client.hf3fs_tree:
        detail = "client.subdir and client.hf3fs_tree: 3fs-virt is of the whole file system"
        raise FsError(Status.BAD_CONFIG, detail)
    if client.fuse_frontend != "direct":
        raise FsError(Status.BAD_CONFIG, "client.subdir needs client.fuse_frontend direct")


def check_metrics_address(config: ProcessConfig) -> None:
    """Check that metrics leave this machine only where that was asked for;
    raises FsError(BAD_CONFIG).
    """
    process = config.process
    if process.is_open_metrics_allowed or is_on_this_machine(process.metrics_address):
        return
    raise FsError(
        Status.BAD_CONFIG,
        f"process.metrics_address ({process.metrics_address}) reaches beyond this machine, where "
        "metrics ask nobody for a key; set process.is_open_metrics_allowed if that is meant",
    )


MESSAGE_BYTES_USED_MIN = 8 * MIB
"""What metadata tells of many small files, with their bytes, fits into a message of this size."""

KV_MESSAGE_BYTES_MIN = 16 * MIB
"""The largest transaction and the largest page of rows fit into a message of this size."""


def check_message_size(config: ProcessConfig) -> None:
    """Check that this process can carry what the served key-value store sends;
    raises FsError(BAD_CONFIG).
    """
    if config.rpc.message_bytes_max < KV_MESSAGE_BYTES_MIN:
        raise FsError(
            Status.BAD_CONFIG,
            f"rpc.message_bytes_max ({config.rpc.message_bytes_max}) must be at least"
            f" {KV_MESSAGE_BYTES_MIN} where the key-value store is served or remote",
        )


def _check_remote_store(config: ProcessConfig) -> None:
    if not config.kv.address:
        raise FsError(
            Status.BAD_CONFIG, 'kv.engine "remote" needs kv.address: where is the kv process?'
        )
    check_message_size(config)
