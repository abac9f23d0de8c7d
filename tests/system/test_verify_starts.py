"""A session that took no batch does not change the result of tokctl verify, wherever it seeked and
however it ended.

A case is a list of lives: processes with a real Loader and a real daemon that load, seek, skip and
take, and are killed between any two of these or while they load. The result of verifying their
records is compared with a table.
"""

import contextlib
import json
import os
import signal
import struct
import sys
import time

import numpy
import pytest
from tokend import Loader

from lib import TOKCTL, Daemon, datasets, has, run, wait_for, with_parent

WORLD, MICRO, STEP = 2, 4, 8
BEGIN, VERSION = (1 << 64) - 1, 1

DEATHS = 43  # in all cases together
EXACT = {"repeated": 0, "lost": 0, "altered": 0, "skipped": 0, "void": 0}

# The lives of a case follow each other. A life is the list of actions of every rank, or a dict with
# a list for each rank.
TO_80 = [("take", 10), ("close",)]
FROM_80 = [("load", 80), ("take", 10), ("close",)]
DIE = ("die",)

CASES = [
    ("nobody dies", [TO_80, FROM_80], {"to": 160}),
    ("attach, die", [TO_80, [DIE], FROM_80], {"to": 160}),
    ("attach, close", [TO_80, [("close",)], FROM_80], {"to": 160}),
    ("attach, load, die", [TO_80, [("load", 80), DIE], FROM_80], {"to": 160}),
    ("attach, die while loading", [TO_80, [("die loading", 80)], FROM_80], {"to": 160}),
    ("attach, load, load backwards, die", [TO_80, [("load", 80), ("load", 40), DIE], FROM_80],
    {"to": 160}),
    ("attach, load backwards, die, twice", [TO_80, [("load", 40), DIE], [("load", 40), DIE],
    FROM_80], {"to": 160}),
    ("attach, load too far, load, go on", [TO_80, [("load", 120), *FROM_80]], {"to": 160}),
    ("attach, load too early, load, go on", [TO_80, [("load", 40), *FROM_80]], {"to": 160}),
    ("attach at a position, die", [TO_80, [("start", 40), DIE], FROM_80], {"to": 160}),
    ("attach as another world, die", [TO_80, [("world", 1), ("load", 48), DIE], FROM_80],
    {"to": 160, "generations": 1}),
    ("attach, skip by request, die", [TO_80, [("load", 80), ("skip", 40), DIE], FROM_80],
    {"to": 160}),
    ("die before the first row of all", [[DIE], TO_80, FROM_80], {"to": 160}),
    ("all begin at 400", [[("load", 400), DIE], [("load", 400), ("take", 5), ("close",)]],
    {"from": 400, "to": 440}),
    ("rank 1 dies before it loads, rank 0 after three batches",
     [TO_80, {0: [("load", 80), ("take", 3), DIE], 1: [DIE]}, FROM_80], {"to": 160, "void": 12}),
    ("rank 0 dies while it loads, rank 1 after three batches",
     [TO_80, {0: [("die loading", 80)], 1: [("load", 80), ("take", 3), DIE]}, FROM_80], {"to": 160,
     "void": 12}),
    ("skip by request before the first batch", [TO_80, [("load", 80), ("skip", 40), ("take", 5),
    ("close",)]], {"to": 160, "skipped": 40}),
    ("seek forwards before the first batch: it began there",
     [TO_80, [("load", 80), ("seek", 120), ("take", 5), ("close",)]], {"to": 160, "lost": 40,
     "code": 1}),
    ("seek forwards after a batch: it skipped", [[("take", 10), ("seek", 120), ("take", 5),
    ("close",)]], {"to": 160, "skipped": 40}),
    ("rewind, go on", [[("take", 10), ("load", 40), ("take", 15), ("close",)]], {"to": 160,
    "void": 40}),
    ("rewind, die", [[("take", 10), ("load", 40), DIE], FROM_80], {"to": 160}),
    ("rewind, close", [[("take", 10), ("load", 40), ("close",)], FROM_80], {"to": 160}),
    ("rewind, return, go on", [[("take", 10), ("load", 0), ("load", 80), ("take", 10), ("close",)]],
    {"to": 160}),
    ("rewind, skip by request, go on", [[("take", 10), ("load", 0), ("skip", 40), ("take", 15),
    ("close",)]],
     {"to": 160, "skipped": 40, "void": 80}),
    ("rewind, skip by request, die", [[("take", 10), ("load", 0), ("skip", 40), DIE], FROM_80],
    {"to": 160}),
    ("skip by request, die, go on after it",
     [[("take", 10), ("skip", 40), DIE], [("load", 120), ("take", 5), ("close",)]], {"to": 160,
     "skipped": 40}),
    ("skip by request, die, go on before it", [[("take", 10), ("skip", 40), DIE], FROM_80],
    {"to": 160}),
    ("commit, take two more, die: they do not count", [[("commit",), ("take", 8), ("commit",),
    ("take", 2), DIE]], {"to": 64}),
    ("commit, take two more, close", [[("commit",), ("take", 8), ("commit",), ("take", 2), ("close",
    )]], {"to": 64}),
    ("commit all but one of ten", [[("commit",), ("take", 10), ("commit", 72), ("take", 3), DIE]],
    {"to": 72}),
    ("commit, take two more, die, go on from the state",
     [[("commit",), ("take", 8), ("commit",), ("take", 2), DIE], [("load", 64), ("take", 12),
     ("close",)]], {"to": 160}),
    ("commit, take two more, load, go on",
     [[("commit",), ("take", 8), ("commit",), ("take", 2), ("load", 64), ("take", 12), ("commit",),
     ("close",)]], {"to": 160}),
    ("skip by request between what is committed late",
     [[("commit",), ("take", 8), ("skip", 40), ("take", 2), ("commit",), ("take", 1), DIE]],
     {"to": 120, "skipped": 40}),
    ("commit for the first time after eight: these counted when they were taken",
     [[("take", 8), ("commit", 56), ("take", 2), DIE]], {"to": 64}),
]  # fmt: skip


