"""A full disk, damaged snapshots, a kernel that forbids io_uring, and starting and stopping.

The faults are real: a full tmpfs, damaged files, a seccomp filter.
"""

import ctypes
import os
import shutil
import signal
import socket
import stat
import subprocess
import time

import pytest
from faults import fill, simple_streams

from lib import (
    TOKEND,
    Client,
    Closed,
    Daemon,
    Witness,
    has,
    refusal,
    wait_for,
    rows_at,
    run,
    status,
    with_parent,
)
from lib.cat import moved
from lib.injected import injected

libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000


# ---- snapshots ----


def former_of(path):
    return path.removesuffix(".cursor") + ".former.cursor"


def at_tag(daemon, tag, run_="test"):
    """The position at which an attach at a tag begins."""
    client = Client(daemon.socket)
    try:
        client.attach(tag=tag, run=run_, micro=1)
        client.wait()
        return client.meta_words[4096 // 8]  # position of slot 0
    finally:
        client.close()


def test_a_full_disk_fails_saves_only(place):
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a tmpfs")
    state = place.file("full", "x")
    os.makedirs(state)
    state = os.path.dirname(state)

    def small_disk():
        """A tmpfs in a mount namespace of its own, which ends with the daemon."""
        with_parent()
        if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
            os._exit(77)
        if libc.mount(b"tokend", state.encode(), b"tmpfs", 0, b"size=64k"):
            os._exit(77)

    config = place.config(
        "full.yaml", state_dir=state, socket=place.file("full.sock"), streams=simple_streams(place)
    )
    try:
        daemon = Daemon(place, config, preexec_fn=small_disk)
    except RuntimeError as e:
        if "exited with 77" not in str(e):
            raise
        pytest.skip("may not mount a tmpfs here")
    inside = f"/proc/{daemon.pid}/root{state}"
    witness = Witness(daemon, rows_at(config, "train", 0, 1000))
    client = witness.client
    first = client.feed["cursor"]
    second = moved(place, first, 64)
    saved = client.ask(op="checkpoint", tag="a", cursor=first)
    path = f"/proc/{daemon.pid}/root{saved['path']}"
    fill(f"{inside}/filler")
    told = refusal(lambda: client.ask(op="checkpoint", tag="a", cursor=second))
    assert has(told, "checkpoint", "No space left", "previous snapshot"), (
        "ENOSPC: the save fails with the error"
    )
    assert open(path, "rb").read() == first and at_tag(daemon, "a") == 0, (
        "  the snapshot is unchanged"
    )
    injected(14)
    assert sorted(os.listdir(os.path.dirname(path))) == ["a.cursor", "mixes"], (
        "  no other file is left"
    )
    told = refusal(lambda: client.ask(op="checkpoint", tag="b", cursor=second))
    assert has(told, "No space left"), "  a new tag likewise"
    injected(14)
    assert has(refusal(lambda: at_tag(daemon, "b")), "tag", "no snapshot b"), (
        "  which does not exist afterwards"
    )
    assert witness.step(20), "  the session continues"
    for _ in range(2):
        other = Client(daemon.socket).attach(run="other")
        assert other.next() is not None, "  another run can attach, without a mix log"
        other.close()
    said = daemon.said("run other: cannot write the mix log")
    assert len(said) == 1 and "No space left" in said[0], ("  and one line says so", said)
    left = [name for _, _, names in os.walk(f"{inside}/train/other") for name in names]
    assert left == [], "  no partial file is left"
    os.unlink(f"{inside}/filler")
    saved = client.ask(op="checkpoint", tag="a", cursor=second)
    assert (saved["op"], at_tag(daemon, "a")) == ("saved", 64), (
        "  a save succeeds when there is room again"
    )
    assert open(path.replace("a.cursor", "a.former.cursor"), "rb").read() == first, (
        "  and the previous snapshot is kept"
    )
    witness.close()
    assert daemon.stop() == 0, "  exit 0"


def test_damaged_snapshots_are_refused(place):
    config = place.config(
        "snapshots.yaml", socket=place.file("snapshots.sock"), streams=simple_streams(place)
    )
    daemon = Daemon(place, config)
    client = Client(daemon.socket).attach()
    first = client.feed["cursor"]
    second = moved(place, first, 128)
    saved = client.ask(op="checkpoint", tag="t", cursor=first)
    path = saved["path"]
    former = former_of(path)
    client.ask(op="checkpoint", tag="t", cursor=first)
    alone = not os.path.exists(former) and open(path, "rb").read() == first
    assert alone, "saving the same snapshot twice, as ranks do, makes no former one"
    client.ask(op="checkpoint", tag="t", cursor=second)
    assert (open(path, "rb").read(), open(former, "rb").read()) == (second, first), (
        "another snapshot with the same tag: the previous one is kept"
    )
    told = wait_for(lambda: has(daemon.log(), "saved again", "t.former"))
    assert told, "  with a line in the log"
    assert at_tag(daemon, "t.former") == 0, "  which is a tag that an attach can name"
    for cursor in (first, second):
        client.ask(op="checkpoint", tag="x" * 64, cursor=cursor)
    told = refusal(lambda: at_tag(daemon, "test/" + "x" * 64 + ".former"))
    assert told == "not refused: 0", "  also for the longest tag"
    assert has(
        refusal(lambda: client.ask(op="checkpoint", tag="x.former", cursor=first)), "reserved for"
    ), "  but a save cannot"
    told = refusal(lambda: client.ask(op="checkpoint", tag="t", cursor=second[:-1]))
    assert has(told, "checksum"), "a damaged cursor is not saved"
    assert open(path, "rb").read() == second and client.next() is not None, (
        "  and the snapshot is unchanged"
    )
    daemon.kill()
    daemon.start()
    client.close()
    assert at_tag(daemon, "t") == 128, "after kill -9 an attach at the tag begins there"
    assert at_tag(daemon, "t", "another") == 128, (
        "also from another run, if only one run has the tag"
    )
    assert at_tag(daemon, "test/t", "another") == 128, "and with RUN/TAG"
    assert has(refusal(lambda: at_tag(daemon, "nothing/t")), "no snapshot t"), (
        "another stream has none"
    )

    damages = {
        "empty": b"",
        "zeros": bytes(len(second)),
        "half": second[: len(second) // 2],
        "one byte short": second[:-1],
    }
    damages |= {"a byte more": second + b"x", "100 KiB": second + bytes(100_000)}
    for bit in (0, 40, 70, 200, len(second) * 8 - 1):
        flipped = bytearray(second)
        flipped[bit // 8] ^= 1 << bit % 8
        damages[f"bit {bit} flipped"] = bytes(flipped)
    told = {}
    for name, damaged in damages.items():
        with open(path, "wb") as f:
            f.write(damaged)
        told[name] = refusal(lambda: at_tag(daemon, "t"))
    injected(15, len(told))
    wrong = {n: t for n, t in told.items() if t.startswith("not refused") or "\n" in t}
    assert not wrong, (f"a snapshot damaged in {len(damages)} ways is refused", wrong)
    wrong = {n: t for n, t in told.items() if "t.former" not in t}
    assert not wrong, ("  and the error names the previous one", wrong)
    os.unlink(path)
    os.symlink(former, path)
    assert has(refusal(lambda: at_tag(daemon, "t")), path), "a link is not followed"

    shutil.rmtree(place.file("state"))
    with open(place.file("state"), "w") as f:
        f.write("no directory")
    client = Client(daemon.socket).attach()
    told = refusal(lambda: client.ask(op="checkpoint", tag="u", cursor=first))
    assert has(told, "Not a directory"), "a state_dir that is a file: the save fails"
    assert client.next() is not None, "  and the session continues"
    client.close()
    os.unlink(place.file("state"))
    assert daemon.stop() == 0, "exit 0"


def test_snapshots_of_other_streams_are_refused(place):
    """The config changes between save and attach, or the snapshot is a newer version's. The error
    names the field, and no file changes.
    """
    train = simple_streams(place)["train"]
    place.shard("small2/b.bin", 30_000)
    path_of = place.file("other.sock")
    config = lambda **keys: place.config(
        "other.yaml", socket=path_of, streams={"train": {**train, **keys}}
    )
    daemon = Daemon(place, config())
    client = Client(daemon.socket).attach(run="run")
    path = client.ask(op="checkpoint", tag="t", cursor=client.feed["cursor"])["path"]
    client.close()
    cursor = open(path, "rb").read()
    small = train["datasets"][0]
    changes = {
        "seed": {"seed": 4},
        "seq_len": {"seq_len": 32},
        "extra": {"extra": 0},
        "dataset small: shards": {"datasets": [{**small, "path": "small2"}]},
        "dataset small: name": {"datasets": [{"name": "tiny", "path": "small"}]},
        "dataset small: windows": {"datasets": [{**small, "dtype": "u32"}]},
        "dataset small: shuffle": {"datasets": [{**small, "shuffle": "none"}]},
    }
    wrong = {}
    for field, keys in changes.items():
        daemon.stop()
        config(**keys)
        daemon.start()
        told = refusal(lambda: at_tag(daemon, "t", "run"))
        injected(17)
        if field not in told or "\n" in told or open(path, "rb").read() != cursor:
            wrong[field] = told
    assert not wrong, ("each names the field that differs", wrong)
    daemon.stop()
    config()
    daemon.start()
    newer = cursor[:4] + b"\4" + cursor[5:]
    with open(path, "wb") as f:
        f.write(newer)
    told = refusal(lambda: at_tag(daemon, "t", "run"))
    injected(18)
    assert has(told, "version", "newer") and open(path, "rb").read() == newer, told
    with open(path, "wb") as f:
        f.write(cursor)
    assert at_tag(daemon, "t", "run") == 0, "with the old config the snapshot is served"
    assert sorted(os.listdir(os.path.dirname(path))) == ["mixes", "t.cursor"], "no other file"
    assert daemon.stop() == 0, "exit 0"


# ---- io_uring forbidden ----


class Filter(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_ushort),
        ("jt", ctypes.c_ubyte),
        ("jf", ctypes.c_ubyte),
        ("k", ctypes.c_uint),
    ]


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]


def forbid_uring(error):
    """For preexec_fn: forbids io_uring (system calls 425 to 427), as containers do."""
    code = [
        Filter(0x20, 0, 0, 0),  # load the number
        Filter(0x35, 0, 2, 425),  # < 425: allow
        Filter(0x25, 1, 0, 427),  # > 427: allow
        Filter(0x06, 0, 0, 0x00050000 | error),
        Filter(0x06, 0, 0, 0x7FFF0000),
    ]
    program = Program(len(code), (Filter * len(code))(*code))

    def forbid():
        with_parent()
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
            PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
        ):
            os._exit(77)

    return forbid


