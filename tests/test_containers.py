"""Container file, compose file and Kubernetes manifests say what the product takes,
and what each other say.

Nothing here starts a container (deploy/README.md tells what was run by hand); every
command line goes through our own parser, every configuration through our own loader,
every name has to be that of something.
"""

import fnmatch
import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from fs.admin.cluster import Server, plan
from fs.runtime.config_file import read_config
from fs.schema.proto import common_pb2
from tests.app.command_lines import parsed

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
ROLES = {"mgmtd", "meta", "storage", "kv", "mountd"}
PLANNED = {
    "mgmtd": (common_pb2.MGMTD,),
    "meta": (common_pb2.META,),
    "storage": (common_pb2.STORAGE,),
}
KEY_OF_PODS = "/run/emberfs/cluster.key"


def role_of(arguments):
    """Return what role a command line starts, and with which file."""
    name, parameters = parsed(arguments)
    assert name in ROLES
    return name, str(parameters["config"])


def own_program(command):
    """Return what follows `ember` in a command of a probe, also behind a shell."""
    if command[:2] == ["sh", "-c"]:
        command = command[2].removeprefix("exec ").replace("$POD_NAME", "storage-0").split()
    assert command[0] == "ember"
    return command[1:]


def planned(parameters, files):
    """Return what the manager would be told by `ember admin cluster init`,
    the files being elsewhere.
    """
    servers = [
        Server(name, roles, read_config(files / name))
        for role, roles in PLANNED.items()
        for name in (Path(path).name for path in parameters[role])
    ]
    return plan(servers, parameters["replicas"])


# The image


def instructions():
    text = (DEPLOY / "container/Containerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def test_the_image_is_built_from_what_there_is():
    copied = [
        source
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]
    assert {"fs", "placement", "pyproject.toml", "requirements.lock"} <= set(copied)
    assert not [source for source in copied if not (ROOT / source).exists()]
    lines = (DEPLOY / "container/Containerfile.dockerignore").read_text().splitlines()
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert kept == set(copied)
    assert not [
        name for name in ("tests", ".git", ".venv") if any(fnmatch.fnmatch(name, k) for k in kept)
    ]


def test_the_image_follows_good_manners():
    found = instructions()
    words = [word for word, _ in found]
    assert "ADD" not in words
    bases = [rest.split()[0] for word, rest in found if word == "FROM"]
    assert set(bases) == {"debian:bookworm-slim"}
    for word, rest in found:
        if word == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest and "rm -rf /var/lib/apt/lists/*" in rest
            packages = re.search(r"--no-install-recommends\s+(.*?)\s*&&", rest)[1].split()
            assert packages == sorted(packages)
        if word == "RUN" and "pip install" in rest:
            assert rest.count("pip install") == rest.count("--no-cache-dir")
            assert rest.count("pip install") == rest.count("--require-hashes") + rest.count(
                "--no-deps"
            )
    last_stage = found[len(words) - 1 - words[::-1].index("FROM") :]
    (user,) = (rest for word, rest in last_stage if word == "USER")
    assert not user.startswith(("0", "root"))
    entry, command = (
        json.loads(rest) for word, rest in last_stage if word in {"ENTRYPOINT", "CMD"}
    )
    assert (entry, command) == (["ember"], ["--help"])
    (health,) = (rest for word, rest in last_stage if word == "HEALTHCHECK")
    assert parsed(own_program(json.loads(health[health.index("[") :])))[0] == "probe"


# Compose


def shown_files(service):
    """Return which configuration files a container is shown, and as what."""
    volumes = [v.split(":") for v in service.get("volumes", ()) if isinstance(v, str)]
    return [(v[0], v[1]) for v in volumes if v[0].endswith(".toml") and v[2:] == ["ro"]]


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())


def test_the_services_of_the_compose_file_are_those_of_their_files(compose):
    folder = DEPLOY / "compose"
    for name, service in compose["services"].items():
        assert service["image"] == f"emberfs:{VERSION}"
        assert set(service.get("depends_on", ())) <= set(compose["services"])
        if name == "init":
            continue
        role, target = role_of(service["command"])
        assert str(parsed(service["healthcheck"]["test"][2:])[1]["config"]) == target
        (source,) = (file for file, shown in shown_files(service) if shown == target)
        config = read_config(folder / source)
        assert config.auth.key_file == f"/run/secrets/{service['secrets'][0]}"
        kept = {v.split(":")[1] if isinstance(v, str) else v["target"] for v in service["volumes"]}
        disks = {disk.path for disk in config.storage.disks}
        assert disks | ({config.process.directory} - {""}) <= kept
        if role == "mountd":
            assert Path(config.client.mount_point).parent.as_posix() in kept
            assert service["pid"] == "host"
            assert "/dev/fuse:/dev/fuse" in service["devices"] and "SYS_ADMIN" in service["cap_add"]
        else:
            assert config.process.listen.startswith(f"tcp:{name}:")
            assert service["hostname"] == name
            assert config.kv.path.startswith(tuple(kept)) or role == "storage"
        assert config.process.mgmtd_addresses == ["tcp:mgmtd:7001"]


