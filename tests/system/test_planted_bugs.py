"""Tests find bugs: they are planted, one at a time, and each must be found: by the simulator, run
from a seed on until it fails, or by a C test, with these words.

A bug is a replacement of text in copies of files, so the product contains no switches.
"""

import os
import resource
import shutil
import subprocess
from dataclasses import dataclass

import pytest

from lib.planted import ROOT, program

SIM = ["--seconds", "500", "--histories", "300", "--no-shrink", "--seed"]


@dataclass(frozen=True)
class Bug:
    changes: list  # (file, old, new)
    program: str = "sim"
    test: str = ""  # of the C program; none: all
    words: str | tuple = ""  # in what it prints; one of a tuple, as a bug may show in several ways
    users: tuple = ()  # the sources that use what is changed in headers
    seed: int = 1  # the simulator's first


DURABLE, SNAPSHOT = "daemon/control/durable.c", "daemon/control/snapshot_file.c"
RUN_DIR, MIX_LOG = "daemon/control/run_dir.c", "daemon/control/mix_log.c"
NO_FSYNC = (DURABLE, "(n == 0 && fsync(fd) == 0)", "(n == 0)")
FEED, RING = "daemon/engine/feed.c", "proto/ring.h"
RENAMED = "if (renameat(at, temporary, at, name) == 0)\n\t\t\treturn true;"
SYNC_LATER = """if (renameat(at, temporary, at, name) == 0) {
			int fd = openat(at, name, O_RDONLY | O_CLOEXEC);
			bool ok = fsync(fd) == 0;
			close(fd);
			return ok;
		}"""
OVERWRITE = "\tif (true)\n\t\treturn durable_write_file(at, name, bytes, n, fault);\n"
BEFORE_WRITE = "\tif (durable_write_file(at, temporary"
TOOK_BACK = "\ttake_back(dir->at, name, former, saved->replaced);\n"

POWER_CUT = "test_power_cut"
CUT, KILL, FAIL = "the_power_fails*", "a_daemon_is_killed*", "every_call_fails"

