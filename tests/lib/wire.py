"""A client that implements the wire protocol itself.

It is written from proto/wire.h and proto/ring.h and does not use client/, so it can send messages
that libtokend never sends. It compares the bytes it gets with `tokctl plan` and the shards.
"""

import array
import mmap
import os
import select
import socket
import struct
import time

import msgpack
import numpy

from .order import rank_rows
from .process import with_parent
from .wait import LONG

PACKET_BYTES = 128 * 1024
PAGE = 4096
MEMORY, DATA, PROTOCOL, PERMISSION = 2, 5, 7, 13  # codes of errors, as proto/fault.h numbers them


class Refused(Exception):
    """An error packet."""

    def __init__(self, packet):
        super().__init__(f"{packet.get('code')}: {packet.get('field')}: {packet.get('text')}")
        self.packet = packet


def refusal(call):
    """The error's text, with its code and field."""
    try:
        return f"not refused: {call()}"
    except Refused as e:
        return str(e)


class Closed(Exception):
    """The daemon closed the connection without an error packet."""


def connect(path):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(LONG)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PACKET_BYTES)
    try:
        s.connect(path)
    except OSError:
        s.close()
        raise
    return s


def receive(s):
    """The next packet's bytes and descriptors; b"" is the end. A reset is ignored: the last packets
    come after it.
    """
    while True:
        try:
            data, ancillary, _, _ = s.recvmsg(PACKET_BYTES, socket.CMSG_SPACE(8 * 4))
        except ConnectionResetError:
            continue
        except BrokenPipeError:
            data, ancillary = b"", []
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        return data, list(fds)


def decode(data):
    """Decodes a message; names in it may be invalid UTF-8."""
    return msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogateescape")


def attach_message(stream="train", rank=0, world=1, micro=2, run="test", peer=0, slots=4, **start):
    message = {"op": "attach", "stream": stream, "run": run, "rank": rank, "world": world}
    return {**message, "micro": micro, "peer": peer, "slots": slots, **(start or {"begin": 1})}


