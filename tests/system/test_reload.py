"""The config is read again under running sessions: they keep what they have, new sessions get what
is new, and a broken config changes nothing.
"""

import contextlib
import fcntl
import os
import signal
import socket
import termios
import threading

import pytest
import zstandard
from requesting import SEQ, Operator, Trainer

from lib import Client, Closed, Daemon, Refused, Witness, datasets, has, refusal
from lib import rows_at, status, wait_for, wait_until, with_parent
from lib.fuse import hanging
from lib.injected import injected
from lib.web import metrics

pytestmark = [pytest.mark.asan, pytest.mark.tsan]

ROUNDS = 40


class Scene:
    """A daemon with the stream train, whose config can be written again and reloaded."""

    def __init__(self, place, **keys):
        self.place = place
        self.top = {"memory": 64 << 20}
        for number, name in enumerate(("web", "code", "law")):
            place.shard(f"{name}/a.bin", 60_000, seed=number)
        self.window = {"seed": 1, "seq_len": SEQ, "extra": 1}
        self.train = {**self.window, "datasets": datasets("web", "code")}
        self.config = self.write(train=self.train)
        self.daemon = Daemon(place, self.config, **{"start_new_session": True, **keys})

    def write(self, more=None, **streams):
        return self.place.config(streams=streams, **self.top, **(more or {}))

    def reload(self, line="was read again"):
        """Sends SIGHUP and waits for the line in the log. Returns what was logged since."""
        before = len(self.daemon.log())
        self.daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: line in self.daemon.log()[before:], line)
        return self.daemon.log()[before:]

    def opened(self, *names):
        """Those of its open files whose paths contain one of @names."""
        paths, links = [], f"/proc/{self.daemon.pid}/fd"
        for fd in os.listdir(links):
            with contextlib.suppress(OSError):
                paths.append(os.readlink(f"{links}/{fd}"))
        return [path for path in paths if any(name in path for name in names)]

    def attach(self, **keys):
        return Client(self.daemon.socket).attach(**keys)

    def witness(self, stream="train", **keys):
        rows = rows_at(self.config, stream, 0, 400)
        return Witness(self.daemon, rows, stream=stream, **keys)


@pytest.fixture
def scene(place):
    scene = Scene(place)
    yield scene
    assert scene.daemon.stop() == 0, ("the daemon exits with 0", scene.daemon.log())


def test_what_is_new_is_served_and_sessions_keep_what_they_have(scene):
    old = scene.witness()
    old.step(5)
    mixed = {**scene.train, "datasets": datasets("web", "code", "law")}
    scene.write(train=mixed, valid={**scene.window, "datasets": datasets("law")})
    log = scene.reload()
    assert has(log, "2 streams: 1 new, 1 changed, 0 removed", "stream valid: new"), log
    assert "could not attach again" not in log, log
    valid, fresh = scene.witness("valid"), scene.witness(run="fresh")
    assert valid.step(10) and fresh.step(10) and old.step(20)

    # The next edit of the config removes the streams of all sessions.
    scene.write(other={**scene.window, "datasets": datasets("web")})
    log = scene.reload()
    assert has(log, "1 streams: 1 new, 0 changed, 2 removed", "stream valid: removed"), log
    assert log.count("could not attach again: the stream is removed") == 3, log
    assert valid.step(10) and old.step(20) and fresh.step(10)
    assert has(refusal(lambda: scene.attach(stream="valid")), "stream", "other")
    for w in (valid, old, fresh):
        w.close()
    assert wait_for(lambda: scene.daemon.rings() == 0)
    assert wait_for(lambda: not scene.opened("law/", "code/")), "their space can be freed"

    # A shard is added to a dataset while it is served.
    scene.write(train=scene.train)
    scene.reload()
    train = scene.witness()
    scene.place.shard("web/b.bin", 5000)
    log = scene.reload()
    assert log.count("run test goes on, but could not attach again: ") == 1, log
    assert "dataset web" in log and train.step(10)
    os.remove(scene.place.file("web", "b.bin"))
    assert "could not attach" not in scene.reload()
    train.close()


def test_a_running_job_mixes_in_a_dataset_that_came_with_the_reload(scene):
    t = Trainer(scene)
    t.step(3)
    scene.write(train={**scene.train, "datasets": datasets("web", "code", "law")})
    scene.reload()
    op = Operator(scene, "mix", "train", "web=1", "law=3")
    done = t.carry_out()
    code, _, result, err = op.result()
    assert (code, err, result["acts_from"]) == (0, "", done["at"]), (code, err)
    again = Trainer(scene, rank=1, world=2)  # another generation, the same run
    assert sorted(s["rank"] for s in status(scene.daemon.socket)[0]) == [0, 1]
    for trainer in (t, again):
        trainer.close()


