"""What a peer of an earlier protocol version says is understood,
or refused in words; see `wire.py`.
"""

import json
from contextlib import asynccontextmanager

import pytest
import trio
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass

from fs.rpc.api import Identity
from fs.rpc.core_service import CoreService
from fs.rpc.frame import (
    HEADER_BYTES,
    HELLO_VERSION,
    VERSION_MAX,
    VERSION_MIN,
    FrameLimits,
    Kind,
    decode_error,
    decode_header,
    encode_header,
)
from fs.rpc.server import Server
from fs.rpc.transport import SocketNetwork
from fs.runtime.simulated import simulated_runtime
from fs.schema.config import RpcSection
from fs.schema.proto.core_pb2 import EchoRsp, GetInfoRsp
from fs.schema.proto.rpc_pb2 import HelloPb
from fs.schema.status import Status
from tests.rpc.peer import connected

from . import wire

RECORDED = {
    version: json.loads((wire.HERE / f"wire-{version}.json").read_text())
    for version in range(VERSION_MIN, VERSION_MAX + 1)
}
EACH = pytest.mark.parametrize("record", RECORDED.values(), ids=lambda r: f"version {r['version']}")


def is_within(part, whole):
    """True if everything in `part` is in `whole`, too, with the same value."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            key in whole and is_within(value, whole[key]) for key, value in part.items()
        )
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(is_within, part, whole))
    return part == whole


@EACH
def test_every_recorded_message_means_what_it_meant(record):
    """Each field still has its number, its type, and its own value,
    which says which field it is.
    """
    known = wire.messages()
    wrong = []
    for name, text in record["messages"].items():
        data = bytes.fromhex(text)
        message = GetMessageClass(known[name]).FromString(data)
        message.DiscardUnknownFields()
        is_whole = message.SerializeToString(deterministic=True) == data
        today = MessageToDict(wire.filled(known[name]))
        if not is_whole or not is_within(MessageToDict(message), today):
            wrong.append(name)
    assert not wrong, f"{wrong}: a field has changed its number or type, or is gone"


@EACH
def test_methods_and_statuses_keep_their_numbers(record):
    for name, (service, number, request, reply) in record["methods"].items():
        method = wire.METHODS[name]
        found = (method.request_type.DESCRIPTOR.name, method.reply_type.DESCRIPTOR.name)
        assert (method.service_number, method.number, *found) == (service, number, request, reply)
    for name, number in record["statuses"].items():
        assert Status[name] == number


@asynccontextmanager
async def serving(tmp_path):
    """A process of this release; its address."""
    identity = Identity(wire.CLUSTER_ID, 7, release="present")
    runtime = simulated_runtime(SocketNetwork(), 1)
    server = Server(identity, RpcSection())
    server.add_service("Core", CoreService(identity, runtime.clock, ["Core"]))
    async with trio.open_nursery() as nursery:
        address = f"unix:{tmp_path}/s"
        await nursery.start(server.run, SocketNetwork(), address)
        yield address
        nursery.cancel_scope.cancel()


@EACH
async def test_a_recorded_peer_is_answered(record, tmp_path):
    frames = {name: bytes.fromhex(text) for name, text in record["frames"].items()}
    async with serving(tmp_path) as address, connected(address) as peer:
        (hello,) = await peer.exchange(frames["hello"], {0})
        assert hello.kind == Kind.HELLO
        said = HelloPb.FromString(hello.message)
        assert said.version_min <= record["version"] <= said.version_max
        sent = frames["echo"] + frames["get_info"] + frames["cancel"]
        answers = {a.request_id: a for a in await peer.exchange(sent, {1, 2})}
        assert {(a.kind, a.status) for a in answers.values()} == {(Kind.REPLY, Status.OK)}
        assert EchoRsp.FromString(answers[1].message).data == wire.ECHOED
        assert GetInfoRsp.FromString(answers[2].message).node_id == 7


def hello_of(version_min, version_max):
    message = HelloPb(
        version_min=version_min,
        version_max=version_max,
        cluster_id=wire.CLUSTER_ID,
        release="9.9",
    ).SerializeToString()
    header = encode_header(Kind.HELLO, 0, message_bytes=len(message), version=HELLO_VERSION)
    return header + message


@pytest.mark.parametrize("versions", [(VERSION_MAX + 1, VERSION_MAX + 3), (0, VERSION_MIN - 1)])
async def test_a_peer_that_fits_in_no_version_is_told_which_there_are(versions, tmp_path):
    async with serving(tmp_path) as address, connected(address) as peer:
        (answer,) = await peer.exchange(hello_of(*versions), {0})
    assert answer.kind == Kind.GOODBYE
    error = decode_error(answer.status, answer.message)
    assert error.status is Status.RPC_BAD_VERSION
    own = f"this side speaks {VERSION_MIN}..{VERSION_MAX}"
    assert error.detail == f"{own}, the peer (release 9.9) {versions[0]}..{versions[1]}"


async def test_a_newer_peer_that_still_speaks_our_version_is_served(tmp_path):
    async with serving(tmp_path) as address, connected(address) as peer:
        (answer,) = await peer.exchange(hello_of(VERSION_MAX, VERSION_MAX + 5), {0})
        assert answer.kind == Kind.HELLO
        echo = bytes.fromhex(RECORDED[VERSION_MAX]["frames"]["echo"])
        (answer,) = await peer.exchange(echo, {1})
        assert (answer.kind, answer.status) == (Kind.REPLY, Status.OK)


def test_a_recorded_error_is_understood():
    data = bytes.fromhex(RECORDED[VERSION_MAX]["frames"]["error"])
    header = decode_header(data[:HEADER_BYTES], FrameLimits(1000, 0))
    error = decode_error(header.status, data[HEADER_BYTES:])
    assert (error.status, error.detail) == (Status.NOT_FOUND, "recorded")
