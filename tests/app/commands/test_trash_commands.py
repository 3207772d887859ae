"""What `ember rm` and `ember trash` refuse, and how they say so."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from fs.app.commands import trash_commands
from fs.app.reach import meant_cluster
from fs.app.reach.meant_cluster import connected
from fs.schema.status import FsError, Status


def test_a_name_that_is_there_again_is_told_with_a_way_out(monkeypatch):
    """Was: EXISTS (b'two')."""

    def restore(_entry, _to):
        raise FsError(Status.EXISTS, "b'two'")

    entry = SimpleNamespace(name="two", path="/d/two")
    fs = SimpleNamespace(trash=lambda: [entry], restore=restore)
    monkeypatch.setattr(trash_commands, "connected", lambda *_: nullcontext(fs))
    with pytest.raises(FsError, match=r"/d/two; nothing is replaced: .* --to PATH"):
        trash_commands.restore(["two"])


def test_a_directory_is_named_as_ls_shows_it(monkeypatch):
    """`ls` shows `d/`, and `restore d/` said that it is not in the trash."""
    entry = SimpleNamespace(name="d", path="/d", is_dir=True)
    fs = SimpleNamespace(trash=lambda: [entry], restore=lambda found, _to: found.path)
    monkeypatch.setattr(trash_commands, "connected", lambda *_: nullcontext(fs))
    trash_commands.restore(["d/"])
    with pytest.raises(FsError, match="e/ is not in the trash"):
        trash_commands.restore(["e/"])


def test_a_path_of_the_machine_is_none_of_a_cluster_that_nobody_named(tmp_path, monkeypatch):
    """`ember rm /home/x` on a server means that machine's /home/x,
    not what the file system calls so.
    """
    monkeypatch.setattr(meant_cluster, "configured_file", lambda: tmp_path / "mgmtd.toml")
    monkeypatch.setattr(meant_cluster, "_connected_elsewhere", lambda where: where)
    (tmp_path / "file").touch()
    with pytest.raises(FsError, match="path of this machine") as caught:
        connected(None, [str(tmp_path / "file")])
    assert caught.value.status is Status.INVALID_ARGUMENT
    for path in ("/", str(tmp_path / "only-there")):
        assert connected(None, [path]) is None


@pytest.mark.parametrize("path", ["/d/.", "/d/..", "/d/../", ".", "/a/b/./"])
def test_a_name_is_removed_by_itself(path):
    """As `rm` of others: what `..` comes to is hardly meant."""
    with pytest.raises(FsError, match="name it without") as caught:
        trash_commands._removed(path)
    assert caught.value.status is Status.INVALID_ARGUMENT


def test_a_slash_at_the_end_is_told_to_who_judges_it(tmp_path):
    """`ember rm FILE/` removed a file."""
    assert trash_commands._removed(f"{tmp_path}/file/") == f"{tmp_path}/file/"
    assert trash_commands._removed(f"{tmp_path}/file") == f"{tmp_path}/file"


def test_the_root_is_not_removed():
    """It was said that '/' has no last component."""
    with pytest.raises(FsError, match="root of the file system is not removed"):
        trash_commands._removed("/")
