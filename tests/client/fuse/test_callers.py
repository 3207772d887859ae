import os
from types import SimpleNamespace

from fs.client.fuse import callers
from fs.client.fuse.callers import GROUPS_AGE_S_MAX, Callers, groups_of


def context(pid, uid=1000, gid=1000):
    return SimpleNamespace(pid=pid, uid=uid, gid=gid, umask=0)


def test_groups_of_this_process_and_of_none():
    assert groups_of(os.getpid()) == tuple(sorted(os.getgroups()))
    assert groups_of(2**22 + 1) == ()


def test_groups_are_remembered_for_a_while_per_process(monkeypatch):
    asked, now = [], 0.0
    monkeypatch.setattr(callers, "groups_of", lambda pid: asked.append(pid) or (pid,))
    made = Callers(lambda: now)
    assert made.of(context(7)).groups == (7,)
    assert made.of(context(7)).groups == (7,)
    assert made.of(context(8)).groups == (8,)
    assert asked == [7, 8]
    now = GROUPS_AGE_S_MAX
    assert made.of(context(7)).groups == (7,)
    assert asked == [7, 8, 7]
    assert made.of(context(7, uid=1001)).uid == 1001
    assert len(asked) == 4


def test_root_needs_no_groups(monkeypatch):
    monkeypatch.setattr(callers, "groups_of", lambda _pid: 1 / 0)
    caller = Callers(lambda: 0.0).of(context(1, 0, 0))
    assert (caller.uid, caller.gid, caller.groups) == (0, 0, ())


def test_who_is_refused_is_looked_at_again(monkeypatch):
    groups = (1,)
    monkeypatch.setattr(callers, "groups_of", lambda _pid: groups)
    made = Callers(lambda: 0.0)
    assert not made.has_other_groups(context(7))  # nothing was remembered: nothing was wrong
    made.of(context(7))
    assert not made.has_other_groups(context(7))
    groups = (1, 2)
    assert made.of(context(7)).groups == (1,)
    assert made.has_other_groups(context(7))
    assert made.of(context(7)).groups == (1, 2)
    assert not made.has_other_groups(context(7))
    groups = (3,)
    assert made.anew(context(7)).groups == (3,)
    assert made.of(context(7)).groups == (3,)
