"""`ember admin`: files, names, content, chunks, and what was removed, against a running cluster.

One cluster for all tests, which run in the order of this file.
"""

import json
import re
import time

import pytest
import trio

from fs.app.machine.cluster_dir import ClusterDir
from fs.app.reach.meant_cluster import connected
from fs.app.stores.store_access import open_chosen, store_of_cluster
from fs.kv.transact import transact
from fs.meta.records import inode_key

from .commands import CONTENT, DECLINED, FILE, FOUND, rows, try_admin, wait_until

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_file_is_followed_to_its_replicas(cluster, inode_id):
    facts = rows(cluster, "file", "stat", FILE)
    assert (facts["inode_id"], facts["length"], facts["type"]) == (inode_id, len(CONTENT), "file")
    assert rows(cluster, "file", "stat", "--inode", inode_id) == facts
    wait_until(lambda: all(c["serving"] == 3 for c in rows(cluster, "chain", "list")))
    chunks = rows(cluster, "file", "chunks", FILE)
    assert sorted({c["chunk_index"] for c in chunks}) == [0, 1, 2]
    for index in range(3):
        members = [c for c in chunks if c["chunk_index"] == index]
        assert len(members) == 3 == len({c["node_id"] for c in members})
        assert len({(c["commit_ver"], c["length"], c["checksum"]) for c in members}) == 1
        shown = rows(cluster, "chunks", "show", inode_id, index)
        assert {(c["checksum"], c["length"]) for c in shown} == {
            (c["checksum"], c["length"]) for c in members
        }
    assert rows(cluster, "file", "compare", FILE) == []
    assert "3 chunks: all replicas equal" in try_admin(cluster, "file", "compare", FILE)
    digests = rows(cluster, "chunks", "checksum", inode_id, 1, "--offset", 10, "--length", 1000)
    assert len(digests) == 3 and len({d["checksum"] for d in digests}) == 1
    assert {d["length"] for d in digests} == {1000}
    assert rows(cluster, "file", "chunks", FILE, "--from", 2, "--count", 5)[0]["chunk_index"] == 2
    assert "is a directory" in try_admin(cluster, "file", "chunks", "/", code=1)
    assert "say a path" in try_admin(cluster, "file", "stat", code=1)
    for words in (("file", "stat"), ("file", "chunks"), ("fs", "stat"), ("fs", "cat")):
        assert "(/nothing)" in try_admin(cluster, *words, "/nothing", code=1)


def test_the_layout_of_a_directory_is_set_for_new_files(cluster):
    with connected(cluster.directory) as fs:
        fs.mkdir("/cut")
    before = rows(cluster, "file", "layout", "get", "/cut")
    assert (before["chunk_size_bytes"], before["stripe_size"]) == (1024 * 1024, 4)
    try_admin(cluster, "file", "layout", "set", "/cut", "--chunk-size", "64K", "--stripe", 2)
    after = rows(cluster, "file", "layout", "get", "/cut")
    assert after["from_inode_id"] == after["inode_id"]
    assert (after["chunk_size_bytes"], after["stripe_size"]) == (64 * 1024, 2)
    with connected(cluster.directory) as fs:
        fs.write_file("/cut/small", bytes(200_000))
    assert len(rows(cluster, "file", "chunks", "/cut/small")) == 4 * 3
    assert rows(cluster, "file", "layout", "get", "/cut/small")["stripe_size"] == 2
    told = try_admin(cluster, "file", "layout", "set", "/cut", "--chunk-size", "5K", code=1)
    assert "INVALID_ARGUMENT" in told


def run_script(cluster, tmp_path, *lines, code=0):
    script = tmp_path / "commands"
    script.write_text("\n".join(lines))
    return try_admin(cluster, "shell", "--file", script, code=code)


