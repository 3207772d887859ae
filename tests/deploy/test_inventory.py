"""The inventory: what is refused, and what each host is told."""

import io
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from fs.admin.cluster import Server, plan
from fs.app.deploy.code_archive import left_out, make_release, without
from fs.app.deploy.inventory import read_inventory
from fs.app.deploy.layout import (
    client_config,
    config_text,
    files_of,
    planned_targets,
    service_of,
    unit_text,
    version_of,
)
from fs.app.deploy.transport import ssh_words
from fs.runtime.config_file import parse_config
from fs.schema.proto import common_pb2
from fs.schema.status import FsError

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
EXAMPLE = DEPLOY / "inventory.toml"


def changed(tmp_path, old, new):
    text = EXAMPLE.read_text()
    assert old in text
    path = tmp_path / "inventory.toml"
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("number = 2", "number = 1", "2 hosts have the number 1"),
        ("10.0.0.2", "10.0.0.1", "2 hosts have the address 10.0.0.1"),
        ('name = "ember-2"', 'name = "ember-1"', "2 hosts have the name ember-1"),
        ("replicas = 3", "replicas = 4", "4 replicas need as many storage hosts, not 3"),
        ('"kv", "mgmtd"', '"mgmtd"', "0 hosts have the role kv"),
        ('"kv", "mgmtd"', '"kv"', "no host has the role mgmtd"),
        ('metadata = "kv"', 'metadata = "foundationdb"', "role kv is of the embedded store"),
        ('rack = "b"', 'rak = "b"', "unknown field `rak`"),
        ('["storage", "mount"]', '["mount"]', "disks and the role storage belong together"),
        ("scrub_bytes_per_s_max", "scrub_bytes", "settings: Object contains unknown field"),
        ("[settings.storage]", "[settings.process]", "settings: Object contains unknown field"),
        ('{ path = "/disks/1" }', '{ path = "/disks/0" }', "disk /disks/0 is named twice"),
        ('{ path = "/disks/0" }', '{ path = "disks/0" }', "$.hosts[0].disks[0].path"),
        ("number = 3", "number = three", "is not valid TOML"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, old, new, said):
    path = changed(tmp_path, old, new)
    with pytest.raises(FsError) as raised:
        read_inventory(path)
    assert str(path) in raised.value.detail and said in raised.value.detail
    assert "\n" not in raised.value.detail


def every_config(inventory):
    planned = planned_targets(inventory)
    return {
        (host.name, role): parse_config(
            config_text(inventory, host, role, planned.get(host.name, {})), Path(role)
        )
        for host in inventory.hosts
        for role in host.roles
    }


def test_the_example_makes_valid_files():
    inventory = read_inventory(EXAMPLE)
    made = every_config(inventory)
    assert len(made) == 9
    assert {c.process.cluster_id for c in made.values()} == {"training"}
    assert made["ember-3", "storage"].process.node_id == 10_003
    assert made["ember-3", "storage"].process.listen == "tcp:10.0.0.3:7010"
    assert made["ember-1", "meta"].kv.address == made["ember-1", "kv"].process.listen
    assert made["ember-2", "mount"].client.mount_point == "/mnt/ember"
    assert parse_config(client_config(inventory), Path()).auth.key_file.endswith("/training.key")


@pytest.mark.thorough
def test_the_example_can_be_planned_with_its_racks_and_weights():
    inventory = read_inventory(EXAMPLE)
    hosts = {host.name: host for host in inventory.hosts}
    roles = {"mgmtd": common_pb2.MGMTD, "meta": common_pb2.META, "storage": common_pb2.STORAGE}
    servers = [
        Server(role, (roles[role],), config, hosts[name].tags)
        for (name, role), config in every_config(inventory).items()
        if role in roles
    ]
    made = plan(servers, inventory.cluster.replicas)
    assert {node.tags["rack"] for node in made.nodes} == {"a", "b", "c"}
    assert all(len({t.node_id for t in chain.targets}) == 3 for chain in made.chains)
    counts = [len(ids) for ids in planned_targets(inventory)["ember-3"].values()]
    assert counts[1] == 2 * counts[0] and sum(counts) == len(made.chains)


@pytest.mark.thorough
def test_racks_keep_copies_apart(tmp_path):
    """Four hosts in three racks: no chain has two copies in one."""
    fourth = (
        '\n[[hosts]]\nname = "ember-4"\nnumber = 4\naddress = "10.0.0.4"\nroles = ["storage"]\n'
        'rack = "c"\ndisks = [{ path = "/disks/0" }, { path = "/disks/1" }]\n'
    )
    path = tmp_path / "inventory.toml"
    path.write_text(EXAMPLE.read_text().replace("chains = 0", "chains = 12") + fourth)
    inventory = read_inventory(path)
    racks = {host.node_id("storage"): host.rack for host in inventory.hosts}
    configs = every_config(inventory)
    servers = [
        Server(host.name, (common_pb2.STORAGE,), configs[host.name, "storage"], host.tags)
        for host in inventory.hosts
    ]
    # rack c has two of four hosts, so it has more targets than chains: some chains need it twice
    pairs = [len({racks[t.node_id] for t in chain.targets}) for chain in plan(servers, 3).chains]
    assert min(pairs) >= 2
    without = [Server(s.name, s.roles, s.config) for s in servers]
    assert len(plan(without, 3).chains) == len(pairs) == 12


