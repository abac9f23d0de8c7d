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
import urllib.request

import numpy
import pyarrow
import pytest
import zstandard
from requesting import SEQ, Operator, Trainer

from lib import Client, Closed, Daemon, Refused, Witness, client_of, datasets, free_port, has
from lib import TOKCTL, refusal, rows_at, run, status, wait_for, wait_until, with_parent
from lib.fuse import hanging
from lib.injected import injected

pytestmark = [pytest.mark.asan, pytest.mark.tsan]

ROUNDS = 40
USER = 57123


class Scene:
    """A daemon with the stream train, whose config can be written again and reloaded."""

    def __init__(self, place, metrics=None, **keys):
        self.place = place
        self.top = {"memory": 64 << 20, **({"metrics": metrics} if metrics else {})}
        for number, name in enumerate(("web", "code", "law")):
            place.shard(f"{name}/a.bin", 60_000, seed=number)
        self.window = {"seed": 1, "seq_len": SEQ, "extra": 1}
        self.train = {**self.window, "datasets": datasets("web", "code")}
        self.config = self.write(train=self.train)
        self.daemon = Daemon(place, self.config, **{"start_new_session": True, **keys})

    def write(self, more=None, **streams):
        return self.place.config(streams=streams, **self.top, **(more or {}))

    def reload(self, line, count=1):
        """Sends SIGHUP and waits for the line in the log. Returns what was logged since."""
        before = len(self.daemon.log())
        self.daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self.daemon.log()[before:].count(line) >= count, line)
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


@pytest.fixture
def scene(place):
    scene = Scene(place)
    yield scene
    assert scene.daemon.stop() == 0, ("the daemon exits with 0", scene.daemon.log())


def test_what_is_new_is_served_and_sessions_keep_what_they_have(scene):
    witness = Witness(scene.daemon, rows_at(scene.config, "train", 0, 400))
    witness.step(5)
    mixed = {**scene.train, "datasets": datasets("web", "code", "law")}
    scene.write(train=mixed, valid={**scene.window, "datasets": datasets("law")})
    log = scene.reload("was read again")
    assert has(log, "2 streams: 1 new, 1 changed, 0 removed", "stream valid: new"), log
    assert "could not attach again" not in log, log
    valid = Witness(scene.daemon, rows_at(scene.config, "valid", 0, 40), stream="valid")
    assert valid.step(10) and witness.step(20), "the new stream; a session of before"
    fresh = Witness(scene.daemon, rows_at(scene.config, "train", 0, 40), run="fresh")
    assert fresh.step(10), "a new run has the new mix"

    # The next edit of the config removes the stream of two sessions.
    scene.write(other={**scene.window, "datasets": datasets("web")})
    log = scene.reload("was read again")
    assert has(log, "1 streams: 1 new, 0 changed, 2 removed", "stream valid: removed"), log
    assert log.count("could not attach again: the stream is removed") == 3, log
    assert valid.step(10) and witness.step(20) and fresh.step(10), "sessions of removed streams"
    fault = refusal(lambda: scene.attach(stream="valid"))
    assert has(fault, "stream", "other"), ("a new session has it no more", fault)
    for w in (valid, witness, fresh):
        w.close()
    assert wait_for(lambda: scene.daemon.rings() == 0)
    assert wait_for(lambda: not scene.opened("law/", "code/")), "their space can be freed"
    other = Witness(scene.daemon, rows_at(scene.config, "other", 0, 40), stream="other")
    assert other.step(10), "after the old generations are unused"
    other.close()


def test_a_changed_dataset_is_named_before_its_run_needs_it(scene):
    witnesses = [
        Witness(scene.daemon, rows_at(scene.config, "train", 0, 400), rank=rank, world=2)
        for rank in range(2)
    ]
    scene.place.shard("web/b.bin", 5000)
    log = scene.reload("was read again")
    assert log.count("run test goes on, but could not attach again: ") == 1, log
    assert "dataset web" in log and all(w.step(20) for w in witnesses), log
    os.remove(scene.place.file("web", "b.bin"))
    assert "could not attach" not in scene.reload("was read again")
    assert all(w.step(20) for w in witnesses)
    for w in witnesses:
        w.close()


