"""Forged input that once ended in an assertion: a dataset name with the hash of another name, and a
ring whose tokens are neither u16 nor u32.
"""

import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading

import msgpack

from lib import PAGE, Client, Daemon, Refused, Witness, has, rows_at
from lib.injected import injected

NAME, SAME_HASH = "web", "dsauekTVgbaD3bYisrOl"  # both have the 64-bit FNV-1a hash 5ea0e11948721ef1
SEQ_LEN = 64


def fnv1a(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def streams(name):
    return {"train": {"seed": 7, "seq_len": SEQ_LEN, "datasets": [{"name": name, "path": "web"}]}}


def foreign_cursor(place):
    """A cursor of a daemon whose dataset has the other name, with the same shards."""
    config = place.config(
        "foreign.yaml", socket=place.file("foreign.sock"), streams=streams(SAME_HASH)
    )
    daemon = Daemon(place, config)
    client = Client(daemon.socket).attach(position=100)
    cursor = client.feed["cursor"]
    client.close()
    daemon.stop()
    return cursor


def refused(ask):
    """The daemon's error, or what it did instead."""
    try:
        ask()
    except Refused as e:
        return e.packet
    except Exception as e:
        return {"code": repr(e)}
    return {"code": "accepted"}


def test_a_name_with_the_same_hash_is_refused(place):
    assert fnv1a(SAME_HASH) == fnv1a(NAME), "the two names have one hash"
    place.shard("web/a.bin", 40_000)
    cursor = foreign_cursor(place)
    daemon = Daemon(place, place.config(streams=streams(NAME)))
    rows = rows_at(daemon.config, "train", 0, 400)
    witness = Witness(daemon, rows)
    witness.step(10)

    tag = place.file("state", "train", "test", "stolen.cursor")
    with open(tag, "wb") as f:
        f.write(cursor)
    told = {
        "attach at it": refused(lambda: Client(daemon.socket).attach(cursor=cursor)),
        "attach at a snapshot of it": refused(lambda: Client(daemon.socket).attach(tag="stolen")),
        "save it": refused(lambda: witness.client.ask(op="checkpoint", tag="step", cursor=cursor)),
    }
    for what, packet in told.items():
        assert has(f"{packet.get('field')}: {packet.get('text')}", SAME_HASH, "no longer has it"), (
            f"{what}: refused, and the error has the name"
        )
        injected(43)
    assert daemon.alive() and witness.step(10), (
        "the daemon lives, and its other session reads on",
        daemon.log(),
    )
    witness.close()
    assert daemon.stop() == 0, "the daemon ends with 0"


# ---- a forged ring ----


def forged_feed(cursor):
    """The feed message and the two memfds of a ring with 8-byte tokens."""
    slots, rows, window, token = 4, 1, SEQ_LEN + 1, 8
    slot = rows * window * token
    stride = -(-slot // 64) * 64
    control = -(-slots * stride // PAGE) * PAGE
    meta_bytes = -(-(PAGE + 16 * slots + 40 * slots * rows) // PAGE) * PAGE
    data_bytes = control + PAGE
    with open(os.environ["FORGED_HEADER"], "rb") as f:  # magic and version of a real one
        magic = f.read(16)
    meta, data = (
        os.memfd_create(n, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) for n in ("meta", "data")
    )
    for fd, n in ((meta, meta_bytes), (data, data_bytes)):
        os.ftruncate(fd, n)
        fcntl.fcntl(
            fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
    geometry = struct.pack(
        "<4I5Q2I", slots, rows, window, token, slot, stride, control, meta_bytes, data_bytes, 0, 0
    )
    os.pwrite(meta, magic + geometry, 0)
    os.pwrite(
        meta, struct.pack("<2Q", slots, 2**64 - 1), 128
    )  # all slots are published; there is no end
    for s in range(slots):
        os.pwrite(meta, struct.pack("<Q2I", s, rows, 0), PAGE + 16 * s)
        os.pwrite(
            meta, struct.pack("<4Q2I", s, 0, s, s * SEQ_LEN, 0, 0), PAGE + 16 * slots + 40 * s
        )
    feed = {
        "op": "feed",
        "cursor": cursor,
        "contents": 1,
        "end": 2**64 - 1,
        "meta_bytes": meta_bytes,
        "data_bytes": data_bytes,
    }
    return feed, (meta, data)


def answer(listener, cursor):
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        for raw in iter(lambda c=connection: c.recv(PAGE * 32), b""):
            message = msgpack.unpackb(raw) if len(raw) > 1 else {}
            if message.get("op") == "hello":
                connection.send(msgpack.packb({"op": "hello", "version": 1}))
            elif message.get("op") == "attach":
                feed, fds = forged_feed(cursor)
                socket.send_fds(connection, [msgpack.packb(feed)], fds)


TRAINER = """
import sys
import tokend

try:
    tokend.Loader("train", 1, socket=sys.argv[1], rank=0, world=1, deadline=5).__iter__().__next__()
except tokend.Error as e:
    print("refused:", e)
"""


def test_ring(place):
    place.shard("web/a.bin", 40_000)
    daemon = Daemon(place, place.config(streams=streams(NAME)))
    client = Client(daemon.socket).attach(slots=4, micro=1)
    cursor = client.feed["cursor"]
    header = place.file("header")
    with open(header, "wb") as f:
        f.write(client.meta[:16])
    os.environ["FORGED_HEADER"] = header
    client.close()
    daemon.stop()
    path = place.file("forged.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        threading.Thread(target=answer, args=(listener, cursor), daemon=True).start()
        done = subprocess.run(
            [sys.executable, "-c", TRAINER, path], capture_output=True, text=True, timeout=60
        )
        listener.shutdown(socket.SHUT_RDWR)
    assert done.returncode == 0 and "another shape" in done.stdout, (
        "a ring of 8-byte tokens is refused by the client",
        done,
    )
    injected(43)
