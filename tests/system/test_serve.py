"""tokctl serve: HTTP with clients of all kinds, also attackers, and its page in a browser."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import time
import urllib.parse
import urllib.request

import pytest
from requesting import Bench, Operator, Trainer

from lib import REPO, TOKCTL, TOKEND, Client, Daemon, Refused, client_of, datasets
from lib import few_descriptors, free_port, has, run, status, wait_for
from lib.browser import Browser
from lib.web import Web, values

ODD = "<b>bold & 'odd'"  # a run's name
STRANGER, WEB = 61234, 61235


@pytest.fixture(scope="module")
def served(shared):
    """A daemon, and tokctl serve as .web."""
    shared.shard("web/a.bin", 60_000)
    stream = {"seed": 3, "seq_len": 64, "datasets": datasets("web")}
    daemon = Daemon(shared, shared.config(streams={"train": stream}))
    daemon.web = Web(shared, daemon.socket, "--host", "a.example", "--host", "node7.example")
    return daemon


@pytest.fixture
def web(served):
    return served.web


# ---- HTTP ----

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"POST /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
HIDDEN = (
    b"POST /healthz HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
)
REQUESTS = {
    "three at once": ([GET * 3], [200]),
    "byte by byte": ([bytes([b]) for b in GET], [200]),
    "another host after a bare LF": ([b"GET /healthz HTTP/1.1\nHost: evil.example\r\n\r\n"], [421]),
    "another host in a folded line": (
        [b"GET /healthz HTTP/1.1\r\nHost:\r\n evil.example\r\n\r\n"],
        [421],
    ),
    "another host after ours": ([GET[:-2] + b"Host: evil.example\r\n\r\n"], [421]),
    "no host": ([b"GET /healthz HTTP/1.0\r\n\r\n"], [200]),
    "HTTP/2 at once": ([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], [400]),
    "a body": ([CHUNKED + GET], [405]),
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
    headers, _, body = reply.partition(b"\r\n\r\n")
    assert int(re.search(rb"Content-Length: (\d+)", headers)[1]) == len(body)
    assert b"Connection: close" in headers
    assert re.search(rb"\r\nDate: \w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT\r\n", headers)


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


@pytest.mark.parametrize(
    "host, status",
    [
        ("127.0.0.1:9464", 200),
        ("[::1]:9464", 200),
        ("LOCALHOST", 200),
        (socket.gethostname(), 200),
        ("node7.example:80", 200),
        ("a.example", 200),
        ("evil.example:9464", 421),
        ("127.0.0.1.evil.example", 421),
        ("[::1].evil.example", 421),
        ("", 200),
    ],
)
def test_a_page_of_another_host_reads_nothing(served, host, status):
    """A name that is bound to 127.0.0.1 in mid-visit makes a browser ask with that name."""
    client = Client(served.socket).attach(run="secret")
    assert wait_for(lambda: "secret" in served.web.ask("/status.json")[1])
    reply, text = served.web.ask("/status.json", Host=host)
    assert reply.status == status and ("secret" in text) == (status == 200)
    client.close()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_a_flood_of_a_stranger_costs_the_daemon_nothing(served, web):
    """Requests for metrics whose answers nobody reads."""

    def cpu():
        with open(f"/proc/{served.pid}/stat") as file:
            return sum(map(int, file.read().split()[13:15])) / os.sysconf("SC_CLK_TCK")

    before = cpu()
    child = os.fork()
    if child == 0:
        os.setuid(STRANGER)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                with socket.create_connection(("127.0.0.1", web.port)) as peer:
                    peer.settimeout(0.1)
                    peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 64)
                    peer.recv(1 << 20)
        os._exit(0)
    _, _, used = os.wait4(child, 0)
    assert cpu() - before < 0.1 * (used.ru_utime + used.ru_stime)
    assert web.ask("/healthz")[0].status == 200


@pytest.mark.skipif(not shutil.which("prometheus"), reason="no prometheus")
def test_prometheus_scrapes_it(served, web):
    """Its own program, with the job of config/alerts.yaml."""
    place, port = served.place, free_port()
    job = {"job_name": "tokend", "static_configs": [{"targets": [f"127.0.0.1:{web.port}"]}]}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
    with open(place.file("prometheus.yaml"), "w") as file:
        json.dump(config | {"rule_files": [str(REPO / "config/alerts.yaml")]}, file)
    listen = f"--web.listen-address=127.0.0.1:{port}"
    data = f"--storage.tsdb.path={place.file('data')}"
    process = place.spawn(["prometheus", f"--config.file={file.name}", listen, data])

    def value(query):
        with contextlib.suppress(OSError):
            path = f"/api/v1/query?query={urllib.parse.quote(query)}"
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as reply:
                return [row["value"][1] for row in json.load(reply)["data"]["result"]]

    assert wait_for(lambda: value('tokend_up{job="tokend"} and up == 1') == ["1"])
    assert wait_for(lambda: value('tokend_stream_sessions{stream="train"}') == ["0"])
    process.kill()


def test_two_do_not_share_a_port(web, served):
    """Prometheus would read now one of them, now the other."""
    at = ["--socket", served.socket, "--listen"]
    code, _, err = run(TOKCTL, "serve", *at, f"127.0.0.1:{web.port}")
    assert code == 1 and has(err, "cannot listen at", "Address already in use"), err
    for address in ("9464", "127.0.0.1:65536", "::1:9464x", "localhost:80"):
        assert run(TOKCTL, "serve", *at, address)[0] == 1


def test_a_daemon_that_is_away_is_down(place):
    """Its metrics say so, probes fail, and no directory is named."""
    place.shard("web/a.bin", 30_000)
    stream = {"seed": 3, "seq_len": 64, "datasets": datasets("web")}
    daemon = Daemon(place, place.config(streams={"train": stream}))
    web = Web(place, daemon.socket)
    up = lambda: values(web.ask("/metrics")[1])["tokend_up", frozenset()]
    assert up() == 1
    daemon.kill()
    assert wait_for(lambda: up() == 0)
    for path in ("/healthz", "/readyz", "/status.json"):
        reply, text = web.ask(path)
        assert reply.status == 503 and place.path not in text
    daemon.start()
    assert wait_for(lambda: up() == 1) and web.ask("/readyz")[0].status == 200


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount a list of users")
def test_its_user_may_only_ask_for_the_status(place):
    """On connections that others cannot take."""
    passwd, program = place.file("passwd"), place.file("tokend")
    with open(passwd, "w") as users, open("/etc/passwd") as known:
        users.write(known.read() + f"tokend-web:x:{WEB}:{WEB}::/:/bin/false\n")
    with open(program, "w") as script:
        inside = f'mount --bind {passwd} /etc/passwd && exec {TOKEND} "$@"'
        script.write(f"#!/bin/sh\nexec unshare -m sh -c '{inside}' sh \"$@\"\n")
    os.chmod(program, 0o755)
    place.shard("web/a.bin", 30_000)
    stream = {"seed": 3, "seq_len": 64, "datasets": datasets("web")}
    config = place.config(streams={"train": stream}, allow_uids=[STRANGER])
    wrapped = type("Wrapped", (Daemon,), {"program": program})
    daemon = wrapped(place, config, preexec_fn=few_descriptors(400))
    others = []
    with contextlib.suppress(Refused):
        while True:
            others.append(client_of(daemon, STRANGER))
    web = client_of(daemon, WEB)
    reply = web.ask(op="status", after=0)
    assert "path" not in reply and place.path not in reply["args"], reply
    assert '"sessions":0' in reply["args"]
    second = client_of(daemon, WEB)
    with pytest.raises(Refused):
        client_of(daemon, WEB).ask(op="status", after=0)
    with pytest.raises(Refused, match="may only ask"):
        web.attach(run="mine")
    assert len(others) > 10 and second and daemon.stop() == 0


# ---- the page ----


@pytest.fixture
def bench(place):
    bench = Bench(place)
    bench.web = Web(place, bench.daemon.socket)
    return bench


def test_status_is_that_of_tokctl_without_places(bench):
    trainer = Trainer(bench, run=ODD)
    trainer.step(3)

    def agree():
        """Not while the ring is being filled."""
        (ours,), ((theirs,), _) = bench.web.status()["sessions"], status(bench.daemon.socket)
        same = [ours[name] == theirs[name] for name in set(ours) & set(theirs) - {"full_ms"}]
        return all(same) and len(same) > 12

    assert wait_for(agree)
    said = bench.web.status()
    text, published = json.dumps(said), said["sessions"][0]["published"]
    for word in (bench.place.path, str(trainer.process.pid), os.uname().nodename, "socket"):
        assert word not in text
    assert sum(d["samples"] for d in said["datasets"]) == 64 * published
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
        one = Operator(bench, "mix", "train", "web=1", "--run", "job")
        job.carry_out()
        assert one.result()[0] == 0
        page.shows(f"{inner('runs')}.includes('web 100 %')")
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
