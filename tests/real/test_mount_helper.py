"""`mount -t fuse.ember`, /etc/fstab, remount and umount, as the system's own programs do them,
on real mounts.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fs.app.mounts.helper_script import DEEDS, FOLDER, helper_path
from fs.client.vfs.mounted_tree import TREE_ATTRIBUTE
from fs.runtime.config_file import read_config, write_config

from .conftest import EMBER, run
from .test_inline import connect

pytestmark = [
    pytest.mark.mount,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK), reason="root mounts, by /dev/fuse"
    ),
]


def is_locked_alone(folder):
    """Take a folder for this process alone, unless another run of these tests has it."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@pytest.fixture(scope="module")
def _helper():
    """Install the helper; the last run that uses it removes it,
    and what stood there before is put back.
    """
    places = [Path(helper_path(deed)) for deed in DEEDS]
    folder = os.open(FOLDER, os.O_RDONLY)
    before = {}
    if is_locked_alone(folder):
        before = {place: place.read_bytes() for place in places if place.exists()}
        for place in before:
            place.unlink()
    fcntl.flock(folder, fcntl.LOCK_SH)
    run(EMBER, "mount-helper", "install")
    yield
    if is_locked_alone(folder):
        run(EMBER, "mount-helper", "remove")
        assert not any(place.exists() for place in places)
        for place, content in before.items():
            place.write_bytes(content)
            place.chmod(0o755)
    os.close(folder)


@pytest.fixture(scope="module")
def cluster(_helper, tmp_path_factory):
    """A cluster without a mount, in which the directories a and b are."""
    base = tmp_path_factory.mktemp("helper")
    directory = base / "c"
    sizes = ("--nodes", 1, "--replicas", 1, "--chains", 1)
    run(EMBER, "up", "--dir", directory, "--no-mount", "--until", os.getpid(), *sizes)
    place = base / "whole"
    place.mkdir()
    run("mount", "-t", "fuse.ember", directory, place)
    for name in ("a", "b"):
        (place / name).mkdir()
        (place / name / "name").write_text(name)
    run("umount", place)
    yield SimpleNamespace(directory=directory, log=directory / "logs" / "mount-1.log")
    run(EMBER, "down", "--dir", directory)


@pytest.fixture
def place(tmp_path):
    made = tmp_path / "m"
    made.mkdir()
    yield made
    while os.path.ismount(made):
        run("umount", "-l", made)


def called(*command):
    """Run a command; return its exit code and what it says."""
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


def mount(source, place, *options):
    run("mount", "-t", "fuse.ember", source, place, *options)


def shown(place, columns="SOURCE,FSTYPE,OPTIONS"):
    return run("findmnt", "-n", "-r", "-o", columns, "--mountpoint", place).split()


def daemon_count(place):
    """Count the mount daemons for a place."""
    found = Path("/proc").glob("[0-9]*/cmdline")
    count = 0
    for file in found:
        with contextlib.suppress(OSError):
            words = file.read_bytes().split(b"\0")
            if b"fs.app.mountd" in words:
                text = Path(os.fsdecode(words[words.index(b"fs.app.mountd") + 1])).read_text()
                count += f'"{place}"' in text
    return count


def test_a_mount_answers_when_it_is_there_and_its_daemon_has_ended_when_it_is_not(cluster, place):
    named = f"{cluster.directory}:/"
    mount(named, place)
    assert (place / "a/name").read_text() == "a"
    source, kind, options = shown(place)
    assert (source, kind) == (named, "fuse.ember")
    assert {"rw", "default_permissions", "allow_other"} < set(options.split(","))
    assert run("df", "--output=source", place).split()[1] == named
    assert daemon_count(place) == 1
    run("umount", named)
    assert not os.path.ismount(place) and daemon_count(place) == 0


def test_two_directories_of_one_cluster_are_two_file_systems(cluster, place, tmp_path):
    """As a test suite has its TEST_DEV and SCRATCH_DEV: found, and unmounted, by their sources."""
    other = tmp_path / "n"
    other.mkdir()
    sources = [f"{cluster.directory}:/{name}" for name in "ab"]
    mount(sources[0], place)
    mount(sources[1], other)
    try:
        assert [(p / "name").read_text() for p in (place, other)] == ["a", "b"]
        for source, at in zip(sources, (place, other), strict=True):
            found = run("findmnt", "-rncv", "-S", source, "-o", "SOURCE,TARGET")
            assert found == f"{source} {at}\n"
            assert run("df", "--output=source", at).split()[1] == source
        assert os.getxattr(place, TREE_ATTRIBUTE).endswith(b":/a")
        run("umount", sources[0])
        assert not os.path.ismount(place) and os.path.ismount(other)
    finally:
        run("umount", other)


