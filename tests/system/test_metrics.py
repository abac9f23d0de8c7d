"""The port of `metrics:`: its paths and methods, and what Prometheus makes of its text."""

import http.client
import json
import os
import re
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from lib import REPO, Client, Daemon, Refused, datasets, free_port, wait_for
from lib.cat import Cat

WINDOW, BATCHES, MICRO = 65, 1000, 4


def values(text):
    """{(name, labels): value} of a page; the labels are a frozenset of pairs."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = re.fullmatch(r"(\w+)(?:{(.*)})? (\S+)", line).groups()
            pairs = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or "")
            found[name, frozenset(pairs)] = float(value)
    return found


class Web:
    """A daemon that serves `metrics:`."""

    def __init__(self, place):
        self.port = free_port()
        self.place = place
        self.shard = place.shard("web/a.bin", 300_000)
        place.shard("code/a.bin", 300_000)
        mix = datasets("web", weight=3) + datasets('co"de', path="code", weight=1)
        stream = {"seed": 3, "seq_len": WINDOW - 1, "datasets": mix}
        self.config = place.config(streams={"train": stream}, metrics=f"127.0.0.1:{self.port}")
        self.daemon = Daemon(place, self.config)

    def ask(self, path, method="GET", body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, path, body)
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply, text

    def value(self, name, **labels):
        """The value of a series, or None."""
        return values(self.ask("/metrics")[1]).get((name, frozenset(labels.items())))


@pytest.fixture(scope="module")
def web(shared):
    web = Web(shared)
    yield web
    assert web.daemon.stop() == 0, "the daemon ends with 0"


@pytest.mark.asan
@pytest.mark.parametrize(
    "method, path, status",
    [
        ("GET", "/metrics", 200),
        ("HEAD", "/metrics", 200),
        ("GET", "/metrics?name=up", 200),
        ("POST", "/metrics", 405),
        ("DELETE", "/healthz", 405),
        ("GET", "/healthz", 200),
        ("HEAD", "/readyz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/metrics/", 404),
        ("GET", "/../etc/passwd", 404),
        ("GET", "/" + "a" * 5000, 404),
        ("PUT", "/nowhere", 404),
    ],
)
def test_paths_and_methods(web, method, path, status):
    reply, text = web.ask(path, method, b"x" * 100 if method in ("POST", "PUT") else None)
    assert reply.status == status, text
    assert (text == "") == (method == "HEAD") and int(reply.headers["Content-Length"]) > 0
    assert reply.headers["Content-Type"].startswith("text/plain; ")
    assert reply.headers["Allow"] == ("GET, HEAD" if status == 405 else None)
    if status == 404:
        assert "/metrics" in text, "the answer lists what is served"


def test_waits_reads_and_samples_are_counted(web):
    """The daemon is stopped for a moment, so that the trainer waits for it."""
    before = values(web.ask("/metrics")[1])
    cat = Cat(web.place, web.daemon, 0, BATCHES, world=1, micro=MICRO)
    assert cat.reads()
    assert web.value("tokend_stream_sessions", stream="train") == 1
    assert wait_for(lambda: web.value("tokend_stream_least_ready_batches", stream="train") >= 2)
    web.daemon.process.send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    cat.drain()
    while time.monotonic() - begin < 0.4:
        time.sleep(0.01)
    web.daemon.process.send_signal(signal.SIGCONT)
    assert cat.end()[0] == 0
    took = time.monotonic() - begin
    after = values(web.ask("/metrics")[1])

    def grown(name, **labels):
        key = name, frozenset({"stream": "train", **labels}.items())
        return after[key] - before[key]

    samples = grown("tokend_dataset_samples_total", dataset="web") + grown(
        "tokend_dataset_samples_total", dataset=r"co\"de"
    )
    print(f"{grown('tokend_trainer_wait_seconds_count'):.0f} waits in {took:.2f} s")
    assert 0.1 < grown("tokend_trainer_wait_seconds_sum") <= took
    longer = grown("tokend_trainer_wait_seconds_count") - grown(
        "tokend_trainer_wait_seconds_bucket", le="0.1"
    )
    assert longer == 1, "the histogram shows the long one"
    assert BATCHES * MICRO <= samples <= (BATCHES + 4) * MICRO
    assert 0.7 < grown("tokend_dataset_samples_total", dataset="web") / samples < 0.8
    assert grown("tokend_read_seconds_count") == samples
    assert grown("tokend_read_bytes_total") == samples * WINDOW * 2
    assert grown("tokend_stream_released_batches_total") == BATCHES, "also after the session"
    assert grown("tokend_stream_attaches_total", kind="first") == 1


def test_snapshots_requests_and_returns_are_counted(web):
    client = Client(web.daemon.socket).attach(run="a")
    client.ask(op="checkpoint", tag="one", cursor=client.feed["cursor"])
    with pytest.raises(Refused):
        client.ask(op="checkpoint", tag="../two", cursor=client.feed["cursor"])
    assert web.value("tokend_snapshots_total", stream="train", outcome="made") == 1
    assert web.value("tokend_snapshots_total", stream="train", outcome="failed") == 1
    made = web.value("tokend_snapshot_time_seconds", stream="train", outcome="made")
    assert abs(time.time() - made) < 60
    with pytest.raises(Refused):
        client.ask(op="request", stream="train", run="nowhere", kind="mix", args="")
    assert web.value("tokend_requests_total", kind="mix", outcome="refused") == 1
    operator = Client(web.daemon.socket)
    operator.ask(op="request", stream="train", run="a", kind="skip", args="count 1")
    operator.close()
    assert wait_for(lambda: web.value("tokend_requests_total", kind="skip", outcome="taken_back"))
    client.close()


def test_a_client_cannot_report_longer_waits_than_it_was_attached(web):
    key = "tokend_trainer_wait_seconds_sum"
    before, begin = web.value(key, stream="train"), time.monotonic()
    client = Client(web.daemon.socket).attach(run="b")
    for since in (1, 1 << 63, (1 << 64) - 1, 5):
        client.data_words[client.control_at // 8 + 9] = since
        client.data_words[client.control_at // 8 + 8] = client.published() + 1
        client.batch = client.published()
        client.set_released(client.batch)
        client.s.send(b"\0")
        client.wait()
    client.close()
    assert web.value(key, stream="train") - before <= time.monotonic() - begin


PROMETHEUS = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs: [{{job_name: tokend, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]
"""