class Scene:
    def __init__(self, place):
        self.place, self.deaths, self.lived = place, 0, 0
        place.shard("web/a.bin", 20_000)
        stream = {"seed": 42, "seq_len": 30, "datasets": datasets("web")}
        self.config = place.config(streams={"train": stream})
        self.daemon = Daemon(place, self.config)

    def directory(self, name):
        return os.path.dirname(self.place.file(f"records/{name}/x"))

    def act(self, rank, actions, directory, ready, go):
        """Runs one life, in this process, which was forked for it."""
        actions = list(actions)
        world, start = WORLD, "begin"
        while actions[0][0] in ("world", "start"):
            what, number = actions.pop(0)
            world, start = (number, start) if what == "world" else (world, number)
        loader = Loader("train", MICRO, rank=rank, world=world, start=start,
            socket=self.daemon.socket, run="job", framework="numpy",
                        agree=False, record=directory)  # fmt: skip
        for what, *number in actions:
            if what == "take":
                for _ in range(number[0]):
                    next(loader)
            elif what in ("load", "die loading"):
                state = {"cursor": bytes(loader.cursor.seek(number[0]))}
                if what == "die loading":
                    os.write(ready, b"x")
                    os.read(go, 1)  # the daemon is stopped now
                loader.load_state_dict(state)
                if what == "die loading":
                    os._exit(3)  # nobody killed us
            elif what == "commit":
                loader.commit(*number)
            elif what == "seek":
                loader.seek(position=number[0])
            elif what == "skip":
                loader._client.obey("skip", f"samples {number[0]}\n")
            elif what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            elif what == "close":
                loader.close()
        os._exit(0)

    def live(self, rank, actions, directory):
        """Starts one rank's life. Returns its pid and the ends of its pipes."""
        ready, go = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            with_parent()
            try:
                self.act(rank, actions, directory, ready[1], go[0])
            except BaseException as error:
                print(f"rank {rank}, {actions}: {error!r}", file=sys.stderr, flush=True)
                os._exit(1)
        os.close(ready[1])
        os.close(go[0])
        return pid, ready[0], go[1]

    def end(self, pid, ready, go, actions):
        """Waits for the end of a life, and checks that it is the intended one."""
        killed = actions[-1][0].startswith("die")
        if actions[-1][0] == "die loading":
            os.read(ready, 1)
            self.daemon.process.send_signal(signal.SIGSTOP)
            os.write(go, b"x")
            time.sleep(
                0.05
            )  # it waits for the daemon now: that it does not end by itself is seen below
            os.kill(pid, signal.SIGKILL)
            self.daemon.process.send_signal(signal.SIGCONT)
        _, status = os.waitpid(pid, 0)
        os.close(ready)
        os.close(go)
        self.deaths += killed
        if (status == signal.SIGKILL) != killed or (status and not killed):
            raise RuntimeError(f"{actions}: ended with {status}")

    def phase(self, life, directory):
        ranks = (
            life
            if isinstance(life, dict)
            else {
                rank: life for rank in range(next((n[0] for w, *n in life if w == "world"), WORLD))
            }
        )
        lives = [(*self.live(rank, actions, directory), actions) for rank, actions in ranks.items()]
        for one in lives:
            self.end(*one)

    def verdict(self, name, directory, want):
        code = want.get("code", 0)
        status, out, err = run(TOKCTL, "verify", "-c", self.config, "train", directory, "--json")
        said = json.loads(out) if out else {}
        want = {**EXACT, "from": 0, **{key: value for key, value in want.items() if key != "code"}}
        want["samples"] = want["to"] - want["from"] - want["skipped"] - want["lost"]
        assert (status, {key: said.get(key) for key in want}) == (code, want), (name, err)


