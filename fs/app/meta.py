"""A process that runs only the metadata service; see control.py."""

from ..schema.routing import Role
from .compose import Process, main
from .control import run_roles


async def run(process: Process) -> None:
    """Run until asked to stop."""
    await run_roles(process, frozenset({Role.META}))


if __name__ == "__main__":
    main(run)
