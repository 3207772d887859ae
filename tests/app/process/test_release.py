"""The release is read without loading much, and is the one that the installed package tells."""

import subprocess
import sys
from importlib.metadata import version

from fs.app.process import release


def test_it_is_that_of_the_installed_package():
    assert version("emberfs") == release.RELEASE


def test_the_first_folder_of_the_import_path_that_tells_one_counts(tmp_path, monkeypatch):
    for place, told in (("first", "1.2.3"), ("second", "0.9")):
        (tmp_path / place / f"emberfs-{told}.dist-info").mkdir(parents=True)
    (tmp_path / "first" / "emberfs-4.0.egg-info").mkdir()
    gone = tmp_path / "gone"
    monkeypatch.setattr(sys, "path", [str(gone), *(str(tmp_path / p) for p in ("first", "second"))])
    assert release._release() == "1.2.3"


def test_other_forms_of_packages_are_asked_the_long_way(tmp_path, monkeypatch):
    told = tmp_path / "emberfs.egg-info"
    told.mkdir()
    (told / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: emberfs\nVersion: 7.1\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert release._release() == "7.1"
    monkeypatch.setattr(sys, "path", [])
    assert release._release() == "unpackaged"


def test_what_takes_long_to_load_is_not_loaded():
    """Every command and every process of a cluster loads the release."""
    program = "import sys, fs.app.process.release; sys.exit('importlib.metadata' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
