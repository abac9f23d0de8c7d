#!/usr/bin/env python3
"""A state_dir that hangs, that two daemons share, and in which a daemon was killed.

Training does not depend on it: what hangs there is waited for by nobody but whoever saves a snapshot, and that with a deadline.
"""

import os
import re
import socket
import threading
import time
import urllib.request

from fuse_hang import Hang
from harness import (
    TOKCTL,
    Checks,
    Client,
    Daemon,
    Place,
    Refused,
    Witness,
    datasets,
    rows_at,
    run,
    wait_for,
)

SOON = 5.0  # seconds; what waits for a state_dir that hangs takes at least 20


def config_of(place, name="tokend.yaml", **keys):
    place.shard("web/a.bin", 60_000)
    streams = {"train": {"seed": 5, "seq_len": 64, "datasets": datasets("web")}}
    return place.config(name, streams=streams, **keys)


def refusal(call):
    try:
        call()
    except Refused as e:
        return e.packet
    return {}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def metric(address, name):
    page = urllib.request.urlopen(f"http://{address}/metrics", timeout=SOON).read().decode()
    found = re.search(rf"^{name} (\S+)$", page, re.M)
    return float(found[1]) if found else None


def attach_quickly(daemon, run_):
    """A session, or None if that takes longer than SOON."""
    client = Client(daemon.socket)
    client.s.settimeout(SOON)
    try:
        return client.attach(run=run_)
    except TimeoutError:
        client.close()
        return None


# ---- it hangs ----


def hangs(checks, place):
    address = f"127.0.0.1:{free_port()}"
    config = config_of(
        place,
        "hang.yaml",
        socket=place.file("hang.sock"),
        state_dir=place.file("hang/x")[:-2],
        metrics=address,
    )
    daemon = Daemon(place, config)
    witness = Witness(daemon, rows_at(config, "train", 0, 900), run="before")
    witness.client.ask(op="checkpoint", tag="early", cursor=witness.client.feed["cursor"])
    try:
        hang = Hang(place.file("hang/x")[:-2])
    except OSError as e:
        checks.skip("a state_dir that hangs", str(e))
        return
    try:
        saving = Client(daemon.socket).attach(run="before", rank=0, peer=1)
        saving.tell(op="checkpoint", tag="late", cursor=saving.feed["cursor"])
        asked = time.monotonic()
        checks.ok("hang: a save has come to the file system", wait_for(hang.hangs, SOON))
        clients = [attach_quickly(daemon, f"new{n}") for n in range(6)]
        checks.ok("  6 sessions attach meanwhile", all(clients), [c is not None for c in clients])
        checks.ok("  and are fed", all(c and c.next(SOON) is not None for c in clients))
        checks.ok("  a running session goes on", witness.step(100))
        by_tag = Client(daemon.socket)
        by_tag.tell(
            op="attach",
            stream="train",
            run="before",
            rank=0,
            world=1,
            micro=2,
            peer=0,
            slots=4,
            tag="early",
        )
        saving.s.settimeout(30)
        told = refusal(saving.hear)
        took = time.monotonic() - asked
        checks.has(
            "  the save is answered with an error",
            told.get("text", "") + told.get("field", ""),
            "state_dir",
            "not answered",
        )
        checks.ok("  after 20 s", 19 < took < 26, took)
        told = refusal(
            lambda: saving.ask(op="checkpoint", tag="later", cursor=saving.feed["cursor"])
        )
        checks.ok("  the next one at once", told and time.monotonic() - asked - took < SOON, told)
        checks.ok("  its session goes on", saving.next(SOON) is not None)
        told = refusal(by_tag.hear)
        checks.ok(
            "  an attach at a snapshot is refused for now",
            told.get("passing") == 1 and "state_dir" in told["text"],
            told,
        )
        checks.ok("  metrics say so", metric(address, "tokend_state_dir_busy_seconds") > 19)
        checks.ok("  and how much waits", metric(address, "tokend_state_dir_jobs") >= 7)
        checks.ok(
            "  the log says so", wait_for(lambda: "has not answered for 20 s" in daemon.log())
        )
        checks.ok("  more sessions attach, at once", attach_quickly(daemon, "new6"))
    finally:
        hang.release()
    checks.ok(
        "it answers again: the log says so",
        wait_for(lambda: "answers again" in daemon.log()),
        daemon.log(),
    )
    mixes = [place.file(f"hang/train/new{n}/mixes/000001.cursor") for n in range(1, 7)]
    checks.ok("  what waited is written", wait_for(lambda: all(map(os.path.exists, mixes))), mixes)
    saved = saving.ask(op="checkpoint", tag="late", cursor=saving.feed["cursor"])
    checks.ok("  a save is carried out", os.path.exists(saved["path"]))
    checks.ok("  the running session saw nothing of it", witness.step(100))
    hang = Hang(place.file("hang/x")[:-2])
    try:
        saving.tell(op="checkpoint", tag="last", cursor=saving.feed["cursor"])
        wait_for(hang.hangs, SOON)
        began = time.monotonic()
        checks.equal("SIGTERM while it hangs: exit 0", daemon.stop(), 0)
        checks.ok("  within 10 s", time.monotonic() - began < 10)
        daemon.start()
        checks.ok("a start while it hangs: a session attaches", attach_quickly(daemon, "again"))
        checks.ok("  the log says so", wait_for(lambda: "has not answered" in daemon.log()))
        daemon.kill()
    finally:
        hang.release()


