"""The file that says which client serves a mount point: who may believe it, and what it proves."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from fs.app.mounts import mount_record
from fs.app.mounts.mount_record import CLIENT_COUNT_MAX, MountRecord, decode_record, encode_record

BOOT = "boot-1"
HOLDER = """
import sys, threading, time
from pathlib import Path
from fs.app.mounts.mount_record import MountRecord
record = MountRecord(Path(sys.argv[1]), "c", Path("/m"), boot_id="boot-1", client_id=sys.argv[2])
assert record.take(waits=False)
print("held", flush=True)
sys.stdin.read()
record.remove()
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def started(folder):
    """Starts processes that hold the record of /m, each as another client."""
    children = []

    def start(client_id):
        command = [sys.executable, "-c", HOLDER, str(folder), client_id]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        children.append(child)
        assert child.stdout.readline() == b"held\n"
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def record(folder, client_id="me", *, cluster="c", place="/m", boot=BOOT):
    return MountRecord(folder, cluster, folder.parent / place, boot_id=boot, client_id=client_id)


def test_what_is_written_is_read_at_this_start_of_the_machine_only():
    text = encode_record(BOOT, ["one", "two"])
    assert decode_record(text, BOOT) == ["one", "two"]
    assert decode_record(text.ljust(4096), BOOT) == ["one", "two"]
    assert decode_record(text, "boot-2") == []
    many = [str(number) for number in range(100)]
    assert decode_record(encode_record(BOOT, many), BOOT) == many[-CLIENT_COUNT_MAX:]


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\0" * 4096, b"{", b"[]", b"null", b"\xff\xfe", b'{"boot_id": "boot-1"}',
        b'{"boot_id": "boot-1", "clients": "one"}', b'{"boot_id": "boot-1", "clients": [1]}',
        json.dumps({"boot_id": BOOT, "clients": ["", "x" * 65]}).encode(),
    ],
)  # fmt: skip
def test_what_is_damaged_names_nobody(text):
    assert decode_record(text, BOOT) == []


def test_who_was_killed_is_gone_who_ended_in_order_is_not(folder, started):
    first = started("first")
    first.kill()
    first.wait()
    second = started("second")
    second.kill()
    second.wait()
    third = record(folder, "third")
    assert third.take(waits=False)
    assert third.gone == ["first", "second"], "the second one died before it could say so"
    third.forget("first")
    third.close()  # as if killed
    fourth = record(folder, "fourth")
    assert fourth.take(waits=False)
    assert fourth.gone == ["second", "third"]
    for client_id in [*fourth.gone]:
        fourth.forget(client_id)
    fourth.remove()
    assert not [*folder.glob("*.client")]
    ended = started("in order")
    ended.communicate()
    last = record(folder)
    assert last.take(waits=False) and last.gone == []
    last.remove()


def test_who_ends_in_order_leaves_those_whom_he_has_not_spoken_for(folder, started):
    first = started("first")
    first.kill()
    first.wait()
    second = record(folder, "second")
    assert second.take(waits=False)
    second.remove()
    third = record(folder, "third")
    assert third.take(waits=False) and third.gone == ["first"]
    third.close()


def test_who_is_stopped_is_not_gone(folder, started):
    stopped = started("stopped")
    stopped.send_signal(signal.SIGSTOP)
    later = record(folder)
    assert not later.take(waits=False) and not later.is_held and later.gone == []
    waiting = threading.Thread(target=later.take, kwargs={"waits": True})
    waiting.start()
    stopped.kill()
    waiting.join()
    assert later.is_held and later.gone == ["stopped"]
    later.close()


def test_who_waits_does_not_take_a_file_that_was_removed(folder, started):
    first = started("first")
    later = record(folder)
    waiting = threading.Thread(target=later.take, kwargs={"waits": True})
    waiting.start()
    first.communicate()  # ends in order, and removes it
    waiting.join()
    assert later.is_held and later.gone == []
    other = record(folder, "other")
    assert not other.take(waits=False)
    later.close()


def test_clusters_and_places_have_files_of_their_own(folder):
    names = [{}, {"cluster": "d"}, {"place": "/n"}]
    held = [record(folder, **name) for name in names]
    assert all(one.take(waits=False) for one in held)
    for one in held:
        one.close()


def test_a_file_of_another_start_or_owner_is_not_believed(folder, monkeypatch):
    first = record(folder, "first")
    assert first.take(waits=False)
    first.close()
    later = record(folder, "later", boot="boot-2")
    assert later.take(waits=False) and later.gone == []
    later.close()
    monkeypatch.setattr(mount_record.os, "geteuid", lambda: os.getuid() + 1)
    stranger = record(folder, "stranger", boot="boot-2")
    assert not stranger.take(waits=False) and stranger.gone == []


def test_a_folder_that_cannot_be_had_costs_nothing_but_haste(folder):
    folder.write_text("no folder")
    one = record(folder)
    assert not one.take(waits=False) and not one.take(waits=True)
    one.remove()