def test_the_root_of_a_mounted_directory_is_like_any_directory(cluster, place, tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()
    mount(f"{cluster.directory}:/a", place)
    mount(cluster.directory, whole)
    try:
        inside = whole / "a"
        assert place.stat().st_ino == inside.stat().st_ino
        (place / "x").write_text("1")
        (place / "x").rename(place / "y")
        (place / "d").mkdir()
        (place / "y").rename(place / "d/y")
        (place / "d/y").rename(place / "y")
        os.link(place / "y", place / "z")
        os.setxattr(place, "user.k", b"v")
        place.chmod(0o750)
        assert sorted(os.listdir(inside)) == sorted(os.listdir(place)) == ["d", "name", "y", "z"]
        assert os.getxattr(inside, "user.k") == b"v" and inside.stat().st_mode & 0o777 == 0o750
        assert os.statvfs(place).f_bsize
        (inside / "new").write_text("2")
        assert (place / "new").read_text() == "2"
        run(EMBER, "rm", place / "new")
        assert not (inside / "new").exists()
        for name in ("y", "z", "new"):
            (place / name).unlink(missing_ok=True)
        (place / "d").rmdir()
    finally:
        run("umount", whole)


def test_fstab_is_mounted_once_and_what_is_not_wanted_at_the_start_is_left(
    cluster, place, tmp_path
):
    late = tmp_path / "late"
    late.mkdir()
    table = tmp_path / "fstab"
    common = "_netdev,nofail,x-systemd.requires=network-online.target,x-systemd.mount-timeout=60"
    table.write_text(
        f"{cluster.directory}:/a {place} fuse.ember ro,noatime,{common} 0 0\n"
        f"{cluster.directory}:/b {late} fuse.ember noauto,user,{common} 0 0\n"
    )
    for _ in range(2):  # the second time it is there
        run("mount", "-T", table, "-a")
        assert daemon_count(place) == 1 and not os.path.ismount(late)
    assert {"ro", "noatime"} < set(shown(place)[2].split(","))
    run("mount", "-T", table, late)
    assert {"rw", "noexec", "nosuid", "nodev"} < set(shown(late)[2].split(","))
    run("umount", late)
    run("umount", place)


def test_a_remount_changes_what_it_names_also_for_a_daemon_that_is_started_again(cluster, place):
    mount(f"{cluster.directory}:/a", place, "-o", "noexec")
    run("mount", "-o", "remount,ro", place)
    with pytest.raises(OSError, match="Read-only") as caught:
        (place / "w").write_text("no")
    assert caught.value.errno == errno.EROFS
    assert {"ro", "noexec"} < set(shown(place)[2].split(","))
    kill_daemon(place)
    deadline_s = time.monotonic() + 60
    while not (is_served(place) and daemon_count(place)):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    assert {"ro", "noexec"} < set(shown(place)[2].split(","))
    run("mount", "-o", "remount,rw", place)
    (place / "w").write_text("yes")
    (place / "w").unlink()
    assert {"rw", "noexec"} < set(shown(place)[2].split(","))


def test_a_daemon_comes_back_at_a_place_that_was_named_by_a_link(cluster, place, tmp_path):
    """It did not know what the one before had left for its own, and ended again and again."""
    (tmp_path / "link").symlink_to(tmp_path)
    named = tmp_path / "link" / place.name
    run(EMBER, "mount", named, "--dir", cluster.directory, "--subdir", "/a")
    kill_daemon(named)
    deadline_s = time.monotonic() + 60
    while not (is_served(place) and daemon_count(named)):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    code, said = called(EMBER, "mount", place, "--dir", cluster.directory)
    assert code != 0 and "mounted there already" in said
    run(EMBER, "umount", place)
    assert not os.path.ismount(place) and not daemon_count(named)


def kill_daemon(place):
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = file.read_bytes().split(b"\0")
            if b"fs.app.mountd" in words:
                config = Path(os.fsdecode(words[words.index(b"fs.app.mountd") + 1]))
                if f'"{place}"' in config.read_text():
                    os.kill(int(file.parent.name), signal.SIGKILL)


def is_served(place):
    try:
        return (place / "name").exists() and os.path.ismount(place)
    except OSError:
        return False


def test_set_id_bits_and_devices_act_as_mount_says(cluster, place):
    """It names `nosuid` and `nodev` alone: without them it means the contrary."""

    def refused():
        return {"nosuid", "nodev"} & set(shown(place)[2].split(","))

    mount(cluster.directory, place)
    assert not refused()
    run("mount", "-o", "remount,nodev", place)
    assert refused() == {"nodev"}
    run("mount", "-o", "remount,dev,nosuid", place)
    assert refused() == {"nosuid"}
    run("umount", place)
    run(EMBER, "mount", place, "--dir", cluster.directory)
    assert refused() == {"nosuid", "nodev"}
    run("mount", "-o", "remount,suid,dev", place)
    assert not refused()


def test_what_was_written_through_a_mapping_is_there_after_umount(cluster, place):
    """The daemon may still have it when the kernel has let the mount go;
    who mounts next sees it all the same.
    """
    source = f"{cluster.directory}:/b"
    for turn in range(3):
        mount(source, place)
        data = bytes([turn + 1]) * 3_000_000
        with (place / "mapped").open("w+b") as file:
            file.truncate(len(data))
            with mmap.mmap(file.fileno(), len(data)) as mapped:
                mapped[:] = data
        run("umount", place)
        mount(source, place)
        assert (place / "mapped").read_bytes() == data
        run("umount", place)


def test_a_busy_mount_stays_unless_it_is_taken_lazily(cluster, place):
    mount(cluster.directory, place)
    with (place / "a/name").open():
        code, said = called("umount", place)
        assert code == 32 and "busy" in said and os.path.ismount(place)
        run("umount", "-l", place)
        assert not os.path.ismount(place)


@pytest.mark.parametrize(
    ("source", "options", "told"),
    [
        ("DIR", "ro,zorro", (1, "-o zorro: EmberFS knows no such option")),
        ("DIR", "key_file=/k", (32, "says that by itself")),
        ("DIR:/none", "rw", (32, "client.subdir /none")),
        ("DIR:/a/name", "rw", (32, "no directory")),
        ("DIR/config", "rw", (32, "holds no cluster")),
        ("/nowhere:/a", "rw", (32, "/nowhere does not exist")),
        ("nothing", "rw", (32, "HOST:PORT")),
        ("DIR/logs/supervisor.log", "rw", (32, "supervisor.log")),
    ],
)
def test_what_cannot_be_mounted_is_told_in_a_line_and_leaves_nothing(
    cluster, place, source, options, told
):
    code, words = told
    source = source.replace("DIR", str(cluster.directory))
    found, said = called("mount", "-t", "fuse.ember", source, place, "-o", options)
    assert (found, len(said.splitlines())) == (code, 1), said
    assert said.startswith("mount.fuse.ember: ") and words in said
    assert not os.path.ismount(place) and daemon_count(place) == 0


def test_where_something_is_mounted_or_lies_nothing_is_mounted(cluster, place):
    mount(cluster.directory, place)
    code, said = called("/sbin/mount.fuse.ember", f"{cluster.directory}:/a", place)
    assert code == 32 and "mounted there already" in said
    assert shown(place)[0] == str(cluster.directory)
    run("umount", place)
    (place / "file").touch()
    code, said = called("mount", "-t", "fuse.ember", cluster.directory, place)
    assert code == 32 and "not empty" in said


def test_a_cluster_that_does_not_run_is_told(cluster, place, tmp_path):
    stopped = tmp_path / "stopped"
    stopped.mkdir()
    (stopped / "cluster.json").write_bytes((cluster.directory / "cluster.json").read_bytes())
    code, said = called("mount", "-t", "fuse.ember", stopped, place)
    assert code == 32 and "no cluster runs in" in said and "ember up" in said


def test_a_fake_mount_mounts_nothing(cluster, place):
    run("mount", "-f", "-v", "-t", "fuse.ember", cluster.directory, place)
    assert not os.path.ismount(place)


@contextlib.contextmanager
def reached_by_tcp(path):
    """Pass connections to a port on to a Unix socket; give the port."""

    def pump(source, to):
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)

    def pass_on(here):
        with here, socket.socket(socket.AF_UNIX) as there, contextlib.suppress(OSError):
            there.connect(str(path))
            back = threading.Thread(target=pump, args=(there, here), daemon=True)
            back.start()
            pump(here, there)
            back.join()

    def serve(listener):
        with contextlib.suppress(OSError):  # it is shut
            while True:
                here, _ = listener.accept()
                threading.Thread(target=pass_on, args=(here,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve, args=(listener,), daemon=True)
        serving.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        serving.join()


_AUTOFS_READY = 0x9360
_PACKET = struct.Struct("=iiI")
"""Of a request of the kernel: version, type, and the number by which it is answered."""


@contextlib.contextmanager
def automount(place):
    """As x-systemd.automount: the first use of a place has this process mount there.

    All others wait who come there meanwhile, unless they are of its process group.
    """
    reading, writing = os.pipe()
    given = f"fd={writing},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct"
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"systemd-1", os.fsencode(place), b"autofs", 0, given.encode()) == 0
    os.close(writing)
    root = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield lambda: _PACKET.unpack_from(os.read(reading, 4096))[2], root
    finally:
        os.close(root)
        os.close(reading)  # whoever still waits is told that nothing is mounted
        run("umount", "-l", place)


