"""`ember user` says what a user is like afterwards, and does not undo what was not spoken of."""

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fs.app.commands import user_commands
from fs.schema import services
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.status import FsError, Status


class Manager:
    """Keeps users, as the real one does; stands for `Where`."""

    def __init__(self):
        self.users = {}
        self.revoked = []

    def ask(self, method, request):
        if method is services.MGMTD_SET_USER:
            self.users[request.user.uid] = request.user
        elif method is services.MGMTD_LIST_USERS:
            return pb.ListUsersRsp(
                users=[u for uid, u in sorted(self.users.items()) if uid >= request.first_uid]
            )
        elif method is services.MGMTD_REMOVE_USER:
            del self.users[request.uid]
        elif method is services.MGMTD_REVOKE_TOKEN:
            self.revoked.append(request.token_id)
        return SimpleNamespace()


@pytest.fixture
def manager(monkeypatch):
    made = Manager()
    monkeypatch.setattr(user_commands, "find", lambda *_: made)
    return made


def run(*words):
    done = CliRunner().invoke(user_commands.user, words, catch_exceptions=True)
    if isinstance(done.exception, FsError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output.strip()


@pytest.mark.usefixtures("manager")
def test_what_is_not_said_of_a_user_stays():
    """Was: a mount daemon lost its root flag, and a user all groups,
    by another `user add` without them.
    """
    assert run("add", "1000", "alice") == "user 1000 alice: groups 1000; flags: none"
    said = run("add", "1000", "alice", "--gid", "7", "--groups", "10,20", "--root", "--admin")
    assert said == "user 1000 alice: groups 7,10,20; flags: root admin"
    assert run("add", "1000", "bob") == "user 1000 bob: groups 7,10,20; flags: root admin"
    said = run("add", "1000", "bob", "--groups", "", "--no-root", "--no-admin")
    assert said == "user 1000 bob: groups 7; flags: none"


def test_nobody_is_told_that_a_stranger_was_shut_out(manager):
    """Was: exit code 0 for a mistyped uid or token, which went on to let somebody in."""
    run("add", "1000", "alice")
    token = pb.TokenPb(token_id=bytes(range(8)))
    manager.users[1000].tokens.append(token)
    with pytest.raises(FsError) as caught:
        run("rm", "1001")
    assert caught.value.status is Status.USER_UNKNOWN
    with pytest.raises(FsError) as caught:
        run("token", "revoke", "ff" * 8)
    assert caught.value.status is Status.NOT_FOUND
    run("token", "revoke", token.token_id.hex())
    assert manager.revoked == [token.token_id]
    run("rm", "1000")
    assert not manager.users


@pytest.mark.parametrize("option", ["--gid", "--groups"])
@pytest.mark.parametrize("number", ["4294967295", "99999999999999999999"])
def test_numbers_that_no_group_can_have_are_refused(manager, option, number):
    """They ended in a traceback."""
    done = CliRunner().invoke(user_commands.user, ["add", "5", "eve", option, number])
    assert done.exit_code != 0
    assert "4294967294" in f"{done.output}{done.stderr}{done.exception}"
    assert not manager.users
