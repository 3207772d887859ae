"""On whose behalf `ember admin fs` asks where it does not go by the native client."""

import random
from types import SimpleNamespace

import pytest
import trio

from fs.app.admin import fs_names, meta_calls, standing
from fs.client.entries import Identity
from fs.schema.config import AuthSection


@pytest.fixture
def sent(monkeypatch):
    """Yield what is asked for by a user of this machine who has no token."""
    asked = []

    async def ask(_channels, _info, _method, request):
        asked.append(request)

    async def found(*_args, who=None):
        assert who in {None, Identity(1000, 1000)}
        return SimpleNamespace(inode_id=7)

    async def layouts(*_args):
        return [None]

    channels = SimpleNamespace(
        identity=SimpleNamespace(client_id="c"), runtime=SimpleNamespace(random=random.Random(1))
    )
    where = SimpleNamespace(auth=AuthSection(), run=lambda use: trio.run(use, None, channels))
    for module in (standing, meta_calls):  # whatever other tests left
        monkeypatch.setattr(module, "standing", lambda: standing.AT_THE_ROOT)
    monkeypatch.delenv("EMBERFS_TOKEN_FILE", raising=False)
    monkeypatch.setattr(Identity, "of_process", classmethod(lambda cls: cls(1000, 1000)))
    monkeypatch.setattr(fs_names, "find", lambda _directory, _config: where)
    monkeypatch.setattr(fs_names, "run_fs_at", lambda _use, _where, **_about: None)
    monkeypatch.setattr(fs_names, "newest_routing", found)
    monkeypatch.setattr(fs_names, "inode_of", found)
    monkeypatch.setattr(fs_names, "inherited", layouts)
    monkeypatch.setattr(fs_names, "chosen_layout", lambda *_args: None)
    monkeypatch.setattr(fs_names, "ask_meta", ask)
    return asked


def test_files_and_layouts_are_made_as_the_user_that_whoami_shows(sent):
    fs_names.create("/made")
    fs_names.mkdir("/folder", chunk_size="64K")
    assert [(one.caller.uid, one.caller.gid) for one in sent] == [(1000, 1000)] * 2
