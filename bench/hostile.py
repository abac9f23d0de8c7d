#!/usr/bin/env python3
"""A hostile client: floods the daemon in one way until it is killed.

    hostile.py --socket PATH --uid 65534 wakes

Prints "ready" when the flood begins. While its socket is full it waits, so it sends as much as the
daemon takes.
"""

import argparse
import itertools
import os
import select
import sys
import threading
import time
from pathlib import Path

import msgpack

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from lib.wire import PACKET_BYTES, Client, Closed, Refused, attach_message, connect  # noqa: E402


def attach(path, **about):
    """The socket of a session, whose ring's descriptors are closed."""
    client = Client(path)
    client.ask(**attach_message(micro=1, run="hostile", slots=2, **about))
    for fd in client.fds:
        os.close(fd)
    return client.s


def flood(sockets, packet, window):
    """Sends packets on all sockets, at most @window ahead of the replies on each. Drops replies."""
    poll, ahead, by_fd = select.epoll(), {}, {s.fileno(): s for s in sockets}
    both = select.EPOLLIN | select.EPOLLOUT
    for s in sockets:
        s.setblocking(False)
        ahead[s.fileno()] = 0
        poll.register(s, both)

    def send(fd):
        for _ in range(16 if ahead[fd] < window else 0):
            by_fd[fd].send(packet())
            ahead[fd] += 1
            if ahead[fd] == window:
                poll.modify(fd, select.EPOLLIN)
                return

    def hear(fd):
        while True:
            data = by_fd[fd].recv(PACKET_BYTES)
            if not data:
                raise ConnectionError("closed")
            if len(data) > 1 and ahead[fd] == window:
                poll.modify(fd, both)
            ahead[fd] -= len(data) > 1

    while by_fd:
        for fd, _ in poll.poll(1):
            for act in (send, hear):
                try:
                    act(fd)
                except BlockingIOError:
                    pass
                except OSError:
                    poll.unregister(fd)
                    by_fd.pop(fd).close()
                    break


def repeat(count, what):
    def forever():
        while True:
            try:
                what()
            except (OSError, Closed, Refused):
                time.sleep(0.001)

    for _ in range(count):
        threading.Thread(target=forever, daemon=True).start()


def drain(path, **about):
    """A session that releases slots as soon as they are published."""
    client, woke = Client(path).attach(run="hostile", slots=2, **about), 0
    client.s.setblocking(False)
    while True:
        time.sleep(0.0002)
        released = client.published()
        client.set_released(released)
        if woke != client.wake_at() <= released:
            woke = client.wake_at()
            client.send(b"\0")


# ---- the kinds of floods: (path, count, or 0 for the default), and a call when it begins ----


def sessions(path, count):
    return [attach(path, peer=peer) for peer in range(count)]


def wakes(path, count, ready):
    sockets = sessions(path, count or 1000)
    ready()
    flood(sockets, lambda: b"\0", 1 << 60)


def describe(path, count, ready):
    sockets, packet = sessions(path, count or 64), msgpack.packb({"op": "describe"})
    ready()
    flood(sockets, lambda: packet, 8)


def messages(path, count, ready):
    """Messages of 120 KiB; the limit is 128 KiB."""
    more = {"op": "hello", "version": 1, "host": "hostile", "more": b"x" * (120 << 10)}
    sockets, packet = [Client(path).s for _ in range(count or 1000)], msgpack.packb(more)
    ready()
    flood(sockets, lambda: packet, 8)


def checkpoints(path, count, ready):
    """Snapshots, each under a new tag, so the daemon cannot skip any."""
    sockets, number = sessions(path, count or 64), itertools.count()
    first = Client(path).attach(run="hostile", peer=len(sockets))
    save = {"op": "checkpoint", "cursor": first.ask(op="describe")["cursor"]}
    ready()
    flood(sockets, lambda: msgpack.packb(save | {"tag": f"t{next(number) % 10000}"}), 1)


def connects(path, count, ready):
    repeat(count or 16, lambda: connect(path).close())
    ready()
    threading.Event().wait()


def attaches(path, count, ready):
    repeat(count or 16, lambda: attach(path).close())
    ready()
    threading.Event().wait()


def huge(path, count, ready):
    ready()
    drain(path, micro=65536)


def wide(path, count, ready):
    """Rows of 2 MB."""
    ready()
    drain(path, stream="wide", micro=8)


KINDS = {
    f.__name__: f for f in (wakes, describe, messages, checkpoints, connects, attaches, huge, wide)
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--socket", required=True)
    parser.add_argument("--uid", type=int)
    said = "sockets or threads; 0: the default of KIND"
    parser.add_argument("--count", type=int, default=0, help=said)
    parser.add_argument("kind", choices=KINDS)
    args = parser.parse_args()
    if args.uid is not None and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(args.uid)
        os.setuid(args.uid)
    KINDS[args.kind](args.socket, args.count, lambda: print("ready", flush=True))
    sys.exit("hostile: every connection was closed")


if __name__ == "__main__":
    main()
