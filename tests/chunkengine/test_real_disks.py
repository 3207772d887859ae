"""Short forms of `kills.py`, `power.py` and `torn.py`, and engines that they catch."""

import threading

import pytest

from fs.chunkengine.data_files import LocalDataFiles
from fs.chunkengine.format import FileId

# By their full names: the processes they start import them again.
from tests.chunkengine import images, kills, power, spoils, torn
from tests.chunkengine.workload import in_pages

KINDS = [
    pytest.param(kind, marks=pytest.mark.skipif(bool(why), reason=f"{kind}: {why}"))
    for kind in ("ext4", "xfs")
    for why in [images.missing(kind)]
]


@pytest.mark.slow
def test_a_killed_process_loses_nothing_acknowledged(tmp_path) -> None:
    outcome = kills.run_lot(1, tmp_path, kills=4)
    assert outcome["kills"] == 4


@pytest.mark.slow
def test_a_kill_catches_an_engine_that_keeps_commits_in_memory(tmp_path) -> None:
    with pytest.raises(AssertionError, match=r"not one of|missing"):
        kills.run_lot(1, tmp_path, kills=10, spoil=spoils.commit_in_memory)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_power_cut_loses_nothing_synced(kind, tmp_path) -> None:
    outcome = power.run_lot(kind, 1, tmp_path, cuts=2)
    assert outcome["cuts"] == 2
    assert outcome["commits"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spoil", [spoils.sync_no_data, spoils.sync_no_metadata])
def test_a_power_cut_catches_a_sync_that_does_not_flush(kind, spoil, tmp_path) -> None:
    with pytest.raises(AssertionError, match=r"not one of|wrong checksum|missing"):
        power.run_lot(kind, 1, tmp_path, cuts=10, spoil=spoil)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_flush_fails_since_others_use_the_pages_of_a_direct_write(kind, tmp_path) -> None:
    size, file_id, is_over = 256 << 10, FileId(0x0201), threading.Event()

    def write_and_read(places: tuple[int, ...]) -> None:
        buffer = memoryview(bytearray(4 * size))
        while not is_over.is_set():
            for place in places:
                files.write_at(file_id, place * size, [b"n" * 100])
            files.read_at(file_id, 0, [buffer])

    with images.image(kind, tmp_path) as disk:
        files = LocalDataFiles(disk.mount_point)
        files.write_at(file_id, 0, [bytes(4 * size)])
        files.flush([file_id])
        threads = [threading.Thread(target=write_and_read, args=(p,)) for p in ((0, 2), (1, 3))]
        for thread in threads:
            thread.start()
        try:
            for number in range(60):
                data = in_pages(bytes([number]) * size)
                place = file_id, number % 3 * size, data
                assert files.write_past_cache([place], size)[0][0] == size
                if number % 4 == 0:
                    files.flush([file_id])
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        files.flush([file_id])
        files.close()


NO_FUSE = pytest.mark.skipif(bool(torn.missing()), reason=torn.missing())


@NO_FUSE
@pytest.mark.mount
def test_unsynced_writes_may_be_lost_and_torn(tmp_path) -> None:
    outcome = torn.run_lot(3, tmp_path, cuts=3)
    assert outcome["cuts"] == 3


@NO_FUSE
@pytest.mark.mount
@pytest.mark.parametrize("spoil", [spoils.sync_no_data, spoils.sync_no_metadata])
def test_lost_writes_catch_a_sync_that_does_not_flush(spoil, tmp_path) -> None:
    with pytest.raises(AssertionError, match=r"not one of|wrong checksum|missing"):
        torn.run_lot(3, tmp_path, cuts=90, spoil=spoil)


@NO_FUSE
@pytest.mark.mount
def test_nothing_is_acknowledged_after_a_failed_call(tmp_path) -> None:
    outcome = torn.run_lot(1, tmp_path, cuts=4, plan=torn.plan_failure)
    assert outcome["cuts"] == 4
