"""The HTTP server at `metrics:`, with clients of all kinds: slow, broken, many, and of old and new
protocols.
"""

import re
import socket
import time

import pytest

from lib import BIN, Daemon, datasets, free_port, has, run

pytestmark = pytest.mark.asan


class Server:
    """A daemon that serves `metrics:`."""

    def __init__(self, place):
        self.port = free_port()
        place.shard("web/a.bin", 30_000)
        self.keys = {
            "metrics": f"127.0.0.1:{self.port}",
            "streams": {"train": {"seed": 3, "seq_len": 64, "datasets": datasets("web")}},
        }
        self.daemon = Daemon(place, place.config(**self.keys))

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


@pytest.fixture(scope="module")
def server(shared):
    server = Server(shared)
    yield server
    assert server.daemon.stop() == 0


GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
UPGRADE = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
CHUNKED = b"POST /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
HIDDEN = (
    b"POST /healthz HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
)


@pytest.mark.parametrize(
    "pieces, statuses",
    {
        "three at once": ([GET * 3], [200] * 3),
        "byte by byte": ([bytes([b]) for b in GET], [200]),
        "cut in the middle of the second": ([GET + GET[:9], GET[9:]], [200] * 2),
        "HTTP/1.0 closes": ([b"GET /healthz HTTP/1.0\r\n\r\n" + GET], [200]),
        "HTTP/1.0 that stays": (
            [b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + GET],
            [200] * 2,
        ),
        "close": ([GET.replace(b"Host: x", b"Connection: close") + GET], [200]),
        "an offer of HTTP/2": ([UPGRADE], [200]),
        "HTTP/2 at once": ([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], [400]),
        "a body": ([CHUNKED + GET], [405, 200]),
        "a body of two lengths": ([HIDDEN], [400]),
        "CONNECT": ([b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n"], [404]),
        "a long path": ([b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\n\r\n"], [404]),
        "a query": ([GET.replace(b"healthz", b"healthz?" + b"a" * 3000)], [200]),
        "an endless header": (
            [b"GET / HTTP/1.1\r\n" + b"A: " + b"b" * 4000] + [b"b" * 4000] * 4,
            [431],
        ),
        "nothing": ([], []),
        "half a request": ([GET[:20]], []),
        "no HTTP": ([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"], [400]),
        "NUL": ([b"GET /heal\0thz HTTP/1.1\r\n\r\n"], [400]),
        "bare line feeds": ([b"GET /healthz HTTP/1.1\nHost: x\n\n"], [400]),
    }.values(),
)
def test_requests(server, pieces, statuses):
    reply = server.exchange(*pieces)
    found = [int(n) for n in re.findall(rb"HTTP/1\.1 (\d{3}) \w", reply)]
    assert found == statuses, reply
    for head, rest in zip(reply.split(b"HTTP/1.1 ")[1:], found):
        headers, _, body = head.partition(b"\r\n\r\n")
        assert int(re.search(rb"Content-Length: (\d+)", headers)[1]) == len(body), rest
        assert re.search(rb"Date: \w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT\r\n", headers)


def test_slow_and_rude_clients(server):
    """Clients that send, or read, nothing; and some that reset the connection."""
    idle = [server.connect() for _ in range(40)]
    deaf = [server.connect() for _ in range(8)]
    for one in deaf:
        one.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" * 500)
    for _ in range(8):
        rude = server.connect()
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        rude.sendall(GET * 100)
        rude.close()
    for _ in range(20):
        assert server.exchange(GET).startswith(b"HTTP/1.1 200 OK\r\n")
    assert idle[0].recv(1) == b"", "the oldest were closed for them"
    for one in idle + deaf:
        one.close()


def test_two_daemons_do_not_share_a_port(server, place):
    """Prometheus would read now one of them, now the other."""
    place.shard("web/a.bin", 30_000)
    code, _, err = run(f"{BIN}/tokend", "-c", place.config("second.yaml", **server.keys))
    assert code == 1 and has(err, "cannot listen at", "Address already in use"), err