def test_pread_replaces_forbidden_io_uring(place):
    streams = simple_streams(place)
    for name, error in (("EPERM", 1), ("ENOSYS", 38)):
        config = place.config(f"{name}.yaml", socket=place.file(f"{name}.sock"), streams=streams)
        daemon = Daemon(place, config, preexec_fn=forbid_uring(error))
        witness = Witness(daemon, rows_at(config, "train", 0, 2000))
        good = witness.step(500)
        assert status(daemon.socket)[1]["io"] == "pread", f"io_uring forbidden ({name}): pread"
        (said,) = daemon.said("io_uring is forbidden")  # logged once
        assert has(said, f"io_uring is forbidden here ({name})"), "  with the error"
        assert good, ("  the same bytes", witness.wrong)
        witness.close()
        assert daemon.stop() == 0, "  exit 0"
        injected(38)
    config = place.config(
        "insist.yaml", io="uring", socket=place.file("insist.sock"), streams=streams
    )
    done = subprocess.run(
        [TOKEND, "-c", config],
        capture_output=True,
        text=True,
        timeout=20,
        preexec_fn=forbid_uring(1),
    )
    assert done.returncode == 1, "io: uring where it is forbidden: exit 1"
    assert done.stderr.count("\n") == 1 and "io: auto" in done.stderr, (
        "  with one line",
        done.stderr,
    )
    injected(38)


