"""Batches on a device, with a real daemon and the fake libcuda.so.1: no evidence of how a GPU
behaves.
"""

import json
import operator
import os
import pathlib
import re
import socket
import subprocess
import sys
import urllib.request

import pytest
from lib import BIN, child_environment, wait_until
from lib.injected import injected
from tokend import _tokend

HERE = pathlib.Path(__file__).parent
FAKE = BIN.parent / "check" / "fake"
MICRO, WINDOW = 4, 65


def start(daemon, scenario, **environment):
    env = child_environment(
        LD_LIBRARY_PATH=str(FAKE), **{name: str(value) for name, value in environment.items()}
    )
    command = [sys.executable, HERE / "feed_job.py", daemon.socket, scenario]
    return subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(trainer):
    out, err = trainer.communicate(timeout=60)
    assert trainer.returncode == 0, err
    report = json.loads(out.splitlines()[-1])
    assert report["faults"] == 0 and report["registered"] == 0, err
    return report


def run(daemon, scenario, **environment):
    return finish(start(daemon, scenario, **environment))


def wrong(daemon, rows, stream="train", start=0, cursor=None):
    """The rows that differ from the order."""
    plan = daemon.plan(stream, start, len(rows), cursor)
    want = [(row["position"], daemon.tokens(row, WINDOW).tolist()) for row in plan]
    return [i for i, row in enumerate(rows) if (row["position"], row["tokens"]) != want[i]]


@pytest.mark.parametrize("delay", [0, 4])
def test_the_rows_of_the_order_arrive_as_int64(daemon, delay):
    report = run(daemon, "plain", FAKE_CUDA_DELAY_MS=delay)
    assert len(report["rows"]) == 12 * MICRO and wrong(daemon, report["rows"]) == []
    assert report["dtypes"] == ["torch.int64"] and report["pinned"] > 0 and report["warned"] == []
    assert report["ahead"] > 0


def test_tokens_of_four_bytes_are_unsigned(daemon):
    report = run(daemon, "wide", FAKE_CUDA_DELAY_MS=2)
    assert max(max(row["tokens"]) for row in report["rows"]) >= 2**31
    assert wrong(daemon, report["rows"], "wide") == []


def test_int32_holds_tokens_of_two_bytes_only(daemon):
    report = run(daemon, "narrow")
    assert report["dtypes"] == ["torch.int32"] and wrong(daemon, report["rows"]) == []
    assert ["pass int64" in error for error in report["refused"]] == [True, True]


def test_widening_out_of_order_gives_wrong_rows(daemon):
    """The negative control of these tests."""
    report = run(daemon, "disordered", FAKE_CUDA_DELAY_MS=4)
    assert len(wrong(daemon, report["rows"])) > MICRO


def test_the_step_never_waits_for_the_device(daemon):
    report = run(daemon, "late")
    assert report["pending"] > 0 and wrong(daemon, report["rows"]) == []


def test_a_graph_captured_in_another_thread_is_not_spoiled(daemon):
    report = run(daemon, "capture", FAKE_CUDA_DELAY_MS=2)
    assert report["spoiled"] == 0 and report["mode"] == 0  # the thread's mode has not changed
    assert report["refused"] == 900  # the control: without relaxed() the call is refused
    assert wrong(daemon, report["rows"]) == []


def test_nothing_is_lost_when_the_device_is_out_of_memory(daemon):
    report = run(daemon, "full", FAKE_CUDA_DELAY_MS=1)
    assert wrong(daemon, report["rows"]) == []
    *others, capture = report["raised"]
    assert (
        others.count("no memory") >= 3
        and others.count("no kernel") >= 2
        and "is being captured into a graph" in capture
    )


def test_a_seek_drops_the_batch_copied_ahead(daemon):
    rows = run(daemon, "elsewhere", FAKE_CUDA_DELAY_MS=2)["rows"]
    assert [row["position"] for row in rows] == [*range(12), *range(1000, 1000 + 4 * MICRO + 3 * 2)]
    assert (
        wrong(daemon, rows[:12]) == []
        and wrong(daemon, rows[12 : 12 + 2 * MICRO], start=1000) == []
    )


def test_a_finite_stream_arrives_to_its_end(daemon):
    report = run(daemon, "finite", FAKE_CUDA_DELAY_MS=1)
    assert wrong(daemon, report["rows"], "finite") == []
    assert len(report["rows"]) > (report["batches"] - 1) * MICRO


def test_a_lost_daemon_loses_no_batch_copied_ahead(daemon):
    trainer = start(daemon, "restart", FAKE_CUDA_DELAY_MS=2)
    assert trainer.stdout.readline() == "killme\n"
    daemon.kill()
    daemon.start()
    trainer.stdin.write("\n")
    report = finish(trainer)
    assert report["reattached"] == 1 and report["pinned"] > 0
    assert wrong(daemon, report["rows"]) == []


