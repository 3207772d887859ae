"""A mount over the model of a cluster, served by a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

NEEDS_MOUNT = [
    pytest.mark.mount,
    pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="no /dev/fuse"),
]
ROOT_FOLDER = Path(__file__).parents[3]
SERVER = ROOT_FOLDER / "tests/client/fuse/serve_fakes.py"
PATHS = f"{ROOT_FOLDER}:{ROOT_FOLDER}/fs/client/user"


class Server:
    def __init__(self, mount_point, *settings):
        self.mount_point = mount_point
        mount_point.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER), str(mount_point), *settings],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": PATHS},
        )
        self.first_line = self.process.stdout.readline().strip()

    def held(self):
        """Return the inode numbers of the shared memory that the daemon has mapped.

        A test compares sets, not counts: what an earlier one let go may be given up meanwhile.
        """
        lines = Path(f"/proc/{self.process.pid}/maps").read_text().splitlines()
        return {line.split()[4] for line in lines if "memfd:emberfs-batch" in line}

    def descriptor_count(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def cpu_s(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, output
        return json.loads(output)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
            subprocess.run(  # -i: whatever helper for mounts the machine has
                ["umount", "-i", "-l", str(self.mount_point)], check=False, capture_output=True
            )


def eventually(is_true, what):
    for _ in range(600):
        if is_true():
            return
        time.sleep(0.05)
    raise AssertionError(what)
