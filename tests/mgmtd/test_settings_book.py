"""Settings and tags as the managers keep them: versions, records byte for byte, refusals."""

import pytest

from fs.mgmtd.host_tags import HOSTS_MAX, TAGS_MAX, HostTags, changed_tags
from fs.mgmtd.settings_book import (
    SETTINGS_KEPT,
    SettingsBook,
    settings_key,
    unpack_settings,
    with_settings,
)
from fs.runtime.settings_text import text_digest
from fs.schema.proto.common_pb2 import NodeRole, SettingsReportPb, SettingsVersionPb
from fs.schema.proto.mgmtd_pb2 import TagChangePb
from fs.schema.routing import Role
from fs.schema.status import FsError, Status


def made(book, count, role=Role.META, based_on=0):
    text = f"[meta]\ngc_batch_count = {count}\n"
    return with_settings(book, role, text, note="why", based_on_version=based_on, now_ns=count)


def told(text=None, **versions):
    text = "[meta]\ngc_batch_count = 2\n" if text is None else text
    versions["heard_digest"] = text_digest(text)
    return SettingsReportPb(
        versions=[
            SettingsVersionPb(role=NodeRole.META, **versions),
        ]
    )


def test_versions_count_on_and_the_oldest_make_room():
    book, store = SettingsBook(), {}
    for count in range(1, SETTINGS_KEPT + 3):
        after = made(book, count)
        store |= book.records(after)
        book = after
    kept = {key: value for key, value in store.items() if value is not None}
    assert SettingsBook.of(map(unpack_settings, kept.values()), kept) == book
    assert len(kept) == SETTINGS_KEPT
    assert book.newest(Role.META).version == SETTINGS_KEPT + 2
    assert book.find(Role.META, 3).text == "[meta]\ngc_batch_count = 3\n"
    with pytest.raises(FsError, match="no version 2"):
        book.find(Role.META, 2)


def test_while_the_newest_cannot_be_read_nobody_is_told_an_older_one():
    """Processes went back to it, and the next version had the number of the lost one."""
    book = made(made(SettingsBook(), 1), 2)
    rows = SettingsBook().records(book)
    kept = [unpack_settings(value) for key, value in rows if key != settings_key(Role.META, 2)]
    left = SettingsBook.of(kept, [key for key, _ in rows])
    assert left.newest(Role.META).version == 1
    assert not left.knows_newest(Role.META)
    assert left.knows_newest(Role.STORAGE)
    assert left.unheard([Role.META], told(version=2)) == []
    again = made(left, 1)  # as of the older one: that is what counts from now on
    assert again.newest(Role.META).version == 3
    assert [s.version for s in again.unheard([Role.META], told(version=2))] == [3]


def test_the_same_text_again_changes_nothing():
    book = made(SettingsBook(), 1)
    assert made(book, 1) is book
    assert made(book, 1, based_on=77) is book  # repeated, since the answer was lost
    with pytest.raises(FsError) as caught:
        made(book, 2, based_on=77)
    assert caught.value.status is Status.CONFLICTING_CHANGE
    assert made(made(book, 2), 1).newest(Role.META).version == 3


def test_records_byte_for_byte():
    book = made(SettingsBook(), 1)
    ((key, value),) = SettingsBook().records(book)
    assert key == settings_key(Role.META, 1) == b"MGCF\x02" + bytes(7) + b"\x01"
    assert value == bytes.fromhex(
        "0a2e080210011a1a" + b"[meta]\ngc_batch_count = 1\n".hex() + "2203776879290100000000000000"
    )
    ((key, value),) = HostTags().records(HostTags({"h": {"zone": "west"}}))
    assert key == b"MGHTh"
    assert value == bytes.fromhex("0a110a0168120c0a047a6f6e65120477657374")


def test_who_has_not_heard_of_the_newest_is_told():
    book = made(made(SettingsBook(), 1), 2)

    def unheard(report):
        return [s.version for s in book.unheard([Role.META, Role.STORAGE], report)]

    assert unheard(told(version=1)) == [2]
    assert unheard(told(version=7)) == [2]  # of a store that was restored from a backup
    assert unheard(told(version=2)) == []
    assert unheard(told(version=1, refused_version=2)) == []
    assert unheard(told(version=2, refused_version=1)) == [2]
    assert unheard(told("", version=2)) == [2]  # the same number, of before the store was restored
    assert unheard(SettingsReportPb()) == []  # an older release


def test_tags():
    tags = {"rack": "r1", "zone": "west"}
    assert changed_tags(tags, TagChangePb.TAGS_ADD, {"rack": "r2"}) == {
        "rack": "r2",
        "zone": "west",
    }
    assert changed_tags(tags, TagChangePb.TAGS_SET, {"host": "h"}) == {"host": "h"}
    assert changed_tags(tags, TagChangePb.TAGS_REMOVE, {"rack": "", "none": ""}) == {"zone": "west"}
    wrong = [
        (TagChangePb.TAG_CHANGE_NONE, {}),
        (TagChangePb.TAGS_SET, {"a b": "c"}),
        (TagChangePb.TAGS_SET, {"a": "\n"}),
        (TagChangePb.TAGS_SET, {"a": "x" * 300}),
        (TagChangePb.TAGS_SET, {f"t{i}": "" for i in range(TAGS_MAX + 1)}),
    ]
    for change, given in wrong:
        with pytest.raises(FsError):
            changed_tags(tags, change, given)


def test_hosts_without_tags_are_forgotten():
    before = HostTags({f"h{i}": {"a": "b"} for i in range(HOSTS_MAX)})
    with pytest.raises(FsError):
        before.with_tags("another", {"a": "b"})
    with pytest.raises(FsError):
        HostTags().with_tags("../x", {"a": "b"})
    after = before.with_tags("h7", {})
    assert before.records(after) == [(b"MGHTh7", None)]
    assert after.of("h7") == {}
