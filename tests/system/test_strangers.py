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

import pytest

from lib import TOKCTL, TOKEND, As, Client, Daemon, Refused, client_of, datasets, refusal, run
from lib import wait_for
from lib.injected import injected
from lib.old_kernel import old_kernel

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root to become other users")

ALLOWED, LATER, STRANGER = 61001, 61002, 61234
FLOOD, SUBORDINATE = 2000, 100_000
STREAMS = {"train": {"seed": 1, "seq_len": 64, "datasets": datasets("web", dtype="u16")}}
CONTROL = re.compile(rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")


def config(place, *uids, name="tokend.yaml", **keys):
    if not os.path.exists(os.path.join(place.path, "web")):
        place.shard("web/a.bin", 60_000)
    return place.config(name, allow_uids=list(uids), streams=STREAMS, **keys)


@pytest.fixture(scope="module")
def daemon(shared):
    return Daemon(shared, config(shared, ALLOWED))


# ---- descriptors that nobody can close in time ----


def lingers(kept):
    """A TCP socket that waits for 18 hours at its last close."""
    listener = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(listener.getsockname())
    kept.extend([listener, listener.accept()[0]])
    near.settimeout(0.1)
    try:
        while True:
            near.send(bytes(1 << 16))
    except TimeoutError:
        near.settimeout(None)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 65535))
    return near.detach()


def stopped(daemon):
    """Has it ended, but for a thread that the kernel does not let go?"""
    with open(f"/proc/{daemon.pid}/stat") as f:
        return f.read().rpartition(")")[2].split()[0] == "Z"


def take_hangups(pid):
    """Its threads that do not block SIGHUP."""
    taking = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{task}/status") as f:
            blocked = int(re.search(r"SigBlk:\s*(\w+)", f.read())[1], 16)
            taking += [] if blocked >> (signal.SIGHUP - 1) & 1 else [int(task)]
    return taking


