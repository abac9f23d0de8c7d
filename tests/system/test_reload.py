"""A reload checks the config, and the daemon executes itself. Trainers go on, and get what is new.
A config that is broken, or does not fit a live session, changes nothing.
"""

import contextlib
import fcntl
import itertools
import os
import resource
import shutil
import signal
import socket
import termios
import time

import pytest
import zstandard
from requesting import SEQ, Operator, Trainer
from tokend import Loader

from lib import TOKCTL, TOKEND, Client, Daemon, Witness, datasets, has, rank_rows, refusal
from lib import rows_at, run, status, wait_for, wait_until, with_parent
from lib.fuse import READ, hanging
from lib.injected import injected
from lib.preload import OPENS, Preload
from lib.web import metrics

pytestmark = [pytest.mark.asan, pytest.mark.tsan]

ROUNDS = 50


class Scene:
    """A daemon with the stream train, whose config can be written again and reloaded."""

    def __init__(self, place, program=TOKEND, more=None, **keys):
        self.place, self.more = place, more or {}
        self.top = {"memory": 64 << 20}
        for number, name in enumerate(("web", "code", "law")):
            place.shard(f"{name}/a.bin", 60_000, seed=number)
        self.window = {"seed": 1, "seq_len": SEQ, "extra": 1}
        self.train = {**self.window, "datasets": datasets("web", "code")}
        self.config = self.write(train=self.train)
        kind = type("Program", (Daemon,), {"program": program})
        self.daemon = kind(place, self.config, **{"start_new_session": True, **keys})
        self.reload = self.daemon.reload

    def write(self, more=None, **streams):
        return self.place.config(streams={**streams, **self.more}, **self.top, **(more or {}))

    def goes_on(self, trainer):
        """It attaches again once it needs more than its ring has."""
        assert wait_for(lambda: trainer.step(1) and status(self.daemon.socket)[0])

    def attach(self, **keys):
        return Client(self.daemon.socket).attach(**keys)

    def witness(self, stream="train", **keys):
        rows = rows_at(self.config, stream, 0, 400)
        return Witness(self.daemon, rows, stream=stream, **keys)


@pytest.fixture
def scene(place):
    return Scene(place)


def test_what_is_new_is_served_and_a_live_session_must_fit(scene):
    t = Trainer(scene)
    t.step(3)
    pid, opened = scene.daemon.pid, scene.daemon.settled_fds()
    mixed = {**scene.train, "datasets": datasets("web", "code", "law")}
    assert run(TOKCTL, "manifest", scene.place.file("web"), scene.place.file("m"))[0] == 0
    listed = {**mixed, "datasets": [*datasets("web", manifest="m"), *datasets("code", "law")]}
    scene.write(train=listed, valid={**scene.window, "datasets": datasets("law")})
    log = scene.reload()
    assert has(log, "was read again", ", 2 streams"), log
    valid = scene.witness("valid")
    assert valid.step(10)
    valid.close()
    scene.goes_on(t)
    assert wait_for(lambda: scene.daemon.fds() <= opened + 4), "no descriptor is left"
    assert open(f"/proc/{pid}/comm").read() == "tokend\n"
    assert "SigBlk:\t0000000000000000\n" in open(f"/proc/{pid}/status").read()

    refused = "keeps the config that it has"
    scene.write(other={**scene.window, "datasets": datasets("web")})
    log = scene.reload(refused)
    assert has(log, "stream train (run job)", "could not go on: the stream is removed"), log
    scene.write(train=mixed)
    scene.place.shard("web/b.bin", 5000)  # a shard is added to a dataset while it is served
    log = scene.reload(refused)
    assert has(log, "could not go on", "dataset web"), log
    scene.top["memory"] = 1 << 16
    os.remove(scene.place.file("web", "b.bin"))
    scene.write(train=mixed)
    assert "memory: 65536 bytes, but rings" in scene.reload(refused)
    assert scene.daemon.process.poll() is None and t.step(3)
    t.close()
    scene.top["memory"] = 64 << 20
    scene.write(other={**scene.window, "datasets": datasets("web")})
    assert ", 1 stream\n" in scene.reload()
    opened = [path for path in scene.daemon.opened() if "law/" in path or "code/" in path]
    assert not opened, "their space can be freed"
    assert has(refusal(lambda: scene.attach(stream="train")), "stream", "other")


