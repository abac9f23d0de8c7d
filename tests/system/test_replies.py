"""tokctl and the replies of a daemon that a right daemon does not send."""

import contextlib
import json
import socket
import subprocess
import threading

import msgpack
import pytest

from lib import TOKCTL

ESCAPE = "/data/\x1b]0;title\x07.bin"
STATUS = {"op": "status", "after": 0, "io": "\x1bring", "slow_ms": 5000, "slow_shard": ESCAPE}
SESSION = {"op": "session", "id": 1, "stream": "train", "run": "job", "rank": 0, "world": 1}
DATASETS = [{"dataset": "a", "streams": streams, "all": 1} for streams in ([7, None], ["other"])]


@pytest.fixture
def fake(place):
    """The path of a daemon that sends these messages."""
    path = place.file("s")
    replies = {
        "hello": [{"op": "hello", "version": 1}],
        "status": [{**SESSION, "slow_ms": 9000, "slow_shard": ESCAPE}, STATUS],
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
        yield path


def tokctl(*arguments):
    return subprocess.run([TOKCTL, *arguments], capture_output=True, text=True, timeout=60)


def test_no_control_character_reaches_the_terminal(fake):
    done = tokctl("status", "--socket", fake)
    assert done.returncode == 0 and done.stdout.count("waits for /data/?]0;title?.bin") == 2, done
    assert not set(done.stdout) & {"\x1b", "\x07"}


def test_names_of_streams_that_are_no_text_are_ignored(fake):
    """It once crashed."""
    done = tokctl("cache", "warm", "train", "--socket", fake)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done
