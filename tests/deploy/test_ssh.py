"""The installer through a real sshd: the same steps as in network namespaces, over OpenSSH."""

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from .hosts import EMBER, ROOT, run

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(SSHD is None, reason="needs sshd (package openssh-server)"),
    pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh (package openssh-client)"),
    pytest.mark.skipif(os.geteuid() != 0, reason="sshd needs root"),
]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as held:
        return held.getsockname()[1]


@pytest.fixture
def sshd(tmp_path):
    """A daemon on this machine that knows one key; yields its port."""
    for name in ("host", "user"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name)
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    port = free_port()
    config = tmp_path / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile "
        f"{tmp_path}/user.pub\n"
        "PermitRootLogin prohibit-password\nStrictModes no\nUsePAM no\nPasswordAuthentication "
        "no\nPidFile none\n"
    )
    with (tmp_path / "sshd.log").open("wb") as log:
        daemon = subprocess.Popen([SSHD, "-D", "-e", "-f", config], stderr=log)
    ends = time.monotonic() + 60
    while "listening" not in (tmp_path / "sshd.log").read_text():
        assert daemon.poll() is None and time.monotonic() < ends, (
            tmp_path / "sshd.log"
        ).read_text()
        time.sleep(0.05)
    yield port
    daemon.terminate()
    daemon.wait(30)


def write_inventory(base, ssh_port):
    ports = dict(
        zip(("kv", "mgmtd", "meta", "storage"), (free_port() for _ in range(4)), strict=True)
    )
    ports |= {f"metrics_{role}": free_port() for role in ports}
    known = f"[127.0.0.1]:{ssh_port} {(base / 'host.pub').read_text()}"
    (base / "known_hosts").write_text(known)
    lines = [
        '[cluster]\nid = "training"\nreplicas = 1\nchains = 2',
        f'[code]\nsource = "{ROOT}"\npython = {json.dumps(os.path.realpath(sys.executable))}',
        f'dependencies = "present:{sysconfig.get_path("purelib")}"',
        f'[ssh]\nuser = "root"\nport = {ssh_port}\nkey = "{base}/user"',
        f'options = ["UserKnownHostsFile={base}/known_hosts", "StrictHostKeyChecking=yes"]',
        "[ports]",
        *(f"{role} = {port}" for role, port in ports.items()),
        (
            '[[hosts]]\nname = "one"\nnumber = 1\naddress = "127.0.0.1"\nroles = ["kv", "mgmtd", '
            '"meta", "storage"]'
        ),
        f'root = "{base}/host-root"\ndisks = [{{ path = "/disk" }}]',
    ]
    (base / "inventory.toml").write_text("\n".join(lines))
    (base / "host-root/disk").mkdir(parents=True)
    return base / "inventory.toml"


def test_a_host_behind_sshd(sshd, tmp_path):
    inventory = write_inventory(tmp_path, sshd)

    def cluster(*words, check=True):
        return run(EMBER, "cluster", *words, check=check, timeout=240)

    try:
        cluster("deploy", inventory, "--yes")
        assert cluster("deploy", inventory, "--yes").stdout == "nothing to do\n"
        nodes = json.loads(
            run(
                EMBER, "admin", "node", "list", "--config", tmp_path / "training.toml", "--json"
            ).stdout
        )
        assert {(n["node_id"], n["state"]) for n in nodes} == {
            (1001, "connected"),
            (2001, "connected"),
            (10_001, "connected"),
        }
    finally:
        stopped = cluster("stop", inventory, "--yes", check=False)
    assert "one: stop storage, meta, mgmtd, kv" in stopped.stdout, stopped
    (tmp_path / "known_hosts").write_text("")
    refused = cluster("deploy", inventory, "--yes", check=False)
    assert refused.returncode == 1 and "ember: one: ssh 127.0.0.1: " in refused.stderr
    assert "nothing was changed" in refused.stderr
