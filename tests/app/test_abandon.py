"""A process whose store waits for a disk that does not answer ends, and says so; who is connected sees it at once."""

import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_process_whose_store_hangs_ends(tmp_path):
    command = [sys.executable, "-m", "tests.app.hung_store", str(tmp_path / "kv")]
    with subprocess.Popen(
        command, cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
            process.stdin.write("\n")
            process.stdin.flush()
            with suppress(ConnectionResetError):  # what was never accepted is reset
                assert peer.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=60)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"{tmp_path / 'kv'} does not answer for " in told
    assert told.count("\n") == 1, told