BUGS = {
    # ---- the ring, and who waits ----
    "wait-without-recheck": Bug(
        [
            (
                RING,
                "atomic_load_explicit(&ring->header->published, memory_order_seq_cst) > s;",
                "false;",
            )
        ],
        users=("client/lib/next.c",),
        words="is_starved(e)",
    ),
    "sleep-while-the-client-waits": Bug(
        [(FEED, "ring_client_waits(ring, feed->planned));", "false);")],
        words=("all_went_on()", "jobs_stopped()", "is_starved(e)", "!c->asleep || c->wake"),
    ),
    "wake-once": Bug(
        [(FEED, "waits == 0 || waits == feed->woken)", "waits == 0 || feed->woken)")],
        words="is_starved(e)",
    ),
    "answer-once": Bug(
        [("client/lib/slots.c", "wake_at != m->answered", "m->answered == 0")],
        words=("lost_wakes == 0", "is_starved(e)"),
    ),
    "publish-before-the-last-byte": Bug(
        [
            (
                FEED,
                "feed->left[feed->published % ring->geometry.slots] == 0)",
                "feed->left[feed->published % ring->geometry.slots] <= 1)",
            )
        ],
        words=("(uint16_t)token", "got == token"),
    ),
    # ---- the engine ----
    "gone-before-the-last-read": Bug(
        [
            (
                "daemon/engine/engine.c",
                "if (feed->state != FEED_LEAVING || feed->reading > 0)",
                "if (feed->state != FEED_LEAVING || feed->reading > 1)",
            )
        ],
        words="turn_leave: Assertion",
    ),
    "one-batch-too-many": Bug(
        [
            (
                FEED,
                "(uint64_t)((end - cursor->next + step - 1) / step);",
                "(uint64_t)((end - cursor->next + step) / step);",
            )
        ],
        words=("header->end) == c->end", "taken == job->plan.end"),
    ),
    "padding-counted-as-rows": Bug(
        [
            (
                FEED,
                ".rows_valid = valid < g->rows ? (uint32_t)valid : g->rows,",
                ".rows_valid = valid > 0 ? g->rows : 0,",
            )
        ],
        words="b->rows_valid == valid",
    ),
    "turns-without-sizes": Bug(
        [("daemon/engine/turns.c", "turn->credit -= (int64_t)cost;", "turn->credit -= cost > 0;")],
        words="sim->ahead[node[i]][other] <= bound",
    ),
    # ---- the daemon ----
    "session-freed-in-its-attach": Bug(
        [("daemon/control/session.c", "else if (s->connection->jobs == 0)", "else")],
        words=("session_end: Assertion", "cursor_fingerprint: Assertion"),
        seed=36,  # that of seed 35 crashes before an assertion sees it
    ),
    "snapshot-without-fsync": Bug(
        [("daemon/control/durable.c", "bool ok = (n == 0 && fsync(fd) == 0)", "bool ok = n == 0")],
        words=('begins(why, "tag: ")', "is_one_of(s, bytes", "!s->acknowledged"),
    ),
    "cursor-of-another-seed": Bug(
        [
            (
                "proto/cursor_compare.c",
                'same_number(fault, "seed", c->seed, now->seed)',
                'same_number(fault, "seed", now->seed, now->seed)',
            )
        ],
        words="a cursor of another seed was accepted",
    ),
    "request-over-when-seen": Bug(
        [
            (
                "daemon/control/request.c",
                "p->outcome == 0 || p->outcome == WIRE_NOTED;",
                "p->outcome == 0;",
            )
        ],
        words="outcome != WIRE_NOTED",
    ),
    "keeper-forgets-its-end": Bug(
        [("daemon/control/keeper.c", "\tif (k->end == &job->next)\n\t\tk->end = first;", "")],
        words=(
            "options.id < LIMIT_SESSIONS",
            "a feed at another position",
            "locate: Assertion",
            "Segmentation fault",  # a job that was freed is called
        ),
    ),
    "memory-a-hundred-times": Bug(
        [
            (
                "daemon/control/session_memory.c",
                "uint64_t limit = control->config->memory_bytes;",
                "uint64_t limit = 100 * control->config->memory_bytes;",
            )
        ],
        words="grant_booked(p) - lent(p) <= p->ring_limit",
    ),
    "failed-told-as-done": Bug(
        [
            (
                "daemon/control/request.c",
                "wire_set(&out, WIRE_OUTCOME, p->outcome);",
                "wire_set(&out, WIRE_OUTCOME, p->outcome == WIRE_FAILED ? WIRE_DONE : p->outcome);",
            )
        ],
        words="job_obeyed(o->job, number, outcome)",
    ),
    "runs-of-everybody": Bug(
        [
            (
                "daemon/control/runs.c",
                "return owner == RUN_NOBODY || owner == uid || runs_privileged(",
                "return true || owner == RUN_NOBODY || owner == uid || runs_privileged(",
            )
        ],
        words="c->uid == uid",
    ),
    "requests-of-everybody": Bug(
        [
            (
                "daemon/control/request_new.c",
                "\tif (runs_privileged(control->config, c->uid))\n",
                "\tif (true || runs_privileged(control->config, c->uid))\n",
            )
        ],
        words="o->proc->uid == o->job->uid",
    ),
    # ---- the library ----
    "first-pause-of-a-minute": Bug(
        [("client/lib/search.c", ".backoff_ms = 1,", ".backoff_ms = 60000,")], words="all_went_on()"
    ),
    "attach-before-what-was-taken": Bug(
        [
            ("client/lib/search.c", "BACKOFF_MS = 250,", "BACKOFF_MS = 40000,"),
            ("client/lib/revive.c", "if (s->position != t->taken)", "if (false)"),
        ],
        words=("a feed at another position", "grant_booked(p) <= 2 * p->ring_limit"),
        seed=1326,  # it shows in one history of some hundreds
    ),
    "revived-at-the-committed-position": Bug(
        [
            (
                "client/lib/revive.c",
                "const struct cursor *place = position_cursor(t, t->taken);",
                "const struct cursor *place = position_cursor(t, t->committed);",
            )
        ],
        words="a feed at another position",
    ),
    "checkpoint-of-batches-fetched-ahead": Bug(
        [
            (
                "client/lib/position.c",
                "position_cursor((struct tokend *)t, handle_position(t));",
                "position_cursor((struct tokend *)t, t->taken);",
            )
        ],
        words="tokend_position(r->t) == (save",
    ),
    "mix-later-on-one-rank": Bug(
        [
            (
                "client/lib/mix.c",
                "*at = cursor_mix_at(mixed);",
                "*at = cursor_mix_at(mixed) + (t->rank == 1 ? 1024 : 0);",
            )
        ],
        words="job_reduce(job, at) == at",
    ),
    "undo-keeps-the-position": Bug(
        [("client/lib/undo.c", "t->taken = k.taken;", "t->taken = t->taken;")],
        words="tokend_taken(r->t) == from",
    ),
    "release-before-the-copy-ends": Bug(
        [
            (
                "client/lib/pin.c",
                "c->queue[c->first] >= below || !first_is_over(c))",
                "c->queue[c->first] >= below)",
            )
        ],
        program="test_copies",
        words="[  FAILED  ]",
    ),
    # ---- state_dir ----
    "file-not-synced": Bug([NO_FSYNC], POWER_CUT, CUT, "not a uid"),
    "directory-not-synced": Bug(
        [(DURABLE, "return fsync(at) == 0 || failed", "return true || failed")],
        POWER_CUT,
        CUT,
        "a is lost",
    ),
    "renamed-before-sync": Bug(
        [NO_FSYNC, (SNAPSHOT, RENAMED, SYNC_LATER)], POWER_CUT, CUT, "not a uid"
    ),
    "overwritten-in-place": Bug(
        [(SNAPSHOT, BEFORE_WRITE, OVERWRITE + BEFORE_WRITE)], POWER_CUT, CUT, "the file is empty"
    ),
    "former-not-kept": Bug(
        [(SNAPSHOT, "(!replaced || keep_former(at, name, former, fault))", "true")],
        POWER_CUT,
        CUT,
        "a.former is lost",
    ),
    "failed-sync-tried-again": Bug(
        [(DURABLE, "&& fsync(fd) == 0)", "&& (fsync(fd) == 0 || fsync(fd) > 0))")],
        POWER_CUT,
        FAIL,
        "used after its fsync() failed",
    ),
    "unsynced-save-not-taken-back": Bug([(SNAPSHOT, TOOK_BACK, "")], POWER_CUT, FAIL, "a is lost"),
    "directories-of-a-killed-daemon": Bug(
        [(RUN_DIR, "(dir->path, durable, fault)", "(dir->path, SIZE_MAX, fault)")],
        POWER_CUT,
        KILL,
        "a is lost",
    ),
    "owner-not-synced": Bug(
        [(RUN_DIR, '\tunlinkat(dir->at, ".owner", 0);', "")], POWER_CUT, FAIL, "belongs to uid -1"
    ),
    "mix-of-a-killed-daemon": Bug(
        [(MIX_LOG, "if (fsync(log->at) < 0)", "if (false)")], POWER_CUT, KILL, "mix log: "
    ),
    "no-lock": Bug(
        [(RUN_DIR, "return fcntl(locks->fd, F_SETLK, &lock) == 0;", "return true;")],
        POWER_CUT,
        "two_daemons*",
        "two daemons, step",
    ),
    "error-taken-for-no-snapshot": Bug(
        [(SNAPSHOT, "if (errno == ENOENT || errno == ENOTDIR)", "if (true)")],
        POWER_CUT,
        "a_failed_read*",
        "strerror(EIO)",
    ),
}


def seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.limit(500)
@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_found(name):
    bug, begin = BUGS[name], seconds()
    planted = program(name, f"build/gcc/check/{bug.program}", bug.changes, bug.users)
    built = seconds()
    options = [*SIM, str(bug.seed)] if bug.program == "sim" else bug.test.split()
    command = [planted, *options]
    environment = {name: value for name, value in os.environ.items() if name != "TOKEND_FAULTS"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    said = done.stdout + done.stderr
    shutil.rmtree(planted.parent)
    print(
        f"{name}: built in {built - begin:.1f} s, found in {seconds() - built:.1f} s of CPU:",
        " | ".join(line for line in said.splitlines()[-8:] if line.strip())[:600],
    )
    assert done.returncode != 0, f"{name} was not found"
    assert seconds() - built < 60
    words = bug.words if isinstance(bug.words, tuple) else (bug.words,)
    assert all(words) and any(word in said for word in words)


def test_without_a_bug_the_same_seeds_pass():
    command = [ROOT / "build/gcc/check/sim", "--seed", "1", "--histories", "40"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.limit(500)
def test_a_failing_seed_replays_and_shrinks():
    """The smallest command that is printed fails, too. A seed is always the same history, at any
    addresses.
    """
    bug = BUGS["cursor-of-another-seed"]
    planted = program("replay", "build/gcc/check/sim", bug.changes)
    command = [planted, "--seed", "1", "--histories", "20", "--seconds", "500"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    first, smallest = (
        next(line for line in done.stdout.splitlines() if line.startswith(word)).split()
        for word in ("failed:", "smallest:")
    )
    assert int(smallest[smallest.index("--events") + 1]) < int(first[first.index("--events") + 1])
    for found in (first, smallest, [*smallest, "--verbose"]):
        again = subprocess.run(
            [planted, *found[2:], "--no-shrink"], capture_output=True, text=True, cwd=ROOT
        )
        assert again.returncode == 1
        assert "a cursor of another seed was accepted" in again.stderr
    shutil.rmtree(planted.parent)
    traces = set()
    elsewhere = {"MALLOC_MMAP_THRESHOLD_": "4000", "MALLOC_PERTURB_": "77"}
    for options in ([], [], ["--verbose"], ["--histories", "1"]):
        clean = [ROOT / "build/gcc/check/sim", *options, "--seed", "7"]
        environment = {**os.environ, **(elsewhere if options else {})}
        done = subprocess.run(clean, capture_output=True, text=True, cwd=ROOT, env=environment)
        traces.add(done.stdout.splitlines()[-1])
    assert len(traces) == 1 and "trace" in traces.pop()
