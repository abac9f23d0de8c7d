"""The storage of one stream hangs (a real FUSE file system). Other streams continue, status names
the shard, a dead trainer's memory is freed, and the daemon stops on SIGTERM.
"""

import errno
import os
import sys
import subprocess
import time

import pytest

from lib import TOKCTL, Daemon, Place, Refused, Witness, has, rows_at, run, status, wait_for
from lib.fuse import GETATTR, LOOKUP, OPEN, READ, hanging
from lib.injected import injected
from lib.process import child_environment, few_descriptors
from lib.wire import DATA

SHARDS = {"near": 4, "files": 40}
TOKENS, SEQ_LEN = 20_000, 64
FRAME, FRAME_TOKENS = 1 << 20, 3 << 20  # random tokens do not shrink
MEMORY = 32 << 20  # a quarter is for frames: four of them, with their compressed bytes
DESCRIPTORS = 128  # limit of the daemon: at most 32 shards are open, fewer than hang
FRAMES = (4, 5)  # seeds of more streams that read the frames of "far-frames"
MICRO, SLOTS = 8, 64  # twice as many rows as a daemon has reads in flight
SLOW_MS = 2000  # after that, status and log name the shard
CALLS = {"lookup": LOOKUP, "open": OPEN, "read": READ, "getattr": GETATTR}
LOADER = """
import sys, tokend
next(tokend.Loader(sys.argv[2], 4, socket=sys.argv[1], rank=0, world=1, framework="numpy"))
"""


def write_frames(place, name):
    """Compressed shards, and plain ones of the same tokens."""
    flat = [place.shard(f"plain/{name}/{i}.bin", FRAME_TOKENS) for i in range(2)]
    command = [TOKCTL, "pack", *flat, place.file(name), "--format", "zstd"]
    code, _, err = run(*command, "--frame", FRAME, "--shards", len(flat))
    assert code == 0, err


class Scene:
    """A daemon with two streams on a disk, "near" and "near-frames", and four on mounts: "far",
    and three of the same frames.
    """

    def __init__(self, place, io):
        self.place = place
        for name, count in SHARDS.items():
            for i in range(count):
                place.shard(f"{name}/{i:02}.bin", TOKENS)
        for name in ("near-frames", "files-frames"):
            write_frames(place, name)
        self.mounts = {
            name: hanging(place.file(name.replace("far", "files")), place.file(name, ""))
            for name in ("far", "far-frames")
        }
        about = {"seed": 3, "vocab": 65536}
        streams = {
            name: {**about, "seq_len": 1023 if "frames" in name else SEQ_LEN}
            | {"datasets": [{"name": "d", "path": name}]}
            for name in ("near", "far", "near-frames", "far-frames")
        }
        for seed in FRAMES:
            streams[f"far-frames-{seed}"] = {**streams["far-frames"], "seed": seed}
        self.streams = streams
        self.config = place.config(io=io, memory=MEMORY, streams=streams)
        self.rows = {name: rows_at(self.config, name, 0, 16_000) for name in ("near", "far")}
        plain = {
            name: {**streams[name], "datasets": [{"name": "d", "path": f"plain/{path}"}]}
            for name, path in (
                ("near-frames", "near-frames"),
                *((name, "files-frames") for name in streams if name.startswith("far-frames")),
            )
        }
        config = place.config("plain.yaml", streams=plain)
        self.rows |= {name: rows_at(config, name, 0, 4000) for name in plain}
        self.daemon = Daemon(place, self.config, preexec_fn=few_descriptors(DESCRIPTORS))

    def witness(self, stream, slots=16):
        return Witness(
            self.daemon, self.rows[stream], stream, run=f"of-{stream}", micro=MICRO, slots=slots
        )

    def loader(self, stream, **keys):
        command = [sys.executable, "-c", LOADER, self.daemon.socket, stream]
        return self.place.spawn(command, env=child_environment(), **keys)

    def slow(self, stream):
        sessions = status(self.daemon.socket)[0]
        return [s for s in sessions if s["stream"] == stream and s.get("slow_ms")]

    def hang(self, stream, call):
        """A session of the stream, whose batches come no more."""
        return self.hang_all([stream], call)[0]

    def hang_all(self, streams, call):
        """The same of several streams, all of the first one's mount."""
        hung, mount = [self.witness(stream, SLOTS) for stream in streams], self.mounts[streams[0]]
        for each in hung:
            assert wait_for(lambda each=each: each.client.published() == SLOTS), "its ring is full"
        mount.hang(call)
        for each in hung:
            for _ in range(3 * SLOTS):
                try:
                    each.client.wait(0.5)
                    assert each.step()
                except TimeoutError:
                    if mount.held():  # otherwise the daemon is slow
                        break
        assert wait_for(mount.held), "calls hang"
        return hung


@pytest.fixture(scope="module", params=["uring", "pread"])
def scene(request, uring):
    if request.param == "uring" and uring:
        pytest.skip(f"io: uring: {uring}")
    with Place() as place:
        made = Scene(place, request.param)
        yield made
        for mount in made.mounts.values():
            mount.close()