def test_a_replaced_shard_is_served_to_the_next_session(scene):
    stream = {"law": {**scene.window, "datasets": datasets("law")}}
    scene.write(train=scene.train, **stream)
    scene.reload("was read again")
    os.remove(scene.place.file("law", "a.bin"))
    scene.place.shard("law/a.bin", 60_000, seed=9)
    witness = Witness(scene.daemon, rows_at(scene.config, "law", 0, 40), stream="law")
    assert witness.step(10)
    witness.close()


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
    scene.reload("was read again")
    os.close(master)
    assert scene.daemon.process.wait(20) == 0
    assert scene.daemon.said("the terminal is closed")


def test_a_running_job_mixes_in_a_dataset_that_came_with_the_reload(scene):
    t = Trainer(scene)
    t.step(3)
    scene.write(train={**scene.train, "datasets": datasets("web", "code", "law")})
    scene.reload("was read again")
    op = Operator(scene, "mix", "train", "web=1", "law=3")
    done = t.carry_out()
    code, _, result, err = op.result()
    assert (code, err, result["acts_from"]) == (0, "", done["at"]), (code, err)
    again = Trainer(scene, rank=1, world=2)  # another generation, the same run
    ranks = [s["rank"] for s in status(scene.daemon.socket)[0]]
    assert sorted(ranks) == [0, 1]
    for trainer in (t, again):
        trainer.close()


