"""What control groups leave a process, by the files in which the kernel tells it."""

import pytest

from fs.runtime.control_groups import GroupMemory, memory_limits

MIB = 1 << 20


@pytest.fixture
def own(tmp_path):
    return tmp_path / "cgroup"


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".", 1)).write_text(f"{content}\n")


def test_of_the_second_version_each_group_on_the_way_counts(tmp_path, own):
    own.write_text("0::/pods/mount\n")
    write(tmp_path / "fs/pods/mount", memory_max=64 * MIB, memory_current=10 * MIB)
    write(tmp_path / "fs/pods", memory_max="max", memory_current=20 * MIB)
    write(tmp_path / "fs", memory_max=100 * MIB, memory_current=90 * MIB)
    found = memory_limits(own, tmp_path / "fs")
    assert found == [GroupMemory(64 * MIB, 10 * MIB), GroupMemory(100 * MIB, 90 * MIB)]


def test_of_the_first_version_too(tmp_path, own):
    own.write_text("9:name=systemd:/\n4:cpu,cpuacct:/x\n3:memory:/a\n0::/\n")
    unlimited = 0x7FFFFFFFFFFFF000
    write(tmp_path / "fs/memory/a", memory_limit_in_bytes=MIB, memory_usage_in_bytes=5)
    write(tmp_path / "fs/memory", memory_limit_in_bytes=unlimited, memory_usage_in_bytes=9)
    assert memory_limits(own, tmp_path / "fs") == [GroupMemory(MIB, 5)]


def test_in_a_container_that_is_shown_its_own_group_alone(tmp_path, own):
    own.write_text("0::/of/the/machine\n")
    write(tmp_path / "fs", memory_max=MIB, memory_current=7)
    assert memory_limits(own, tmp_path / "fs") == [GroupMemory(MIB, 7)]


def test_what_is_not_told_is_no_limit(tmp_path, own):
    assert memory_limits(own, tmp_path / "fs") == []
    own.write_text("0::/\n")
    assert memory_limits(own, tmp_path / "fs") == []
    write(tmp_path / "fs", memory_max=MIB, memory_current="what")
    assert memory_limits(own, tmp_path / "fs") == []


def test_here_it_can_be_looked_at():
    assert all(group.limit > 0 and group.used >= 0 for group in memory_limits())
