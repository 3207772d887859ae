"""A real Prometheus reads a process that shows every metric,
and answers every question of dashboard and alerts.
"""

import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest
import trio

from fs.app.process.exposition import Exposition
from fs.runtime.figures import Histogram
from fs.schema.metric import Kind
from fs.schema.metrics import METRICS, PROCESS_BLOCKS, PROCESS_LOOP_WAIT
from tests.programs import found

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
PROMETHEUS = found("prometheus")
WAIT_S = 90.0
INTERVAL_S = 1

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROMETHEUS is None, reason="needs Prometheus"),
]

LABELS = {"method": "Meta.Open", "target": "11001", "chain": "1", "table": "1", "state": "complete"}


class Everything:
    """Says something of every metric; counters grow from reading to reading."""

    def __init__(self):
        self.reading_count = 0
        self.histogram = Histogram()

    def say(self, figures):
        self.reading_count += 1
        self.histogram.note(0.1)
        for metric in METRICS:
            labels = [LABELS.get(label, label) for label in metric.labels]
            if metric.kind is Kind.HISTOGRAM:
                figures.note_histogram(metric, self.histogram, *labels)
            elif metric not in {PROCESS_LOOP_WAIT, PROCESS_BLOCKS}:  # said by the exposition
                figures.note(metric, self.reading_count, *labels)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def ask(port, path, **query):
    url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(url, timeout=30) as reply:
            return json.loads(reply.read())["data"]
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # it is only starting
            raise
        raise AssertionError((query, error.read())) from error


def answered(port, **query):
    """Wait for an answer that is not empty: rates need several readings."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            if result := ask(port, "query", **query)["result"]:
                return result
        except urllib.error.URLError:
            pass  # it is only starting
        assert time.monotonic() < deadline_s, query
        time.sleep(0.2)


def question_all(port):
    panels = json.loads((DEPLOY / "grafana" / "emberfs.json").read_text())["panels"]
    questions = [t["expr"] for panel in panels for t in panel.get("targets", ())]
    assert len(questions) > 30
    answered(port, query="rate(ember_kv_transactions_total[1m]) > 0")
    for question in questions:
        assert answered(port, query=question)
    shown = set(ask(port, "label/__name__/values"))
    for metric in METRICS:
        assert metric.name in shown or f"{metric.name}_bucket" in shown, metric.name
    rules = [rule for group in ask(port, "rules")["groups"] for rule in group["rules"]]
    assert len(rules) == (DEPLOY / "prometheus" / "alerts.yml").read_text().count("- alert:")
    for rule in rules:
        answered(
            port, query=f"count(({re.sub('[<>=]=? *[0-9.]+$', '', rule['query'])}) or vector(1))"
        )
        assert not rule.get("lastError"), rule


@contextmanager
def prometheus(folder, port):
    command = [
        PROMETHEUS,
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as child,
    ):
        try:
            yield
        finally:
            child.terminate()


async def test_every_question_is_answered(tmp_path):
    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    config = config.replace("15s", f"{INTERVAL_S}s").replace(
        "alerts.yml", str(DEPLOY / "prometheus" / "alerts.yml")
    )
    config = re.sub(r"    static_configs:\n(?:      .*\n)+", "", config)
    (tmp_path / "prometheus.yml").write_text(config)
    port = free_port()
    async with trio.open_nursery() as nursery:
        everything = Everything()
        address = await nursery.start(Exposition("tcp:127.0.0.1:0", [everything.say]).run)
        target = {"targets": [address.removeprefix("tcp:")], "labels": {"process": "all"}}
        (tmp_path / "emberfs-local.json").write_text(json.dumps([target]))
        with prometheus(tmp_path, port):
            await trio.to_thread.run_sync(question_all, port)
        nursery.cancel_scope.cancel()
