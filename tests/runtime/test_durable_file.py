"""Small files that are replaced as a whole."""

import pytest

from fs.runtime.durable_file import write_durable


def test_the_old_or_the_new_one_is_there(tmp_path):
    path = tmp_path / "f"
    for content in ("old", b"new"):
        write_durable(path, content)
    assert path.read_bytes() == b"new" and [*tmp_path.iterdir()] == [path]
    (tmp_path / "link").symlink_to(path)
    write_durable(tmp_path / "link", "instead")
    assert path.read_bytes() == b"new" and not (tmp_path / "link").is_symlink()


def test_no_link_is_followed(tmp_path):
    """Who can write in the directory would choose which file it is; root writes in such ones."""
    other = tmp_path / "other"
    other.write_text("kept")
    (tmp_path / ".f.new").symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"):
        write_durable(tmp_path / "f", "new")
    assert other.read_text() == "kept" and not (tmp_path / "f").exists()