def test_annotations_of_a_live_session_stay(scene):
    client, train = scene.attach(), {**scene.train, "documents": True, "eos": 1, "loss_mask": True}
    scene.write(train={**scene.train, "loss_mask": True})
    assert "loss_mask: is no longer false" in scene.reload("keeps the config that")
    client.close()
    scene.write(train=train)
    scene.reload()
    client = scene.attach(stream="train")
    for lost in "documents", "loss_mask":
        scene.write(train={**train, lost: False})
        assert f"could not go on: {lost}: is no longer" in scene.reload("keeps the config that")
    assert run(TOKCTL, "manifest", scene.place.file("web"), scene.place.file("m"))[0] == 0
    listed = {**train, "datasets": [*datasets("web", manifest="m"), *datasets("code")]}
    for other in {**train, "eos": 2}, {**listed, "eos": 2}:
        scene.write(train=other)
        assert "go on: shards: dataset web: names and" in scene.reload("keeps the config that")
    scene.place.shard("code/a.bin", 60_000, seed=9)  # a manifest of another dataset hides nothing
    scene.write(train=listed)
    assert "go on: shards: dataset code: names and" in scene.reload("keeps the config that")
    client.close()


def test_rings_that_grow_must_fit(scene):
    """A stream gets a dataset of wider tokens."""
    scene.place.shard("wide/a.bin", 60_000, dtype="<u4")
    client, more = scene.attach(micro=1024, slots=500), 500 * 1024 * (SEQ + 1) * 2
    scene.top["memory"] = status(scene.daemon.socket)[1]["memory_bytes"] + more // 2
    scene.write(train=scene.train)
    scene.reload()
    client.close()
    client = scene.attach(micro=1024, slots=500)
    wide = [*scene.train["datasets"], *datasets("wide", dtype="u32", weight=0)]
    scene.write(train={**scene.train, "datasets": wide})
    assert "rings of live sessions need" in scene.reload("keeps the config that it has")
    client.next()
    scene.top["memory"] += more
    scene.write(train={**scene.train, "datasets": wide})
    scene.reload()
    client.close()


def test_two_signals_in_a_row_are_two_checks(scene):
    scene.write(train={**scene.train, "seq_len": "many"})
    for _ in range(5):
        scene.daemon.process.send_signal(signal.SIGHUP)
    assert scene.daemon.said("keeps the config that it has")
    scene.write(train=scene.train, valid={**scene.window, "datasets": datasets("law")})
    for _ in range(5):
        scene.daemon.process.send_signal(signal.SIGHUP)
    assert scene.daemon.said("was read again")
    assert scene.daemon.said(", 2 streams")


def test_memory_io_and_compression_change_by_a_reload(scene):
    t = Trainer(scene)
    with open(scene.place.file("packed", "a.bin.zst"), "wb") as f:
        f.write(zstandard.compress(bytes(60_000)))
    scene.top["memory"] = 96 << 20
    packed = {**scene.window, "datasets": datasets("packed")}
    scene.write({"io": "pread", "direct": True}, train=scene.train, packed=packed)
    scene.reload()
    assert t.step(5)
    assert "tokend_memory_limit_bytes 100663296" in metrics(scene.daemon.socket)
    scene.attach(stream="packed").next()
    t.close()


def test_a_replaced_program_keeps_running_until_a_restart(place):
    program = place.file("bin", "tokend")
    shutil.copy(TOKEND, program)
    scene = Scene(place, program=program)
    os.remove(program)
    shutil.copy("/bin/false", program)
    t = Trainer(scene)
    scene.reload()
    assert t.step(5)
    t.close()


UNSAVED = r"""
#include <errno.h>
#include <stdio.h>

int memfd_create(const char *name, unsigned flags)
{
	NEXT(memfd_create);
	errno = EMFILE;
	return words[FAIL] == 1 ? -1 : next(name, flags);
}

FILE *fdopen(int fd, const char *mode)
{
	NEXT(fdopen);
	errno = ENFILE;
	return words[FAIL] == 2 && mode[0] == 'w' ? NULL : next(fd, mode);
}
"""


def test_a_failing_memfd_or_exec_changes_nothing(place):
    """execve() gets a quarter of the stack limit for arguments and environment, or 128 KiB."""
    words, calls = {f"WORD{n}": "x" * 100_000 for n in range(3)}, Preload(place, UNSAVED, ["fail"])
    scene = Scene(place, env={**os.environ, **words, **calls.env})
    witness, opened = scene.witness(), scene.daemon.settled_fds()
    for fail, why in (1, "Too many open files;"), (2, "Too many open files in system;"):
        calls.set(fail=fail)
        assert f"memfd for the next process: {why}" in scene.reload("keeps the config that it has")
        assert scene.daemon.settled_fds() == opened
    calls.set(fail=0)
    limit = resource.prlimit(scene.daemon.pid, resource.RLIMIT_STACK)
    resource.prlimit(scene.daemon.pid, resource.RLIMIT_STACK, (1 << 19, limit[1]))
    log = scene.reload("keeps the config that it has")
    assert "tokend cannot execute itself: Argument list too long" in log, log
    assert witness.step(20)
    witness.close()
    resource.prlimit(scene.daemon.pid, resource.RLIMIT_STACK, limit)
    scene.reload()
    assert scene.witness().step(5)


