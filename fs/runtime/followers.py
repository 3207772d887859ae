"""Tasks that wait for their turn to lead: to receive what the others work on.

Who leads hands over when what it received has to wait, and follows once that is done.  Starting a
task each time instead costs as much as many requests take.

Concurrency: trio, one event loop.
"""

import trio


class Followers:
    """Those of one leader; who came last leads first."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: list[trio.lowlevel.Task] = []

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._tasks)

    async def wait(self) -> None:
        """Wait until it is this task's turn."""
        task = trio.lowlevel.current_task()
        self._tasks.append(task)

        def abort(_: object) -> trio.lowlevel.Abort:
            self._tasks.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def wake_one(self) -> bool:
        """Have one of them lead; False: nobody waits."""
        if not self._tasks:
            return False
        trio.lowlevel.reschedule(self._tasks.pop())
        return True