@pytest.mark.parametrize("uid", [ALLOWED, STRANGER])
def test_a_descriptor_stops_nothing(place, uid):
    """A packet has a descriptor whose last close takes for ever, and an old kernel lets it pass."""
    preload, kept = old_kernel(place), []
    daemon = Daemon(place, config(place, ALLOWED), env=preload.env)
    trainer = client_of(daemon, ALLOWED).attach(slots=4)
    trainer.next()
    try:
        for before in range(3):  # packets of no bytes
            os.kill(daemon.pid, signal.SIGSTOP)  # the last close must be the daemon's
            rights = array.array("i", [lingers(kept)])
            kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            with As(uid):
                kept[-1].connect(daemon.socket)
                for _ in range(before):
                    kept[-1].send(b"")
                kept[-1].sendmsg([b"\0\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            os.close(rights[0])
            os.kill(daemon.pid, signal.SIGCONT)
        assert preload.get("asked") > 0
        injected(27)
        assert wait_for(lambda: take_hangups(daemon.pid) == [daemon.pid]), "one is not lost"
        for _ in range(20):
            begin = time.monotonic()
            client_of(daemon, ALLOWED).attach(run="new").close()
            assert time.monotonic() - begin < 5, "others attach"
            trainer.next()
        trainer.close()
        daemon.process.terminate()
        assert wait_for(lambda: not daemon.alive() or stopped(daemon), 20), "it stops"
    finally:
        for one in kept:
            one.close()
        assert daemon.process.wait(15) == 0


def test_descriptors_are_refused(place):
    daemon = Daemon(place, config(place), env=old_kernel(place).env)
    Client(daemon.socket).attach().close()
    before = daemon.settled_fds()
    for count, greeted in ((1, False), (8, True), (253, True)):
        client = Client(daemon.socket, hello=greeted)
        rights = array.array("i", [0] * count)
        client.s.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        (words,) = client.last_words()
        assert (words["op"], words["field"]) == ("error", "descriptors")
        injected(27)
        client.close()
    assert wait_for(lambda: daemon.fds() == before), "nothing is left"


# ---- users who may not connect ----


def test_many_uids_are_one_cause_in_the_log(daemon):
    """A user with subordinate uids has 65,536 of them."""
    for i in range(FLOOD):
        with As(SUBORDINATE + i), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.connect(daemon.socket)
    counted = lambda: sum(
        int(n) for n in re.findall(r"(\d+) more lines about users who may not", daemon.log())
    )
    wait_for(lambda: counted() + daemon.log().count("may not connect; add") >= FLOOD // 2)
    lines = daemon.log().count("may not connect; add")
    assert 0 < lines < 336, "256 lines, then one a second"
    injected(49, counted())
    client_of(daemon, ALLOWED).attach().next()


def test_an_operator_waits_while_the_queue_of_clients_is_full(daemon):
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        with As(STRANGER), contextlib.ExitStack() as clients:
            with contextlib.suppress(BlockingIOError):
                for _ in range(5000):
                    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                    clients.enter_context(s).connect(daemon.socket)
        asks = subprocess.Popen([TOKCTL, "status", "--socket", daemon.socket])
        time.sleep(0.3)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    assert asks.wait(10) == 0


def test_a_reload_allows_and_removes_users(daemon, shared):
    """A removed one cannot connect again, and its session ends."""
    assert "add it to allow_uids" in refusal(lambda: client_of(daemon, LATER))
    config(shared, ALLOWED, LATER, "daemon")
    daemon.reload()
    client_of(daemon, LATER).attach(run="theirs").next()
    config(shared, ALLOWED)
    daemon.reload()
    assert "add it to allow_uids" in refusal(lambda: client_of(daemon, LATER))
    client_of(daemon, ALLOWED).attach(run="stays").next()


# ---- users who may write to a directory ----


def test_the_socket_is_made_with_its_mode(daemon):
    """A link put in place of the new socket gets nothing. The swap itself is a race, so the calls
    are watched: no chmod by path.
    """
    assert stat.S_IMODE(os.stat(daemon.socket).st_mode) == 0o666
    with open(TOKEND, "rb") as f:
        assert b"\0chmod" not in f.read(), "tokend does not call chmod()"


def test_a_config_that_is_no_text_is_refused(daemon, shared):
    path = daemon.config
    for make in (
        os.mkfifo,
        lambda path: os.symlink("/dev/zero", path),
        lambda path: open(path, "w").write("a: " + "x" * (2 << 20)),
    ):
        os.remove(path)
        make(path)
        daemon.reload("keeps the config that it has")
        code, _, _ = run(TOKEND, "--check", "-c", path, timeout=10)
        assert code == 1, "nor does a daemon start"
    os.remove(path)
    config(shared, ALLOWED)
    daemon.reload()


def test_a_snapshot_that_is_a_fifo_and_a_run_that_is_a_link_are_refused(daemon, shared):
    """A run's files would be written, and removed, elsewhere."""
    client = Client(daemon.socket).attach(run="mine")
    save = lambda tag: client.ask(op="checkpoint", tag=tag, cursor=client.feed["cursor"])["op"]
    assert save("a") == "saved"
    os.mkfifo(shared.file("state", "train", "odd", "x.cursor"))
    os.remove(shared.file("state", "train", "mine", "a.cursor"))
    os.mkfifo(shared.file("state", "train", "mine", "a.cursor"))
    begin = time.monotonic()
    assert "not a regular file" in refusal(lambda: Client(daemon.socket).attach(tag="odd/x"))
    assert save("a") == "saved" and save("b") == "saved"
    assert time.monotonic() - begin < 10, "nothing waited"

    victim = shared.file("victim", ".important.new")
    open(victim, "w").close()
    os.symlink(os.path.dirname(victim), shared.file("state", "train", "evil"))
    client = Client(daemon.socket).attach(run="evil")
    with pytest.raises(Refused):
        client.ask(op="checkpoint", tag="t", cursor=client.feed["cursor"])
    assert os.listdir(os.path.dirname(victim)) == [".important.new"]


def test_names_of_shards_reach_terminal_and_log_as_text(place):
    """Control characters of C1 move the cursor of a terminal, as those of C0 do."""
    names = [b"a\x1b[31m.bin", b"b\xc2\x9b31m.bin", b"c\nready at.bin", b"d\x9b.bin", b"e\x7f.bin"]
    web = os.fsencode(place.file("web", "x")[:-2])
    for name in names:
        with open(os.path.join(web, name), "wb") as f:
            f.write(os.urandom(60_000))
    for form in [], ["--json"]:
        _, out, _ = run(TOKCTL, "inspect", *form, os.fsdecode(web))
        assert out.decode() and not CONTROL.search(out), out
    daemon = Daemon(place, config(place))
    client = Client(daemon.socket).attach()
    for name in names:
        os.truncate(os.path.join(web, name), 10)
    with pytest.raises(Refused):
        while True:
            client.next()
    assert daemon.said("stops here")
    assert daemon.stop() == 0
    with open(daemon.log_path, "rb") as f:
        log = f.read()
    assert log.decode() and not CONTROL.search(log), log
