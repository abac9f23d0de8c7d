"""The port of `metrics:`: its HTTP with clients of all kinds, what Prometheus makes of its text,
and the page in a real browser.
"""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest
from requesting import Bench, Operator, Trainer

from lib import BIN, REPO, Client, Daemon, Refused, datasets, free_port, has, run, status, wait_for
from lib.browser import Browser
from lib.cat import Cat

WINDOW, BATCHES, MICRO = 65, 1000, 4
ODD = "<b>bold & 'odd'"  # a run's name


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
    """A client of a daemon that serves `metrics:`."""

    def __init__(self):
        self.port = free_port()
        self.key = {"metrics": f"127.0.0.1:{self.port}"}

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def exchange(self, *pieces):
        """Sends @pieces one by one. Returns all bytes until the server closes."""
        with self.connect() as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in pieces:
                client.sendall(piece)
                time.sleep(0.001)
            client.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: client.recv(65536), b""))

    def ask(self, path, method="GET"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, path, b"x" * 100 if method in ("POST", "PUT") else None)
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply, text

    def status(self):
        return json.loads(self.ask("/status.json")[1])

    def value(self, name, **labels):
        """The value of a series, or None."""
        return values(self.ask("/metrics")[1]).get((name, frozenset(labels.items())))


@pytest.fixture(scope="module")
def web(shared):
    web = Web()
    web.place, web.shard = shared, shared.shard("web/a.bin", 300_000)
    shared.shard("code/a.bin", 300_000)
    mix = datasets("web", weight=3) + datasets('co"de', path="code", weight=1)
    stream = {"seed": 3, "seq_len": WINDOW - 1, "datasets": mix}
    web.config = shared.config(streams={"train": stream}, **web.key)
    web.daemon = Daemon(shared, web.config)
    yield web
    assert web.daemon.stop() == 0