def test_volumes_belong_to_whom_their_processes_run_as(compose):
    """A new volume takes over the owner of the folder of the image that it covers,
    if there is one.
    """
    (made,) = (
        re.search(r"install -d -o ember -g ember (.*)", rest)
        for word, rest in instructions()
        if "install -d" in rest
    )
    folders = set(made[1].split())
    for service in compose["services"].values():
        targets = {
            v.split(":")[1]
            for v in service.get("volumes", ())
            if isinstance(v, str) and v[0] != "."
        }
        assert targets <= folders
    owners = {
        name: service.get("user", "7000:7000") for name, service in compose["services"].items()
    }
    assert {name for name, owner in owners.items() if owner == "0:0"} == {"mount"}
    assert compose["services"]["mount"]["secrets"] == ["mount_key"]  # its owner has to be root


def test_what_the_compose_file_names_exists_and_is_used(compose):
    services = compose["services"].values()
    named = {v.split(":")[0] for s in services for v in s.get("volumes", ()) if isinstance(v, str)}
    assert {name for name in named if not name.startswith(".")} == set(compose["volumes"])
    files = {Path(file).name for s in services for file, _ in shown_files(s)}
    assert files == {path.name for path in (DEPLOY / "compose/config").iterdir()}


def test_the_cluster_of_the_compose_file_can_be_planned(compose):
    name, parameters = parsed(compose["services"]["init"]["command"])
    assert name == "init"
    made = planned(parameters, DEPLOY / "compose/config")
    assert (len(made.nodes), len(made.chains)) == (5, 4)


# Kubernetes

KUBERNETES = DEPLOY / "kubernetes"
CONFIG = KUBERNETES / "config"