# ---- two daemons share it ----


def moved(place, cursor, position):
    """The cursor's bytes at another position, by tokctl."""
    here, there = place.file("cursors/here"), place.file("cursors/there")
    with open(here, "wb") as f:
        f.write(cursor)
    code, _, err = run(TOKCTL, "cursor", "seek", here, "--to", position, "-o", there)
    if code:
        raise RuntimeError(err)
    return open(there, "rb").read()


def save_all(daemon, cursors, count, rank):
    client = Client(daemon.socket).attach(run="shared", rank=rank, world=2)
    for n in range(count):
        client.ask(op="checkpoint", tag="same", cursor=cursors[(n + rank) % len(cursors)])
    client.close()


def two_daemons(checks, place):
    config = config_of(place, "one.yaml", socket=place.file("one.sock"))
    one = Daemon(place, config)
    first = Client(one.socket).attach(run="shared")
    cursors = [first.feed["cursor"]] + [
        moved(place, first.feed["cursor"], 8 * n) for n in range(1, 8)
    ]
    first.ask(op="checkpoint", tag="same", cursor=cursors[0])
    two = Daemon(place, config, socket_path=place.file("two.sock"))
    directory = place.file("state/train/shared/x")[:-2]
    reads = torn = lost = 0
    savers = [
        threading.Thread(target=save_all, args=(d, cursors, 300, r))
        for r, d in enumerate([one, two])
    ]
    for saver in savers:
        saver.start()
    while any(saver.is_alive() for saver in savers):
        for name in ("same.cursor", "same.former.cursor"):
            try:
                torn += open(f"{directory}/{name}", "rb").read() not in cursors
                reads += 1
            except FileNotFoundError:
                lost += name == "same.cursor"
    for saver in savers:
        saver.join()
    checks.ok("two daemons save one tag: reads", reads > 1000, reads)
    checks.equal("  no snapshot is torn", torn, 0)
    checks.equal("  or missing", lost, 0)
    checks.ok(
        "  no daemon failed to save",
        "snapshot same" not in re.sub("snapshot same of stream.*", "", one.log() + two.log()),
    )
    left = [
        n for n in os.listdir(directory) if n not in ("same.cursor", "same.former.cursor", "mixes")
    ]
    checks.equal("  nothing else is left", left, [])
    for daemon, other in ((one, two), (two, one)):
        wait_for(lambda d=daemon: "another tokend" in d.log())
        said = [line for line in daemon.log().splitlines() if "another tokend" in line]
        checks.ok(
            "  one line names the other", len(said) == 1 and f"pid {other.pid}" in said[0], said
        )
    first.close()
    one.stop()
    two.stop()


# ---- a daemon was killed in it ----


def left_over(checks, place):
    config = config_of(
        place, "left.yaml", socket=place.file("left.sock"), state_dir=place.file("left/x")[:-2]
    )
    daemon = Daemon(place, config)
    client = Client(daemon.socket).attach(run="job")
    path = client.ask(op="checkpoint", tag="a", cursor=client.feed["cursor"])["path"]
    daemon.kill()
    client.close()
    run_dir = os.path.dirname(path)
    names = [
        ".a.new",
        ".a.link",
        ".0123456789abcdef.new",
        "mixes/.0123456789abcdef.new",
        "mixes/.fedcba9876543210.new",
    ]
    for name in names:
        with open(f"{run_dir}/{name}", "wb") as f:
            f.write(b"half of a cursor")
    kept = sorted(os.listdir(f"{run_dir}/mixes"))[-1:]
    daemon.start()
    gone = wait_for(lambda: not any(os.path.exists(f"{run_dir}/{name}") for name in names), SOON)
    checks.ok(
        "temporary files of a killed daemon are removed",
        gone,
        [n for n in names if os.path.exists(f"{run_dir}/{n}")],
    )
    checks.ok(
        "  nothing else is",
        sorted(os.listdir(run_dir))[-2:] == ["a.cursor", "mixes"]
        and os.listdir(f"{run_dir}/mixes") == kept,
    )
    checks.ok(
        "  and one line says so",
        wait_for(lambda: "removed 5 temporary files" in daemon.log()),
        daemon.log(),
    )
    checks.equal("  exit 0", daemon.stop(), 0)


def main():
    checks = Checks()
    with Place() as place:
        left_over(checks, place)
        two_daemons(checks, place)
        hangs(checks, place)
    checks.exit()


main()
