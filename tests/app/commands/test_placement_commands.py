"""`ember placement`: from a table made to one that is checked, grown,
simulated and drawn, through files.
"""

import json

import pytest
from typer.testing import CliRunner

from fs.app.commands.placement_commands import placement
from fs.schema.status import FsError, Status
from placement import plot
from placement.model import Disk, Site
from placement.table_file import to_json


def run(*arguments):
    result = CliRunner().invoke(placement, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.json"
    made = json.loads(
        run(
            "make", "--nodes", 6, "--targets", 5, "--racks", 3, "--time", 0, "--out", path, "--json"
        )
    )
    assert made["chain_count"] == 10
    assert made["domain_members"] == [1, 1]
    assert made["bound"] <= made["cost"]
    return path


def test_a_table_is_checked(table):
    assert "x the fair share" in run("check", table)
    figures = json.loads(run("check", table, "--json"))
    assert figures["disk_targets"] == {"smallest": 5, "largest": 5}


def test_losses_of_every_kind_are_shown(table):
    assert "domain 1" in run("simulate", table)
    disk, node, rack = json.loads(run("simulate", table, "--target-mb", 1000, "--json"))
    assert (disk["kind"], node["targets_lost"], rack["targets_lost"]) == ("disk", 5, 10)
    assert rack["chains_lost"] == 0
    assert 1.0 <= disk["returned_after_s"] <= node["returned_after_s"] * 2
    (only,) = json.loads(run("simulate", table, "--kind", "node", "--json"))
    assert only["losses"] == 6


def test_the_load_of_one_loss_on_every_survivor_is_shown(table):
    found = json.loads(run("simulate", table, "--lost", "node 3", "--target-mb", 100, "--json"))
    assert [row["node"] for row in found["survivors"]] == [1, 2, 4, 5, 6]
    assert sum(row["feeds"] for row in found["survivors"]) == found["targets_lost"] == 5
    assert found["chains_lost"] == 0 < found["returned_after_s"]
    printed = run("simulate", table, "--lost", "node 3")
    assert "node 3 lost" in printed and "returned after s" in printed
    rack = json.loads(run("simulate", table, "--lost", "rack-1", "--json"))
    assert rack["targets_lost"] == 10
    three = [f"--lost=node {node}" for node in (1, 2, 3)]
    assert json.loads(run("simulate", table, *three, "--json"))["chains_lost"] >= 0


def test_tables_on_the_same_disks_are_lost_together(table):
    alone, both = (
        json.loads(run("simulate", table, "--lost", "node 3", "--json", *more))["targets_lost"]
        for more in ((), ("--beside", table))
    )
    assert both == 2 * alone


def test_a_table_grows(table, tmp_path):
    disks = tmp_path / "disks.json"
    disks.write_text(to_json([Disk(Site(n, 0), 1.0, (f"rack-{n % 3}",)) for n in range(1, 10)], []))
    plan = json.loads(run("grow", table, disks, "--out", tmp_path / "grown.json", "--json"))
    assert plan["left"] == 0
    assert len(plan["moves"]) >= plan["least"] == 9
    grown = json.loads(run("check", tmp_path / "grown.json", "--json"))
    assert grown["disk_targets"]["largest"] == 4
    assert "moves, at least 9" in run("grow", table, disks)


def test_disks_come_from_a_file_and_other_tables_count(table):
    made = json.loads(
        run("make", "--disk-file", table, "--targets", 1, "--time", 0, "--beside", table, "--json")
    )
    assert made["chain_count"] == 2
    printed = run("make", "--disk-file", table, "--targets", 1, "--time", 0, "--out", "-")
    assert len(json.loads(printed)["chains"]) == 2
    assert "made by" in run("make", "--nodes", 3, "--targets", 6, "--time", 0)


@pytest.mark.skipif(not plot.is_there(), reason="the extra `plot` (matplotlib) is not installed")
@pytest.mark.slow
def test_a_table_is_drawn(table, tmp_path):
    run("plot", table, "--out", tmp_path / "t.png")
    worst = (tmp_path / "t.png").read_bytes()
    run("plot", table, "--lost", "node 3", "--out", tmp_path / "t.png")
    assert worst.startswith(b"\x89PNG") and worst != (tmp_path / "t.png").read_bytes()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no table of chains"),
        ("[]", "no table of chains"),
        ('{"format": 2, "disks": []}', "format 2, known is 1"),
        ('{"format": 1, "disks": []}', "names no disks"),
        ('{"format": 1, "disks": [{"node": 1}]}', "the table is empty"),
        (
            '{"format": 1, "disks": [{"node": 1}], "chains": [[[2, 0]]]}',
            "node 2 disk 0 is not among",
        ),
        ('{"format": 1, "disks": [{"node": 1}, {"node": 1}]}', "named twice"),
    ],
)
def test_bad_files_are_named(tmp_path, text, words):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(FsError, match=words) as caught:
        run("check", path)
    assert caught.value.status is Status.BAD_CONFIG


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("make", "--nodes", 2), "3 replicas need as many nodes"),
        (("make", "--racks", 4, "--zones", 3), "a multiple of --zones 3"),
        (("simulate", "TABLE", "--kind", "rack"), "only: disk, node, domain 1"),
        (("simulate", "TABLE", "--lost", "node 9"), "'node 9' is not the name of one thing"),
        (("simulate", "TABLE", "--beside", "SMALL"), "different failure domains"),
        (("grow", "TABLE", "SMALL"), "3 replicas need as many nodes, not 2"),
    ],
)
def test_wrong_wishes_are_named(table, tmp_path, arguments, words):
    small = tmp_path / "small.json"
    small.write_text(to_json([Disk(Site(n, 0), 1.0, ("r",)) for n in (1, 2)], []))
    files = {"TABLE": table, "SMALL": small}
    with pytest.raises(FsError, match=words):
        run(*(files.get(a, a) for a in arguments))
