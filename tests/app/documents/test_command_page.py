"""The page of commands says of each option what counts where it is not given."""

from fs.app.documents.command_page import commands_page


def test_defaults_and_choices_are_told_and_no_paths_of_this_user():
    """They stood in `--help` alone."""
    page = commands_page()
    assert "| `--nodes` NODES | Storage processes. Default: 3. |" in page
    assert "| `--format` `parquet` or `jsonl` |" in page
    assert "| `--dir` DIRECTORY | The cluster's directory. |" in page
    assert "| `--json` | Print JSON for programs. |" in page
