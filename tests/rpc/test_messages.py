"""Row R2: every message type survives a round trip,
and a cut message decodes to a message or to an error.

`EMBER_MESSAGE_EXAMPLES=1000` runs the long form.
"""

import os
import random

from google.protobuf.message import DecodeError

from .messages import descriptors, message_of

EXAMPLES = int(os.environ.get("EMBER_MESSAGE_EXAMPLES", "10"))


def test_round_trip_and_truncation():
    """In one test, since pytest takes longer for each of some hundred than they do."""
    for descriptor in descriptors():
        for number in range(EXAMPLES):
            come_back(descriptor, number)


def come_back(descriptor, number):
    which = f"{descriptor.name} {number}"
    rng = random.Random(which)
    message = message_of(rng, descriptor)
    encoded = message.SerializeToString(deterministic=True)
    again = type(message).FromString(encoded)
    # Compared as text, which equals itself where a number is not one.
    assert str(again) == str(message), which
    assert again.SerializeToString(deterministic=True) == encoded, which
    cut = rng.randrange(max(1, len(encoded)))
    try:
        part = type(message).FromString(encoded[:cut])
    except DecodeError:
        return
    # What decodes is a message like any other: it can be sent on.
    assert str(type(message).FromString(part.SerializeToString())) == str(part), which


def test_every_file_is_looked_at():
    assert len(descriptors()) > 100


def test_every_field_of_every_type_gets_values():
    missed = []
    for descriptor in descriptors():
        unseen = {field.name for field in descriptor.fields}
        for number in range(40):
            if not unseen:
                break
            message = message_of(random.Random(number), descriptor)
            unseen -= {field.name for field, _ in message.ListFields()}
        missed += [f"{descriptor.name}.{field}" for field in unseen]
    assert not missed
