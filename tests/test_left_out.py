"""Files that the fast part does not import, since it wants none of their tests."""

from types import SimpleNamespace

import pytest

from tests.conftest import marks_of_file, pytest_ignore_collect

FAST = "not slow and not thorough and not mount"
SLOW = "pytestmark = pytest.mark.slow\n\nimport torch\n"
LIST = (
    "pytestmark = [\n    *marks(),\n    pytest.mark.slow,\n    "
    "pytest.mark.timeout(9),\n]\n\ndef f():\n    pass\n"
)


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        (SLOW, {"slow"}),
        (LIST, {"slow", "timeout"}),
        ("pytestmark = NEEDS_MOUNT\n\nx = 1\n", {"mount"}),
        ("pytestmark = [*NEEDS_MOUNT, pytest.mark.slow]\n\nx = 1\n", {"mount", "slow"}),
        ("@pytest.mark.slow\ndef test_x():\n    pass\n", set()),
        ("pytestmark = pytest.mark.slow if IS_OLD else ()\n\nx = 1\n", set()),
    ],
)
def test_which_marks_all_tests_of_a_file_have(text, marks):
    assert marks_of_file(text) == marks


@pytest.mark.parametrize(
    ("wanted", "is_left"), [(FAST, True), ("not slow", True), ("", None), ("slow or mount", None)]
)
def test_a_file_is_left_alone_only_where_none_of_its_tests_is_wanted(tmp_path, wanted, is_left):
    config = SimpleNamespace(option=SimpleNamespace(markexpr=wanted))
    file = tmp_path / "test_x.py"
    file.write_text(SLOW)
    assert pytest_ignore_collect(file, config) is is_left
    file.write_text("def test_x():\n    pass\n")
    assert pytest_ignore_collect(file, config) is None
    assert pytest_ignore_collect(tmp_path, config) is None
