"""The simulator finds bugs: nineteen are planted, one at a time, and each must be found.

A bug is a replacement of text in a copy of one file, so the product contains no switches. The copy
and what depends on it are compiled and linked with the rest of the simulator. Then the simulator
runs from seed 1 until it fails.
"""

import os
import resource
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/gcc"
HISTORIES = 300  # at most
COMPILE = (
    "gcc -std=gnu11 -D_GNU_SOURCE -O1 -g -fPIC -fvisibility=hidden"
    " -D_FORTIFY_SOURCE=2 -fstack-protector-strong"
).split()
LIBRARIES = "-Wl,--as-needed -lyaml -lzstd -lz -ljansson -lm -lpthread".split()


@dataclass(frozen=True)
class Bug:
    name: str
    path: str
    right: str  # occurs once
    wrong: str
    program: str = "sim"
    users: tuple = ()  # of a header: the sources that use what is changed


BUGS = [
    # ---- the ring, and who waits ----
    Bug(
        "wait-without-recheck",
        "proto/ring.h",
        "\treturn atomic_load_explicit(&ring->header->published, memory_order_seq_cst) > s;",
        "\treturn false;",
        users=("client/lib/next.c",),
    ),
    Bug(
        "sleep-while-the-client-waits",
        "daemon/engine/feed.c",
        "ring_client_waits(ring, feed->planned));",
        "false);",
    ),
    Bug(
        "wake-once",
        "daemon/engine/feed.c",
        "\tif (waits == 0 || waits == feed->woken)",
        "\tif (waits == 0 || feed->woken)",
    ),
    Bug("answer-once", "client/lib/slots.c", "wake_at != m->answered", "m->answered == 0"),
    Bug(
        "publish-before-the-last-byte",
        "daemon/engine/feed.c",
        "\t\tfeed->left[feed->published % ring->geometry.slots] == 0)",
        "\t\tfeed->left[feed->published % ring->geometry.slots] <= 1)",
    ),
    # ---- the engine ----
    Bug(
        "gone-before-the-last-read",
        "daemon/engine/engine.c",
        "\tif (feed->state != FEED_LEAVING || feed->reading > 0)",
        "\tif (feed->state != FEED_LEAVING || feed->reading > 1)",
    ),
    Bug(
        "one-batch-too-many",
        "daemon/engine/feed.c",
        "\treturn (uint64_t)((end - cursor->next + step - 1) / step);",
        "\treturn (uint64_t)((end - cursor->next + step) / step);",
    ),
    Bug(
        "padding-counted-as-rows",
        "daemon/engine/feed.c",
        "\t\t.rows_valid = valid < g->rows ? (uint32_t)valid : g->rows,",
        "\t\t.rows_valid = valid > 0 ? g->rows : 0,",
    ),
    Bug(
        "turns-without-sizes",
        "daemon/engine/turns.c",
        "\t\tturn->credit -= (int64_t)cost;",
        "\t\tturn->credit -= cost > 0;",
    ),
    # ---- the daemon ----
    Bug(
        "session-freed-in-its-attach",
        "daemon/control/session.c",
        "\telse if (s->connection->jobs == 0)",
        "\telse",
    ),
    Bug(
        "snapshot-without-fsync",
        "daemon/control/durable.c",
        "\tbool ok = (n == 0 && fsync(fd) == 0) || failed(name, errno, fault);",
        "\tbool ok = n == 0 || failed(name, errno, fault);",
    ),
    Bug(
        "cursor-of-another-seed",
        "proto/cursor_compare.c",
        'same_number(fault, "seed", c->seed, now->seed)',
        'same_number(fault, "seed", now->seed, now->seed)',
    ),
    Bug(
        "request-over-when-seen",
        "daemon/control/request.c",
        "\treturn p->outcome == 0 || p->outcome == WIRE_NOTED;",
        "\treturn p->outcome == 0;",
    ),
    Bug(
        "keeper-forgets-its-end",
        "daemon/control/keeper.c",
        "\tif (k->end == &job->next)\n\t\tk->end = first;",
        "",
    ),
    # ---- the library ----
    Bug(
        "revived-at-the-committed-position",
        "client/lib/revive.c",
        "\tconst struct cursor *place = position_cursor(t, t->taken);",
        "\tconst struct cursor *place = position_cursor(t, t->committed);",
    ),
    Bug(
        "checkpoint-of-batches-fetched-ahead",
        "client/lib/position.c",
        "\treturn position_cursor((struct tokend *)t, handle_position(t));",
        "\treturn position_cursor((struct tokend *)t, t->taken);",
    ),
    Bug(
        "mix-later-on-one-rank",
        "client/lib/mix.c",
        "\t\t*at = cursor_mix_at(mixed);",
        "\t\t*at = cursor_mix_at(mixed) + (t->rank == 1 ? 1024 : 0);",
    ),
    Bug(
        "undo-keeps-the-position",
        "client/lib/undo.c",
        "\tt->taken = k.taken;",
        "\tt->taken = t->taken;",
    ),
    Bug(
        "release-before-the-copy-ends",
        "client/lib/pin.c",
        "c->queue[c->first] >= below || !first_is_over(c))",
        "c->queue[c->first] >= below)",
        "test_copies",
    ),
]


