"""`ember admin cluster`, `ember admin session`: the cluster as a whole, and who uses it."""

from pathlib import Path
from typing import Annotated

import typer

from ...admin.cluster import Server, plan
from ...runtime.config_file import read_config
from ...schema import services
from ...schema.proto import common_pb2, mgmtd_pb2
from ...schema.status import FsError, Status
from ..mgmtd_link import initialise
from ..status_view import age_text
from ..where import TIMEOUT_S, ConfigOption, DirOption, find
from .listing import JsonOption, print_rows

cluster = typer.Typer(help="The cluster as a whole.", no_args_is_help=True)
session = typer.Typer(help="Clients of the cluster.", no_args_is_help=True)

MgmtdOption = Annotated[
    list[Path] | None, typer.Option("--mgmtd", metavar="FILE", help="Of a manager.")
]
MetaOption = Annotated[
    list[Path] | None, typer.Option("--meta", metavar="FILE", help="Of a metadata service.")
]
ControlOption = Annotated[
    list[Path] | None, typer.Option("--control", metavar="FILE", help="Of a manager with meta.")
]
StorageOption = Annotated[
    list[Path] | None, typer.Option("--storage", metavar="FILE", help="Of a storage process.")
]


def read_servers(
    mgmtd: list[Path] | None,
    meta: list[Path] | None,
    control: list[Path] | None,
    storage: list[Path] | None,
) -> list[Server]:
    """Return the processes that the files configure.

    Raises:
        FsError: BAD_CONFIG, also when there are none.
    """
    roles = (
        (mgmtd, (common_pb2.MGMTD,)),
        (meta, (common_pb2.META,)),
        (control, (common_pb2.MGMTD, common_pb2.META)),
        (storage, (common_pb2.STORAGE,)),
    )
    found = [
        Server(str(file), role, read_config(file)) for files, role in roles for file in files or []
    ]
    if not found:
        raise FsError(Status.BAD_CONFIG, "name the configuration files of the processes: --help")
    return found


@cluster.command("init")
def cluster_init(
    mgmtd: MgmtdOption = None,
    meta: MetaOption = None,
    control: ControlOption = None,
    storage: StorageOption = None,
    *,
    replicas: Annotated[int, typer.Option(help="Copies of every chunk.")] = 3,
) -> None:
    """Make a new cluster: tell its running manager about all nodes and chains.

    Give the configuration files that the processes are started with; repeating is harmless.
    """
    servers = read_servers(mgmtd, meta, control, storage)
    made = plan(servers, replicas)
    process, auth = servers[0].config.process, servers[0].config.auth
    initialise(process.mgmtd_addresses, process.cluster_id, made, timeout_s=TIMEOUT_S, auth=auth)
    typer.echo(
        f"cluster {process.cluster_id}: {len(made.nodes)} nodes,"
        f" {len(made.chains)} chains of {replicas}"
    )


@session.command("list")
def list_sessions(
    *, as_json: JsonOption = False, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """List mounts and other clients that the manager knows, with how long they have been silent."""
    request = mgmtd_pb2.ListClientSessionsReq()
    found = find(directory, config).ask(services.MGMTD_LIST_CLIENT_SESSIONS, request)
    rows = [
        {
            "client_id": one.client_id,
            "host": one.host_name,
            "pid": one.pid,
            "mount_point": one.mount_point,
            "age_s": one.age_s,
            "idle_s": one.idle_s,
        }
        for one in found.sessions
    ]
    columns = {"client_id": None, "host": None, "pid": None, "mount_point": None, "age_s": age_text, "idle_s": age_text}  # fmt: skip
    print_rows(rows, columns, as_json=as_json)
