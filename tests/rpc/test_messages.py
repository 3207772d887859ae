"""Row R2: every message type survives a round trip, and a cut message decodes to a message or to an error.

`EMBER_MESSAGE_EXAMPLES=1000` runs the long form.
"""

import os

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .messages import descriptors, messages

EXAMPLES = int(os.environ.get("EMBER_MESSAGE_EXAMPLES", "5"))


@pytest.mark.parametrize("descriptor", descriptors(), ids=lambda d: d.name)
def test_round_trip_and_truncation(descriptor):
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(messages(descriptor), st.data())
    def check(message, data):
        encoded = message.SerializeToString(deterministic=True)
        again = type(message).FromString(encoded)
        assert again == message
        assert again.SerializeToString(deterministic=True) == encoded
        cut = data.draw(st.integers(0, max(0, len(encoded) - 1)))
        try:
            part = type(message).FromString(encoded[:cut])
        except DecodeError:
            return
        # What decodes is a message like any other: it can be sent on.
        assert type(message).FromString(part.SerializeToString()) == part

    check()


def test_every_file_is_looked_at():
    assert len(descriptors()) > 100
