"""What `ember up` waits for, and what it takes for the reason where something does not start."""

import pytest

from fs.app.local import waits
from fs.app.machine.cluster_dir import ClusterDir, ClusterRecord, storage_names
from fs.schema.status import FsError, Status

REFUSED = (
    "2026-11-23T12:33:02.778Z error   fs.app.process.compose: FOREIGN_DISK: the disk belongs to "
    "another node"
)
AT_WORK = "2026-11-23T12:33:02.759Z info    __main__: opening disk /data/storage-2/disk-0"


class Services:
    """A supervisor of storage processes, each of which goes through states, one at each question:
    its state, and the last line of its log.
    """

    def __init__(self, directory, record, courses):
        self._directory = directory
        self._left = dict(zip(storage_names(record), map(list, courses), strict=True))

    def ask(self, _directory, *, command):
        assert command == "status"
        found = []
        for name, left in self._left.items():
            state, said = left.pop(0) if len(left) > 1 else left[0]
            self._directory.log_path(name).write_text(said + "\n")
            restart_count = int(state != "running")
            found.append(
                {
                    "name": name,
                    "state": state,
                    "restart_count": restart_count,
                    "last_exit": "exit code 1",
                }
            )
        return {"services": found}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    directory, record = ClusterDir(tmp_path), ClusterRecord("c", 2, 1, 1, "")
    directory.log_path("any").parent.mkdir()

    def course(*courses):
        services = Services(directory, record, courses)
        monkeypatch.setattr(waits.supervisor_link, "ask", services.ask)
        return directory, record

    return course


RUNNING = [("running", "")]


def test_a_process_that_is_being_started_again_has_not_said_yet_why_it_ends(cluster):
    second = [("starting", AT_WORK), ("starting", AT_WORK), ("restarting", REFUSED)]
    (missing,) = waits.wait_storage(*cluster(RUNNING, second))
    assert missing.name.endswith("2") and missing.said.startswith("FOREIGN_DISK: ")
    assert "exit code 1: FOREIGN_DISK: the disk belongs to another node (log: " in str(missing)


def test_one_that_starts_the_second_time_is_not_missing(cluster):
    assert waits.wait_storage(*cluster(RUNNING, [("starting", AT_WORK), *RUNNING])) == []


@pytest.mark.parametrize(
    "courses",
    [
        (RUNNING, [("stopped", AT_WORK)]),
        ([("restarting", REFUSED)], [("restarting", REFUSED)]),
    ],
)
def test_other_reasons_and_all_of_them_are_refused(cluster, courses):
    with pytest.raises(FsError) as caught:
        waits.wait_storage(*cluster(*courses))
    assert caught.value.status is Status.START_FAILED
