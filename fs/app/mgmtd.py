"""A process that runs only the manager service; see control.py."""

from ..schema.routing import Role
from .control import run_roles
from .process.compose import Process, main


async def run(process: Process) -> None:
    """Run until asked to stop."""
    await run_roles(process, frozenset({Role.MGMTD}))


if __name__ == "__main__":
    main(run)