def test_a_broken_config_keeps_the_old_one_and_says_why(place):
    path = place.file("notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(20)
        port = free_port()
        scene = Scene(place, f"127.0.0.1:{port}", env={**os.environ, "NOTIFY_SOCKET": path})

        def hear(begin):
            """The next notification that begins so; the status may change at any time."""
            while not (told := manager.recv(4096).decode()).startswith(begin):
                assert told.startswith("STATUS="), told
            return told

        hear("READY=1")
        witness = Witness(scene.daemon, rows_at(scene.config, "train", 0, 400))
        witness.step(5)
        tokens = open(place.file("law", "a.bin"), "rb").read()
        with open(place.file("packed", "a.bin.zst"), "wb") as f:
            f.write(zstandard.compress(tokens))
        broken = (
            ({**scene.train, "seq_len": "many"}, 'seq_len: "many" is quoted'),
            ({**scene.train, "datasets": datasets("gone")}, "gone: No such file or directory"),
            (
                {**scene.train, "datasets": datasets("packed")},
                "the first compressed dataset needs a restart",
            ),
            ({**scene.train, "seqlen": 3}, "unknown key; did you mean seq_len?"),
        )
        for train, why in broken:
            scene.write(train=train)
            log = scene.reload("keeps the config that it has")
            assert why in log and log.count("tokend.yaml:") == 1, log
            hear("RELOADING=1\nMONOTONIC_USEC=")
            told = hear("READY=1\nSTATUS=")
            assert why in told, told
            assert witness.step(5)
            scene.attach(run="later").close()
        injected(54, len(broken))
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        refused = f'tokend_config_reloads_total{{outcome="refused"}} {len(broken)}'
        assert has(text, refused, "tokend_config_reload_failed 1"), text
        os.remove(scene.config)
        assert "No such file" in scene.reload("keeps the config that it has")
        scene.write({"io": "pread", "state_dir": "elsewhere"}, train=scene.train)
        log = scene.reload("was read again")
        assert has(
            log, "io: needs a restart", "state_dir: needs a restart", "1 streams: 0 new, 0 ch"
        )
        assert "memory: needs" not in log and witness.step(5), log
        witness.close()
    assert scene.daemon.stop() == 0


def test_the_first_index_takes_a_part_of_memory(scene):
    """A daemon that starts without indexes keeps no memory for them."""
    numbers = numpy.arange(60_000, dtype=numpy.uint16)
    schema = pyarrow.schema([("tokens", pyarrow.uint16())])
    with pyarrow.ipc.new_file(scene.place.file("arrow", "a.arrow"), schema) as writer:
        for part in numpy.array_split(numbers, 20):
            writer.write(pyarrow.record_batch([pyarrow.array(part)], schema=schema))
    memory = lambda: status(scene.daemon.socket)[1]["memory_bytes"]
    without, clients = memory(), []
    with pytest.raises(Refused):
        while True:
            clients.append(scene.attach(rank=len(clients), world=99, micro=4096, slots=32))
    scene.write(train=scene.train, indexed={**scene.window, "datasets": datasets("arrow")})
    log = scene.reload("keeps the config")
    assert "the indexes of shards need 4194304 of its 67108864 bytes" in log, log
    for client in clients:
        client.close()
    assert wait_for(lambda: memory() == without)
    for _ in range(2):
        scene.reload("was read again")
        assert memory() == without + (4 << 20)
    client = scene.attach(stream="indexed")
    client.next()
    client.close()


@contextlib.contextmanager
def hung_reload(scene, line):
    """A reload that hangs, until the line is logged."""
    scene.place.shard("files/a.bin", 60_000)
    disk = hanging(scene.place.file("files"), scene.place.file("hung", ""))
    try:
        scene.write(train={**scene.window, "datasets": datasets("hung")})
        disk.hang()
        yield disk, scene.reload(line)
    finally:
        disk.close()


def test_a_reload_that_hangs_is_logged(scene):
    with hung_reload(scene, "reading it again has not ended") as (disk, log):
        assert "until then the daemon keeps the config that it has" in log, log
        client = scene.attach()
        client.next()
        client.close()
        disk.answer()
        wait_until(lambda: "was read again" in scene.daemon.log(), "the end")


def test_a_reload_that_ends_during_a_stop_is_not_ready(place):
    """After STOPPING=1, READY=1 would tell systemd that the daemon goes on."""
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.bind(place.file("notify.sock"))
    told.settimeout(30)
    env = {**os.environ, "NOTIFY_SOCKET": place.file("notify.sock")}
    scene = Scene(place, env=env, arguments=["--linger", "600"])
    heard = lambda words: next(text for text in iter(lambda: told.recv(4096), b"") if words in text)
    with hung_reload(scene, "") as (disk, _):
        heard(b"RELOADING=1")
        wait_until(disk.held, "the hang")
        scene.daemon.process.terminate()
        heard(b"STOPPING=1")
        disk.answer()
        assert scene.daemon.process.wait(30) == 0
    told.setblocking(False)
    with pytest.raises(BlockingIOError):
        raise AssertionError(told.recv(4096))


def test_a_stop_after_linger_is_logged_once(place):
    scene = Scene(place, arguments=["--linger", "1"])
    with hung_reload(scene, "stopping: no session") as (disk, _):
        wait_until(disk.held, "the hang")
        assert not wait_for(lambda: scene.daemon.log().count("stopping: no session") > 1, 4)
        disk.answer()
        assert scene.daemon.process.wait(30) == 0


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_a_reload_allows_another_user(scene):
    assert "add it to allow_uids" in refusal(lambda: client_of(scene.daemon, USER))
    scene.write({"allow_uids": [USER, "daemon"]}, train=scene.train)
    scene.reload("was read again")
    client = client_of(scene.daemon, USER).attach(run="theirs")
    client.next()
    scene.write({}, train=scene.train)
    scene.reload("was read again")
    client.next()
    assert "add it to allow_uids" in refusal(lambda: client_of(scene.daemon, USER))
    client.close()


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
        scene.reload("was read again")
        wait_until(lambda before=before: faults or sum(attached) > before, "an attach")
    stop.set()
    for thread in threads:
        thread.join()
    assert not faults, faults[:3]
    # There are 34 places for streams. Those of freed generations are used again.
    for n in range(3):
        scene.write(**{f"t{n}-{i}": scene.train for i in range(16)})
        wait_until(
            lambda: "was read again" in scene.reload("tokend.yaml"), "freeing the places of streams"
        )
    code, out, err = run(TOKCTL, "status", "--socket", scene.daemon.socket, "--json")
    assert code == 0, err
