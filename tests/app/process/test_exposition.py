"""Metrics by HTTP: what is read, by whom, and that nobody who reads can hold the process up."""

import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from fs.app.monitoring.metrics_commands import fetch, targets_of
from fs.app.process.exposition import CLIENTS_MAX, WAITING_MAX, Exposition, split_address
from fs.runtime.config_file import parse_config
from fs.runtime.figures import Histogram
from fs.schema import metrics
from fs.schema.status import FsError


async def fetched(address):
    return await trio.to_thread.run_sync(fetch, address.removeprefix("tcp:"))


def samples(text):
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_reading_is_taken_on_the_event_loop_and_told_in_the_form_of_prometheus():
    histogram = Histogram()
    for duration in (0.0001, 0.0002, 0.3, 100.0):
        histogram.note(duration)

    def say(figures):
        assert trio.lowlevel.in_trio_run()
        figures.note(metrics.KV_COMMITS, 7, "meta")
        figures.note(metrics.IS_PRIMARY, True)
        figures.note_histogram(metrics.CLIENT_DURATION, histogram, "Core.Echo")

    async with trio.open_nursery() as nursery:
        address = await nursery.start(Exposition("tcp:127.0.0.1:0", [say]).run)
        found = samples(await fetched(address))
        histogram.note(0.3)
        again = samples(await fetched(address))
        nursery.cancel_scope.cancel()
    name = "ember_rpc_client_call_duration_seconds"
    assert found["ember_kv_transactions_total", "meta"] == 7
    assert found["ember_mgmtd_is_primary",] == 1
    assert found[f"{name}_bucket", "0.0001", "Core.Echo"] == 1
    assert found[f"{name}_bucket", "0.25", "Core.Echo"] == 2
    assert found[f"{name}_bucket", "0.5", "Core.Echo"] == 3
    assert found[f"{name}_bucket", "+Inf", "Core.Echo"] == found[f"{name}_count", "Core.Echo"] == 4
    assert found[f"{name}_sum", "Core.Echo"] == pytest.approx(100.3003)
    assert again[f"{name}_count", "Core.Echo"] == 5
    assert found["ember_process_event_loop_wait_seconds",] >= 0
    assert found["process_resident_memory_bytes",] > 0
    assert found["ember_process_python_blocks",] > 10_000


async def test_who_connects_and_says_nothing_holds_up_neither_the_process_nor_its_end():
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            address = await nursery.start(Exposition("tcp:127.0.0.1:0", []).run)
            place = split_address(address)
            silent = [await trio.open_tcp_stream(*place) for _ in range(CLIENTS_MAX - 1)]
            assert "process_cpu_seconds_total" in await fetched(address)
            nursery.cancel_scope.cancel()
    for stream in silent:
        await trio.aclose_forcefully(stream)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(place)


async def test_whoever_opens_many_connections_does_not_use_up_the_descriptors(monkeypatch):
    monkeypatch.setattr("fs.app.process.exposition.CLIENT_TIMEOUT_S", 600.0)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            address = await nursery.start(Exposition("tcp:127.0.0.1:0", []).run)
            place = split_address(address)
            count = CLIENTS_MAX + WAITING_MAX + 3
            streams = [await trio.open_tcp_stream(*place) for _ in range(count)]
            for stream in streams[-3:]:
                assert await stream.receive_some() == b""
            nursery.cancel_scope.cancel()
    for stream in streams:
        await trio.aclose_forcefully(stream)


async def test_who_never_comes_to_an_end_is_given_up(monkeypatch):
    monkeypatch.setattr("fs.app.process.exposition.CLIENT_TIMEOUT_S", 600.0)
    monkeypatch.setattr("fs.app.process.exposition.CLIENT_TIME_S_MAX", 0.1)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            address = await nursery.start(Exposition("tcp:127.0.0.1:0", []).run)
            async with await trio.open_tcp_stream(*split_address(address)) as stream:
                await stream.send_all(b"GET / HTTP/1.0\r\nX-Drop: ")
                assert await stream.receive_some() == b""
            nursery.cancel_scope.cancel()


async def test_an_address_in_use_is_said_at_the_start():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp:127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(FsError, match=r"process\.metrics_address") as caught:
            await Exposition(address, []).run()
    assert caught.value.status.name == "START_FAILED"


@pytest.mark.parametrize("address", ["tcp:0.0.0.0:9711", "tcp:10.0.0.1:9711", "tcp:[::]:9711"])
def test_metrics_leave_this_machine_only_when_asked_to(address):
    text = f'[process]\nmetrics_address = "{address}"\n'
    with pytest.raises(FsError, match="is_open_metrics_allowed"):
        parse_config(text, Path("x.toml"))
    parse_config(text + "is_open_metrics_allowed = true\n", Path("x.toml"))


def test_the_list_for_prometheus():
    assert targets_of({"control": "127.0.0.1:1"}) == [
        {"targets": ["127.0.0.1:1"], "labels": {"process": "control"}}
    ]


async def test_documents_are_taken_on_the_event_loop_and_made_elsewhere():
    def take():
        assert trio.lowlevel.in_trio_run()

        def make():
            assert not trio.lowlevel.in_trio_run()
            return [("Content-Type", "text/plain")], b"made"

        return make

    def get(path):
        with urllib.request.urlopen(f"http://{address.removeprefix('tcp:')}{path}") as reply:
            return reply.read()

    async with trio.open_nursery() as nursery:
        exposition = Exposition("tcp:127.0.0.1:0", [], {"/known": take})
        address = await nursery.start(exposition.run)
        assert await trio.to_thread.run_sync(get, "/known") == b"made"
        assert b"process_" in await trio.to_thread.run_sync(get, "/metrics")
        nursery.cancel_scope.cancel()


async def test_a_document_that_is_refused_is_told_why_and_metrics_are_shown():
    def get(path):
        url = f"http://{address.removeprefix('tcp:')}{path}"
        request = urllib.request.Request(url, headers={"Host": "evil.example"})
        try:
            with urllib.request.urlopen(request) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def refusal(asked):
        assert (asked.peer, asked.own, asked.host) == ("127.0.0.1", "127.0.0.1", "evil.example")
        return "not you"

    async with trio.open_nursery() as nursery:
        exposition = Exposition("tcp:127.0.0.1:0", [], {"/known": lambda: list}, refusal)
        address = await nursery.start(exposition.run)
        assert await trio.to_thread.run_sync(get, "/known") == (403, b"not you\n")
        status, shown = await trio.to_thread.run_sync(get, "/metrics")
        assert status == 200 and b"process_" in shown
        nursery.cancel_scope.cancel()
