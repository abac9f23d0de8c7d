"""Batches on a device, with a real daemon and the fake libcuda.so.1: no evidence of how a GPU
behaves (tests/gpu is). How libtokend copies is in tests/system/test_pin.py.
"""

import json
import pathlib
import re
import subprocess
import sys
import urllib.request

from lib import BIN, child_environment, free_port, wait_until
from lib.injected import injected
from loading import SEQ, WINDOWS

HERE = pathlib.Path(__file__).parent
FAKE = BIN.parent / "check" / "fake"
WINDOW = SEQ + 1


def start(daemon, scenario, **environment):
    more = {name: str(value) for name, value in environment.items()}
    return subprocess.Popen(
        [sys.executable, HERE / "fake_gpu.py", daemon.socket, scenario],
        env=child_environment(LD_LIBRARY_PATH=str(FAKE), **more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(trainer, word=None):
    out, err = trainer.communicate(word, timeout=60)
    assert trainer.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def wrong(daemon, rows, stream="train", start=0, cursor=None):
    """The rows that differ from the order."""
    plan, found = daemon.plan(stream, start, len(rows), cursor), []
    for i, (row, want) in enumerate(zip(rows, plan, strict=False)):
        tokens = daemon.tokens(want, WINDOW).tolist()
        labels = [-100 if t < 0 else t for t in row["labels"]]
        if stream == "whole":
            tokens[SEQ] = -100
        if (row["position"], row["input_ids"], labels) != (
            want["position"],
            tokens[:SEQ],
            tokens[1:],
        ):
            found.append(i)
    return found


def test_the_rows_of_the_order_arrive(served):
    plain, narrow, wide, whole, finite = finish(start(served, "kinds", FAKE_CUDA_DELAY_MS=3))
    for report, stream in ((plain, "train"), (narrow, "train"), (wide, "wide"), (whole, "whole")):
        assert len(report["rows"]) == 48 and wrong(served, report["rows"], stream) == []
        assert report["warned"] == []
        assert report["dtypes"] == ["torch.int32" if report is narrow else "torch.int64"]
    assert max(max(row["input_ids"]) for row in wide["rows"]) >= 2**31
    assert len(finite["rows"]) == WINDOWS - 448
    assert wrong(served, finite["rows"], "finite", 448) == []


def test_the_step_never_waits_for_the_device(served):
    report = finish(start(served, "late"))
    assert report["pending"] > 0 and wrong(served, report["rows"]) == []


def test_a_graph_captured_in_another_thread_is_not_spoiled(served):
    report = finish(start(served, "capture", FAKE_CUDA_DELAY_MS=2))
    assert report["seen"] == [0, 0, 900], "the control: other calls are refused meanwhile"
    assert wrong(served, report["rows"]) == []


def test_nothing_is_lost_when_the_device_is_out_of_memory(served):
    report = finish(start(served, "full", FAKE_CUDA_DELAY_MS=1))
    assert wrong(served, report["rows"]) == []
    assert report["raised"].count("no memory") >= 3 <= report["raised"].count("no kernel")
    assert any("is being captured into a graph" in text for text in report["raised"])


def test_a_seek_drops_the_batch_copied_ahead(served):
    report = finish(start(served, "elsewhere", FAKE_CUDA_DELAY_MS=2))
    rows, cursor = report["rows"], bytes.fromhex(report["cursor"])
    assert [row["position"] for row in rows] == [*range(12), *range(1000, 1022)]
    assert wrong(served, rows[:12]) == wrong(served, rows[12:], "train", 1000, cursor) == []


def test_a_restarted_daemon_loses_no_batch_copied_ahead(daemon):
    """A wider dataset has joined meanwhile: slots have twice the bytes then."""
    trainer = start(daemon, "restart", FAKE_CUDA_DELAY_MS=2)
    assert trainer.stdout.readline() == "look\n"
    daemon.kill()
    web = "      - {name: web, path: web, weight: 0.7}\n"
    wide = "      - {name: wide, path: wide.bin, dtype: u32, weight: 0}\n"
    daemon.config.write_text(daemon.config.read_text().replace(web, web + wide))
    daemon.start()
    report = finish(trainer, "\n")
    assert (report["reattached"], report["dtypes"]) == (1, ["torch.int64"])
    assert len(report["rows"]) == 48 and wrong(daemon, report["rows"]) == []


def test_a_ring_that_cannot_be_registered_is_copied_and_shown(daemon):
    """By one warning, the status, the log and the metrics."""
    daemon.stop()
    port = free_port()
    daemon.config.write_text(f"metrics: 127.0.0.1:{port}\n" + daemon.config.read_text())
    daemon.start()

    def known():
        (session, *_) = daemon.tokctl("status", "--json", "--socket", daemon.socket)[:-1]
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        shown = re.search(r"^tokend_unpinned_sessions (\d)", page, re.M)[1]
        return session["pinned_bytes"] > 0, shown

    for fails in (0, 1):
        trainer = start(daemon, "refused", **{"FAKE_CUDA_REGISTER_FAILS": 1} if fails else {})
        assert trainer.stdout.readline() == "look\n"
        wait_until(lambda told=(not fails, str(fails)): known() == told, "the daemon's word")
        said = f"pid {trainer.pid}: its ring of stream train is not pinned"
        assert len(daemon.said(said) if fails else []) == fails == daemon.log().count("not pinned")
        report = finish(trainer, "\n")
        assert wrong(daemon, report["rows"]) == [] and len(report["warned"]) == fails
        wait_until(lambda: daemon.rings() == 0, "the session's end")
    injected(22)