@pytest.mark.parametrize("call", CALLS)
def test_other_streams_continue(scene, call):
    near = scene.witness("near")
    hung = scene.hang("far", CALLS[call])
    assert near.step(100), "while the hang is not known"
    check_said(scene)
    assert near.step(700), "during the hang"
    injected(45, scene.mounts["far"].held())
    scene.mounts["far"].answer()
    assert hung.step(50), "the stream that hung continues, and every token is right"
    assert wait_for(lambda: not status(scene.daemon.socket)[1]["slow_ms"])
    hung.close()
    near.close()


def check_said(scene):
    mount = scene.mounts["far"].mount
    known = wait_for(lambda: scene.slow("far"), 12)
    assert known and known[0]["slow_ms"] >= SLOW_MS and has(known[0]["slow_shard"], mount, ".bin")
    sessions, total = status(scene.daemon.socket)
    assert total["slow_ms"] >= SLOW_MS and mount in total["slow_shard"]
    assert all(s.get("slow_ms") is None for s in sessions if s["stream"] != "far")
    out = run(TOKCTL, "status", "--socket", scene.daemon.socket)[1]
    assert has(out.decode(), "stream far waits for", mount)
    assert any(has(line, "stream far", mount) for line in scene.daemon.said("has not answered"))


def test_frames_that_hang_do_not_stop_other_frames(scene):
    """Three streams decode all that they may, and a fourth one goes on."""
    near = scene.witness("near-frames", slots=4)
    names = ["far-frames", *(f"far-frames-{seed}" for seed in FRAMES)]
    hung = scene.hang_all(names, READ)
    assert wait_for(lambda: all(scene.slow(name) for name in names), 12)
    assert near.step(200)
    injected(45, len(hung))
    scene.mounts["far-frames"].answer()
    assert all(each.step(10) for each in hung)
    for each in (*hung, near):
        each.close()


def test_a_dead_trainer_is_freed_while_its_reads_hang(scene):
    memory = lambda: status(scene.daemon.socket)[1]["memory_bytes"]
    assert wait_for(lambda: scene.daemon.rings() == status(scene.daemon.socket)[1]["sessions"] == 0)
    before, rings = memory(), 0
    hung = scene.hang("far", READ)
    assert memory() > before
    hung.close()
    assert wait_for(lambda: memory() == before), "its memory is free"
    assert wait_for(lambda: scene.daemon.rings() == rings), "and so is its ring"
    scene.mounts["far"].answer()


def test_a_loader_says_what_it_waits_for(scene):
    scene.mounts["far"].hang()
    loader = scene.loader("far", stderr=subprocess.PIPE, text=True)
    said = loader.stderr.readline()
    words = "stream far: waiting ", " s for position 0", " reads shard ", " dataset "
    assert has(said, *words), said
    loader.kill()
    scene.mounts["far"].answer()


def test_no_attach_waits_for_the_storage_of_other_streams(scene):
    """Two streams hang while the daemon compares their shards with those that it listed."""
    loaders = []
    for stream, mount in scene.mounts.items():
        mount.hang(GETATTR)
        loaders.append(scene.loader(stream))
        assert wait_for(mount.held), "its shards are being compared"
    times = []
    for _ in range(3):
        begin = time.monotonic()
        near = scene.witness("near")
        times.append(time.monotonic() - begin)
        assert near.step(20)
        near.close()
    assert min(times) < 0.5
    for loader, mount in zip(loaders, scene.mounts.values(), strict=True):
        loader.kill()
        mount.answer()


def test_a_server_that_dies_is_an_error(scene):
    near, hung = scene.witness("near"), scene.hang("far-frames", READ)
    scene.mounts["far-frames"].die()
    with pytest.raises(Refused) as refused:
        hung.step(1000)
    told = refused.value.packet
    assert told["code"] == DATA and has(told["text"], "shard ", "nothing was skipped")
    assert (
        os.strerror(errno.ECONNABORTED) in told["text"]
        or os.strerror(errno.ENOTCONN) in told["text"]
    )
    assert hung.wrong == 0 and near.step(200)
    injected(45)
    hung.close()
    near.close()


def test_sigterm_ends_the_daemon_while_storage_hangs(scene):
    """The socket is free at once, for another daemon, and the process ends within 15 s."""
    scene.hang("far", 0)
    begin = time.monotonic()
    scene.daemon.process.terminate()
    assert wait_for(lambda: not os.path.exists(scene.daemon.socket)) and scene.daemon.alive()
    config = scene.place.config("heir.yaml", streams={"near": scene.streams["near"]})
    heir = Daemon(scene.place, config)
    witness = Witness(heir, scene.rows["near"], "near")
    assert scene.daemon.alive() and witness.step(20), "another daemon serves at the socket"
    witness.close()
    assert scene.daemon.process.wait(15 - (time.monotonic() - begin)) == 0
    injected(45)
    assert heir.stop() == 0


@pytest.mark.parametrize("scene", ["pread"], indirect=True)
def test_a_lingering_daemon_says_once_that_it_stops(scene):
    """Its last session has ended, and the stop waits for the storage."""
    scene.mounts["far"].answer()
    config = scene.place.config("far.yaml", streams={"far": scene.streams["far"]})
    scene.daemon = Daemon(scene.place, config, arguments=["--linger", "3"])
    scene.hang("far", 0).close()
    assert scene.daemon.process.wait(30) == 0
    injected(45)
    log = scene.daemon.log()
    assert has(log, "not stopped after 7 s") and log.count("(--linger)") == 1, log