def test_a_terminal_that_closes_ends_the_daemon(place):
    """With a terminal, SIGHUP is a reload as long as the terminal is there."""
    master, slave = os.openpty()

    def take_terminal():
        with_parent()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    scene = Scene(place, start_new_session=False, preexec_fn=take_terminal)
    os.close(slave)
    scene.reload()
    os.close(master)
    assert scene.daemon.process.wait(20) == 0
    assert scene.daemon.said("the terminal is closed")


def hear(manager, begin):
    """The next notification that begins so; the status may change at any time."""
    while not (told := manager.recv(4096).decode()).startswith(begin):
        assert told.startswith(("STATUS=", "READY=1")), told
    return told


def test_a_broken_config_keeps_the_old_one_and_says_why(place):
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)  # systemd's side
    manager.bind(place.file("notify"))
    manager.settimeout(20)
    environment = {**os.environ, "NOTIFY_SOCKET": manager.getsockname()}
    scene = Scene(place, env=environment)
    hear(manager, "READY=1")
    witness = scene.witness()
    with open(place.file("packed", "a.bin.zst"), "wb") as f:
        f.write(zstandard.compress(bytes(60_000)))
    broken = (
        ({"seq_len": "many"}, 'seq_len: "many" is quoted'),
        ({"datasets": datasets("gone")}, "gone: No such file or directory"),
        ({"datasets": datasets("packed")}, "the first compressed dataset needs a restart"),
        ({"seqlen": 3}, "unknown key; did you mean seq_len?"),
    )
    for keys, why in broken:
        scene.write(train={**scene.train, **keys})
        log = scene.reload("keeps the config that it has")
        assert why in log and log.count("tokend.yaml:") == 1, log
        hear(manager, "RELOADING=1\nMONOTONIC_USEC=")
        assert why in hear(manager, "READY=1\nSTATUS=")
        assert witness.step(5)
        scene.attach(run="later").close()
    injected(54, len(broken))
    text = metrics(scene.daemon.socket)
    refused = f'tokend_config_reloads_total{{outcome="refused"}} {len(broken)}'
    assert has(text, refused, "tokend_config_reload_failed 1"), text
    os.remove(scene.config)
    assert "No such file" in scene.reload("keeps the config that it has")
    scene.write({"io": "pread", "state_dir": "elsewhere"}, train=scene.train)
    log = scene.reload()
    assert has(log, "io: needs a restart", "state_dir: needs a restart", "1 streams: 0 new, 0 ch")
    assert witness.step(5)
    witness.close()
    assert scene.daemon.stop() == 0


def test_a_reload_that_hangs_is_logged(scene):
    scene.place.shard("files/a.bin", 60_000)
    disk = hanging(scene.place.file("files"), scene.place.file("hung", ""))
    try:
        scene.write(train={**scene.window, "datasets": datasets("hung")})
        disk.hang()
        log = scene.reload("reading it again has not ended")
        assert "until then the daemon keeps the config that it has" in log, log
        scene.attach().next()
        disk.answer()
        assert scene.daemon.said("was read again")
    finally:
        disk.close()


def test_sessions_come_and_go_during_many_reloads(scene):
    """Attaches at old and new generations, and frees them, while the data thread reads."""
    sets = [datasets("web", "code"), datasets("law", "code"), datasets("web", "law")]
    faults, attached, stop = [], [0] * 3, threading.Event()

    def come_and_go(rank):
        while not stop.is_set():
            try:
                client = scene.attach(run=f"run{rank}", stream="train")
                for _ in range(8):
                    client.next()
                attached[rank] += 1
                client.close()
            except (Refused, Closed, OSError) as fault:
                faults.append(repr(fault))

    threads = [threading.Thread(target=come_and_go, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for n in range(ROUNDS):
        scene.write(train={**scene.train, "datasets": sets[n % 3]}, **{f"s{n % 4}": scene.train})
        before = sum(attached)
        scene.reload()
        wait_until(lambda before=before: faults or sum(attached) > before, "an attach")
    stop.set()
    for thread in threads:
        thread.join()
    assert not faults, faults[:3]
