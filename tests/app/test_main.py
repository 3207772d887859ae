"""The command line itself."""

import pytest

from fs.app.main import app
from fs.app.release import RELEASE


@pytest.mark.parametrize("words", [["--version"], ["version"]])
def test_the_release_is_printed(words, capsys):
    with pytest.raises(SystemExit) as ended:
        app(words)
    assert not ended.value.code
    assert capsys.readouterr().out == f"{RELEASE}\n"
