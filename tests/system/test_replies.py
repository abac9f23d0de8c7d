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
C1 = "\x9b31m\x85"  # as ESC [ 3 1 m to a terminal, and a new line
STORE = {"store": C1, "last": C1, "last_ago_s": 1, "provider": C1, "requests": 1}
STATUS = [7, {"sessions": 5}, {"sessions": SESSION}, {"daemon": {"io": "\x1bring"}}]
STATUS += [{"stores": STORE}, {"cache": {"dir": C1, "last": ESCAPE, "last_ago_s": 1}}]
STATUS += [{"streams": {"stream": f"a{C1}\n", "slots": {"x": 1}, "waits": {"le": 7}, **SLOW}}]
STATUS += [{"datasets": {"dataset": "a", "stream": s, "url": "s3://a"}} for s in (7, None, "train")]


def test_tokctl_survives_it(place):
    """No control character reaches the terminal. It ignores names of streams that are not text."""
    path = place.file("s")
    replies = {
        "hello": [{"op": "hello", "version": 1}],
        "status": [{"op": "status", "after": 0, "args": json.dumps(STATUS)}],
        "attach": [{"op": "error", "code": "attach", "field": "stream", "text": "no"}],
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
        assert code == 0 and out.count("waits for /data/?]0;title?.bin") == 1, (out, err)
        for command in (["status"], ["status", "--json"], ["metrics", "--sessions"]):
            code, out, err = run(TOKCTL, *command, "--socket", path)
            controls = [c for c in out.decode() if ord(c) < 32 or 127 <= ord(c) < 160]
            assert code == 0 and set(controls) == {"\n"} and len(out.splitlines()) > 2, (out, err)
        code, _, err = run(TOKCTL, "cache", "warm", "train", "--socket", path)
        assert code == 1 and err.count("\n") == 1, err
