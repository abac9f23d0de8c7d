"""Users who may not connect, or who may write to a directory of the daemon, cannot stop it, or make
it change a file. Each test is an attack that once succeeded.
"""

import array
import contextlib
import os
import re
import signal
import socket
import stat
import struct
import subprocess
import time

import msgpack
import pytest

from lib import (
    TOKCTL,
    TOKEND,
    As,
    Client,
    Daemon,
    Refused,
    client_of,
    datasets,
    refusal,
    run,
    wait_for,
    wait_until,
)
from lib.injected import injected
from lib.old_kernel import old_kernel

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root to become other users")

ALLOWED, REMOVED, STRANGER = 61001, 61002, 61234
FLOOD, SUBORDINATE = 2000, 100_000
STREAMS = {"train": {"seed": 1, "seq_len": 64, "datasets": datasets("web", dtype="u16")}}


def config(place, *uids, name="tokend.yaml", **keys):
    if not os.path.exists(os.path.join(place.path, "web")):
        place.shard("web/a.bin", 60_000)
    return place.config(name, allow_uids=list(uids), streams=STREAMS, **keys)


# ---- descriptors that nobody can close in time ----


kept = []  # sockets of an attacker


def lingers():
    """A TCP socket that waits for 18 hours at its last close."""
    listener = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(listener.getsockname())
    kept.extend([listener, listener.accept()[0]])
    near.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            near.send(bytes(1 << 16))
    near.setblocking(True)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 65535))
    return near.detach()