def test_names_are_made_changed_and_removed_from_a_current_directory(cluster, tmp_path):
    run_script(
        cluster,
        tmp_path,
        "mkdir /work/deep -p --chunk-size 256K; cd /work; create one --stripe 1",
        "ln one two; ln one three -s; mv two deep/two",
    )
    listed = {row["name"]: row for row in rows(cluster, "fs", "ls", "/work")}
    assert list(listed) == ["deep", "one", "three"]
    assert (listed["one"]["nlink"], listed["three"]["target"]) == (2, "one")
    assert len(rows(cluster, "fs", "ls", "/work", "--count", 2)) == 2
    facts = rows(cluster, "fs", "stat", "/work/three", "-L", "--chains")
    assert (facts["inode_id"], facts["stripe_size"], len(facts["chains"])) == (
        listed["one"]["inode_id"],
        1,
        1,
    )
    assert rows(cluster, "file", "layout", "get", "/work/deep")["chunk_size_bytes"] == 256 * 1024
    assert set(try_admin(cluster, "fs", "realpath", "/work/three").split()) <= {
        "/work/one",
        "/work/deep/two",
    }
    told = run_script(
        cluster, tmp_path, "cd /work/deep/..; fs --as 1000:100 whoami --json; ls nothing", code=1
    )
    assert '"/work"' in told and '"1000:100"' in told
    assert "EXISTS" in try_admin(cluster, "fs", "create", "/work/one", code=1)
    assert "say -r" in try_admin(cluster, "fs", "rm", "/work", "--yes", code=1)
    assert "2 files and 1 directories" in try_admin(
        cluster, "fs", "rm", "/work", "-r", code=DECLINED
    )
    try_admin(cluster, "fs", "rm", "/work/deep", "-r", "--yes")
    assert "NOT_FOUND" in try_admin(cluster, "fs", "stat", "/work/deep", code=1)


def test_what_changes_names_tells_programs(cluster):
    made = rows(cluster, "fs", "mkdir", "/told")
    assert (made["path"], made["type"]) == ("/told", "directory")
    assert rows(cluster, "fs", "create", "/told/one", "--stripe", 1)["stripe_size"] == 1
    assert rows(cluster, "fs", "ln", "/told/one", "/told/two")["nlink"] == 2
    assert rows(cluster, "fs", "mv", "/told/two", "/told/deux")["path"] == "/told/deux"
    assert rows(cluster, "fs", "chmod", "600", "/told/one")["mode"] & 0o777 == 0o600
    assert rows(cluster, "fs", "chown", "7", "/told/one")["uid"] == 7
    assert rows(cluster, "fs", "chown", "8", "/told", "-R", "--yes")["changed"] == 3
    assert rows(cluster, "fs", "write", "/told/one", "--value", "abc")["bytes"] == 3
    assert rows(cluster, "fs", "rm", "/told", "-r", "--yes")["is_directory"]


def test_a_tree_changes_its_owner_and_strangers_may_not(cluster):
    with connected(cluster.directory) as fs:
        fs.makedirs("/given/a/b")
        fs.write_file("/outside", b"")
        for index in range(40):
            fs.write_file(f"/given/a/{index}", b"")
        fs.symlink("/outside", "/given/a/link")
    assert "changes" not in try_admin(cluster, "fs", "chown", "7:8", "/given", "-R", "--dry-run")
    assert "44 changed" in try_admin(cluster, "fs", "chown", "7:8", "/given", "-R", "--yes")
    owners = {(r["uid"], r["gid"]) for r in rows(cluster, "fs", "ls", "/given/a")}
    assert owners == {(7, 8)}
    assert rows(cluster, "fs", "stat", "/outside")["uid"] == 0
    assert rows(cluster, "fs", "stat", "/given/a/link")["uid"] == 7
    try_admin(cluster, "fs", "chmod", "700", "/given")
    assert "ACCESS_DENIED" in try_admin(cluster, "fs", "--as", "9:9", "ls", "/given/a", code=1)
    assert try_admin(cluster, "fs", "--as", "7:9", "ls", "/given/a")
    assert "NOT_PERMITTED" in try_admin(
        cluster, "fs", "--as", "9:9", "chown", "9", "/outside", code=1
    )
    try_admin(cluster, "fs", "chown", ":5", "/outside")
    assert [rows(cluster, "fs", "stat", "/outside")[key] for key in ("uid", "gid")] == [0, 5]
    for wrong in (("chown", ":", "/given"), ("chmod", "8", "/given"), ("chown", "me", "/given")):
        assert "INVALID_ARGUMENT" in try_admin(cluster, "fs", *wrong, code=1)