def test_a_wider_dataset_of_a_restarted_daemon_is_widened_rightly(daemon):
    """Slots then have twice the bytes, and need another buffer on the device."""
    trainer = start(daemon, "restart", FAKE_CUDA_DELAY_MS=2)
    assert trainer.stdout.readline() == "killme\n"
    daemon.kill()
    web = "      - {name: web, path: web, weight: 0.7}\n"
    wide = "      - {name: wide, path: wide.bin, dtype: u32, weight: 0}\n"
    daemon.config.write_text(daemon.config.read_text().replace(web, web + wide))
    daemon.start()
    trainer.stdin.write("\n")
    report = finish(trainer)
    assert report["reattached"] == 1 and report["dtypes"] == ["torch.int64"]
    assert len(report["rows"]) == 12 * MICRO and wrong(daemon, report["rows"]) == []


def test_a_ring_that_cannot_be_registered_is_copied(daemon):
    report = run(daemon, "plain", FAKE_CUDA_DELAY_MS=2, FAKE_CUDA_REGISTER_FAILS=1)
    assert wrong(daemon, report["rows"]) == [] and report["pinned"] == 0
    (warning,) = report["warned"]
    assert "cannot be registered" in warning and "\n" not in warning


def test_a_refused_registration_is_not_tried_with_every_batch(daemon):
    """Registering takes locks of the whole driver. The library registers a new ring when it maps
    it, without Python.
    """
    report = run(daemon, "refused", FAKE_CUDA_REGISTER_FAILS=1)
    assert (
        wrong(daemon, report["rows"]) == [] and len(report["warned"]) == 1 and report["pins"] == 0
    )


def test_status_log_and_metrics_show_what_is_pinned(daemon):
    with socket.create_server(("127.0.0.1", 0)) as free:
        metrics = "127.0.0.1:{1}".format(*free.getsockname())
    daemon.stop()
    daemon.config.write_text(f"metrics: {metrics}\n" + daemon.config.read_text())
    daemon.start()

    def known():
        """The session in the status, the lines in the log, the sessions in the metrics."""
        (session,) = daemon.tokctl("status", "--json", "--socket", daemon.socket)[:-1]
        page = urllib.request.urlopen(f"http://{metrics}/metrics").read().decode()
        (refused,) = (
            line.split()[1]
            for line in page.splitlines()
            if line.startswith("tokend_unpinned_sessions ")
        )
        return (
            session["pinned_bytes"],
            (daemon.directory / "log").read_text().count("is not pinned"),
            int(refused),
        )

    def nobody():
        return daemon.tokctl("status", "--json", "--socket", daemon.socket)[-1]["sessions"] == 0

    trainer = start(daemon, "told")
    assert trainer.stdout.readline() == "look\n"
    pinned, *rest = known()
    trainer.stdin.write("\n")
    assert finish(trainer)["pinned"] == pinned > 0 and rest == [0, 0]

    wait_until(nobody, "the session's end")
    trainer = start(daemon, "told", FAKE_CUDA_REGISTER_FAILS=1)
    assert trainer.stdout.readline() == "look\n"
    wait_until(lambda: known() == (0, 1, 1), "the daemon's word on it")
    injected(22)
    assert (
        f"pid {trainer.pid}: its ring of stream train is not pinned"
        in (daemon.directory / "log").read_text()
    )
    trainer.stdin.write("\n")
    assert finish(trainer)["pinned"] == 0

    wait_until(nobody, "the session's end")
    client = _tokend.Client("train", MICRO, socket=daemon.socket)
    assert known() == (None, 1, 0)  # nobody asked
    client.close()


def test_device_cuda_without_a_gpu_is_refused(daemon):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    from tokend import ArgumentError, Loader

    with pytest.raises(ArgumentError, match="device: cuda:1, but torch .* sees no GPU"):
        Loader("train", MICRO, socket=daemon.socket, rank=0, world=1, device="cuda:1")


def test_torch_has_the_calls_that_need_a_gpu():
    torch = pytest.importorskip("torch")
    names = ["Stream", "stream", "current_stream", "current_device", "device_count"]
    for name in [*names, "is_current_stream_capturing", "Stream.record_event", "Stream.wait_event"]:
        assert callable(operator.attrgetter(name)(torch.cuda)), name
    assert callable(torch.Tensor.record_stream)


def test_results_have_a_row_for_each_check():
    gpu = HERE.parent / "gpu"
    sources = "".join(path.read_text() for path in gpu.glob("check_*.py"))
    rows = re.findall(r"^\| `(\w+)`", (gpu / "RESULTS.md").read_text(), re.M)
    assert sorted(rows) == sorted(re.findall(r"^def check_(\w+)", sources, re.M))


def test_import_tokend_does_not_import_torch():
    code = "import sys, tokend, tokend.device; sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], env=child_environment(), check=False
        ).returncode
        == 0
    )
    assert "TOKEND_SOCKET" not in os.environ