def send_descriptor(path, uid):
    """Sends the only copy of a descriptor. False: the kernel refuses it."""
    kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    rights = array.array("i", [lingers()])
    try:
        with As(uid):
            kept[-3].connect(path)
            kept[-3].sendmsg([b"\0\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    except PermissionError:
        return False
    os.close(rights[0])
    return True


def stopped(daemon):
    """Has it ended, but for a thread that the kernel does not let go?"""
    with open(f"/proc/{daemon.pid}/stat") as f:
        return f.read().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("kernel", ["this", "old"])
@pytest.mark.parametrize("uid", [ALLOWED, STRANGER])
def test_a_descriptor_stops_nothing(place, uid, kernel):
    """A packet has a descriptor, and its last close takes for ever."""
    preload = old_kernel(place) if kernel == "old" else None
    daemon = Daemon(place, config(place, ALLOWED), env=preload and preload.env)
    trainer = client_of(daemon, ALLOWED).attach(slots=4)
    trainer.next()
    try:
        for _ in range(3):
            os.kill(daemon.pid, signal.SIGSTOP)  # the last close must be the daemon's
            sent = send_descriptor(daemon.socket, uid)
            os.kill(daemon.pid, signal.SIGCONT)
            if kernel == "old":
                assert sent and preload.get("asked") > 0, "the kernel let it send"
            elif not sent:
                break
        injected(27)
        for _ in range(20):
            begin = time.monotonic()
            client_of(daemon, ALLOWED).attach(run="new").close()
            assert time.monotonic() - begin < 5, "others attach"
            trainer.next()
        trainer.close()
        daemon.process.terminate()
        assert wait_for(lambda: not daemon.alive() or stopped(daemon), 20), "it stops"
    finally:
        while kept:
            kept.pop().close()
        assert daemon.process.wait(15) == 0


@pytest.mark.parametrize("greeted", [False, True])
@pytest.mark.parametrize("count", [1, 8, 253])
def test_descriptors_are_refused(place, count, greeted):
    preload = old_kernel(place)
    daemon = Daemon(place, config(place), env=preload.env)
    Client(daemon.socket).attach().close()
    before = daemon.settled_fds()
    client = Client(daemon.socket, hello=greeted)
    rights = array.array("i", [0] * count)
    client.s.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    (words,) = client.last_words()
    assert (words["op"], words["field"]) == ("error", "descriptors")
    injected(27)
    client.close()
    assert wait_for(lambda: daemon.fds() == before), "nothing is left"
    assert daemon.stop() == 0


# ---- users who may not connect ----


def test_many_uids_are_one_cause_in_the_log(place):
    """A user with subordinate uids has 65,536 of them."""
    daemon = Daemon(place, config(place, ALLOWED))
    for i in range(FLOOD):
        with As(SUBORDINATE + i):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.connect(daemon.socket)
        s.close()
    counted = lambda: sum(
        int(n) for n in re.findall(r"(\d+) more lines like .* by users who may not", daemon.log())
    )
    wait_for(lambda: counted() + daemon.log().count("may not connect; add") >= FLOOD // 2)
    lines = daemon.log().count("may not connect; add")
    assert 0 < lines < 100, "20 lines, then one a second"
    injected(49, counted())
    client_of(daemon, ALLOWED).attach().next()
    assert daemon.stop() == 0


def test_a_removed_user_cannot_attach_over_an_old_connection(place):
    daemon = Daemon(place, config(place, ALLOWED, REMOVED))
    trains, waits, stays = (client_of(daemon, uid) for uid in (REMOVED, REMOVED, ALLOWED))
    trains.attach(run="theirs").next()
    config(place, ALLOWED)
    os.kill(daemon.pid, signal.SIGHUP)
    assert daemon.said("was read again")
    assert "allow_uids" in refusal(lambda: waits.attach(run="later"))
    trains.next()  # a session goes on until it ends
    stays.attach(run="stays").next()
    assert daemon.stop() == 0


# ---- users who may write to a directory ----


def test_the_socket_is_made_with_its_mode(place):
    """A link put in place of the new socket gets nothing. The swap itself is a race, so the calls
    are watched: no chmod by path.
    """
    daemon = Daemon(place, config(place))
    assert stat.S_IMODE(os.stat(daemon.socket).st_mode) == 0o666
    assert daemon.stop() == 0
    with open(TOKEND, "rb") as f:
        assert b"\0chmod" not in f.read(), "tokend does not call chmod()"


ODD = {
    "FIFO": os.mkfifo,
    "/dev/zero": lambda path: os.symlink("/dev/zero", path),
    "directory": os.mkdir,
    "2 MiB": lambda path: open(path, "w").write("a: " + "x" * (2 << 20)),
}


@pytest.mark.parametrize("what", ODD)
def test_a_config_that_is_no_text_is_refused(place, what):
    path = config(place)
    with open(path) as f:
        text = f.read()
    daemon = Daemon(place, path)
    os.remove(path)
    ODD[what](path)
    os.kill(daemon.pid, signal.SIGHUP)
    assert daemon.said("keeps the config that it has")
    code, _, _ = run(TOKEND, "--check", "-c", path, timeout=10)
    assert code == 1, "nor does a daemon start"
    os.rmdir(path) if what == "directory" else os.remove(path)
    with open(path, "w") as f:
        f.write(text)
    os.kill(daemon.pid, signal.SIGHUP)
    assert daemon.said("was read again")
    assert daemon.stop() == 0


def test_a_snapshot_that_is_a_fifo_is_refused(place):
    daemon = Daemon(place, config(place))
    client = Client(daemon.socket).attach(run="mine")
    save = lambda tag: client.ask(op="checkpoint", tag=tag, cursor=client.feed["cursor"])["op"]
    assert save("a") == "saved"
    os.mkfifo(place.file("state", "train", "odd", "x.cursor"))
    os.remove(place.file("state", "train", "mine", "a.cursor"))
    os.mkfifo(place.file("state", "train", "mine", "a.cursor"))
    begin = time.monotonic()
    assert "not a regular file" in refusal(lambda: Client(daemon.socket).attach(tag="odd/x"))
    assert save("a") == "saved" and save("b") == "saved"
    assert time.monotonic() - begin < 10, "nothing waited"
    assert daemon.stop() == 0


def test_a_run_that_is_a_link_is_refused(place):
    """Its files would be written, and removed, elsewhere."""
    daemon = Daemon(place, config(place))
    victim = place.file("victim", ".important.new")
    with open(victim, "w") as f:
        f.write("x")
    os.symlink(os.path.dirname(victim), place.file("state", "train", "evil"))
    client = Client(daemon.socket).attach(run="evil")
    with pytest.raises(Refused):
        client.ask(op="checkpoint", tag="t", cursor=client.feed["cursor"])
    assert os.listdir(os.path.dirname(victim)) == [".important.new"]
    assert daemon.stop() == 0


def test_names_reach_terminal_and_log_as_text(place):
    """Control characters of C1 move the cursor of a terminal, as those of C0 do."""
    names = [b"a\x1b[31m.bin", b"b\xc2\x9b31m.bin", b"c\nready at.bin", b"d\x9b.bin", b"e\x7f.bin"]
    os.makedirs(os.path.dirname(place.file("web", "x")), exist_ok=True)
    for name in names:
        with open(os.path.join(os.fsencode(place.path), b"web", name), "wb") as f:
            f.write(os.urandom(60_000))
    control = re.compile(rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
    for form in [], ["--json"]:
        _, out, _ = run(TOKCTL, "inspect", *form, os.path.join(place.path, "web"))
        assert out.decode() and not control.search(out), out
    daemon = Daemon(place, config(place))
    client = Client(daemon.socket).attach()
    for name in names:
        os.truncate(os.path.join(os.fsencode(place.path), b"web", name), 10)
    with pytest.raises(Refused):
        while True:
            client.next()
    assert daemon.said("stops here")
    assert daemon.stop() == 0
    with open(daemon.log_path, "rb") as f:
        log = f.read()
    log.decode()  # UTF-8
    assert not control.search(log), log


def test_an_answer_reaches_the_log_as_text(place):
    daemon = Daemon(place, config(place))
    client = Client(daemon.socket).attach(run="r")
    operator = subprocess.Popen(
        [TOKCTL, "drain", "train", "--run", "r", "--socket", daemon.socket],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    wait_until(lambda: client.ask(op="pending")["number"], "a request")
    number = client.ask(op="pending")["number"]
    text = b"A\x1b]0;x\x07B\n\xc2\x9b31m\x9bC\x7f"
    raw = msgpack.packb({"op": "answer", "number": number, "outcome": 3, "text": "@@"})
    client.send(raw.replace(b"\xa2@@", bytes([0xD9, len(text)]) + text))
    out, _ = operator.communicate(timeout=20)
    assert daemon.said("failed: A?]0;x?B???31m?C?")
    assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f-\x9f]", out), out
    assert daemon.stop() == 0
