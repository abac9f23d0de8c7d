"""What `tokctl metrics` prints, and `tokctl serve`."""

import http.client
import json
import re
import socket
import subprocess
import time

from .process import TOKCTL, run


def values(text):
    """{(name, labels): value} of a page; the labels are a frozenset of pairs."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = re.fullmatch(r"(\w+)(?:{(.*)})? (\S+)", line).groups()
            pairs = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or "")
            found[name, frozenset(pairs)] = float(value)
    return found


def metrics(path, *options):
    """The metrics of the daemon at the socket @path."""
    code, out, err = run(TOKCTL, "metrics", "--socket", path, *options)
    assert code == 0, err
    return out.decode()


def metric(path, name, **labels):
    """The value of a series, or None."""
    return values(metrics(path)).get((name, frozenset(labels.items())))


class Web:
    """tokctl serve at the port that it chooses, and a client of it."""

    def __init__(self, place, path, *options):
        command = [TOKCTL, "serve", "--socket", path, "--listen", "127.0.0.1:0", *options]
        self.process = place.spawn(command, stderr=subprocess.PIPE, text=True)
        self.port = int(re.search(r":(\d+)/", self.process.stderr.readline())[1])

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

    def ask(self, path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        body = b"x" * 100 if method in ("POST", "PUT") else None
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply, text

    def status(self):
        return json.loads(self.ask("/status.json")[1])
