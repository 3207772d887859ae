"""The registry of statuses is complete and consistent."""

from fs.schema.status import SPECS, FsError, Retry, Status


def test_every_status_has_a_spec_with_an_errno():
    for status, spec in SPECS.items():
        assert not spec.meaning[0].isspace() and not spec.meaning.endswith("."), status
        assert (spec.errno == 0) == (status is Status.OK), status


def test_metadata_answers_are_definite_and_final():
    for status, spec in SPECS.items():
        if 300 <= status < 400:
            assert spec.definite and spec.retry is Retry.NEVER, status


def test_an_error_shows_name_meaning_and_detail():
    error = FsError(Status.NOT_FOUND, "inode 7")
    assert str(error) == "NOT_FOUND: no such object (inode 7)"
    assert error.errno == 2