# ---- starting and stopping ----


def second_daemon(config, socket_path):
    code, _, err = run(TOKEND, "-c", config, "--socket", socket_path, timeout=20)
    assert code == 1 and err.count("\n") == 1 and socket_path in err, (
        "  a second daemon: exit 1 with one line",
        (code, err),
    )


def test_sockets_are_replaced_and_removed(place):
    config = place.config(
        "socket.yaml", socket=place.file("run", "s.sock"), streams=simple_streams(place)
    )
    daemon = Daemon(place, config)
    path, lock = daemon.socket, daemon.socket + ".lock"
    daemon.kill()
    assert os.path.exists(path) and os.path.exists(lock), "kill -9 leaves a socket and a lock"
    daemon.start()
    witness = Witness(daemon, rows_at(config, "train", 0, 1000))
    assert witness.step(5), "  they are replaced"
    before = os.stat(path).st_ino
    second_daemon(config, path)
    same = os.stat(path).st_ino == before and status(path)[1]["sessions"] == 1
    assert same and witness.step(5), "  the first daemon's socket is unchanged"
    for name in ("SIGTERM", "SIGINT"):
        daemon.process.send_signal(getattr(signal, name))
        code = daemon.process.wait(20)
        seen = code, os.path.exists(path), os.path.exists(lock)
        assert seen == (0, False, False), (
            f"{name} with a session: exit 0, socket and lock are removed"
        )
        try:
            while True:
                witness.step()
        except Closed:
            pass
        assert witness.wrong == 0 and witness.checked > 5, (
            "  published batches stay readable, and are right",
            witness.checked,
        )
        witness.close()
        daemon.start()
        witness = Witness(daemon, rows_at(config, "train", 0, 1000))
        witness.step(6)
    witness.close()
    daemon.stop()

    with open(path, "w") as f:
        f.write("mine")
    code, _, err = run(TOKEND, "-c", config, timeout=20)
    kept = open(path).read() == "mine"
    assert code == 1 and err.count("\n") == 1 and kept, (
        "a file that is not a socket is not removed: exit 1 with one line",
        (code, err),
    )
    os.unlink(path)

    with socket.socket(
        socket.AF_UNIX, socket.SOCK_SEQPACKET
    ) as foreign:  # for example systemd's: without our lock
        foreign.bind(path)
        foreign.listen(1)
        before = os.stat(path).st_ino
        try:
            code, _, err = run(TOKEND, "-c", config, timeout=2)
        except subprocess.TimeoutExpired:
            code, err = None, "it started"
        kept = os.path.exists(path) and os.stat(path).st_ino == before
        good = code == 1 and err.count("\n") == 1 and kept
        assert good, (
            "a live socket without our lock is not replaced: exit 1 with one line",
            (code, kept, err),
        )
    if os.path.exists(path):
        os.unlink(path)

    long = os.path.join(place.path, "x" * 120)
    code, _, err = run(TOKEND, "-c", config, "--socket", long, timeout=20)
    assert code == 1 and err.count("\n") == 1 and "107" in err, (
        "a path that is too long: exit 1 with one line",
        (code, err),
    )
    daemon = Daemon(place, config, place.file("deep", "elsewhere.sock"))
    assert stat.S_ISSOCK(os.stat(daemon.socket).st_mode) and not os.path.exists(path), (
        "--socket overrides the config"
    )
    begin = time.monotonic()
    daemon.stop()
    lingering = Daemon(place, config, arguments=["--linger", "1"])
    code = lingering.process.wait(20)
    assert code == 0 and time.monotonic() - begin > 0.9, (
        "--linger 1: exits by itself, with 0",
        code,
    )
