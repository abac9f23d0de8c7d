"""tokctl survives replies that a right daemon does not send."""

import contextlib
import json
import socket
import threading

import msgpack

from lib import TOKCTL, run

ESCAPE = "/data/\x1b]0;title\x07.bin"
SLOW = {"slow_ms": 9000, "slow_shard": ESCAPE}
SESSION = {"session": 1, "stream": "train", "run": "job", "rank": 0, "world": 1, **SLOW}
STATUS = [7, {"sessions": 5}, {"sessions": SESSION}, {"daemon": {"io": "\x1bring", **SLOW}}]
DATASETS = [{"dataset": "a", "stream": stream, "all": 1} for stream in (7, None, "other")]


def test_tokctl_survives_it(place):
    """No control character reaches the terminal. It ignores names of streams that are not text."""
    path = place.file("s")
    replies = {
        "hello": [{"op": "hello", "version": 1}],
        "status": [{"op": "status", "after": 0, "args": json.dumps(STATUS)}],
        "attach": [{"op": "error", "code": "attach", "field": "stream", "text": "no"}],
        "cache": [{"op": "cache", "kind": "ls", "args": json.dumps({"datasets": DATASETS})}],
    }

    def serve():  # each connection in a thread; the next one is waited for meanwhile
        with contextlib.suppress(OSError), listening.accept()[0] as s:
            threading.Thread(target=serve, daemon=True).start()
            while data := s.recv(1 << 17):
                query = msgpack.unpackb(data)
                for reply in replies.get(query["op"], []):
                    s.send(msgpack.packb({**reply, "serial": query.get("serial", 0)}))

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen()
        threading.Thread(target=serve, daemon=True).start()
        code, out, err = run(TOKCTL, "status", "--socket", path)
        out = out.decode()
        assert code == 0 and out.count("waits for /data/?]0;title?.bin") == 2, (out, err)
        assert not set(out) & {"\x1b", "\x07"}
        code, _, err = run(TOKCTL, "cache", "warm", "train", "--socket", path)
        assert code == 1 and err.count("\n") == 1, err
