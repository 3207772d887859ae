import pytest

from fs.client.retry import longest_s
from fs.schema.config import ClientSection
from fs.schema.ids import ChunkId, InodeId
from fs.schema.status import FsError, Status
from fs.storage.channels import (
    IDLE_S,
    IDLE_S_CROWDED,
    IDLE_S_ENDED,
    ChannelTable,
    Tag,
    UpdateResult,
    is_final,
)


def tag(sequence, request_id=None, channel_id=1):
    return Tag("c", channel_id, sequence, request_id or b"r%d" % sequence)


DONE = UpdateResult(3, 10, 99)


def status_of(table, wanted):
    with pytest.raises(FsError) as caught:
        table.begin(wanted, 0)
    return caught.value.status


def test_a_repeat_gets_the_first_result():
    table = ChannelTable()
    assert table.begin(tag(1), 0) is None
    table.record(tag(1), DONE, 0)
    table.end(tag(1))
    assert table.begin(tag(1), 0) == DONE
    assert table.begin(tag(1), 0) == DONE


def test_a_failure_is_run_again():
    table = ChannelTable()
    assert table.begin(tag(1), 0) is None
    table.end(tag(1))
    assert table.begin(tag(1), 0) is None


def test_a_refusal_is_as_final_as_a_success():
    table = ChannelTable()
    assert table.begin(tag(1), 0) is None
    table.refuse(tag(1), FsError(Status.NO_SPACE, "disk 3"))
    table.end(tag(1))
    assert status_of(table, tag(1)) is Status.NO_SPACE
    assert table.result_of(tag(1)) is None and table.results(10) == []
    assert status_of(table, tag(1, b"other")) is Status.RPC_BAD_REQUEST
    assert table.begin(tag(2), 0) is None
    table.refuse(tag(1), FsError(Status.NO_SPACE))  # late
    table.end(tag(2))
    assert table.begin(tag(2), 0) is None


@pytest.mark.parametrize("status", [Status.OUTCOME_UNKNOWN, Status.ROUTING_MISMATCH])
def test_what_a_client_repeats_is_no_refusal(status):
    assert not is_final(FsError(status))


def test_busy_old_and_misused_channels():
    table = ChannelTable()
    table.begin(tag(5), 0)
    assert status_of(table, tag(5)) is Status.CHANNEL_BUSY
    assert status_of(table, tag(6)) is Status.CHANNEL_BUSY
    assert status_of(table, tag(4)) is Status.DUPLICATE_UPDATE
    table.end(tag(5))
    assert status_of(table, tag(5, b"other")) is Status.RPC_BAD_REQUEST
    assert table.begin(tag(4, channel_id=2), 0) is None


def test_forwarded_updates_are_known_to_a_new_head():
    table = ChannelTable()
    table.record(tag(7), DONE, 0)
    assert table.begin(tag(7), 0) == DONE
    table.record(tag(6), UpdateResult(1, 1, 1), 0)
    assert table.result_of(tag(7)) == DONE
    assert table.result_of(tag(6)) is None
    assert table.begin(tag(8), 0) is None
    assert table.result_of(tag(8)) is None


def test_in_effect_already_says_less_of_the_same_update_only():
    table = ChannelTable()
    changed = UpdateResult(3, 10, 99, ChunkId(InodeId(5), 0))
    table.record(tag(7), changed, 0)
    table.record(tag(7), DONE, 0)
    assert table.result_of(tag(7)) == changed
    table.record(tag(8), DONE, 0)
    assert table.result_of(tag(8)) == DONE


def test_a_new_head_is_told_of_the_channels_used_last():
    table = ChannelTable()
    for channel_id in (1, 2, 3):
        table.record(tag(1, channel_id=channel_id), DONE, -channel_id)
    assert [t.channel_id for t, _ in table.results(3)] == [1, 2, 3]
    assert {t.channel_id for t, _ in table.results(2)} == {1, 2}


def test_idle_channels_are_forgotten_but_not_busy_ones():
    table = ChannelTable()
    table.record(tag(1), DONE, 0)
    table.begin(tag(1, channel_id=2), 0)
    table.record(tag(1, channel_id=3), DONE, IDLE_S)
    assert table.expire(IDLE_S + 1) == [("c", 1)]
    assert len(table) == 2


def test_the_table_is_bounded_and_forgets_nothing_that_may_be_repeated(monkeypatch):
    monkeypatch.setattr("fs.storage.channels.COUNT_MAX", 4)
    table = ChannelTable()
    for channel_id in (1, 2):
        table.record(tag(1, channel_id=channel_id), DONE, 0)
    assert table.expire(IDLE_S_CROWDED + 1) == []  # no more than half full
    for channel_id in range(1, 5):
        table.record(tag(1, channel_id=channel_id), DONE, 0)
    with pytest.raises(FsError, match="RPC_OVERLOADED"):
        table.begin(tag(1, channel_id=5), 1)
    assert table.begin(tag(1, channel_id=4), IDLE_S_CROWDED) is DONE
    assert table.expire(IDLE_S_CROWDED) == []
    assert len(table.expire(IDLE_S_CROWDED + 1)) == 3
    assert table.begin(tag(1, channel_id=5), IDLE_S_CROWDED) is None


def test_nothing_is_forgotten_while_a_client_may_still_repeat_it():
    longest = longest_s(ClientSection(retry_time_s_max=300.0))
    assert longest < min(IDLE_S, IDLE_S_CROWDED, IDLE_S_ENDED)


def test_channels_of_a_client_whose_session_has_ended_are_forgotten_sooner():
    table = ChannelTable()
    for client in ("here", "gone"):
        table.record(Tag(client, 1, 1, b"r"), DONE, 0.0)
    assert table.expire(IDLE_S_ENDED, {"here"}) == []
    assert table.expire(IDLE_S_ENDED + 1) == [], "nobody knows who is there"
    assert table.expire(IDLE_S_ENDED + 1, {"here"}) == [("gone", 1)]
    assert table.expire(IDLE_S + 1, {"here"}) == [("here", 1)]
