"""Batches on a device, with a real daemon and a stand-in for CUDA: no evidence of how a GPU behaves
(tests/gpu is). Copies in C are in tests/system/test_copies.py.
"""

import json
import pathlib
import subprocess
import sys

from lib import BIN, child_environment
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


def test_a_small_ring_waits_for_copies(served):
    report = finish(start(served, "small", FAKE_CUDA_DELAY_MS=20))
    assert wrong(served, report["rows"]) == [] and len(report["rows"]) == 48


def test_the_step_never_waits_for_the_device(served):
    report = finish(start(served, "late"))
    assert report["pending"] > 0 and wrong(served, report["rows"]) == []


def test_nothing_is_lost_when_the_device_is_out_of_memory(served):
    report = finish(start(served, "full", FAKE_CUDA_DELAY_MS=1))
    assert wrong(served, report["rows"]) == []
    assert report["raised"].count("no memory") >= 3 <= report["raised"].count("no kernel")
    for words in ("is being captured into a graph", "set a flag in the handler"):
        assert sum(words in text for text in report["raised"]) >= 3


def test_a_seek_waits_for_copies(served):
    report = finish(start(served, "elsewhere", FAKE_CUDA_DELAY_MS=2))
    rows, cursor = report["rows"], bytes.fromhex(report["cursor"])
    assert [row["position"] for row in rows] == [*range(12), *range(1000, 1022)]
    assert wrong(served, rows[:12]) == wrong(served, rows[12:], "train", 1000, cursor) == []


WEB = "    datasets:\n      - {name: web, path: web, weight: 0.7}\n"


def restarted(daemon, scenario, more, delay):
    """@more: in the config of the daemon that is started again."""
    trainer = start(daemon, scenario, FAKE_CUDA_DELAY_MS=delay)
    assert trainer.stdout.readline() == "look\n"
    daemon.kill()
    daemon.config.write_text(daemon.config.read_text().replace(WEB, more))
    daemon.start()
    report = finish(trainer, "\n")
    assert report["reattached"] == 1
    return report


def test_a_restarted_daemon_loses_no_batch(daemon):
    """A wider dataset has joined meanwhile: slots have twice the bytes then."""
    wide = "      - {name: wide, path: wide.bin, dtype: u32, weight: 0}\n"
    report = restarted(daemon, "restart", WEB + wide, 2)
    assert report["dtypes"] == ["torch.int64"]
    assert len(report["rows"]) == 48 and wrong(daemon, report["rows"]) == []


def test_a_restarted_daemons_ring_may_have_fewer_slots(daemon):
    report = restarted(daemon, "smaller", "    documents: true\n    eos: 7\n" + WEB, 300)
    assert report["batches"] == 20


def test_a_ring_that_cannot_be_registered_is_copied_and_shown(served):
    """By one warning, and in stats()."""
    for fails in (0, 1):
        more = {"FAKE_CUDA_REGISTER_FAILS": 1} if fails else {}
        report = finish(start(served, "refused", **more))
        assert wrong(served, report["rows"]) == []
        assert (len(report["warned"]), report["pinned"] > 0) == (fails, not fails)
    injected(22)


def test_a_loader_that_nobody_closes_unregisters_its_ring(served):
    assert finish(start(served, "dropped")) == {"registered": 0}