def hear(manager, begin):
    """The next notification that begins so; the status may change at any time."""
    while not (told := manager.recv(4096).decode()).startswith(begin):
        assert told.startswith(("STATUS=", "READY=1", "WATCHDOG")), told
    return told


OPENING = r"""
#include <errno.h>
#include <string.h>

static int opening(const char *call, const char *path)
{
	while (strncmp(path, "try.", 4) == 0 && words[HANGS])
		usleep(10000);
	if (!strstr(path, "/web/"))
		return 0;
	usleep((useconds_t)words[SLOW_US]);
	words[OPENED]++;
	errno = EIO;
	return words[EXECUTED] != 0;
}
"""
EXECVE = r"""
#include <signal.h>

int execve(const char *path, char *const argv[], char *const environment[])
{
	int fd = open(getenv("CONFIG"), O_WRONLY | O_TRUNC);

	close(fd);
	words[EXECUTED] = 1;
	if (words[KILLS] && kill(getpid(), SIGTERM) == 0)
		usleep(50000);
	NEXT(execve);
	return next(path, argv, environment);
}
"""


def watched(place, **keys):
    """A scene whose daemon truncates its config when it executes itself, and then opens no shard
    of web; and systemd's side of its notifications.
    """
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(place.file("notify"))
    manager.settimeout(20)
    preload = Preload(
        place, OPENING + OPENS + EXECVE, ["hangs", "kills", "slow_us", "opened", "executed"]
    )
    about = {"NOTIFY_SOCKET": manager.getsockname(), "CONFIG": place.file("tokend.yaml")}
    scene = Scene(place, env={**preload.env, **about, **keys})
    hear(manager, "READY=1")
    return scene, preload, manager


def test_what_was_checked_is_served(place):
    """Even if config and shards change before the daemon executes itself."""
    scene, preload, _ = watched(place)
    t = Trainer(scene)
    preload.set(opened=0)
    scene.write(train=scene.train, valid={**scene.window, "datasets": datasets("law")})
    assert ", 2 streams" in scene.reload()
    assert os.path.getsize(scene.config) == 0
    assert preload.get("opened") > 0
    preload.set(executed=0)
    scene.attach(stream="valid").next()
    assert t.step(5)
    assert "the file is empty" in scene.reload("keeps the config that it has")
    t.close()


def test_a_slow_check_feeds_the_watchdog_and_is_not_repeated(place):
    for number in range(20):
        place.shard(f"web/{number:03}.bin", 1000, seed=number)
    scene, preload, manager = watched(place, WATCHDOG_USEC="3000000")
    preload.set(slow_us=200_000, opened=0)
    scene.daemon.process.send_signal(signal.SIGHUP)
    hear(manager, "RELOADING=1")
    fed = [time.monotonic()]
    while not manager.recv(4096).startswith(b"READY=1"):
        fed.append(time.monotonic())
    assert max(b - a for a, b in itertools.pairwise(fed)) < 3
    assert len(fed) > 3 and preload.get("executed") == 1
    preload.set(executed=0)
    scene.attach().next()


def test_a_cache_that_cannot_be_used_refuses_a_reload(scene):
    t = Trainer(scene)
    scene.write({"cache": {"dir": "web/a.bin", "size": 64 << 20}}, train=scene.train)
    assert has(scene.reload("keeps the config"), "tokend.yaml:", "cache.dir: ", "/web/a.bin: ")
    scene.write({"cache": {"dir": "cache", "size": 64 << 20}}, train=scene.train)
    scene.reload()
    scene.reload()  # with the cache that it uses
    assert t.step(5)
    t.close()


def test_a_reload_waits_for_the_disk_of_the_cache(place):
    """execve() would wait for threads that this disk does not answer, and trainers for it."""
    scene, preload, manager = watched(place)
    scene.write({"cache": {"dir": "cache", "size": 64 << 20}}, train=scene.train)
    scene.reload()
    preload.set(executed=0, hangs=1)
    scene.write({"cache": {"dir": "cache", "size": 64 << 20}}, train=scene.train)
    scene.daemon.process.send_signal(signal.SIGHUP)
    hear(manager, "RELOADING=1")
    scene.attach().next()
    preload.set(hangs=0)
    wait_until(lambda: scene.daemon.log().count("starting again") == 2, "it goes on")