@pytest.mark.skipif(
    "autofs" not in Path("/proc/filesystems").read_text(), reason="the kernel knows no autofs"
)
@pytest.mark.parametrize("is_file", [True, False])
def test_the_first_use_of_a_place_mounts_there(cluster, place, tmp_path, is_file):
    source = cluster.directory
    if is_file:
        source = tmp_path / "mountd.toml"
        write_config(source, read_config(cluster.directory / "config/mount-1.toml"))
    with automount(place) as (asked, root):
        user = subprocess.Popen(
            ["cat", place / "name"], start_new_session=True, stdout=subprocess.PIPE, text=True
        )
        number = asked()
        mount(f"{source}:/a", place)
        fcntl.ioctl(root, _AUTOFS_READY, number)
        assert user.communicate(timeout=60)[0] == "a"
        assert shown(place)[3:5] == [f"{source}:/a", "fuse.ember"]  # on top of the other one
        run("umount", f"{source}:/a")
        assert daemon_count(place) == 0


def test_commands_follow_a_directory_that_was_moved(cluster, place, tmp_path):
    """`ember rm` removed what had come to stand at its former path."""
    whole = tmp_path / "whole"
    whole.mkdir()
    mount(cluster.directory, whole)
    try:
        (whole / "c").mkdir()
        (whole / "c/x").touch()
        run(EMBER, "mount", place, "--subdir", "/c", "--dir", cluster.directory)
        (whole / "c").rename(whole / "moved")
        (whole / "c").mkdir()
        (whole / "c/x").touch()
        run(EMBER, "rm", place / "x")
        assert not (whole / "moved/x").exists() and (whole / "c/x").exists()
        (whole / "moved").rmdir()
        code, said = called(EMBER, "rm", place / "x")
        assert code != 0 and str(place) in said and (whole / "c/x").exists()
        with pytest.raises(FileNotFoundError):
            (place / "y").touch()
        assert os.statvfs(place).f_bsize
        run("umount", place)
        (whole / "c/x").unlink()
        (whole / "c").rmdir()
    finally:
        run("umount", whole)


