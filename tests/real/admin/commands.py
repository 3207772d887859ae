"""Commands of `ember admin` that run in the test's own process."""

import io
import json
import shlex
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

from fs.app.admin.shell import Shell
from fs.app.admin.standing import AT_THE_ROOT, set_standing
from fs.app.commands.admin_commands import admin
from fs.app.reach.entry import NO_ENTRY, set_entry

FOUND, DECLINED = 3, 4
FILE = "/admin-example"
CONTENT = bytes(range(256)) * 12_288  # three chunks


class Printed(io.TextIOWrapper):
    """What a command prints, text or bytes."""

    def __init__(self):
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def getvalue(self):
        return self.buffer.getvalue().decode(errors="backslashreplace")


def try_admin(cluster, *words, code=0):
    """Run a command on the cluster and return what it prints; its exit code must be `code`."""
    return try_admin_anywhere(*words, always=["--dir", str(cluster.directory)], code=code)


def try_admin_anywhere(*words, always=(), code):
    set_entry(NO_ENTRY)
    set_standing(AT_THE_ROOT)
    out, err = Printed(), io.StringIO()
    nobody = patch.object(sys, "stdin", io.StringIO())
    with redirect_stdout(out), redirect_stderr(err), nobody:
        got = Shell(admin, always).run_line(shlex.join(map(str, words)))
    codes = code if isinstance(code, set) else {code}
    assert got in codes, f"{words}: {got}\n{out.getvalue()}\n{err.getvalue()}"
    return out.getvalue() if "--json" in words and not got else out.getvalue() + err.getvalue()


def rows(cluster, *words, code=0):
    return json.loads(try_admin(cluster, *words, "--json", code=code))


def kinds(cluster, *severities):
    """Return what the doctor finds of these severities;
    its exit code says whether something is to be done.
    """
    found = rows(cluster, "doctor", "--pause", "0", code={0, FOUND})
    return {f["kind"] for f in found if f["severity"] in severities}


def wait_until(is_so, timeout_s=120):
    ends = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.3)