def test_a_running_job_mixes_in_a_dataset_that_came_with_the_reload(scene):
    t = Trainer(scene)
    t.step(3)
    scene.write(train={**scene.train, "datasets": datasets("web", "code", "law")})
    scene.reload()
    scene.goes_on(t)
    keys = {"socket": scene.daemon.socket, "run": "later", "start": bytes.fromhex(t.cursor())}
    with pytest.warns(RuntimeWarning, match="began with, web=0.5 code=0.5; .* now web=0.3333 code"):
        Loader("train", 64, framework="numpy", **keys).close()
    op = Operator(scene, "mix", "train", "web=1", "law=3")
    done = t.carry_out()
    code, _, result, err = op.result()
    assert (code, err, result["acts_from"]) == (0, "", done["at"]), (code, err)
    scene.write(train={**scene.train, "datasets": datasets("web", "law")})
    assert "dataset code: name: the cursor serves it" in scene.reload("keeps the config that")
    assert t.step(40)["next"] > done["at"]  # from there on it has no share
    scene.reload()
    scene.goes_on(t)
    again = Trainer(scene, rank=1, world=2)
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


def test_a_broken_config_keeps_the_old_one_and_says_why(place):
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)  # systemd's side
    manager.bind(place.file("notify"))
    manager.settimeout(20)
    environment = {**os.environ, "NOTIFY_SOCKET": manager.getsockname()}
    scene = Scene(place, env=environment)
    hear(manager, "READY=1")
    witness = scene.witness()
    broken = (
        ({"seq_len": "many"}, 'seq_len: "many" is quoted'),
        ({"datasets": datasets("gone")}, "gone: No such file or directory"),
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
    scene.write({"state_dir": "elsewhere"}, train=scene.train)
    assert "state_dir: needs a restart" in scene.reload("keeps the config that it has")
    assert witness.step(5)
    witness.close()


def test_a_stop_right_before_execve_is_not_lost(place):
    """No thread of the former image takes SIGTERM."""
    scene, preload, _ = watched(place)
    preload.set(kills=1)
    scene.daemon.process.send_signal(signal.SIGHUP)
    assert scene.daemon.process.wait(20) == 0 and preload.get("executed") == 1


@pytest.mark.parametrize("answers", [True, False])
def test_a_check_that_hangs_ends_with_the_daemon(place, answers):
    """After STOPPING=1 no READY=1 follows."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(place.file("notify"))
    manager.settimeout(20)
    scene = Scene(place, env={**os.environ, "NOTIFY_SOCKET": manager.getsockname()})
    place.shard("files/a.bin", 60_000)
    with contextlib.closing(hanging(place.file("files"), place.file("hung", ""))) as disk:
        scene.write(train=scene.train, hung={**scene.window, "datasets": datasets("hung")})
        disk.hang()
        scene.daemon.process.send_signal(signal.SIGHUP)
        assert wait_for(disk.held)
        scene.daemon.process.send_signal(signal.SIGTERM)
        while manager.recv(4096) != b"STOPPING=1":
            pass
        if answers:
            disk.answer()
        assert scene.daemon.process.wait(20) == 0
        left = "not stopped after" in scene.daemon.log()
        assert left != answers, scene.daemon.log()
        manager.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while told := manager.recv(4096):
                assert not told.startswith((b"READY=1", b"RELOADING=1")), told


def test_storage_that_hangs_refuses_a_reload(place):
    """A manifest makes the check pass, because that opens no shard."""
    place.shard("files/a.bin", 600_000)
    code, _, err = run(TOKCTL, "manifest", place.file("files"), place.file("m"))
    assert code == 0, err
    keys = {"seed": 1, "seq_len": SEQ, "extra": 1}
    hung = {**keys, "datasets": [{**datasets("hung")[0], "manifest": "m"}]}
    with contextlib.closing(hanging(place.file("files"), place.file("hung", ""))) as disk:
        scene = Scene(place, more={"hung": hung})
        stuck, witness = scene.attach(stream="hung", run="stuck"), scene.witness()
        stuck.next()
        disk.hang(READ)
        with pytest.raises(TimeoutError):
            while True:
                stuck.next(1)
        log = scene.reload("keeps the config that it has")
        assert has(log, "hung/a.bin has not ended for 5 s", "check the storage"), log
        assert witness.step(20)
        disk.answer()
        stuck.next()
        scene.reload()
        disk.hang()
        assert run(TOKCTL, "status", "-c", scene.config, timeout=20)[0] == 0


def test_fifty_reloads_under_live_trainers(scene):
    """Each batch is the one of the order."""
    sets = [datasets("web", "code", "law"), datasets("code", "law", "web"), datasets("web", "code")]
    trainers = [Trainer(scene, rank=rank, world=2, micro=4) for rank in range(2)]
    rows = rows_at(scene.config, "train", 0, ROUNDS * 2 * 2 * 4)
    for n in range(ROUNDS):
        scene.write(train={**scene.train, "datasets": sets[n % 3]})
        scene.reload()
        for rank, trainer in enumerate(trainers):
            want = rank_rows(rows, rank, 2, 4)[2 * n : 2 * n + 2]
            assert trainer.rows(2) == want.tolist()
    for trainer in trainers:
        trainer.close()