def test_metadata_in_foundationdb_needs_no_process_for_it(tmp_path):
    path = changed(tmp_path, '"kv", "mgmtd"', '"mgmtd"')
    file = 'metadata = "foundationdb"\nfoundationdb_cluster_file = "fdb.cluster"'
    path.write_text(path.read_text().replace('metadata = "kv"', file))
    inventory = read_inventory(path)
    made = every_config(inventory)
    for role in ("mgmtd", "meta"):
        found = made["ember-1", role].kv
        assert (found.engine, found.cluster_file) == (
            "foundationdb",
            "/etc/foundationdb/fdb.cluster",
        )
    secrets = {"foundationdb": b"file", "key": b"key"}
    holders = [
        h.name
        for h in inventory.hosts
        if b"file" in {f.content for f in files_of(inventory, h, secrets)}
    ]
    assert holders == ["ember-1"]


def test_secrets_are_for_root_alone():
    inventory = read_inventory(EXAMPLE)
    files = files_of(inventory, inventory.hosts[0], {"key": b"secret"})
    assert [f.mode for f in files if f.content == b"secret"] == [0o600]


def test_a_root_goes_before_every_path(tmp_path):
    path = changed(tmp_path, 'rack = "b"', 'rack = "b"\nroot = "/hosts/2"')
    inventory = read_inventory(path)
    host = inventory.hosts[1]
    assert {f.path.split("/")[1] for f in files_of(inventory, host, {"key": b""})} == {"hosts"}
    text = config_text(inventory, host, "storage", {}) + config_text(inventory, host, "mount", {})
    assert text.count('"/hosts/2/') == 6  # key twice, directory, two disks, mount point
    assert version_of(host, "/hosts/2/opt/emberfs/0.1.0/venv/bin/python") == "0.1.0"
    assert version_of(host, "/opt/emberfs/0.1.0/venv/bin/python") == ""


def test_ssh_gets_what_the_inventory_says():
    inventory = read_inventory(EXAMPLE)
    words = ssh_words(inventory.hosts[2], inventory.ssh, "/tmp/control")
    assert words[-2:] == ["--", "ember-3.example.org"]
    assert {"-lroot", "-oBatchMode=yes", "-oControlPath=/tmp/control"} <= set(words)
    assert words.index("-oStrictHostKeyChecking=yes") < words.index("-oBatchMode=yes")


def test_the_unit_runs_every_role():
    unit = unit_text("/opt/emberfs/1/venv/bin/ember")
    assert "ExecStart=/opt/emberfs/1/venv/bin/ember %i --config /etc/emberfs/%i.toml\n" in unit
    assert [service_of(role) for role in ("mgmtd", "mount")] == ["mgmtd", "mountd"]


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (package systemd)"
)
def test_systemd_takes_the_unit(tmp_path):
    for name in ("mgmtd", "mountd"):
        path = tmp_path / f"ember@{name}.service"
        path.write_text(unit_text("/bin/true"))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", path],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")


def test_hosts_compile_nothing_that_they_do_not_use():
    lock = (DEPLOY.parent / "requirements.lock").read_text()
    found = without(lock, left_out(read_inventory(EXAMPLE)))
    assert "pyfuse3" not in found and "foundationdb" not in found
    assert found.count("==") == lock.count("==") - 2
    assert "trio==" in found and found.count("--hash=") == lock.count("--hash=") - 2


def test_the_same_code_is_the_same_release(tmp_path):
    """Of a checkout; its digest depends on content alone, and on how dependencies are had."""
    users = (f"fs/client/user/{name}" for name in ("emberfs", "hf3fs_fuse", "hf3fs_py_usrbio"))
    for folder in ("fs/app", "placement", *users):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "main.py").write_text("x = 1\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "7.1"\n')
    (tmp_path / "requirements.lock").write_text("trio==1\n")
    path = changed(tmp_path, "emberfs-0.1.0-cp311-abi3-linux_x86_64.whl", ".")
    (tmp_path / "fs/app/_kernel.abi3.so").write_bytes(b"\x7fELF")
    first = make_release(read_inventory(path))
    assert first.version == "7.1"
    with tarfile.open(fileobj=io.BytesIO(first.archive)) as archive:
        assert "fs/app/_kernel.abi3.so" in archive.getnames()  # hosts have no compiler
    (tmp_path / "fs/app/main.py").touch()
    assert make_release(read_inventory(path)) == first
    (tmp_path / "fs/app/main.py").write_text("x = 2\n")
    assert make_release(read_inventory(path)).digest != first.digest
    path.write_text(path.read_text().replace('dependencies = "lock"', 'dependencies = "lock:x"'))
    with pytest.raises(FsError, match="present:FOLDER"):
        make_release(read_inventory(path))


def test_of_a_wheel_the_packages_are_shipped(tmp_path):
    name = "emberfs-0.1.0-cp311-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(tmp_path / name, "w") as wheel:
        for file in ("fs/app/main.py", "emberfs-0.1.0.dist-info/RECORD", "emberfs-0.1.0.data/x"):
            wheel.writestr(file, "")
    (tmp_path / "requirements.lock").write_text("trio==1\npyfuse3==2\n")
    shutil.copy(EXAMPLE, tmp_path)
    made = make_release(read_inventory(tmp_path / EXAMPLE.name))
    with tarfile.open(fileobj=io.BytesIO(made.archive)) as archive:
        names = set(archive.getnames())
        lock = archive.extractfile("requirements.lock").read()
    metadata = "emberfs-0.1.0.dist-info/METADATA"
    assert (made.version, names, lock) == (
        "0.1.0",
        {"fs/app/main.py", metadata, "requirements.lock"},
        b"trio==1\n",
    )
    (tmp_path / name).write_bytes(b"no zip")
    with pytest.raises(FsError, match="is not a zip file"):
        make_release(read_inventory(tmp_path / EXAMPLE.name))
    (tmp_path / name).unlink()
    with pytest.raises(FsError, match=f"{name}: it is not there"):
        make_release(read_inventory(tmp_path / EXAMPLE.name))