class Prometheus:
    """A real one, which scrapes the daemon each second."""

    def __init__(self, web):
        self.port = free_port()
        config = Path(web.place.file("prometheus.yml"))
        config.write_text(PROMETHEUS.format(rules=REPO / "config/alerts.yaml", port=web.port))
        log = open(web.place.file("prometheus.log"), "wb")
        self.process = web.place.spawn(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={web.place.path}/prometheus",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=log,
            stderr=log,
        )

    def ask(self, what, **arguments):
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?" + urllib.parse.urlencode(arguments)
        try:
            return json.load(urllib.request.urlopen(url, timeout=10))["data"]
        except urllib.error.HTTPError as error:
            assert error.code == 503, error.read().decode()
            return None  # it is not ready
        except OSError:
            return None  # it does not listen yet

    def numbers(self, query):
        """The values of a query that are numbers."""
        found = (self.ask("query", query=query) or {}).get("result", [])
        return [float(r["value"][1]) for r in found if r["value"][1] != "NaN"]


def dashboard():
    """Title and query of each graph, as Grafana sends it with all streams and nodes."""
    for panel in json.loads((REPO / "config/dashboard.json").read_text())["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"].replace("$__rate_interval", "30s")
            yield panel["title"], re.sub(r"\$(stream|instance)", ".*", query)


def test_each_graph_of_the_dashboard_has_data(web):
    begin = time.monotonic()
    prometheus = Prometheus(web)
    client = Client(web.daemon.socket).attach(run="d")
    client.ask(op="checkpoint", tag="d", cursor=client.feed["cursor"])
    cat = Cat(web.place, web.daemon, 0, 10_000_000, world=1, micro=MICRO)
    queries = list(dashboard())
    assert len(queries) > 20

    def has_data(query):
        for _ in range(50):
            os.read(cat.process.stdout.fileno(), 1 << 16)
        return prometheus.numbers(query)

    for title, query in queries:
        assert wait_for(lambda query=query: has_data(query)), f"{title}: {query}"
    (group,) = prometheus.ask("rules")["groups"]
    assert all(rule["health"] == "ok" for rule in group["rules"]) and len(group["rules"]) > 5
    print(f"{len(queries)} queries with data after {time.monotonic() - begin:.1f} s")
    for process in (cat.process, prometheus.process):
        process.kill()
        process.wait()
    client.close()


def test_alerts_fire_when_they_should(web):
    rules = Path(web.place.file("rules.yaml"))
    source = (REPO / "tests/system/alerts.yaml").read_text()
    rules.write_text(source.replace("[alerts]", f"[{REPO / 'config/alerts.yaml'}]"))
    tested = subprocess.run(["promtool", "test", "rules", rules], capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_a_read_error_has_a_kind(web):
    """The last test of this daemon: its stream stops. A later one shows what returned to it."""
    cat = Cat(web.place, web.daemon, 0, BATCHES, world=1, micro=MICRO)
    assert cat.reads()
    web.daemon.kill()
    web.daemon.start()
    cat.drain()
    assert wait_for(lambda: web.value("tokend_stream_attaches_total", stream="train", kind="again"))
    client = Client(web.daemon.socket).attach(run="c")
    os.truncate(web.shard, 1000)
    with pytest.raises(Refused):
        for _ in range(10_000):
            client.next()
    kinds = {
        kind: web.value("tokend_read_errors_total", stream="train", kind=kind)
        for kind in ("io", "data", "changed", "token", "memory", "descriptors")
    }
    assert kinds["changed"] + kinds["data"] > 0 and sum(kinds.values()) < 100, kinds
    client.close()


def test_promtool_accepts_the_page(web):
    _, text = web.ask("/metrics")
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, text=True, capture_output=True
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    assert "tokend_session_" not in text, "sessions have no series unless metrics_sessions is set"
    found = {name for name, _ in values(text)}
    assert {"process_resident_memory_bytes", "process_open_fds", "process_max_fds"} <= found
    started = values(text)["process_start_time_seconds", frozenset()]
    assert abs(started - time.time()) < 600
