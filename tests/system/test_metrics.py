"""A daemon's metrics, the alerts and the dashboard, as Prometheus reads them."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from lib import PACKET_BYTES, REPO, Client, Daemon, Refused, datasets, run, status, wait_for
from lib.cat import Cat
from lib.web import metric, metrics, values

WINDOW, BATCHES, MICRO = 65, 1000, 4


class Scene:
    """A daemon, and its metrics."""

    def __init__(self, place):
        self.place, self.shard = place, place.shard("web/a.bin", 300_000)
        place.shard("code/a.bin", 300_000)
        mix = datasets("web", weight=3) + datasets('co"de', path="code", weight=1)
        stream = {"seed": 3, "seq_len": WINDOW - 1, "datasets": mix}
        self.daemon = Daemon(place, place.config(streams={"train": stream}))

    def metrics(self):
        return metrics(self.daemon.socket)

    def value(self, name, **labels):
        return metric(self.daemon.socket, name, **labels)


@pytest.fixture(scope="module")
def scene(shared):
    return Scene(shared)


def test_waits_reads_and_samples_are_counted(scene):
    """The daemon is stopped for a moment, so that the trainer waits for it."""
    before, begin = values(scene.metrics()), time.monotonic()
    cat = Cat(scene.place, scene.daemon, 0, BATCHES, world=1, micro=MICRO)
    assert cat.reads()
    assert scene.value("tokend_stream_sessions", stream="train") == 1
    assert wait_for(lambda: scene.value("tokend_stream_least_ready_batches", stream="train") >= 2)
    scene.daemon.process.send_signal(signal.SIGSTOP)
    cat.drain()
    sleeps = Path(f"/proc/{cat.process.pid}/wchan")
    assert wait_for(lambda: "poll" in sleeps.read_text()), "it waits for a batch"
    time.sleep(0.4)
    scene.daemon.process.send_signal(signal.SIGCONT)
    assert cat.end()[0] == 0
    took = time.monotonic() - begin
    after = values(scene.metrics())

    def grown(name, **labels):
        key = name, frozenset({"stream": "train", **labels}.items())
        return after[key] - before[key]

    of_web = grown("tokend_dataset_samples_total", dataset="web")
    samples = of_web + grown("tokend_dataset_samples_total", dataset=r"co\"de")
    waits = "tokend_trainer_wait_seconds"
    assert 0.1 < grown(f"{waits}_sum") <= took
    assert grown(f"{waits}_count") - grown(f"{waits}_bucket", le="0.1") >= 1, "the long one"
    assert BATCHES * MICRO <= samples <= (BATCHES + 4) * MICRO and 0.7 < of_web / samples < 0.8
    assert grown("tokend_read_seconds_count") == samples
    assert grown("tokend_read_bytes_total") == samples * WINDOW * 2
    assert grown("tokend_stream_released_batches_total") == BATCHES, "also after the session"
    assert grown("tokend_stream_attaches_total", kind="first") == 1


def test_snapshots_and_requests_are_counted(scene):
    client = Client(scene.daemon.socket).attach(run="a")
    client.ask(op="checkpoint", tag="one", cursor=client.feed["cursor"])
    with pytest.raises(Refused):
        client.ask(op="checkpoint", tag="../two", cursor=client.feed["cursor"])
    for outcome in ("made", "failed"):
        assert scene.value("tokend_snapshots_total", stream="train", outcome=outcome) == 1
    made = scene.value("tokend_snapshot_time_seconds", stream="train", outcome="made")
    assert abs(time.time() - made) < 60
    with pytest.raises(Refused):
        client.ask(op="request", stream="train", run="nowhere", kind="mix", args="")
    assert scene.value("tokend_requests_total", kind="mix", outcome="refused") == 1
    operator = Client(scene.daemon.socket)
    operator.ask(op="request", stream="train", run="a", kind="skip", args="count 1")
    operator.close()
    assert wait_for(lambda: scene.value("tokend_requests_total", kind="skip", outcome="cancelled"))
    client.close()


def promtool(*arguments, **keys):
    code, out, err = run("promtool", *arguments, **keys)
    assert code == 0, (out, err)


def test_alerts_fire_when_they_should(scene):
    rules = Path(scene.place.file("rules.yaml"))
    source = (REPO / "tests/system/alerts.yaml").read_text()
    rules.write_text(source.replace("[alerts]", f"[{REPO / 'config/alerts.yaml'}]"))
    promtool("test", "rules", rules)


def test_the_dashboard_queries_what_is_served(scene):
    panels = json.loads((REPO / "config/dashboard.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    queries = [query.replace("$__rate_interval", "30s") for query in queries]
    assert len(queries) > 20
    rules = [{"record": f"q{i}", "expr": query} for i, query in enumerate(queries)]
    path = Path(scene.place.file("queries.yaml"))
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", path)
    client = Client(scene.daemon.socket).attach(run="d")
    served = values(scene.metrics())
    for query in queries:
        for name, selector in re.findall(r"\b((?:tokend|process)_\w+)(?:{(.*?)})?", query):
            labels = set(re.findall(r"(\w+)=", selector)) - {"instance", "job"}
            found = [{label for label, _ in pairs} for n, pairs in served if n == name]
            assert any(labels <= of_series for of_series in found), query
    client.close()


def test_returns_and_read_errors_are_counted(scene):
    """The last test of this daemon: its stream stops."""
    cat = Cat(scene.place, scene.daemon, 0, BATCHES, world=1, micro=MICRO)
    assert cat.reads()
    scene.daemon.kill()
    scene.daemon.start()
    cat.drain()
    assert wait_for(
        lambda: scene.value("tokend_stream_attaches_total", stream="train", kind="again")
    )
    client = Client(scene.daemon.socket).attach(run="c")
    os.truncate(scene.shard, 1000)
    with pytest.raises(Refused):
        for _ in range(10_000):
            client.next()
    kinds = ("io", "data", "changed", "token", "memory", "descriptors")
    errors = [scene.value("tokend_read_errors_total", stream="train", kind=kind) for kind in kinds]
    assert errors[1] + errors[2] > 0 and sum(errors) < 100, errors
    client.close()
    text = scene.metrics()
    promtool("check", "metrics", input=text.encode())
    assert "tokend_session_" not in text, "sessions have no series unless --sessions is given"
    found = {name for name, _ in values(text)}
    assert {"process_resident_memory_bytes", "process_open_fds", "process_max_fds"} <= found


def test_a_long_status_comes_in_pages(place):
    """None of its sessions and datasets is lost between two packets."""
    place.shard("web/a.bin", 30_000)
    names = [f"dataset-{n:03}-{'x' * (n % 30)}" for n in range(1000)]
    sets = [{"name": name, "path": "web"} for name in names]
    streams = {f"s{n}": {"seed": 1, "seq_len": 64, "datasets": sets} for n in range(3)}
    daemon = Daemon(place, place.config(streams=streams))
    clients = [Client(daemon.socket).attach(stream="s1", run=f"r{n}", slots=2) for n in range(40)]
    sessions, total = status(daemon.socket)
    assert [s["run"] for s in sessions] == [f"r{n}" for n in range(40)]
    listed = [[d["dataset"] for d in s["datasets"]] for s in total["streams"]]
    assert listed == [names] * 3
    told = clients[0].ask(op="status", after=0)
    assert told["after"] > 1000 and len(told["args"]) <= PACKET_BYTES
    pages = [clients[0].ask(op="status", after=n)["args"] for n in range(1000, 1060)]
    assert max(map(len, pages)) == PACKET_BYTES - 2048, "one is full to its last byte"
    for client in clients:
        client.close()
