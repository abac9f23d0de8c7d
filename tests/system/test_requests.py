#!/usr/bin/env python3
"""An operator's requests to a running job: who hears them, what comes back, and what is left when anybody dies in between.

The trainers are processes that use libtokend and do one thing at a time, when told to: so every moment between asking and
answering can be looked at.
"""

import ctypes as c
import json
import os
import signal
import subprocess
import sys
import time

import numpy
from harness import (
    PACKET_BYTES,
    REPO,
    TOKCTL,
    Checks,
    Client,
    Closed,
    Daemon,
    Place,
    Refused,
    datasets,
    rows_at,
    run,
    status,
    wait_for,
)

from lib.declarations import Batch, Options, Request  # noqa: E402

LIBRARY = os.path.join(REPO, "build", "lib", "libtokend.so.1")
CURSOR_BYTES = 96 * 1024
NOTED, DONE, FAILED = 1, 2, 3
SEQ = 7

# ---- a trainer ----


class Handle:
    """The calls of a trainer's process; each gives what the other side may know of it."""

    def __init__(self, options):
        self.lib = c.CDLL(LIBRARY)
        self.lib.tokend_why.restype = c.c_char_p
        self.lib.tokend_request_number.restype = c.c_uint64
        for name in ("cursor", "stream"):
            getattr(self.lib, f"tokend_{name}").restype = c.c_int64
        self.t = c.c_void_p()
        why = c.create_string_buffer(1000)
        r = self.lib.tokend_attach(c.byref(self.t), c.byref(options), why, c.c_size_t(1000))
        if r < 0:
            sys.exit(f"attach: {why.value.decode()}")

    def said(self, r, **more):
        return {"r": r, "why": self.lib.tokend_why(self.t).decode() if r < 0 else "", **more}

    def step(self, count):
        """The tokens of @count batches, and where that comes to."""
        batch, tokens = Batch(), []
        for _ in range(count):
            r = self.lib.tokend_next(self.t, c.byref(batch))
            if r != 1:
                return self.said(r)
            tokens.append(
                c.string_at(
                    batch.tokens, batch.rows * batch.window_tokens * batch.token_bytes
                ).hex()
            )
            self.lib.tokend_release(self.t, c.byref(batch))
        return {"next": batch.next, "tokens": "".join(tokens)}

    def number(self):
        return self.lib.tokend_request_number(self.t)

    def fetch(self):
        request = Request()
        r = self.lib.tokend_request(self.t, c.byref(request))
        return self.said(
            r, number=request.number, kind=request.kind.decode(), args=request.args.decode()
        )

    def obey(self, kind, args):
        at = c.c_uint64()
        return self.said(
            self.lib.tokend_obey(self.t, kind.encode(), args.encode(), c.byref(at)), at=at.value
        )

    def answer(self, number, outcome, text=""):
        return self.said(self.lib.tokend_answer(self.t, c.c_uint64(number), outcome, text.encode()))

    def commit(self, next):
        return self.said(self.lib.tokend_commit(self.t, c.c_uint64(next)))

    def mix(self, weights):
        names, at = (c.c_char_p * len(weights))(*(n.encode() for n in weights)), c.c_uint64()
        values = (c.c_double * len(weights))(*weights.values())
        return self.said(
            self.lib.tokend_set_mix(self.t, names, values, len(weights), c.byref(at)), at=at.value
        )

    def cursor(self, call="cursor"):
        data = c.create_string_buffer(CURSOR_BYTES)
        n = getattr(self.lib, f"tokend_{call}")(self.t, data, c.c_size_t(CURSOR_BYTES))
        return data.raw[:n].hex() if n > 0 else self.said(n)


def trainer(arguments):
    about = json.loads(arguments)
    cursor = bytes.fromhex(about.pop("cursor", ""))
    options = Options(
        size=c.sizeof(Options), slots=4, deadline_ms=15000, cursor=cursor or None, cursor_bytes=len(cursor),
        **{k: v.encode() if isinstance(v, str) else v for k, v in about.items()},
    )  # fmt: skip
    handle = Handle(options)
    print("null", flush=True)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(getattr(handle, name)(*arguments)), flush=True)