@pytest.mark.parametrize("name", ["a b\t\\040#", "\u3000\u2028\r", "-o", "a\nb"], ids=repr)
def test_places_and_directories_with_any_names(cluster, tmp_path, name):
    with connect(cluster) as fs:
        fs.mkdir(f"/{name}")
    named = tmp_path / name
    named.mkdir()
    source = f"{cluster.directory}:/{name}"
    if "\n" in name:
        code, said = called("mount", "-t", "fuse.ember", source, named)
        assert code == 32 and "client.subdir" in said
        source = cluster.directory
    mount(source, named)
    try:
        (named / "x").touch()
        run(EMBER, "rm", named / "x")
        assert not (named / "x").exists()
        code, said = called("/sbin/mount.fuse.ember", source, named)
        assert code == 32 and "mounted there already" in said
    finally:
        run("umount", named)


def test_a_cluster_is_found_by_its_managers_or_by_a_configuration(cluster, place, tmp_path):
    config = read_config(cluster.directory / "config/control.toml")
    with reached_by_tcp(config.process.listen.removeprefix("unix:")) as port:
        source = f"127.0.0.1:{port}:/b"
        mount(source, place, "-o", f"cluster_id={config.process.cluster_id}")
        assert (place / "name").read_text() == "b" and shown(place)[0] == source
        run("umount", source)
        assert daemon_count(place) == 0
        mount_toml = tmp_path / "mountd.toml"
        write_config(mount_toml, read_config(cluster.directory / "config/mount-1.toml"))
        mount(f"{mount_toml}:/a", place)
        assert (place / "name").read_text() == "a"
        run("umount", place)
