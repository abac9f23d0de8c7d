#!/usr/bin/env python3
"""A hostile client: floods the daemon in one way until it is killed.

    hostile.py --socket PATH --uid 65534 wakes

Prints "ready" when the flood begins. While its socket is full it waits, so it sends as much as the
daemon takes.
"""

import argparse, itertools, mmap, os, select, socket, sys, threading, time

import msgpack

PACKET_BYTES = 128 << 10


def connect(path):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PACKET_BYTES)
    s.settimeout(60)
    s.connect(path)
    return s


def ask(s, keep=None, **message):
    """The reply's fields; descriptors that come with it are closed, or appended to @keep."""
    s.send(msgpack.packb(message))
    while True:
        data, fds, _, _ = socket.recv_fds(s, PACKET_BYTES, 2)
        if keep is None:
            for fd in fds:
                os.close(fd)
        else:
            keep += fds
        reply = msgpack.unpackb(data) if data else {"op": "closed"}
        if len(data) != 1 and reply["op"] != "warning":  # a wake-up has one byte
            break
    if reply["op"] in ("error", "closed"):
        raise ConnectionError(reply.get("text", "closed"))
    return reply


def hello(path):
    s = connect(path)
    ask(s, op="hello", version=1, host="hostile")
    return s


def attach(path, stream, number=0, micro=1, slots=2, keep=None):
    """The ring's descriptors are closed, or appended to @keep."""
    s = hello(path)
    message = {
        "op": "attach",
        "stream": stream,
        "run": "hostile",
        "rank": 0,
        "world": 1,
        "micro": micro,
        "peer": number,
    }
    ask(s, keep, **message, slots=slots, begin=1)
    return s


def flood(sockets, packet, window):
    """Sends packets on all sockets, at most @window ahead of the replies on each. Drops replies."""
    poll, ahead, by_fd = select.epoll(), {}, {s.fileno(): s for s in sockets}
    for s in sockets:
        s.setblocking(False)
        ahead[s.fileno()] = 0
        poll.register(s, select.EPOLLIN | select.EPOLLOUT)
    while by_fd:
        for fd, _ in poll.poll(1):
            s = by_fd[fd]
            try:
                for _ in range(16 if ahead[fd] < window else 0):
                    s.send(packet())
                    ahead[fd] += 1
                    if ahead[fd] == window:
                        poll.modify(fd, select.EPOLLIN)
                        break
            except BlockingIOError:
                pass
            except OSError:
                poll.unregister(fd)
                by_fd.pop(fd).close()
                continue
            try:
                while True:
                    data = s.recv(PACKET_BYTES)
                    if not data:
                        raise ConnectionError("closed")
                    if len(data) > 1 and ahead[fd] == window:
                        poll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
                    ahead[fd] -= len(data) > 1
            except BlockingIOError:
                pass
            except OSError:
                poll.unregister(fd)
                by_fd.pop(fd).close()


def wakes(args):
    return (
        [attach(args.socket, args.stream, i) for i in range(args.count or 1000)],
        lambda: b"\0",
        1 << 60,
    )


def describe(args):
    packet = msgpack.packb({"op": "describe"})
    return [attach(args.socket, args.stream, i) for i in range(args.count or 64)], lambda: packet, 8


def messages(args):
    """Messages of 120 KiB; the limit is 128 KiB."""
    packet = msgpack.packb(
        {"op": "hello", "version": 1, "host": "hostile", "more": b"x" * (120 << 10)}
    )
    return [hello(args.socket) for _ in range(args.count or 1000)], lambda: packet, 8


def checkpoints(args):
    """Snapshots, each under a new tag, so the daemon cannot skip any."""
    sockets = [attach(args.socket, args.stream, i) for i in range(args.count or 64)]
    cursor = ask(sockets[0], op="describe")["cursor"]
    number = itertools.count()
    return (
        sockets,
        lambda: msgpack.packb(
            {"op": "checkpoint", "tag": f"t{next(number) % 10000}", "cursor": cursor}
        ),
        1,
    )


def repeat(args, what):
    def forever():
        while True:
            try:
                what()
            except (OSError, ConnectionError):
                time.sleep(0.001)

    threads = [threading.Thread(target=forever, daemon=True) for _ in range(args.count or 16)]
    for thread in threads:
        thread.start()
    return [], None, 0


def connects(args):
    return repeat(args, lambda: connect(args.socket).close())


def attaches(args):
    return repeat(args, lambda: attach(args.socket, args.stream).close())


def drain(args, micro):
    """A session that releases slots as soon as they are published."""
    fds = []
    s = attach(args.socket, args.stream, micro=micro, slots=2, keep=fds)
    meta = memoryview(mmap.mmap(fds[0], 4096, mmap.MAP_SHARED, mmap.PROT_READ)).cast("Q")
    control_at = meta[6]
    control = memoryview(mmap.mmap(fds[1], 4096, offset=control_at)).cast("Q")
    s.setblocking(False)

    def forever():
        woke = 0
        while True:
            time.sleep(0.0002)
            control[0] = meta[16]  # released = published
            if woke != meta[24] <= control[0]:  # wake_at
                woke = meta[24]
                s.send(b"\0")

    threading.Thread(target=forever, daemon=True).start()
    return [], None, 0


def huge(args):
    return drain(args, 65536)


def wide(args):
    """Rows of 2 MB."""
    args.stream = "wide"
    return drain(args, 8)


KINDS = {
    f.__name__: f for f in (wakes, describe, messages, checkpoints, connects, attaches, huge, wide)
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--socket", required=True)
    parser.add_argument("--stream", default="train")
    parser.add_argument("--uid", type=int)
    parser.add_argument(
        "--count", type=int, default=0, help="sockets or threads; 0: the default of KIND"
    )
    parser.add_argument("kind", choices=KINDS)
    args = parser.parse_args()
    if args.uid is not None and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(args.uid)
        os.setuid(args.uid)
    sockets, packet, window = KINDS[args.kind](args)
    print("ready", flush=True)
    if packet:
        flood(sockets, packet, window)
        sys.exit("hostile: every connection was closed")
    threading.Event().wait()


if __name__ == "__main__":
    main()