def plant(bug, folder):
    """Compiles and links the program with the bug."""
    shutil.rmtree(folder, ignore_errors=True)
    text = (ROOT / bug.path).read_text()
    assert text.count(bug.right) == 1, f"{bug.path}: {bug.right!r} must occur once"
    changed = folder / bug.path
    changed.parent.mkdir(parents=True)
    changed.write_text(text.replace(bug.right, bug.wrong))
    includes = [f"-I{folder}", f"-I{ROOT}", f"-I{ROOT}/client/lib"]
    objects, running = [], []
    preempted = {str(p.relative_to(BUILD / "preempted")) for p in BUILD.glob("preempted/**/*.o")}
    for source in bug.users or (bug.path,):
        built = source.removesuffix(".c") + ".o"
        target = folder / built
        target.parent.mkdir(parents=True, exist_ok=True)
        from_file = changed if source == bug.path else ROOT / source
        flags = ["-fsanitize-coverage=trace-pc"] if built in preempted else []
        if bug.program != "sim":
            flags = []
        running.append(
            subprocess.Popen([*COMPILE, *includes, *flags, "-c", from_file, "-o", target])
        )
        objects.append(target)
        preempted.discard(built)
        if len(running) % 2 == 0:
            assert not running[-2].wait() and not running[-1].wait()
    assert not any(process.wait() for process in running)
    program = folder / bug.program
    if bug.program == "sim":
        sources = sorted((ROOT / "tests/sim").glob("*.c"))
        rest = [BUILD / f"tests/sim/{source.stem}.o" for source in sources]
        rest += [BUILD / "preempted" / built for built in sorted(preempted)]
        rest += [BUILD / "all.a", "@tests/sim/wrap.txt"]
    else:
        rest = [BUILD / f"tests/unit/{bug.program}.o", BUILD / "all.a", "-lcmocka", "-luv"]
        program = folder / "check" / bug.program
        program.parent.mkdir()
        shutil.copytree(BUILD / "check/fake", folder / "check/fake")
    subprocess.run(["gcc", "-o", program, *objects, *rest, *LIBRARIES], check=True, cwd=ROOT)
    return program


def seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.limit(500)
@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_planted_bugs_are_found(bug):
    folder = ROOT / "build/planted" / bug.name
    begin = seconds()
    program = plant(bug, folder)
    built = seconds()
    command = [program]
    if bug.program == "sim":
        limits = ["--seconds", "500", "--histories", str(HISTORIES), "--no-shrink"]
        command += ["--seed", "1", *limits]
    environment = {name: value for name, value in os.environ.items() if name != "TOKEND_FAULTS"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    shutil.rmtree(folder)
    print(
        f"{bug.name}: built in {built - begin:.1f} s, found in {seconds() - built:.1f} s of CPU:",
        " | ".join(lines[-4:])[:600],
    )
    assert done.returncode != 0, f"{bug.name} was not found"
    assert bug.program != "sim" or "failed: " in done.stdout, done.stderr


@pytest.mark.limit(500)
def test_a_failing_seed_replays_and_shrinks():
    """The smallest command that is printed fails as well, and a seed is always the same history."""
    bug = next(bug for bug in BUGS if bug.name == "cursor-of-another-seed")
    folder = ROOT / "build/planted/replay"
    program = plant(bug, folder)
    command = [program, "--seed", "1", "--histories", "20", "--seconds", "500"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    first, smallest = (
        next(line for line in done.stdout.splitlines() if line.startswith(word)).split()
        for word in ("failed:", "smallest:")
    )
    assert int(smallest[smallest.index("--events") + 1]) < int(first[first.index("--events") + 1])
    for found in (first, smallest):
        again = subprocess.run(
            [program, *found[2:], "--no-shrink"], capture_output=True, text=True, cwd=ROOT
        )
        assert again.returncode == 1
        assert "a cursor of another seed was accepted" in again.stderr
    shutil.rmtree(folder)
    traces = {
        subprocess.run(
            [BUILD / "check/sim", "--seed", "7"], capture_output=True, text=True, cwd=ROOT
        ).stdout.splitlines()[-1]
        for _ in range(2)
    }
    assert len(traces) == 1 and "trace" in traces.pop()
