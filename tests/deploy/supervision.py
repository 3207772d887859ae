"""What systemd does for a deployed cluster, on machines that run it:
stages between those of stages.py.

Processes are killed and stopped in their tracks, machines are rebooted and lose power.  Nobody runs
the installer meanwhile; at the end it has nothing to do.
"""

import time

from .stages import WAIT_S

SERVICES = ("storage", "meta", "mgmtd", "kv")
WATCHDOG_S = 60
"""As of the unit."""


def shown(life, number, service):
    """What systemd knows of a service."""
    words = ["systemctl", "show", f"ember@{service}", "-p", "ActiveState,MainPID,NRestarts,Result"]
    lines = life.hosts.on(number, *words).stdout.splitlines()
    return dict(line.split("=", 1) for line in lines)


def wait_restarted(life, number, service, before):
    """Wait until a service is another process than before, and serves."""
    ends = time.monotonic() + WAIT_S
    while True:
        now = shown(life, number, service)
        if now["ActiveState"] == "active" and now["MainPID"] != before["MainPID"]:
            return now
        assert time.monotonic() < ends, f"{service} of h{number}: {now}\n{life.hosts.logs()}"
        time.sleep(0.5)


def end_by(life, number, service, signal):
    """Send a service a signal that it cannot refuse; systemd starts it again."""
    before = shown(life, number, service)
    began_s = time.monotonic()
    life.hosts.on(number, "systemctl", "kill", "-s", signal, f"ember@{service}")
    now = wait_restarted(life, number, service, before)
    assert int(now["NRestarts"]) == int(before["NRestarts"]) + 1, now
    life.say(
        f"{service} of h{number}: {signal}, serves again after {time.monotonic() - began_s:.1f} s"
    )


def wait_all_active(life, number, services):
    ends = time.monotonic() + WAIT_S
    while True:
        states = {name: shown(life, number, name)["ActiveState"] for name in services}
        if set(states.values()) == {"active"}:
            return
        assert time.monotonic() < ends, f"h{number}: {states}\n{life.hosts.logs()}"
        time.sleep(0.5)


def wait_whole(life):
    """Wait until all nodes are connected and all chains have all their replicas."""
    ends = time.monotonic() + WAIT_S
    while life.operator("ember admin upgrade check --config training.toml", check=False).returncode:
        assert time.monotonic() < ends, life.operator(
            "ember admin doctor --config training.toml", check=False
        ).stdout
        time.sleep(1)


def nothing_to_do(life):
    assert life.operator("ember cluster deploy inventory.toml --yes").stdout == "nothing to do\n"


def killed(life):
    """Every kind of process is killed while the program works; then the mount itself."""
    for service in SERVICES:
        end_by(life, 1, service, "KILL")
        life.wait_load()
    end_by(life, 2, "storage", "KILL")
    life.wait_load()
    life.end_load()
    end_by(life, 1, "mountd", "KILL")
    life.begin_load()
    life.wait_load()


def hung(life):
    """Processes that hang are ended by the watchdog, and started again."""
    for number, service in ((2, "storage"), (1, "meta")):
        end_by(life, number, service, "STOP")
        words = ["journalctl", "-q", "-o", "cat", "-u", f"ember@{service}"]
        assert "Watchdog timeout" in life.hosts.on(number, *words).stdout
        life.wait_load()
    life.end_load()
    end_by(life, 1, "mountd", "STOP")
    life.begin_load()
    life.wait_load()


def rebooted(life):
    """A machine shuts down and starts while the program works, one loses power;
    then the one with store and mount reboots.
    """
    for number, how in ((2, life.hosts.reboot), (3, life.hosts.cut_power)):
        wait_whole(life)
        began_s = time.monotonic()
        how(number)
        life.say(f"h{number}: {how.__name__}, runs again after {time.monotonic() - began_s:.1f} s")
        wait_all_active(life, number, ["storage"])
        life.wait_load()
    wait_whole(life)
    life.end_load()
    kept = life.hosts.mount(1) / "kept"
    content = kept.read_bytes() if kept.exists() else b"written before the reboot"
    kept.write_bytes(content)
    began_s = time.monotonic()
    life.hosts.reboot(1)
    wait_all_active(life, 1, [*SERVICES, "mountd"])
    life.say(f"h1: store, manager, mount serve after {time.monotonic() - began_s:.1f} s")
    assert (life.hosts.mount(1) / "kept").read_bytes() == content
    wait_whole(life)
    nothing_to_do(life)
    life.begin_load()
    life.wait_load()


STAGES = {"killed": killed, "hung": hung, "rebooted": rebooted}
"""After the installation."""
