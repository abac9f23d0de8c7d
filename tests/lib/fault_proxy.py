"""An HTTP proxy between a client and a store that injects faults by a script, and counts requests.

with FaultProxy(store.port) as proxy:
    proxy.inject("503", Fault(status=503, code="SlowDown"), times=20)
    …                           # a client uses proxy.endpoint
    proxy.injected["503"]       # how often that happened
    proxy.requests              # every Request

The request's bytes are passed on as they are, with the client's Host, so signatures stay valid.
"""

import asyncio
import collections
import contextlib
import dataclasses
import email.utils
import random
import re
import socket
import struct
import threading
import time
import urllib.parse

REASONS = {200: "OK", 206: "Partial Content"}


@dataclasses.dataclass(frozen=True)
class Request:
    method: str
    path: str  # decoded, without the query
    query: str
    headers: dict  # names in lower case
    at: float  # time.monotonic()

    @property
    def range(self):
        """(first byte, bytes), or None."""
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        return found and (int(found[1]), int(found[2]) - int(found[1]) + 1)


@dataclasses.dataclass(frozen=True)
class Fault:
    """The treatment of one request. The store is not asked if there is a status."""

    delay: float = 0  # seconds, before the answer
    hang: bool = False  # no answer, until the client closes
    status: int = 0
    code: str = ""  # of S3, in the body
    headers: dict = dataclasses.field(default_factory=dict)  # of the answer; None: removed
    body: bytes | None = None  # instead of the answer's
    extra: bytes = b""  # after the answer's body, and counted in Content-Length
    flip: int | None = None  # a bit of this byte
    cut: int | None = None  # the connection ends after so many bytes of the body
    reset: bool = False  # … with RST; without cut: instead of the answer
    stall: int | None = None  # after so many bytes nothing more, until the client closes
    drip: float = 0  # seconds before each byte


class Rule:
    def __init__(self, name, fault, times, match, probability):
        self.name, self.fault, self.left = name, fault, times
        self.match, self.probability = match, probability


class FaultProxy:
    """@fault of inject() is a Fault, or a function of a Request that returns one or None."""

    def __init__(self, port, seed=1, host="127.0.0.1"):
        self.upstream, self.host = port, host
        self.random = random.Random(seed)
        self.requests, self.injected = [], collections.Counter()
        self.rules, self.writers = [], set()
        self.loop = asyncio.new_event_loop()
        self.server, self.port = None, 0
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        self.listen()
        return self

    def __exit__(self, *_):
        self.refuse()
        asyncio.run_coroutine_threadsafe(_end_tasks(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    @property
    def endpoint(self):
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    # ---- the script ----

    def inject(self, name, fault, times=1, match=None, probability=1.0):
        """The next @times requests for which match(request) is true get the fault."""
        self.rules.append(Rule(name, fault, times, match, probability))

    def clear(self):
        self.rules.clear()

    def count(self, method="GET", match=None, since=0):
        return sum(r.method == method and (not match or match(r)) for r in self.requests[since:])

    def listen(self):
        """Begins to answer, at the same port as before."""

        async def begin():
            self.server = await asyncio.start_server(
                self._serve, self.host, self.port, limit=1 << 20, backlog=512
            )
            self.port = self.server.sockets[0].getsockname()[1]

        asyncio.run_coroutine_threadsafe(begin(), self.loop).result()

    def refuse(self):
        """Resets all connections, and refuses new ones."""

        async def end():
            if self.server:
                self.server.close()
            for writer in list(self.writers):
                _reset(writer)

        asyncio.run_coroutine_threadsafe(end(), self.loop).result()

    # ---- one connection ----

    async def _serve(self, reader, writer):
        self.writers.add(writer)
        store = None
        try:
            with contextlib.suppress(
                OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
            ):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    request = _request(head)
                    body = await reader.readexactly(int(request.headers.get("content-length", 0)))
                    self.requests.append(request)
                    fault = self._choose(request)
                    if fault.delay:
                        await asyncio.sleep(fault.delay)
                    if fault.hang:
                        await reader.read()
                        return
                    if fault.reset and fault.cut is None:
                        return _reset(writer)
                    if fault.status:
                        answer = _own(fault, request)
                    else:
                        store = store or await asyncio.open_connection(
                            "127.0.0.1", self.upstream, limit=1 << 20
                        )
                        answer = await _ask(store, head + body, request.method)
                    if not await _answer(writer, fault, request.method, *answer):
                        return
                    if fault.stall is not None:
                        await reader.read()
                        return
        finally:
            self.writers.discard(writer)
            for end in (writer, store and store[1]):
                if end:
                    end.close()

    def _choose(self, request):
        for rule in self.rules:
            if rule.left <= 0 or (rule.match and not rule.match(request)):
                continue
            if self.random.random() >= rule.probability:
                continue
            fault = rule.fault(request) if callable(rule.fault) else rule.fault
            if fault:
                rule.left -= 1
                self.injected[rule.name] += 1
                return fault
        return Fault()


async def _end_tasks():
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _request(head):
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines) if k}
    path, _, query = target.partition("?")
    return Request(method, urllib.parse.unquote(path), query, headers, time.monotonic())


def _own(fault, request):
    text = f"<Error><Code>{fault.code}</Code><Message>as the test wants it</Message></Error>"
    body = text.encode() if fault.body is None else fault.body
    headers = {"Content-Type": "application/xml", "Content-Length": str(len(body))}
    headers["Date"] = email.utils.formatdate(usegmt=True)
    return fault.status, headers, body


async def _ask(store, request, method):
    """The store's answer: status, headers, body."""
    reader, writer = store
    writer.write(request)
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {k.title(): v.strip() for k, _, v in (line.partition(":") for line in lines) if k}
    body = b""
    if headers.pop("Transfer-Encoding", "") == "chunked":
        while n := int(await reader.readline(), 16):
            body += (await reader.readexactly(n + 2))[:-2]
        await reader.readline()
        headers["Content-Length"] = str(len(body))
    elif method != "HEAD":
        body = await reader.readexactly(int(headers.get("Content-Length", 0)))
    return int(first.split(" ")[1]), headers, body


async def _answer(writer, fault, method, status, headers, body):
    """Whether the connection can be used again."""
    if fault.body is not None:
        body = fault.body
        headers["Content-Length"] = str(len(body))
    if fault.extra:
        body += fault.extra
        headers["Content-Length"] = str(len(body))
    if fault.flip is not None and body:
        at = fault.flip % len(body)
        body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
    headers = {k: v for k, v in {**headers, **fault.headers}.items() if v is not None}
    head = f"HTTP/1.1 {status} {REASONS.get(status, 'Other')}\r\n"
    head += "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    writer.write(head.encode("latin-1") + b"\r\n")
    if method == "HEAD":
        body = b""
    if fault.stall is not None:
        body = body[: fault.stall]
    for byte in body[: fault.cut] if fault.drip else b"":
        await asyncio.sleep(fault.drip)
        writer.write(bytes([byte]))
        await writer.drain()  # raises once the client has closed
    if not fault.drip:
        writer.write(body[: fault.cut])
    await writer.drain()
    if fault.cut is not None and fault.reset:
        await asyncio.sleep(0.01)  # RST would overtake what was written
        _reset(writer)
    return fault.cut is None


def _reset(writer):
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
    writer.transport.abort()
