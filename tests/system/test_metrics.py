"""The port of `metrics:`: its paths and methods, and what Prometheus makes of its text."""

import http.client

import pytest

from lib import Daemon, datasets, free_port


class Web:
    """A daemon that serves `metrics:`."""

    def __init__(self, place):
        self.port = free_port()
        place.shard("web/a.bin", 30_000)
        stream = {"seed": 3, "seq_len": 64, "datasets": datasets("web")}
        self.config = place.config(streams={"train": stream}, metrics=f"127.0.0.1:{self.port}")
        self.daemon = Daemon(place, self.config)

    def ask(self, path, method="GET", body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, path, body)
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply, text


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
