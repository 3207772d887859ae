"""Import contracts that depend on which modules exist; the fixed ones stand in pyproject.toml."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

IMPURE = {
    "trio", "asyncio", "socket", "ssl", "select", "threading", "subprocess",
    "os", "io", "pathlib", "time", "random", "secrets", "logging",
}  # fmt: skip
CORES = [
    "fs/schema/ids.py",
    "fs/schema/status.py",
    "fs/schema/config.py",
    "fs/schema/layout.py",
    "fs/schema/routing.py",
    "fs/schema/resync_progress.py",
    "fs/schema/inode.py",
    "fs/schema/metric.py",
    "fs/schema/metrics.py",
    "fs/runtime/figures.py",
    "fs/schema/user.py",
    "fs/runtime/log_segments.py",
    "fs/runtime/rocksdb_log.py",
    "fs/rpc/frame.py",
    "fs/rpc/credentials.py",
    "fs/kv/api.py",
    "fs/kv/conflicts.py",
    "fs/kv/buffer.py",
    "fs/kv/forwarding.py",
    "fs/admin/backup_format.py",
    "fs/admin/rebase.py",
    "fs/chunkengine/allocator.py",
    "fs/chunkengine/findings.py",
    "fs/chunkengine/format.py",
    "fs/chunkengine/fsck.py",
    "fs/mgmtd/chain_state.py",
    "fs/mgmtd/lease.py",
    "fs/mgmtd/rotations.py",
    "fs/mgmtd/user_book.py",
    "fs/meta/records.py",
    "fs/meta/fsck.py",
    "fs/meta/fsck_facts.py",
    "fs/meta/fsck_tree.py",
    "fs/meta/permissions.py",
    "fs/meta/users.py",
    "fs/meta/chain_pick.py",
    "fs/storage/replica.py",
    "fs/storage/channels.py",
    "fs/storage/local_state.py",
    "fs/storage/resync_plan.py",
    "fs/client/batchio/checks.py",
    "fs/client/batchio/gathering.py",
    "fs/client/user/emberfs/kvcache_format.py",
    "fs/client/user/emberfs/kvcache_index.py",
    "fs/client/user/emberfs/protocol.py",
    "fs/app/local/cluster_plan.py",
]
OPERATIONS = sorted(p.relative_to(ROOT) for p in (ROOT / "fs/meta/ops").glob("*.py"))


def imported_roots(path: Path) -> set[str]:
    """Top-level names of the absolute imports of a file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            assert node.module is not None
            found.add(node.module.split(".")[0])
    return found


def test_cores_touch_no_loop_socket_file_clock_thread_or_randomness():
    found = {}
    for core in [*CORES, *map(str, OPERATIONS)]:
        # PurePath is arithmetic on names; it is the one thing of pathlib that a core may use.
        text = (ROOT / core).read_text()
        allowed = {"pathlib"} if "from pathlib import PurePath\n" in text else set()
        if impure := imported_roots(ROOT / core) & (IMPURE - allowed):
            found[core] = impure
    assert not found


def test_nothing_imports_tests():
    for folder in ("fs", "placement", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            is_suspect = "tests" in path.read_text()
            assert not is_suspect or "tests" not in imported_roots(path), path