def beginning(left, position, rank, time_ns, identity):
    return struct.pack(
        "<10Q", BEGIN, VERSION, time_ns, position, left, rank, WORLD, MICRO, 0, identity
    )


def test_records_of_older_clients(scene):
    """Records of older clients note the attach and each seek, also if no row follows: the result is
    the same.
    """
    directory = scene.directory("new")
    scene.phase(TO_80, directory)
    scene.phase(FROM_80, directory)
    identity, entries = None, {}
    for name in os.listdir(directory):
        words = numpy.fromfile(f"{directory}/{name}", "<u8")
        identity, rank, position = int(words[9]), int(words[5]), int(words[3])
        entries[rank, position] = words[10:].astype("<u8").tobytes()
    second = 1_000_000_000
    cases = [
        ("attach, die", [(0, 0)], {"to": 160}),
        ("attach, load, die", [(0, 0), (0, 80)], {"to": 160}),
        ("attach, load backwards, die", [(40, 40), (40, 0)], {"to": 160}),
    ]
    for name, moves, want in cases:
        directory = scene.directory(f"old {name}")
        for rank in range(WORLD):
            lives = [[(0, 0), entries[rank, 0]], moves, [(0, 0), (0, 80), entries[rank, 80]]]
            for number, life in enumerate(lives):
                with open(f"{directory}/{rank}-{number}.record", "wb") as f:
                    for i, what in enumerate(life):
                        time_ns = now_ns(number, i, rank, second)
                        f.write(
                            what
                            if isinstance(what, bytes)
                            else beginning(*what, rank, time_ns, identity)
                        )
        scene.verdict(f"an old record: {name}", directory, want)
        one = scene.directory(f"old, one file: {name}")
        for rank in range(WORLD):
            with open(f"{one}/{rank}.record", "wb") as f:
                for number in range(3):
                    f.write(open(f"{directory}/{rank}-{number}.record", "rb").read())
        scene.verdict("in one file", one, want)
    assert len(entries) == 4, ("the records that they are made from are exact", list(entries))


def now_ns(number, i, rank, second):
    return (number * 10 + i) * second + rank


@pytest.fixture(scope="module")
def scene(shared):
    scene = Scene(shared)
    yield scene
    assert scene.lived < len(CASES) or scene.deaths == DEATHS, "processes were killed"
    wait_for(lambda: scene.daemon.rings() == 0)
    assert scene.daemon.stop() == 0, "exit 0"


@pytest.mark.parametrize("number", range(len(CASES)), ids=[name for name, *_ in CASES])
def test_sessions_without_batches_leave_no_trace(scene, number):
    name, lives, want = CASES[number]
    directory = scene.directory(f"{number}")
    with contextlib.suppress(StopIteration):
        for life in lives:
            scene.phase(life, directory)
    scene.verdict(name, directory, want)
    scene.lived += 1


def test_man_page_names_commit():
    page = run(TOKCTL, "help", "--man", "tokctl.1")[1].decode()
    assert has(page, "if the trainer calls commit()")
