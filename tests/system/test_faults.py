"""Damaged snapshots, a kernel that forbids io_uring, and starting and stopping."""

import contextlib
import ctypes
import os
import socket
import struct

import pytest
from faults import simple_streams

from lib import TOKEND, Client, Closed, Daemon, Witness, has, refusal, rows_at, run, status
from lib import with_parent
from lib.cat import moved
from lib.injected import injected

# ---- snapshots ----


def save(client, tag, cursor):
    return client.ask(op="checkpoint", tag=tag, cursor=cursor)["path"]


def at_tag(daemon, tag, run_="test"):
    """The position at which an attach at a tag begins."""
    with contextlib.closing(Client(daemon.socket)) as client:
        client.attach(tag=tag, run=run_, micro=1)
        client.wait()
        return client.meta_words[4096 // 8]  # position of slot 0


def test_damaged_snapshots_are_refused(place):
    daemon = Daemon(place, place.config(streams=simple_streams(place)))
    client = Client(daemon.socket).attach()
    first = client.feed["cursor"]
    second = moved(place, first, 128)
    path = save(client, "t", first)
    for cursor in (first, first, second):
        save(client, "t", cursor)
    save(client, "x" * 64, first)
    assert at_tag(daemon, "test/" + "x" * 64, "another") == 0, "the longest tag"
    assert "checksum" in refusal(lambda: save(client, "t", second[:-1]))
    daemon.kill()
    daemon.start()
    client.close()
    for tag, by in (("t", "test"), ("test/t", "another")):
        assert at_tag(daemon, tag, by) == 128, "after kill -9, also from another run"
    assert "no snapshot t" in refusal(lambda: at_tag(daemon, "t", "another"))

    damages = [b"", bytes(len(second)), second[: len(second) // 2], second[:-1], second + b"x"]
    damages += [second + bytes(100_000)]
    for bit in (0, 40, 70, 200, len(second) * 8 - 1):
        flipped = bytearray(second)
        flipped[bit // 8] ^= 1 << bit % 8
        damages.append(bytes(flipped))
    for damaged in damages:
        with open(path, "wb") as f:
            f.write(damaged)
        told = refusal(lambda: at_tag(daemon, "t"))
        assert not told.startswith("not refused") and "\n" not in told, told
        injected(15)
    os.unlink(path)
    os.symlink(path.replace("t.cursor", 64 * "x" + ".cursor"), path)
    assert path in refusal(lambda: at_tag(daemon, "t")), "a link is not followed"

    os.rename(place.file("state"), place.file("former-state"))
    with open(place.file("state"), "w") as f:
        f.write("no directory")
    client = Client(daemon.socket).attach()
    assert "Not a directory" in refusal(lambda: save(client, "u", first))
    assert client.next() is not None, "the session continues"
    client.close()
    os.unlink(place.file("state"))


# ---- io_uring forbidden ----

libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


def forbid_uring(error):
    """For preexec_fn: forbids io_uring (system calls 425 to 427), as containers do."""
    steps = [  # code, jump if true, if false, operand
        (0x20, 0, 0, 0),  # load the number
        (0x35, 0, 2, 425),  # < 425: allow
        (0x25, 1, 0, 427),  # > 427: allow
        (0x06, 0, 0, 0x00050000 | error),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))

    def forbid():
        program = struct.pack("@HP", len(steps), ctypes.addressof(code))
        with_parent()
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
            PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0
        ):
            os._exit(77)

    return forbid


@pytest.mark.parametrize("name, error", [("EPERM", 1), ("ENOSYS", 38)])
def test_pread_replaces_forbidden_io_uring(place, name, error):
    streams = simple_streams(place)
    config = place.config(streams=streams)
    daemon = Daemon(place, config, preexec_fn=forbid_uring(error))
    witness = Witness(daemon, rows_at(config, "train", 0, 2000))
    assert witness.step(500)
    assert status(daemon.socket)[1]["io"] == "pread"
    (said,) = daemon.said("io_uring is forbidden")
    assert f"io_uring is forbidden here ({name})" in said
    witness.close()
    assert daemon.stop() == 0
    config = place.config(io="uring", streams=streams)
    code, _, err = run(TOKEND, "-c", config, timeout=20, preexec_fn=forbid_uring(error))
    assert code == 1 and err.count("\n") == 1 and "io: auto" in err, err
    injected(38, 2)


# ---- starting and stopping ----


def refused(config, *words, arguments=()):
    code, _, err = run(TOKEND, "-c", config, *arguments, timeout=20)
    assert code == 1 and err.count("\n") == 1 and has(err, *words), err


def test_sockets_are_replaced_and_removed(place):
    config = place.config(socket=place.file("run", "s.sock"), streams=simple_streams(place))
    rows = rows_at(config, "train", 0, 1000)
    daemon = Daemon(place, config)
    path, lock = daemon.socket, daemon.socket + ".lock"
    daemon.kill()
    assert os.path.exists(path) and os.path.exists(lock)
    daemon.start()
    witness = Witness(daemon, rows)
    assert witness.step(5), "those of a killed daemon are replaced"
    before = os.stat(path).st_ino
    refused(config, path)
    assert os.stat(path).st_ino == before and status(path)[1]["sessions"] == 1
    assert witness.step(5), "a second daemon does not take the socket"
    for number in (15, 2):
        daemon.process.send_signal(number)
        assert daemon.process.wait(20) == 0
        assert not os.path.exists(path) and not os.path.exists(lock)
        with pytest.raises(Closed):
            while True:
                witness.step()
        assert witness.wrong == 0, "published batches stay readable"
        witness.close()
        daemon.start()
        witness = Witness(daemon, rows)
        witness.step(6)
    witness.close()
    daemon.stop()

    with open(path, "w") as f:
        f.write("mine")
    refused(config)
    assert open(path).read() == "mine", "what is not a socket is not removed"
    os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as foreign:  # without our lock
        foreign.bind(path)
        foreign.listen(1)
        before = os.stat(path).st_ino
        refused(config)
        assert os.stat(path).st_ino == before
    os.unlink(path)
    long = os.path.join(place.path, "x" * 120)
    refused(config, "107", arguments=["--socket", long])
    daemon = Daemon(place, config, place.file("deep", "elsewhere.sock"))
    assert os.path.exists(daemon.socket) and not os.path.exists(path)
    assert daemon.stop() == 0
    lingering = Daemon(place, config, arguments=["--linger", "1"])
    assert lingering.process.wait(20) == 0, "it ends by itself"