@pytest.mark.usefixtures("inode_id")
def test_content_is_read_and_written(cluster, tmp_path):
    assert try_admin(cluster, "fs", "cat", FILE, "--offset", 65, "--length", 5) == "ABCDE"
    shown = try_admin(cluster, "fs", "cat", FILE, "--offset", 256, "--length", 20, "--hex")
    assert shown.splitlines()[1] == "000000000110  10 11 12 13" + " " * 38 + "...."
    copy = tmp_path / "copy"
    try_admin(cluster, "fs", "cat", FILE, "-o", copy)
    assert copy.read_bytes() == CONTENT
    assert f"{len(CONTENT)} bytes" in try_admin(cluster, "fs", "write", "/copied", "-i", copy)
    try_admin(cluster, "fs", "write", "/copied", "--value", "xyz", "--offset", "1M", "--keep")
    with connected(cluster.directory) as fs:
        expected = bytearray(CONTENT)
        expected[1024**2 : 1024**2 + 3] = b"xyz"
        assert fs.read_file("/copied") == expected


def test_chunks_of_no_file_are_found(cluster):
    """The chunks of a file whose inode is taken away behind everybody's back."""
    with connected(cluster.directory) as fs:
        fs.write_file("/lost", CONTENT)
        lost_id = fs.stat("/lost").inode_id
    assert "0 inodes with orphans" in try_admin(cluster, "chunks", "orphans")

    async def swap(value):
        async with open_chosen(store_of_cluster(ClusterDir(cluster.directory))) as store:

            async def body(tr):
                old = await tr.get(inode_key(lost_id))
                tr.clear(inode_key(lost_id)) if value is None else tr.set(inode_key(lost_id), value)
                return old

            return await transact(store.engine, body, runtime=store.runtime)

    inode = trio.run(swap, None)
    try:
        found = rows(cluster, "chunks", "orphans", code=FOUND)
        assert {one["inode_id"] for one in found} == {lost_id}
        assert sum(one["chunk_count"] for one in found) == 3
        assert sum(one["length_bytes"] for one in found) == len(CONTENT)
        assert rows(cluster, "chunks", "orphans", "--after", 4) == []
    finally:
        trio.run(swap, inode)


def test_what_was_removed_waits_to_be_cleared_away(cluster):
    before = rows(cluster, "gc", "status")["files"]
    with connected(cluster.directory) as fs:
        fs.write_file("/short-lived", b"x")
        gone_id = fs.stat("/short-lived").inode_id
        fs.unlink("/short-lived")
    assert rows(cluster, "gc", "status")["files"] > before
    assert gone_id in {one["inode_id"] for one in rows(cluster, "gc", "list")}
    assert rows(cluster, "gc", "list", "--count", 1)


def test_what_was_removed_is_held_up_for_a_time(cluster):
    told = try_admin(cluster, "gc", "pause", "--for", "30m")
    assert "nothing is cleared away until" in told
    assert rows(cluster, "gc", "status")["paused_until_ns"] / 1e9 > time.time() + 1000
    try_admin(cluster, "gc", "resume")
    assert rows(cluster, "gc", "status")["paused_until_ns"] == 0
    assert "INVALID_ARGUMENT" in try_admin(cluster, "gc", "pause", "--for", "ever", code=1)


def test_open_files_are_listed(cluster, inode_id):
    with connected(cluster.directory) as fs, fs.open(FILE, is_writable=True):
        found = rows(cluster, "session", "files", "--inode", inode_id)
        assert [one["is_write"] for one in found] == [True]
        client_id = found[0]["client_id"]
        assert client_id in {one["client_id"] for one in rows(cluster, "session", "list")}
        assert rows(cluster, "session", "files", "--client", "nobody") == []


def test_dumps_hold_what_there_is(cluster, inode_id, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    for what in ("inodes", "dentries", "sessions", "chunks"):
        for form in ("parquet", "jsonl"):
            path = tmp_path / f"{what}.{form}"
            told = try_admin(cluster, "dump", what, path, "--format", form)
            assert re.search(rf"{what}.{form}: \d+ rows", told)
    assert not list(tmp_path.glob("*.part"))
    inodes = {
        row["inode_id"]: row for row in parquet.read_table(tmp_path / "inodes.parquet").to_pylist()
    }
    assert inodes[inode_id]["length"] == len(CONTENT)
    names = [json.loads(line) for line in (tmp_path / "dentries.jsonl").read_text().splitlines()]
    assert {"inode_id": inode_id, "name": FILE[1:]}.items() <= next(
        n for n in names if n["inode_id"] == inode_id
    ).items()
    chunks = parquet.read_table(tmp_path / "chunks.parquet").to_pylist()
    assert sum(one["length"] for one in chunks if one["inode_id"] == inode_id) == 3 * len(CONTENT)
    assert len((tmp_path / "chunks.jsonl").read_text().splitlines()) == len(chunks)
