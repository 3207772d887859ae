"""By what name programs go that ask the kernel for something."""

import os
import subprocess
import threading
from pathlib import Path

from fs.client.fuse.programs import program_of


def test_a_process_goes_by_the_name_of_its_program():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"it runs\n")
        process.stdin.flush()
        process.stdout.readline()
        assert program_of(process.pid) == "cat"
        process.communicate()
    assert program_of(process.pid) == ""


def test_a_thread_may_have_a_name_of_its_own():
    told, may_end = threading.Event(), threading.Event()
    thread_ids = []

    def work():
        Path("/proc/thread-self/comm").write_text("a-worker")
        thread_ids.append(threading.get_native_id())
        told.set()
        may_end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    told.wait()
    assert program_of(thread_ids[0]) == "a-worker"
    assert program_of(os.getpid()) not in {"", "a-worker"}
    may_end.set()
    thread.join()