class Trainer:
    """One process, told what to do."""

    def __init__(self, bench, rank=0, world=1, micro=64, run="job", stream="train", **more):
        about = {
            "socket": bench.daemon.socket,
            "stream": stream,
            "run": run,
            "rank": rank,
            "world": world,
            "micro_batch": micro,
        }
        self.process = bench.place.spawn(
            [sys.executable, os.path.abspath(__file__), "trainer", json.dumps({**about, **more})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.heard()

    def heard(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the trainer is gone")
        return json.loads(line)

    def __getattr__(self, name):
        def call(*arguments):
            self.process.stdin.write(json.dumps([name, arguments]) + "\n")
            self.process.stdin.flush()
            return self.heard()

        return call

    def sees(self):
        """The number of the request that it comes to see."""
        return wait_for(self.number)

    def carry_out(self):
        """What control() does in a world of one."""
        number = self.sees()
        request = self.fetch()
        done = self.obey(request["kind"], request["args"])
        self.answer(
            number, FAILED if done["r"] < 0 else DONE, done["why"] or f"acts from {done['at']}"
        )
        return done

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Operator:
    """A tokctl that waits."""

    def __init__(self, bench, *arguments, json=True):
        more = ["--json"] if json else []
        self.process = bench.place.spawn(
            [TOKCTL, *map(str, arguments), *more, "--socket", bench.daemon.socket],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def end(self):
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out.decode(), err.decode()

    def result(self):
        """(exit code, answers, the last object, stderr)"""
        code, out, err = self.end()
        lines = [json.loads(line) for line in out.splitlines()]
        answers = [line for line in lines if "outcome" in line]
        return code, answers, next((line for line in lines if "kind" in line), None), err


class Bench:
    def __init__(self, place, checks):
        self.place, self.checks = place, checks
        place.shard("web/a.bin", 400_000)
        place.shard("code/a.bin", 300_000, seed=2)
        place.shard("law/a.bin", 200_000, seed=3)
        window = {"seq_len": SEQ, "extra": 1}
        self.streams = {
            "train": {"seed": 1, **window, "datasets": datasets("web", "code", shuffle="global")},
            "short": {"seed": 2, **window, "samples": 100_000, "datasets": datasets("web", "code")},
        }
        self.config = place.config(streams=self.streams)
        self.daemon = Daemon(place, self.config)

    def nothing_open(self, name, *trainers):
        """Nothing is half done: no session sees anything, none can be fetched, and another request would be taken."""
        seen = [t.number() for t in trainers] + [t.fetch()["number"] for t in trainers]
        seen += [s["request"] for s in status(self.daemon.socket)[0]]
        self.checks.ok(f"{name}: nothing is left open", not any(seen) and self.daemon.alive(), seen)

    def follows(self, name, cursor, tokens, count):
        """@tokens are what plan says from @cursor on."""
        path = self.place.file("now.cursor")
        with open(path, "wb") as f:
            f.write(bytes.fromhex(cursor))
        _, out, _ = run(TOKCTL, "cursor", "show", path, "--json")
        want = rows_at(self.config, "train", json.loads(out)["next"], count, "--cursor", path)
        got = numpy.frombuffer(bytes.fromhex(tokens), "<u2").reshape(-1, SEQ + 1)
        self.checks.ok(name, numpy.array_equal(got, want), f"{len(got)} rows")


# ---- what works ----


def alone(bench):
    ok, t = bench.checks, Trainer(bench)
    t.step(3)
    op = Operator(bench, "mix", "train", "web=1", "code=3")
    number = t.sees()
    ok.equal(
        "status names the open request",
        [s["request"] for s in status(bench.daemon.socket)[0]],
        [number],
    )
    request = t.fetch()
    ok.equal("the trainer fetches it", (request["number"], request["kind"]), (number, "mix"))
    ok.equal("its arguments are lines", request["args"], "weight 1 web\nweight 3 code\n")
    done = t.obey("mix", request["args"])
    ok.equal("it acts from the next block", done["at"], 1024)
    ok.equal("the new ring shows it as well, until it is answered", t.number(), number)
    t.answer(number, DONE, "acts from 1024")
    code, answers, result, err = op.result()
    ok.equal("tokctl mix: done", (code, err), (0, ""))
    ok.equal("its result", {k: result[k] for k in ("kind", "position", "from", "acts_from", "sessions")},
             {"kind": "mix", "position": 192, "from": 192, "acts_from": 1024, "sessions": 1})  # fmt: skip
    ok.equal(
        "one answer",
        [(a["rank"], a["outcome"], a["text"]) for a in answers],
        [(0, "done", "acts from 1024")],
    )
    bench.nothing_open("a mix", t)
    bench.follows("the new mix is served", t.cursor(), t.step(40)["tokens"], 40 * 64)

    op = Operator(bench, "skip", "train", "--samples", 1000, json=False)
    t.carry_out()
    ok.equal(
        "tokctl skip says from where to where",
        op.end()[:2][1].splitlines()[-1:],
        ["skipped from position 2752 to 3752"],
    )
    bench.follows("behind what was skipped", t.cursor(), t.step(4)["tokens"], 4 * 64)

    op = Operator(bench, "mix", "train", "web=1e-3", "code=1", "--at", 8192, json=False)
    ok.equal("an explicit start is taken", t.carry_out()["at"], 8192)
    ok.has("and told", op.end()[1], "mix acts from position 8192, the run is at 4008")

    for kind in ("checkpoint", "drain"):
        op = Operator(bench, kind, "train", "--tag", "before", json=False)
        ok.equal(f"{kind} is the trainer's to do", t.carry_out()["r"], 0)
        ok.has(f"tokctl {kind}", op.end()[1], "saved at position 4008, tag before")
    ok.equal(
        "stream(): the cursor that the stream begins with",
        json.loads(show(bench, t.cursor("stream")))["next"],
        0,
    )
    t.close()


def show(bench, cursor):
    path = bench.place.file("show.cursor")
    with open(path, "wb") as f:
        f.write(bytes.fromhex(cursor))
    return run(TOKCTL, "cursor", "show", path, "--json")[1]


def refused_edits(bench):
    ok, t = bench.checks, Trainer(bench)
    t.step(3)
    before = t.cursor()
    for words, arguments in (
        (["law", "has no dataset"], ["web=1", "law=1"]),
        (["not a multiple of 1024", "2048"], ["web=1", "--at", 1025]),
        (["not ahead", "take 1024"], ["web=1", "--at", 0]),
    ):
        op = Operator(bench, "mix", "train", *arguments)
        t.carry_out()
        code, answers, result, err = op.result()
        ok.equal(
            f"mix {arguments}: exit 1 and one line", (code, result, err.count("\n")), (1, None, 1)
        )
        ok.has(f"mix {arguments}: says why, and who", err, "rank 0 (pid", *words)
        ok.equal(f"mix {arguments}: nothing is changed", t.cursor(), before)
    for arguments in (
        ["web=nan"],
        ["web=-1"],
        ["web=0", "code=0"],
        ["web"],
        [],
        ["web=1", "--samples", 3],
        ["web=1", "--timeout", 0],
    ):
        ok.equal(f"mix {arguments}: not even asked", run(TOKCTL, "mix", "train", *arguments)[0], 2)
    ok.equal("all that was refused", t.fetch()["number"], 0)
    for args in ("weight x web\n", "weight 1\n", "at -1\nweight 1 web\n", "later 1\nweight 1 web\n", "nonsense", "weight 0x1p3 web\n", "",
                 "weight nan web\n", "weight inf web\n", "weight 1 web\nweight 1 web\n"):  # fmt: skip
        done = t.obey("mix", args)
        ok.ok(
            f"arguments {args!r} are refused",
            done["r"] == -1 and done["why"] and "\n" not in done["why"],
            done,
        )
    ok.equal("an unknown kind is refused", t.obey("dance", "")["r"], -1)
    ok.equal("nothing is changed by all that", t.cursor(), before)
    ok.equal("and the trainer goes on", t.step(2)["next"], 5 * 64)
    t.close()

    t = Trainer(bench, stream="short")
    op = Operator(bench, "mix", "short", "web=1")
    t.carry_out()
    ok.has("a finite stream keeps its mix", op.result()[3], "short is finite")
    ok.has(
        "tokctl knows it from the config",
        run(TOKCTL, "mix", "short", "web=1", "-c", bench.config)[2],
        "short is finite",
    )
    op = Operator(bench, "skip", "short", "--samples", 100_001)
    t.carry_out()
    ok.has("nobody skips past the end", op.result()[3], "beyond the end")
    op = Operator(bench, "rescale", "short", "--world", 3, "--micro", 50)
    t.carry_out()
    result = op.result()[2]
    ok.equal(
        "rescale of a finite stream: batches each",
        (result["batches_before"], result["batches"]),
        (1563, 667),
    )
    t.close()


def together(bench):
    ok, ts = bench.checks, [Trainer(bench, rank=r, world=2, micro=32) for r in (0, 1)]
    for t in ts:
        t.step(2)
    op = Operator(bench, "mix", "train", "web=1")
    for t in ts:
        t.answer(t.sees(), NOTED)
    for t in ts:
        t.carry_out()
    code, answers, result, err = op.result()
    ok.equal("two ranks: notes and answers of both", sorted((a["rank"], a["outcome"]) for a in answers),
             [(0, "done"), (0, "noted"), (1, "done"), (1, "noted")])  # fmt: skip
    ok.equal(
        "and one result", (code, result["acts_from"], result["sessions"], err), (0, 1024, 2, "")
    )
    ok.equal("the edits are one", ts[0].cursor(), ts[1].cursor())

    op = Operator(bench, "rescale", "train", "--world", 3, "--micro", 8, "--tag", "w3")
    for t in ts:
        t.carry_out()
    code, _, result, _ = op.result()
    ok.equal("rescale: what each new rank gets first", (code, result["position"], result["ranks"]),
             (0, 128, [{"rank": r, "first": 128 + 8 * r, "last": 135 + 8 * r} for r in range(3)]))  # fmt: skip
    ok.equal(
        "rescale: steps before and after", (result["global_before"], result["global"]), (64, 24)
    )
    op = Operator(bench, "rescale", "train", "--world", 20, json=False)
    for t in ts:
        t.carry_out()
    out = op.end()[1]
    ok.has(
        "rescale for people",
        out,
        "world 2 -> 20",
        "rank 0 gets 128..159",
        "…",
        "rank 19 gets 736..767",
        "64 -> 640: a multiple",
    )
    ok.ok("the middle ranks are left out", "rank 10" not in out, out)

    ts[1].step(1)
    op = Operator(bench, "drain", "train")
    for t in ts:
        t.carry_out()
    code, _, _, err = op.result()
    ok.ok(
        "cursors that differ: exit 1, and who",
        code == 1 and "rank 1 (pid" in err and "not at one place" in err,
        err,
    )
    bench.nothing_open("two ranks", *ts)
    for t in ts:
        t.close()


def datasets_join(bench):
    ok, t = bench.checks, Trainer(bench)
    t.step(2)
    cursor = t.cursor()
    t.close()
    bench.daemon.stop()
    bench.streams["train"]["datasets"] = datasets("law", "web", "code", shuffle="global")
    bench.config = bench.place.config(streams=bench.streams)
    bench.daemon = Daemon(bench.place, bench.config)
    t = Trainer(bench, cursor=cursor)
    op = Operator(bench, "mix", "train", "web=1", "law=1")
    t.carry_out()
    code, _, result, err = op.result()
    ok.equal(
        "a dataset that is new in the config joins a run",
        (code, err, result and result["acts_from"]),
        (0, "", 1024),
    )
    t.step(14)
    bench.follows("and is served", t.cursor(), t.step(40)["tokens"], 40 * 64)
    t.close()


def behind_a_commit(bench):
    """Mixes that began after what is committed: a cursor of the committed place still knows them all."""
    ok, t = bench.checks, Trainer(bench, micro=512)
    nexts, tokens = [], ""
    for i in range(10):
        seen = t.step(1)
        nexts.append(seen["next"])
        tokens += seen["tokens"]
        if i == 0:
            t.commit(nexts[0])
        if i % 3 == 1:
            ok.equal(f"mix {i // 3} behind the commit", t.mix({"web": 1 + i, "code": 2})["r"], 0)
    cursor = t.cursor()
    ok.equal("the committed place is spoken of", json.loads(show(bench, cursor))["next"], 512)
    bench.follows(
        "all that was taken follows from it", cursor, tokens[2 * 512 * 2 * (SEQ + 1) :], 9 * 512
    )
    ok.equal("what was taken can be committed", [t.commit(n)["r"] for n in nexts[1:]], [0] * 9)
    bench.follows("and the rest follows from there", t.cursor(), t.step(4)["tokens"], 4 * 512)
    t.close()


# ---- who is asked ----


def whom(bench):
    ok = bench.checks
    refuse = lambda *a: run(TOKCTL, *a, "--socket", bench.daemon.socket)  # noqa: E731
    for words, arguments in (
        (["nosuch is not in"], ["drain", "nosuch"]),
        (["no session of stream train"], ["drain", "train"]),
    ):
        code, out, err = refuse(*arguments)
        ok.ok(
            f"{arguments}: refused in one line",
            code == 1 and out == b"" and err.count("\n") == 1,
            (code, err),
        )
        ok.has(f"{arguments}: says why", err, *words)
    ts = [Trainer(bench, run=name) for name in ("a", "b")]
    ok.has("two runs: names them", refuse("drain", "train")[2], "several runs", "a, b")
    ok.has(
        "another run: names those there are",
        refuse("drain", "train", "--run", "c")[2],
        "run c",
        "a, b",
    )
    op = Operator(bench, "drain", "train", "--run", "b")
    ts[1].carry_out()
    ok.equal("a run that is named is asked", (op.result()[0], ts[0].number()), (0, 0))
    for t in ts:
        t.close()


def one_at_a_time(bench):
    ok, t = bench.checks, Trainer(bench)
    op = Operator(bench, "skip", "train", "--samples", 5)
    number = t.sees()
    code, _, err = run(TOKCTL, "drain", "train", "--socket", bench.daemon.socket)
    ok.equal("a second request: refused", code, 1)
    ok.has(
        "says which is open and who has not answered",
        err,
        "skip",
        str(number),
        "rank 0 (pid",
        "has not answered",
    )
    ok.equal("the first is untouched", t.fetch()["number"], number)
    t.carry_out()
    ok.equal("and carried out", op.result()[0], 0)
    bench.nothing_open("two at once", t)
    t.close()


# ---- who leaves ----


def time_is_up(bench):
    ok, ts = bench.checks, [Trainer(bench, rank=r, world=2, micro=32) for r in (0, 1)]
    op = Operator(bench, "drain", "train", "--timeout", 1)
    ts[0].answer(ts[0].sees(), NOTED)
    code, answers, _, err = op.result()
    ok.equal("nobody fetches: exit 1", (code, err.count("\n")), (1, 1))
    ok.has(
        "names who did not come",
        err,
        f"rank 1 (pid {ts[1].process.pid}",
        "not within 1 s",
        "nothing was changed",
    )
    ok.ok("and not who did", "rank 0" not in err, err)
    bench.nothing_open("time is up", *ts)

    op = Operator(bench, "drain", "train", "--timeout", 1)
    number = ts[0].sees()
    ts[0].fetch()
    ts[0].answer(number, DONE)
    code, _, _, err = op.result()
    ok.ok(
        "fetched: who answered and who not",
        code == 1 and "not answered: rank 1" in err and "answered: rank 0" in err,
        err,
    )
    ok.equal("it is still open for the one", (ts[0].number(), ts[1].number()), (0, number))
    code, _, err = run(TOKCTL, "drain", "train", "--socket", bench.daemon.socket)
    ok.ok("and keeps others out", code == 1 and "rank 1" in err, err)
    ts[1].answer(number, DONE)
    wait_for(lambda: not ts[1].number())
    bench.nothing_open("it was answered late", *ts)

    op = Operator(bench, "drain", "train")
    ts[0].sees()
    op.process.send_signal(signal.SIGINT)
    code, _, err = op.end()
    ok.ok(
        "interrupted: taken back",
        code == 1 and "interrupted" in err and "nothing was changed" in err,
        err,
    )
    bench.nothing_open("interrupted", *ts)
    for t in ts:
        t.close()


def operator_dies(bench):
    ok, t = bench.checks, Trainer(bench)
    op = Operator(bench, "drain", "train")
    t.sees()
    op.process.kill()
    ok.equal(
        "operator killed before the fetch: taken back", wait_for(lambda: t.number() == 0), True
    )
    bench.nothing_open("operator killed", t)
    op = Operator(bench, "skip", "train", "--samples", 7)
    t.sees()
    t.fetch()
    op.process.kill()
    op.process.wait()
    time.sleep(0.1)
    ok.ok("killed after it: it goes on", t.number(), t.number())
    t.carry_out()
    wait_for(lambda: not t.number())
    bench.nothing_open("carried out without its operator", t)
    t.close()


def trainer_dies(bench):
    ok = bench.checks
    for when, fetches in (("before the fetch", False), ("after it", True)):
        ts = [Trainer(bench, rank=r, world=2, micro=32) for r in (0, 1)]
        op = Operator(bench, "mix", "train", "web=1")
        for t in ts:
            t.sees()
        if fetches:
            ts[0].fetch()
        ts[0].kill()
        ts[1].carry_out()
        code, answers, _, err = op.result()
        ok.ok(
            f"rank 0 killed {when}: exit 1, and who",
            code == 1 and "rank 0" in err and "without an answer" in err,
            err,
        )
        ok.equal(
            f"killed {when}: both are accounted for",
            sorted((a["rank"], a["outcome"]) for a in answers),
            [(0, "gone"), (1, "done")],
        )
        bench.nothing_open(f"killed {when}", ts[1])
        ts[1].close()
    t = Trainer(bench)
    op = Operator(bench, "drain", "train")
    number = t.sees()
    t.fetch()
    t.answer(number, DONE)
    t.kill()
    ok.equal("who leaves after DONE has done it", op.result()[0], 0)
    ts = [Trainer(bench, rank=r, world=2, micro=32) for r in (0, 1)]
    op = Operator(bench, "drain", "train")
    number = ts[1].sees()
    ts[0].kill()
    again = Trainer(bench, rank=0, world=2, micro=32)
    ok.equal("a rank that comes back sees it", again.sees(), number)
    for t in (again, ts[1]):
        t.carry_out()
    ok.equal("and answers it", op.result()[0], 0)
    for t in (again, ts[1]):
        t.close()


def daemon_dies(bench):
    ok, t = bench.checks, Trainer(bench)
    t.step(1)
    op = Operator(bench, "mix", "train", "web=1")
    number = t.sees()
    request = t.fetch()
    bench.daemon.kill()
    code, _, err = op.end()
    ok.ok(
        "daemon killed: tokctl says so in one line",
        code == 1 and "went away" in err and err.count("\n") == 1,
        err,
    )
    bench.daemon.start()
    done = t.obey(request["kind"], request["args"])
    ok.equal("the trainer carries it out at the next daemon", (done["r"], done["at"]), (0, 1024))
    ok.equal(
        "its answer is heard by nobody, and harms nobody",
        (t.answer(number, DONE)["r"], t.step(20)["next"]),
        (0, 21 * 64),
    )
    bench.nothing_open("daemon killed", t)
    op = Operator(bench, "skip", "train", "--samples", 3)
    ok.ok("another daemon gives other numbers", t.sees() != number, number)
    t.carry_out()
    ok.equal("the next request finds the trainer", op.result()[0], 0)

    op = Operator(bench, "drain", "train")
    number = t.sees()
    bench.daemon.kill()
    begin = time.monotonic()
    said = t.answer(number, NOTED)
    ok.ok(
        "answering does not wait for a daemon",
        said["r"] == -2 and time.monotonic() - begin < 1,
        said,
    )
    ok.equal("what a lost daemon asked is not seen any more", t.number(), 0)
    bench.daemon.start()
    ok.equal("and the trainer goes on", t.step(20)["next"], 41 * 64 + 3)
    op.end()
    t.close()


# ---- who means harm ----


def hostile(bench):
    ok, t = bench.checks, Trainer(bench)
    one = Client(bench.daemon.socket).attach(run="evil")
    for number in (0, 1, 1 << 63, (1 << 64) - 1):
        one.tell(op="answer", number=number, outcome=DONE, text="x")
    ok.equal("an answer to what never was: nothing", one.ask(op="pending")["number"], 0)
    for outcome in (0, 4, 99):
        other = Client(bench.daemon.socket).attach(run="evil2")
        other.tell(op="answer", number=1, outcome=outcome, text="")
        ok.has(f"outcome {outcome}: thrown out", str(other.last_words()), "outcome")
        other.close()
    stranger = Client(bench.daemon.socket)
    for message in (
        {"op": "answer", "number": 1, "outcome": DONE, "text": ""},
        {"op": "pending"},
        {"op": "describe"},
    ):
        stranger = Client(bench.daemon.socket)
        stranger.tell(**message)
        ok.has(
            f"{message['op']} of no session: refused", str(stranger.last_words()), "attach first"
        )

    asker = Client(bench.daemon.socket)
    wrong = []
    for args in ("x" * 65536, "x" * (PACKET_BYTES - 300), "a\0b"):
        try:
            wrong.append(asker.ask(op="request", stream="train", run="evil", kind="mix", args=args))
        except Refused as e:
            wrong += [] if e.packet["field"] == "args" else [e.packet]
    for kind in ("", "x" * 16, "a/b", "a\nb"):
        try:
            wrong.append(asker.ask(op="request", stream="train", run="evil", kind=kind, args=""))
        except Refused as e:
            wrong += [] if e.packet["field"] == "kind" else [e.packet]
    ok.ok("arguments and kinds that are none: refused by field", not wrong, wrong)
    asked = asker.ask(op="request", stream="train", run="evil", kind="mix", args="y" * 65535)
    seen = one.ask(op="pending")
    ok.equal(
        "the longest arguments arrive",
        (seen["number"], len(seen["args"])),
        (asked["number"], 65535),
    )
    thief = Client(bench.daemon.socket)
    try:
        ok.ok("another's request", False, thief.ask(op="cancel", number=asked["number"]))
    except Refused as e:
        ok.has("another's request: not to be taken back", str(e), "not of this connection")
    for _ in range(3000):
        one.tell(op="answer", number=asked["number"], outcome=NOTED, text="n" * 1000)
    ok.equal("a note is passed on once", asker.hear()["outcome"], NOTED)
    one.tell(op="answer", number=asked["number"], outcome=DONE, text="", cursor=b"c" * CURSOR_BYTES)
    got = asker.hear()
    ok.equal(
        "and then the answer",
        (got["outcome"], len(got["cursor"]), got["waiting"]),
        (DONE, CURSOR_BYTES, 0),
    )

    flood = Client(bench.daemon.socket)
    try:
        for _ in range(3000):
            flood.tell(op="request", stream="train", run="evil", kind="mix", args="z" * 60000)
    except OSError:
        pass  # it is thrown out for not reading
    flood.close()
    ok.equal(
        "a flood ends with its connection",
        wait_for(lambda: one.ask(op="pending")["number"] == 0),
        True,
    )

    # Ten cursors of the largest size at once to one who does not read: the first, and the first that differs.
    many = [Client(bench.daemon.socket).attach(run="many", rank=r, world=10) for r in range(10)]
    slow = Client(bench.daemon.socket)
    number = slow.ask(op="request", stream="train", run="many", kind="drain", args="")["number"]
    for r, client in enumerate(many):
        cursor = (b"d" if r in (4, 7) else b"c") * CURSOR_BYTES
        client.tell(op="answer", number=number, outcome=DONE, text="", cursor=cursor)
        client.ask(op="pending")
    heard = [slow.hear() for _ in many]
    ok.equal("cursors are passed on once", [("cursor" in a, a["same"]) for a in heard],
             [(r in (0, 4), int(r not in (4, 7))) for r in range(10)])  # fmt: skip
    ok.equal("the last answer says so", [a["waiting"] for a in heard], list(range(9, -1, -1)))
    for client in (*many, slow, asker, thief, one):
        client.close()
    try:
        stranger.hear()
    except (Closed, OSError):
        pass
    op = Operator(bench, "skip", "train", "--samples", 3, "--run", "job")
    t.carry_out()
    ok.equal("meanwhile others are served", op.result()[0], 0)
    bench.nothing_open("hostile", t)
    t.close()


def top(bench):
    ok, t = bench.checks, Trainer(bench)
    t.step(2)
    code, out, err = run(
        TOKCTL, "top", "--interval", "0.1", "--count", "3", "--socket", bench.daemon.socket
    )
    ok.equal(
        "top: once an interval",
        (code, err, out.count(b"TOKENS/S"), b"\x1b" in out),
        (0, "", 3, False),
    )
    ok.has("top: the session", out.decode(), "train", "job", "1 sessions")
    t.close()


def main():
    checks = Checks()
    with Place() as place:
        bench = Bench(place, checks)
        whom(bench)
        for part in (alone, refused_edits, together, behind_a_commit, one_at_a_time, time_is_up, operator_dies, trainer_dies,
                     daemon_dies, hostile, top, datasets_join):  # fmt: skip
            part(bench)
            checks.equal(
                f"{part.__name__}: no session stays",
                wait_for(lambda: bench.daemon.rings() == 0),
                True,
            )
        checks.equal("the daemon leaves in peace", bench.daemon.stop(), 0)
    checks.exit()


if __name__ == "__main__":
    if sys.argv[1:2] == ["trainer"]:
        trainer(sys.argv[2])
    else:
        main()