class Client:
    """A connection or session in which every step can be done wrongly."""

    def __init__(self, path, hello=True):
        self.s = connect(path)
        self.fds = []
        self.meta = self.data = None
        self.ended = None  # why nothing more will be published
        if hello:
            self.ask(op="hello", version=1, host="test")

    def send(self, raw):
        self.s.send(raw)

    def tell(self, **message):
        self.send(msgpack.packb(message))

    def hear(self):
        """The next message. Wake-ups and warnings are ignored; an error packet raises Refused."""
        while True:
            data, fds = receive(self.s)
            self.fds += fds
            if data == b"":
                raise Closed()
            packet = decode(data) if len(data) > 1 else {"op": "warning"}
            if packet["op"] != "warning":
                break
        if packet["op"] == "error":
            raise Refused(packet)
        return packet

    def ask(self, **message):
        try:
            self.tell(**message)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the reason can still be read
        return self.hear()

    def last_words(self):
        """All packets until the daemon closes the connection. TimeoutError: it does not."""
        packets = []
        while True:
            data, fds = receive(self.s)
            for fd in fds:
                os.close(fd)
            if data == b"":
                return packets
            if len(data) > 1:
                packets.append(decode(data))

    def attach(self, **keys):
        self.feed = self.ask(**attach_message(**keys))
        self.map()
        return self

    def map(self):
        meta_fd, data_fd = self.fds
        self.meta = mmap.mmap(meta_fd, self.feed["meta_bytes"], mmap.MAP_SHARED, mmap.PROT_READ)
        self.data = mmap.mmap(data_fd, self.feed["data_bytes"])
        fields = struct.unpack_from("<4I5Q", self.meta, 16)
        self.slots, self.rows, self.window, self.token_bytes = fields[:4]
        self.slot_bytes, self.slot_stride, self.control_at = fields[4:7]
        self.documents, self.loss_mask = struct.unpack_from("<2I", self.meta, 72)
        self.batch = 0  # the next one
        # struct writes byte by byte; these load and store whole words
        self.meta_words = memoryview(self.meta).cast("Q")
        self.data_words = memoryview(self.data).cast("Q")
        self.dtype = {2: "<u2", 4: "<u4"}[self.token_bytes]

    def published(self):
        return self.meta_words[128 // 8]

    def end(self):
        return self.meta_words[136 // 8]

    def wake_at(self):
        return self.meta_words[192 // 8]

    def set_released(self, value):
        self.data_words[self.control_at // 8] = value

    def wait(self, seconds=LONG):
        """Waits for the next batch. It polls twice a millisecond: a test needs no wake-ups."""
        until = time.monotonic() + seconds
        while self.published() <= self.batch:
            if self.ended and self.published() <= self.batch:  # published batches come first
                raise self.ended
            if not self.ended and select.select([self.s], [], [], 0.0005)[0]:
                data, _ = receive(self.s)
                packet = decode(data) if len(data) > 1 else {"op": "wake"}
                if data == b"":
                    self.ended = Closed()
                elif packet["op"] == "error":
                    self.ended = Refused(packet)
            if time.monotonic() > until:
                raise TimeoutError(f"no batch {self.batch}: published {self.published()}")

    def offset(self, number):
        """The offset of a slot in the data memory. Rings here are below 1 GiB, so none is moved."""
        return number % self.slots * self.slot_stride

    def row_documents(self, number):
        """Where documents begin in each row of a slot. In the meta memory they follow the slots and
        rows.
        """
        counts = PAGE + 16 * self.slots + 40 * self.slots * self.rows
        starts, found = counts + 4 * self.slots * self.rows, []
        for i in range(number % self.slots * self.rows, (number % self.slots + 1) * self.rows):
            (count,) = struct.unpack_from("<I", self.meta, counts + 4 * i)
            found.append(
                list(struct.unpack_from(f"<{count}I", self.meta, starts + 4 * i * self.window))
            )
        return found

    def row_masks(self, number):
        """The loss masks of a slot, [rows, window]. They follow the documents, if there are any."""
        rows = self.slots * self.rows
        at = (
            PAGE
            + 16 * self.slots
            + 40 * rows
            + (4 * rows * (1 + self.window) if self.documents else 0)
        )
        at += number % self.slots * self.rows * self.window
        raw = self.meta[at : at + self.rows * self.window]
        return numpy.frombuffer(raw, "u1").reshape(self.rows, self.window)

    def next(self, seconds=LONG):
        """Returns a copy of the next batch and releases its slot."""
        self.wait(seconds)
        at = self.offset(self.batch)
        raw = self.data[at : at + self.slot_bytes]
        self.batch += 1
        self.set_released(self.batch)
        if 0 < self.wake_at() <= self.batch:
            try:
                self.s.send(b"\0")
            except OSError:
                pass  # the next wait() raises the reason
        return numpy.frombuffer(raw, self.dtype).reshape(self.rows, self.window)

    def close(self):
        if self.meta is not None:
            for part in (self.meta_words, self.data_words, self.meta, self.data):
                part.release() if isinstance(part, memoryview) else part.close()
        for fd in self.fds:
            os.close(fd)
        self.fds, self.meta, self.data = [], None, None
        self.s.close()


def attach_at_once(path, world, **keys):
    """All ranks of a run, attached: their queries are sent before the first reply is read."""
    clients = [Client(path, hello=False) for _ in range(world)]
    for rank, client in enumerate(clients):
        client.tell(op="hello", version=1, host="test")
        client.tell(**attach_message(rank=rank, world=world, **keys))
    for client in clients:
        client.hear()  # hello's reply
    for client in clients:
        client.feed = client.hear()
        client.map()
    return clients


def forked_reader(attach):
    """A process that reads with the client of attach() until it is killed: (pid, its first batch's
    bytes).
    """
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        with_parent()
        client = attach()
        os.write(into, client.next().tobytes())
        while True:
            client.next()
    os.close(into)
    first = os.read(out, 1 << 16)
    os.close(out)
    return pid, first


class Witness:
    """A correct client that compares every batch with the order."""

    def __init__(self, daemon, rows, stream="train", **keys):
        self.client = Client(daemon.socket).attach(stream=stream, **keys)
        rank, world = keys.get("rank", 0), keys.get("world", 1)
        self.batches = rank_rows(rows, rank, world, self.client.rows)
        self.checked = self.wrong = 0

    def step(self, count=1):
        """Reads and compares @count batches. False: one was wrong, now or before."""
        for _ in range(count):
            if not numpy.array_equal(self.client.next(), self.batches[self.checked]):
                self.wrong += 1
            self.checked += 1
        return self.wrong == 0

    def close(self):
        self.client.close()
