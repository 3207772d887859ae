"""The command `ember` for tests that call it again and again.

Each call is a process of its own, as ever, but a fork of one that has loaded what commands need:
loading takes more processor time than what most of them do.  Tests of commands themselves
(tests/app/test_cluster.py and others) start each from nothing, as people do.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path


@cache
def _loaded(before: str) -> socket.socket:
    """Start what calls are forked from; it ends with this process."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", "from tests.forked_commands import serve; serve()"],
            stdin=there,
            cwd=Path(__file__).parents[1],
            env=os.environ | {"PYTHONPATH": _path(before)},
        )

    def end() -> None:
        here.close()
        child.wait()

    atexit.register(end)
    return here


def _path(before: str) -> str:
    """Where modules are found, here and first of all in one more folder, if one is named."""
    return os.pathsep.join(filter(None, [before, *sys.path]))


def run_ember(
    *arguments: object, cwd: Path | None = None, timeout: float = 600, path: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command, and return how it ended, as `subprocess.run` does.

    With `path` it, and what it starts, finds modules first in that folder.
    """
    words = [str(word) for word in arguments]
    environment = os.environ | ({"PYTHONPATH": _path(path)} if path else {})
    request = json.dumps([words, str(cwd or Path.cwd()), environment])
    here, there = socket.socketpair()
    with (
        here,
        open(os.memfd_create("out"), "w+b") as out,
        open(os.memfd_create("err"), "w+b") as err,
    ):
        with there:
            descriptors = [there.fileno(), out.fileno(), err.fileno()]
            socket.send_fds(_loaded(path), [request.encode()], descriptors)
        here.settimeout(timeout)
        with here.makefile("r") as told:
            pid = int(told.readline())
            try:
                code = int(told.readline())
            except TimeoutError as error:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(["ember", *words], timeout) from error
        # Names of files are said as they are to what is no terminal, and need not be UTF-8.
        said = [os.fsdecode(os.pread(file.fileno(), 1 << 30, 0)) for file in (out, err)]
    return subprocess.CompletedProcess(["ember", *words], code, *said)
