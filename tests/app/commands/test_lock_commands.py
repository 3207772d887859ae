"""What `ember dirlock` says of paths that it cannot lock."""

import pytest

from fs.app.commands import lock_commands
from fs.schema.status import FsError, Status


@pytest.mark.parametrize("ask", [lock_commands.lock, lock_commands.unlock, lock_commands.show])
def test_a_path_that_is_not_there_is_not_found(ask, tmp_path):
    """Was INVALID_ARGUMENT."""
    with pytest.raises(FsError) as caught:
        ask(str(tmp_path / "none"))
    assert caught.value.status is Status.NOT_FOUND
    assert caught.value.detail == str(tmp_path / "none")
