"""The process that tests/commands.py forks commands from: it has loaded what most of them need."""

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import NoReturn

# Commands load these when they run.
from fs.app.commands import admin_commands, quota_commands  # noqa: F401
from fs.app.local import bring_down, bring_up  # noqa: F401
from fs.app.main import main
from fs.app.monitoring import status_view  # noqa: F401
from fs.app.reach import mgmtd_link  # noqa: F401
from fs.app.upkeep import fsck  # noqa: F401

REQUEST_BYTES_MAX = 1 << 20
"""Arguments, working directory and environment of a call."""


def serve() -> None:
    """Fork for each request that comes by the standard input, a socket, until that is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with who makes the requests
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(fileno=os.dup(0)) as requests:
        while True:
            request, descriptors, *_ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
            if not request:
                return
            if os.fork() == 0:
                requests.close()
                _answer(request, *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)


def _answer(request: bytes, told: int, out: int, err: int) -> NoReturn:
    """Have one more process be the command; tell its id, and in the end its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(told)
        _become(request, out, err)
    with suppress(BrokenPipeError):  # the test did not wait any longer
        os.write(told, b"%d\n" % pid)
        os.write(told, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _become(request: bytes, out: int, err: int) -> NoReturn:
    """Be the command: as the interpreter, which ends a program the same way."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    words, cwd, environment = json.loads(request)
    with open(os.devnull) as nothing:
        for number, descriptor in enumerate((nothing.fileno(), out, err)):
            os.dup2(descriptor, number)
    os.close(out)
    os.close(err)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["ember", *words]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - told, as the interpreter does
        code = 1
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