def manifests():
    paths = [path for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml"]
    return [one for path in sorted(paths) for one in yaml.safe_load_all(path.read_text())]


MANIFESTS = manifests()
SETS = {m["metadata"]["name"]: m for m in MANIFESTS if m["kind"] == "StatefulSet"}
WORKLOADS = {
    m["metadata"]["name"]: m for m in MANIFESTS if m["kind"] in {"StatefulSet", "DaemonSet", "Job"}
}


def of_kind(kind):
    return {m["metadata"]["name"]: m for m in MANIFESTS if m["kind"] == kind}


def pod_of(workload):
    return workload["spec"]["template"]["spec"]


def test_the_kustomization_names_every_file():
    made = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    files = {path.name for path in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(made["resources"]) == files
    (config,) = made["configMapGenerator"]
    assert config["name"] == "config"
    assert set(config["files"]) == {f"config/{path.name}" for path in CONFIG.iterdir()}
    (image,) = made["images"]
    assert image == {"name": "emberfs", "newTag": VERSION}
    assert of_kind("Namespace").keys() == {made["namespace"]}


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_a_pod_names_exists(name):
    pod = pod_of(WORKLOADS[name])
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    claims = [
        c["metadata"]["name"] for c in WORKLOADS[name]["spec"].get("volumeClaimTemplates", ())
    ]
    containers = [*pod["initContainers"], *pod["containers"]]
    used = {mount["name"] for c in containers for mount in c["volumeMounts"]}
    assert used == {*volumes, *claims}
    assert volumes["config"]["configMap"]["name"] == "config"
    assert volumes["secret"]["secret"]["secretName"] == "cluster-key"
    key = next(c for c in containers if c["name"] == "key")
    assert key["command"][-1] == KEY_OF_PODS and key["command"][0] == "install"
    for container in containers:
        assert container["image"] == "emberfs"
        assert (
            "memory" in container["resources"]["limits"]
            and "cpu" in container["resources"]["requests"]
        )
        ports = {port["name"] for port in container.get("ports", ())}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            found = container.get(probe, {})
            if "httpGet" in found:
                assert found["httpGet"]["port"] in ports and found["httpGet"]["path"] == "/metrics"
            if "exec" in found:
                assert parsed(own_program(found["exec"]["command"]))[0] == "probe"


@pytest.mark.parametrize("name", WORKLOADS)
def test_only_mounts_are_privileged(name):
    pod = pod_of(WORKLOADS[name])
    if name == "mount":
        (main,) = pod["containers"]
        assert main["securityContext"]["privileged"] is True
        assert pod["hostPID"] is True
        (shown,) = [m for m in main["volumeMounts"] if m["name"] == "mounts"]
        assert shown["mountPropagation"] == "Bidirectional"
        config = read_config(CONFIG / "mount.toml")
        assert Path(config.client.mount_point).parent.as_posix() == shown["mountPath"]
        return
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in [*pod["initContainers"], *pod["containers"]]:
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("name", SETS)
def test_each_pod_has_a_file_that_fits_it(name):
    found = SETS[name]["spec"]
    (container,) = pod_of(SETS[name])["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    pods = [f"{name}-{i}" for i in range(found["replicas"])]
    assert {f"{pod}.toml" for pod in pods} == {path.name for path in CONFIG.glob(f"{name}-*.toml")}
    for pod in pods:
        arguments = [word.replace("$(POD_NAME)", pod) for word in container["args"]]
        role, file = role_of(arguments)
        assert (role, Path(file).parent.as_posix()) == (name, "/etc/emberfs")
        config = read_config(CONFIG / Path(file).name)
        assert config.process.listen == f"tcp:{pod}.{name}.emberfs.svc.cluster.local:{ports['rpc']}"
        assert config.process.metrics_address == f"tcp:0.0.0.0:{ports['metrics']}"
        assert config.auth.key_file == KEY_OF_PODS
        kept = [disk.path for disk in config.storage.disks] + [config.process.directory]
        if config.kv.engine == "rocksdb" and role == "kv":
            kept.append(str(Path(config.kv.path).parent))
        assert {path for path in kept if path} <= mounted


@pytest.mark.parametrize("name", SETS)
def test_a_set_has_a_service_a_budget_and_is_spread(name):
    labels = SETS[name]["spec"]["template"]["metadata"]["labels"]
    assert SETS[name]["spec"]["selector"]["matchLabels"] == labels
    service = of_kind("Service")[SETS[name]["spec"]["serviceName"]]["spec"]
    assert service["selector"] == labels and service["clusterIP"] == "None"
    (container,) = pod_of(SETS[name])["containers"]
    offered = {port["name"]: port["port"] for port in service["ports"]}
    assert offered == {port["name"]: port["containerPort"] for port in container["ports"]}
    budget = of_kind("PodDisruptionBudget")[name]["spec"]
    assert budget["selector"]["matchLabels"] == labels and budget["maxUnavailable"] <= 1
    affinity = pod_of(SETS[name])["affinity"]["podAntiAffinity"]
    (apart,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert (apart["topologyKey"], apart["labelSelector"]["matchLabels"]) == (
        "kubernetes.io/hostname",
        labels,
    )
    (spread,) = pod_of(SETS[name])["topologySpreadConstraints"]
    assert spread["topologyKey"] == "topology.kubernetes.io/zone"
    assert spread["labelSelector"]["matchLabels"] == labels


@pytest.mark.thorough
def test_all_processes_in_kubernetes_are_one_cluster():
    configs = {path.name: read_config(path) for path in CONFIG.iterdir()}
    managers = [configs[f"mgmtd-{i}.toml"].process.listen for i in range(3)]
    assert {tuple(c.process.mgmtd_addresses) for c in configs.values()} == {tuple(managers)}
    stores = {c.kv.address for n, c in configs.items() if n.startswith(("mgmtd", "meta"))}
    assert stores == {configs["kv-0.toml"].process.listen}
    (container,) = pod_of(WORKLOADS["init"])["containers"]
    name, parameters = parsed(container["args"])
    assert name == "init"
    made = planned(parameters, CONFIG)
    assert (len(made.nodes), len(made.chains)) == (8, 12)


def test_programs_cannot_fill_the_pod_of_a_mount():
    """The kernel charges the daemon for what it reads into their memory, and kills it,
    and all mounts with it, at the limit.
    """
    config = read_config(CONFIG / "mount.toml")
    (container,) = pod_of(WORKLOADS["mount"])["containers"]
    limit = re.fullmatch(r"(\d+)Gi", container["resources"]["limits"]["memory"])
    assert 2 * config.client.batch_memory_bytes_max <= int(limit[1]) << 30 >> 1


def test_the_daemon_set_mounts_what_its_file_says():
    (container,) = pod_of(WORKLOADS["mount"])["containers"]
    role, file = role_of(container["args"])
    assert (role, Path(file).name) == ("mountd", "mount.toml")
    config = read_config(CONFIG / "mount.toml")
    (metrics,) = container["ports"]
    assert config.process.metrics_address == f"tcp:0.0.0.0:{metrics['containerPort']}"
    assert config.auth.key_file == KEY_OF_PODS
