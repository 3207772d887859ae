"""`ember admin cluster`, `ember admin session`: the cluster as a whole, and who uses it."""

from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

import typer

from ...admin.cluster import Server, plan
from ...admin.dump import session_rows
from ...admin.facts import cluster_facts
from ...kv.api import KvEngine
from ...runtime.config_file import read_config
from ...schema import services
from ...schema.proto import common_pb2, mgmtd_pb2
from ...schema.status import FsError, Status
from ..reach.mgmtd_link import initialise
from ..reach.where import TIMEOUT_S, ConfigOption, DirOption, find
from ..terminal.amounts import age_text, bytes_text
from ..terminal.listing import JsonOption, print_facts, print_rows, time_text
from .tags import tags_text

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

    Example: ember admin cluster init --control c.toml --storage s1.toml --storage s2.toml
    """
    servers = read_servers(mgmtd, meta, control, storage)
    made = plan(servers, replicas)
    process, auth = servers[0].config.process, servers[0].config.auth
    initialise(process.mgmtd_addresses, process.cluster_id, made, timeout_s=TIMEOUT_S, auth=auth)
    typer.echo(
        f"cluster {process.cluster_id}: {len(made.nodes)} nodes, {len(made.chains)} chains of "
        f"{replicas}"
    )


@cluster.command("show")
def show(
    *, as_json: JsonOption = False, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """Show the cluster as a whole: who manages it, how many nodes of which release,
    how its chains are.

    Example: ember admin cluster show
    """
    where = find(directory, config)
    primary = 0
    if not where.is_down:
        primary = where.ask(services.MGMTD_GET_PRIMARY, mgmtd_pb2.GetPrimaryReq()).node_id
    facts = cluster_facts(where.routing(), primary=primary)
    if not as_json:
        facts["used_bytes"] = bytes_text(facts["used_bytes"])
    print_facts(facts, as_json=as_json)


@session.command("list")
def list_sessions(
    *, as_json: JsonOption = False, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """List mounts and other clients that the manager knows, with how long they have been silent.

    Example: ember admin session list
    """
    where = find(directory, config)
    if where.is_down:
        detail = (
            "client sessions are not in the store; files that were open: ember admin session files"
        )
        raise FsError(Status.NOT_RUNNING, detail)
    request = mgmtd_pb2.ListClientSessionsReq()
    found = where.ask(services.MGMTD_LIST_CLIENT_SESSIONS, request)
    rows = [
        {
            "client_id": one.client_id,
            "host": one.host_name,
            "pid": one.pid,
            "mount_point": one.mount_point,
            "age_s": one.age_s,
            "idle_s": one.idle_s,
            "tags": dict(one.tags),
        }
        for one in found.sessions
    ]
    columns = {
        "client_id": None,
        "host": None,
        "pid": None,
        "mount_point": None,
        "age_s": age_text,
        "idle_s": age_text,
        "tags": tags_text,
    }
    print_rows(rows, columns, as_json=as_json)


@session.command("files")
def list_files(
    *,
    client_id: Annotated[str, typer.Option("--client", help="Only of this client.")] = "",
    inode_id: Annotated[
        int, typer.Option("--inode", min=0, help="Only of this file.", show_default="all")
    ] = 0,
    count: Annotated[
        int, typer.Option("--count", min=1, max=1_000_000, help="At most so many.")
    ] = 1000,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """List files that are open for writing, or were removed while open, and which client has them.

    Example: ember admin session files --count 50
    """

    async def use(engine: KvEngine) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        async with aclosing(session_rows(engine)) as found:
            async for row in found:
                is_meant = client_id in {"", row["client_id"]} and inode_id in {0, row["inode_id"]}
                if is_meant:
                    rows.append(dict(row))
                if len(rows) >= count:
                    break
        return rows

    rows = find(directory, config).read_store(use)
    columns = {
        "inode_id": None,
        "client_id": None,
        "is_write": None,
        "created_ns": time_text,
        "session_id": None,
    }
    print_rows(rows, columns, as_json=as_json)
