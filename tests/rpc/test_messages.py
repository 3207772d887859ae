"""Row R2: every message type survives a round trip, and a cut message decodes to a message or to an error.

`EMBER_MESSAGE_EXAMPLES=1000` runs the long form.
"""

import os
import random

import pytest
from google.protobuf.message import DecodeError

from .messages import descriptors, message_of

EXAMPLES = int(os.environ.get("EMBER_MESSAGE_EXAMPLES", "10"))


@pytest.mark.parametrize("descriptor", descriptors(), ids=lambda d: d.name)
def test_round_trip_and_truncation(descriptor):
    for number in range(EXAMPLES):
        rng = random.Random(f"{descriptor.name} {number}")
        message = message_of(rng, descriptor)
        encoded = message.SerializeToString(deterministic=True)
        again = type(message).FromString(encoded)
        # Compared as text, which equals itself where a number is not one.
        assert str(again) == str(message), number
        assert again.SerializeToString(deterministic=True) == encoded, number
        cut = rng.randrange(max(1, len(encoded)))
        try:
            part = type(message).FromString(encoded[:cut])
        except DecodeError:
            continue
        # What decodes is a message like any other: it can be sent on.
        assert str(type(message).FromString(part.SerializeToString())) == str(part), number


def test_every_file_is_looked_at():
    assert len(descriptors()) > 100


def test_every_field_of_every_type_gets_values():
    missed = []
    for descriptor in descriptors():
        seen = set()
        for number in range(40):
            message = message_of(random.Random(number), descriptor)
            seen |= {field.name for field, _ in message.ListFields()}
        missed += [f"{descriptor.name}.{f.name}" for f in descriptor.fields if f.name not in seen]
    assert not missed
