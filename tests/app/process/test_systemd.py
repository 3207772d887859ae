"""What systemd is told."""

import os
import socket

import trio

from fs.app.process.systemd import SystemdLink


async def test_systemd_hears_that_the_loop_runs(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        environment = {
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "20000",
            "WATCHDOG_PID": str(os.getpid()),
        }
        link = SystemdLink(environment)
        assert not environment and link.watchdog_s == 0.02
        link.say("READY=1")
        assert systemd.recv(100) == b"READY=1"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.keep_saying)
            for _ in range(3):
                assert await trio.to_thread.run_sync(systemd.recv, 100) == b"WATCHDOG=1"
            nursery.cancel_scope.cancel()


async def test_without_systemd_nothing_is_said(tmp_path):
    SystemdLink({}).say("READY=1")
    with trio.fail_after(60):
        await SystemdLink({}).keep_saying()
    SystemdLink({"NOTIFY_SOCKET": str(tmp_path / "gone")}).say("READY=1")  # a line in the log
    assert SystemdLink({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).watchdog_s == 0
