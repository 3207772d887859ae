"""`ember admin gc`: what was removed and is still to be cleared away.

Garbage is collected by the metadata services, by themselves and as soon as it is due,
unless it is held up for a time.
"""

import time
from collections import Counter
from contextlib import aclosing
from typing import Annotated, Any, Final

import typer

from ...admin.gc_pause import pause_until, paused_until_ns
from ...admin.stored import garbage, truncation_count
from ...kv.api import KvEngine
from ..reach.where import ConfigOption, DirOption, find
from ..terminal.amounts import age_text, bytes_text, parse_time_s
from ..terminal.listing import JsonOption, print_facts, print_rows, time_text

PAUSE_DAYS_MAX: Final = 7
"""Who forgets it is not to find the disks full; whoever needs longer says it again."""

gc = typer.Typer(help="What was removed and is still to be cleared away.", no_args_is_help=True)


async def _status(engine: KvEngine) -> dict[str, Any]:
    now_ns, counts, due = time.time_ns(), Counter[str](), Counter[str]()
    oldest_ns, length_bytes, large = now_ns, 0, 0
    async for one in garbage(engine):
        counts[one.kind] += 1
        due[one.kind] += one.due_ns <= now_ns
        oldest_ns = min(oldest_ns, one.due_ns)
        large += one.is_large
        length_bytes += one.length_bytes
    return {
        "files": counts["file"],
        "files_due": due["file"],
        "trees": counts["tree"],
        "trees_due": due["tree"],
        "large": large,
        "oldest_due_s": (now_ns - oldest_ns) / 1e9,
        "length_bytes": length_bytes,
        "truncations": await truncation_count(engine),
        "paused_until_ns": until_ns if (until_ns := await paused_until_ns(engine)) > now_ns else 0,
    }


@gc.command("status")
def status(
    *, as_json: JsonOption = False, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """Show how much waits to be cleared away, and for how long the oldest has been due.

    The length is that of all files, but for those that an earlier release removed and whose inode
    is still there.  Large are files of 64 MiB and more, and trees with as much for each of their
    names: they do not wait for others.  A file becomes due `meta.gc_delay_s` after its removal.

    Example: ember admin gc status
    """
    facts = find(directory, config).read_store(_status)
    if not as_json:
        facts["paused_until_ns"] = time_text(facts["paused_until_ns"]) or "no"
        facts |= {
            "oldest_due_s": age_text(facts["oldest_due_s"]),
            "length_bytes": bytes_text(facts["length_bytes"]),
        }
    print_facts(facts, as_json=as_json)


@gc.command("pause")
def pause(
    *,
    for_: Annotated[
        str,
        typer.Option(
            "--for", metavar="TIME", help="30m, 4h, 2d, at most 7d: then it goes on by itself."
        ),
    ] = "4h",
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Hold up garbage collection for a time: what was removed stays on the disks,
    and takes their space.

    It begins with the next batch: what a metadata service is clearing away just now, up to
    `meta.gc_batch_count` files, still goes.

    Example: ember admin gc pause --for 30m
    """
    until_ns = time.time_ns() + parse_time_s(for_, "--for", days_max=PAUSE_DAYS_MAX) * 10**9
    find(directory, config).change_store(
        lambda opened: pause_until(opened.engine, opened.runtime, until_ns)
    )
    typer.echo(f"nothing is cleared away until {time_text(until_ns)} UTC: ember admin gc resume")


@gc.command("resume")
def resume(*, directory: DirOption = None, config: ConfigOption = None) -> None:
    """Let garbage collection go on.

    Example: ember admin gc resume
    """
    find(directory, config).change_store(
        lambda opened: pause_until(opened.engine, opened.runtime, 0)
    )


@gc.command("list")
def list_(
    *,
    count: Annotated[
        int, typer.Option("--count", min=1, max=100_000, help="At most so many.")
    ] = 100,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """List what waits to be cleared away, of each kind what is large, then what is due first.

    Example: ember admin gc list --count 20
    """

    async def use(engine: KvEngine) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        async with aclosing(garbage(engine)) as waiting:
            async for one in waiting:
                if len(found) >= count:
                    break
                record = one.record
                found.append(
                    {
                        "kind": one.kind,
                        "inode_id": one.inode_id,
                        "due_in_s": (one.due_ns - time.time_ns()) / 1e9,
                        "removed_ns": record.removed_ns,
                        "uid": record.uid,
                        "length_bytes": one.length_bytes,
                        "is_large": one.is_large,
                    }
                )
        return found

    rows = find(directory, config).read_store(use)
    columns = {
        "kind": None,
        "inode_id": None,
        "due_in_s": lambda left_s: age_text(left_s) if left_s > 0 else "now",
        "uid": None,
        "length_bytes": bytes_text,
    }
    print_rows(rows, columns, as_json=as_json)
