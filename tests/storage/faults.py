"""Faults that tests of whole updates and reads plant, and what refusals come to."""

import pytest

from fs.schema.status import FsError, Status


async def status_of(function, *arguments, **options):
    with pytest.raises(FsError) as caught:
        await function(*arguments, **options)
    return caught.value.status


def block(cluster, one, two):
    cluster.network.block(f"node-{one}", f"node-{two}")


def no_space(name):
    if name in {"reserve", "write"}:
        raise FsError(Status.NO_SPACE, "injected")
