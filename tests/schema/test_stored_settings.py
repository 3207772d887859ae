"""Which settings may be kept for a role, and which are taken over live."""

import msgspec
import pytest

from fs.schema.config import ProcessConfig
from fs.schema.routing import Role
from fs.schema.stored_settings import LIVE, ROLES, SECTIONS, refusal

KEYS = {
    f"{section.name}.{field.name}"
    for section in msgspec.structs.fields(ProcessConfig)
    for field in msgspec.structs.fields(section.type)
}


def storable(role):
    return {key for key in KEYS if not refusal(role, *key.split("."))}


def test_every_live_setting_exists_and_may_be_kept_for_a_role():
    assert LIVE <= KEYS
    assert set().union(*(storable(role) for role in SECTIONS)) >= LIVE


@pytest.mark.parametrize("role", ROLES.values())
def test_nothing_that_makes_a_process_itself_is_kept(role):
    """Whatever is added to these sections is refused until somebody decides otherwise."""
    kept = storable(role)
    assert not any(key.startswith(("kv.", "rpc.", "auth.")) for key in kept)
    assert {k for k in kept if k.startswith("process.")} == {
        "process.log_level",
        "process.look_before_sleep_s",
        "process.slow_request_s",
    }
    assert {k for k in kept if k.startswith("trace.")} == {"trace.sample_rate"}
    for key in kept:
        assert not key.endswith(("_directory", "_path", "_address", "_socket", "mount_point")), key
    assert not {"storage.disks", "mgmtd.node_lease_s", "mgmtd.primary_lease_s"} & kept


def test_a_role_keeps_what_it_uses():
    assert "gc_delay_s" not in refusal(Role.META, "meta", "gc_delay_s")
    assert "does not use this section" in refusal(Role.META, "storage", "read_concurrency")
    assert not refusal(Role.META, "client", "call_timeout_s")