# ---- HTTP ----

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
HIDDEN = (
    b"POST /healthz HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
)
REQUESTS = {
    "three at once": ([GET * 3], [200] * 3),
    "byte by byte": ([bytes([b]) for b in GET], [200]),
    "close": ([GET.replace(b"Host: x", b"Connection: close") + GET], [200]),
    "HTTP/2 at once": ([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], [400]),
    "a body": ([CHUNKED + GET], [405, 200]),
    "a body of two lengths": ([HIDDEN], [400]),
    "a long path": ([b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\n\r\n"], [404]),
    "an endless header": ([b"GET / HTTP/1.1\r\nA: "] + [b"b" * 4000] * 5, [431]),
    "NUL": ([b"GET /heal\0thz HTTP/1.1\r\n\r\n"], [400]),
}


@pytest.mark.asan
@pytest.mark.parametrize("pieces, statuses", REQUESTS.values(), ids=REQUESTS.keys())
def test_requests(web, pieces, statuses):
    reply = web.exchange(*pieces)
    assert [int(n) for n in re.findall(rb"HTTP/1\.1 (\d{3}) \w", reply)] == statuses, reply
    for head in reply.split(b"HTTP/1.1 ")[1:]:
        headers, _, body = head.partition(b"\r\n\r\n")
        assert int(re.search(rb"Content-Length: (\d+)", headers)[1]) == len(body)


@pytest.mark.asan
@pytest.mark.parametrize(
    "method, path, status, kind",
    [
        ("GET", "/metrics", 200, "plain"),
        ("POST", "/metrics", 405, "plain"),
        ("GET", "/healthz", 200, "plain"),
        ("HEAD", "/readyz", 200, "plain"),
        ("GET", "/../etc/passwd", 404, "plain"),
        ("GET", "/", 200, "html"),
        ("HEAD", "/page.css", 200, "css"),
    ],
)
def test_paths_and_methods(web, method, path, status, kind):
    reply, text = web.ask(path, method)
    assert reply.status == status and kind in reply.headers["Content-Type"], text
    assert (text == "") == (method == "HEAD") and int(reply.headers["Content-Length"]) > 0
    assert reply.headers["Allow"] == ("GET, HEAD" if status == 405 else None)
    assert status != 404 or "/metrics" in text, "the answer lists what is served"
    if kind != "plain":
        assert "default-src 'none'" in reply.headers["Content-Security-Policy"]


@pytest.mark.asan
def test_slow_and_rude_clients(web):
    """Clients that send nothing, that read nothing, and that reset the connection."""
    idle = [web.connect() for _ in range(40)]
    for _ in range(8):
        idle.append(web.connect())
        idle[-1].sendall(b"GET /metrics HTTP/1.1\r\n\r\n" * 500)
        rude = web.connect()
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        rude.sendall(GET * 100)
        rude.close()
    for _ in range(20):
        assert web.exchange(GET).startswith(b"HTTP/1.1 200 OK\r\n")
    assert idle[0].recv(1) == b"", "the oldest were closed for them"
    for one in idle:
        one.close()


def test_two_daemons_do_not_share_a_port(web, place):
    """Prometheus would read now one of them, now the other."""
    place.shard("web/a.bin", 30_000)
    streams = {"train": {"seed": 3, "seq_len": 64, "datasets": datasets("web")}}
    code, _, err = run(f"{BIN}/tokend", "-c", place.config(streams=streams, **web.key))
    assert code == 1 and has(err, "cannot listen at", "Address already in use"), err


# ---- metrics ----


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
    time.sleep(0.4)
    web.daemon.process.send_signal(signal.SIGCONT)
    assert cat.end()[0] == 0
    took = time.monotonic() - begin
    after = values(web.ask("/metrics")[1])

    def grown(name, **labels):
        key = name, frozenset({"stream": "train", **labels}.items())
        return after[key] - before[key]

    of_web = grown("tokend_dataset_samples_total", dataset="web")
    samples = of_web + grown("tokend_dataset_samples_total", dataset=r"co\"de")
    waits = "tokend_trainer_wait_seconds"
    assert 0.1 < grown(f"{waits}_sum") <= took
    assert grown(f"{waits}_count") - grown(f"{waits}_bucket", le="0.1") == 1, "the long one"
    assert BATCHES * MICRO <= samples <= (BATCHES + 4) * MICRO and 0.7 < of_web / samples < 0.8
    assert grown("tokend_read_seconds_count") == samples
    assert grown("tokend_read_bytes_total") == samples * WINDOW * 2
    assert grown("tokend_stream_released_batches_total") == BATCHES, "also after the session"
    assert grown("tokend_stream_attaches_total", kind="first") == 1


def test_snapshots_and_requests_are_counted(web):
    client = Client(web.daemon.socket).attach(run="a")
    client.ask(op="checkpoint", tag="one", cursor=client.feed["cursor"])
    with pytest.raises(Refused):
        client.ask(op="checkpoint", tag="../two", cursor=client.feed["cursor"])
    for outcome in ("made", "failed"):
        assert web.value("tokend_snapshots_total", stream="train", outcome=outcome) == 1
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


def promtool(*arguments, **keys):
    code, out, err = run("promtool", *arguments, **keys)
    assert code == 0, (out, err)


def test_alerts_fire_when_they_should(web):
    rules = Path(web.place.file("rules.yaml"))
    source = (REPO / "tests/system/alerts.yaml").read_text()
    rules.write_text(source.replace("[alerts]", f"[{REPO / 'config/alerts.yaml'}]"))
    promtool("test", "rules", rules)


def test_the_dashboard_queries_what_is_served(web):
    panels = json.loads((REPO / "config/dashboard.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    queries = [query.replace("$__rate_interval", "30s") for query in queries]
    assert len(queries) > 20
    rules = [{"record": f"q{i}", "expr": query} for i, query in enumerate(queries)]
    path = Path(web.place.file("queries.yaml"))
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", path)
    client = Client(web.daemon.socket).attach(run="d")
    served = values(web.ask("/metrics")[1])
    for query in queries:
        for name, selector in re.findall(r"\b((?:tokend|process)_\w+)(?:{(.*?)})?", query):
            labels = set(re.findall(r"(\w+)=", selector)) - {"instance", "job"}
            found = [{label for label, _ in pairs} for n, pairs in served if n == name]
            assert any(labels <= of_series for of_series in found), query
    client.close()


def test_returns_and_read_errors_are_counted(web):
    """The last test of this daemon: its stream stops."""
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
    kinds = ("io", "data", "changed", "token", "memory", "descriptors")
    errors = [web.value("tokend_read_errors_total", stream="train", kind=kind) for kind in kinds]
    assert errors[1] + errors[2] > 0 and sum(errors) < 100, errors
    client.close()
    _, text = web.ask("/metrics")
    promtool("check", "metrics", input=text.encode())
    assert "tokend_session_" not in text, "sessions have no series unless metrics_sessions is set"
    found = {name for name, _ in values(text)}
    assert {"process_resident_memory_bytes", "process_open_fds", "process_max_fds"} <= found


# ---- the page ----


@pytest.fixture
def bench(place):
    web, config = Web(), place.config
    place.config = lambda **keys: config(**keys, **web.key)
    bench = Bench(place)
    bench.web = web
    yield bench
    assert bench.daemon.stop() == 0


def test_status_is_that_of_tokctl_without_places(bench):
    trainer = Trainer(bench, run=ODD)
    trainer.step(3)

    def agree():
        """Not while the ring is being filled."""
        (ours,), ((theirs,), _) = bench.web.status()["sessions"], status(bench.daemon.socket)
        same = [ours[name] == theirs[name] for name in set(ours) - {"seq_len", "full_ms"}]
        return all(same) and len(same) > 12

    assert wait_for(agree)
    said = bench.web.status()
    text, published = json.dumps(said), said["sessions"][0]["published"]
    for word in (bench.place.path, str(trainer.process.pid), os.uname().nodename, "socket"):
        assert word not in text
    assert sum(d["samples"] for d in said["streams"][0]["datasets"]) == 64 * published
    assert said["runs"][0]["mixes"] == [{"from": 0, "mix": {"web": 0.5, "code": 0.5}}]
    trainer.close()
    config = open(bench.config).read()
    with open(bench.config, "w") as file:
        file.write("streams: [")
    os.kill(bench.daemon.pid, signal.SIGHUP)
    assert wait_for(lambda: bench.web.status()["faults"])
    with open(bench.config, "w") as file:
        file.write(config)
    (fault,) = bench.web.status()["faults"]
    assert (fault["level"], fault["text"].startswith("tokend.yaml:")) == ("error", True), fault
    assert bench.daemon.said(f"{bench.config}:"), "the log has the whole path"


@pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium")
def test_browser_shows_what_happens(bench):
    job, odd = Trainer(bench), Trainer(bench, run=ODD)
    with Browser(bench.place, f"http://127.0.0.1:{bench.web.port}/") as page:
        inner = lambda table: f"document.querySelector('#{table} tbody').innerText"
        page.shows("document.querySelectorAll('#sessions tbody tr').length == 2")
        rows = page.rows("sessions")
        assert rows[0][:3] == ["train", "job", "0 of 1"]
        assert rows[1][1] == ODD and page.value("document.querySelector('b') === null")
        assert ["train", "job", "web 50 %, code 50 %", ""] in page.rows("runs")
        assert page.rows("faults") == [] and page.value("!document.getElementById('none').hidden")

        def moves():
            job.step(1)
            row = page.rows("sessions")[0]
            return row[4] != "0" and int(row[3]) > 0

        assert wait_for(moves), "rates"
        operator = Operator(bench, "mix", "train", "web=1", "code=3", "--run", "job")
        job.carry_out()
        assert operator.result()[0] == 0
        page.shows(f"{inner('runs')}.includes('web 25 %, code 75 %')")
        os.truncate(bench.place.file("web/a.bin"), 1000)
        wait_for(lambda: odd.step(1) is None or bench.web.status()["faults"])
        page.shows(f"{inner('faults')}.includes('a.bin')")
        assert bench.place.path not in page.value("document.documentElement.innerHTML")
        assert page.said == [], "no errors, and nothing that the policy forbids"

        bench.daemon.kill()
        page.shows("document.getElementById('state').textContent.startsWith('no answer for')")
        bench.place.shard("web/a.bin", 400_000)
        bench.daemon.start()
        page.shows("/, up \\d+ s, 0 sessions/.test(document.getElementById('state').textContent)")
    for trainer in (job, odd):
        trainer.process.kill()
