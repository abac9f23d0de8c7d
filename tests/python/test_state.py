"""The state of a loader: one cursor, exact wherever and however it is saved and loaded; what edits
it; who may call a loader, and when.
"""

import copy
import gc
import os
import pickle
import signal
import sys
import threading

import pytest
import transforms
from lib import PACKAGE
from lib.fuse import hanging
from lib.injected import injected
from loading import SEQ, check, check_run, make, python

import tokend
from tokend.throughput import Throughput

NAMES = ["web", "code"]


def test_the_state_has_one_key_and_is_equal_on_all_ranks_at_equal_steps(served):
    loaders = [make(served, rank=rank, world=3) for rank in range(3)]
    fresh = loaders[0].state_dict()
    assert list(fresh) == ["cursor"] and type(fresh["cursor"]) is bytes
    for loader in loaders:
        assert loader.state_dict() == fresh
    for rank, loader in enumerate(loaders):
        check_run(served, loader, 5, rank=rank, world=3)
    assert len({loader.fingerprint for loader in loaders}) == 1
    assert all(loader.state_dict() == loaders[0].state_dict() != fresh for loader in loaders)
    next(loaders[0])
    assert loaders[0].fingerprint != loaders[1].fingerprint
    state = loaders[1].state_dict()
    for loader in loaders:
        loader.close()
    for rank in range(2):  # no part of it belongs to a rank that is gone
        with make(served, rank=rank, world=2) as loader:
            loader.load_state_dict(state)
            check_run(served, loader, 5, start=60, rank=rank, world=2)
            loader.load_state_dict(fresh)
            check_run(served, loader, 3, rank=rank, world=2)


def test_new_weights_in_the_config_change_no_position_of_a_run(daemon):
    """They would serve samples again that the run has had, and never serve others."""
    with make(daemon) as loader:
        check_run(daemon, loader, 100)
        state = loader.state_dict()
    daemon.stop()
    text = daemon.config.read_text()
    daemon.config.write_text(text.replace("0.7", "0.2").replace("0.3", "0.8"))
    daemon.start()
    assert daemon.plan("train", 0, 900, state["cursor"]) != daemon.plan("train", 0, 900)
    with make(daemon, start=state) as loader:
        check_run(daemon, loader, 100, start=400, cursor=state["cursor"])


# ---- edits of the state ----


def test_after_commit_the_state_is_the_committed_position(served):
    with make(served) as loader:
        nexts = []
        for _ in range(5):
            next(loader)
            nexts.append(loader.taken)
        assert loader.position == 20
        loader.commit(nexts[1])
        assert tokend.Cursor(loader.state_dict()["cursor"]).position == 8
        for wrong in (21, nexts[0]):
            with pytest.raises(tokend.ArgumentError, match="next: "):
                loader.commit(wrong)
        loader.seek(world=2, rank=0)  # after another step, batches of both sizes may be committed
        next(loader)
        loader.commit(nexts[4])
        loader.commit()
        assert loader.position == loader.taken == 28
    with make(served, start=40) as loader:
        loader.commit()  # nothing is trained on yet
        next(loader)
        assert (loader.position, loader.taken) == (40, 44)


def test_seek(served):
    with make(served) as loader:
        early = loader.state_dict()["cursor"]
        check_run(served, loader, 5)
        loader.seek(position=4099)
        check_run(served, loader, 5, start=4099)
        with make(served, micro=7, start=loader.state_dict()) as other:
            check_run(served, other, 2, start=4119, micro=7)
        loader.seek(early)
        check_run(served, loader, 2)
        loader.seek(rank=2, world=3, micro_batch=5)
        check_run(served, loader, 4, start=8, rank=2, world=3, micro=5)
        assert loader.position == 8 + 4 * 15


def test_what_is_refused_changes_nothing(served):
    ARGUMENT, REFUSED = tokend.ArgumentError, tokend.RefusedError
    with make(served, "finite") as finite, make(served) as loader:
        check_run(served, loader, 2)
        broken = bytearray(loader.state_dict()["cursor"])
        broken[-1] ^= 1
        for call, argument, error, text in (
            (loader.load_state_dict, {}, ARGUMENT, r"state: not from .* its keys are \[\]"),
            (loader.load_state_dict, {"cursor": bytes(broken)}, REFUSED, "checksum"),
            (loader.load_state_dict, finite.state_dict(), REFUSED, "stream"),
            (loader.reset, {"epoch": 3}, ARGUMENT, "state: not from"),
            (loader.seek, 5, TypeError, r"cursor: .*seek\(position=N\)"),
            (lambda rank: loader.seek(rank=rank, world=3), 3, ARGUMENT, "rank: 3"),
            (lambda position: finite.seek(position=position), 469, ARGUMENT, "past the end"),
            (loader.set_mix, {"wb": 1}, ARGUMENT, "dataset wb: is not in the config"),
            (loader.set_mix, {"web": -1}, ARGUMENT, "weight"),
            (loader.set_mix, [1], TypeError, "mix: a list"),
            (finite.set_mix, {"code": 1}, ARGUMENT, "epochs"),
            (loader.checkpoint, "a/b", ARGUMENT, "tag"),
            (loader.set_mix, {"web\0x": 1}, ValueError, "is not a dataset's name"),
        ):
            with pytest.raises(error, match=text):
                call(argument)
        check_run(served, loader, 2, start=8)


def test_checkpoint_and_start_from_its_tag(served):
    with make(served, run="one") as loader:
        check_run(served, loader, 3)
        path = loader.checkpoint("step-3")
        assert open(path, "rb").read() == loader.state_dict()["cursor"]
    for run, tag in (("one", "step-3"), ("two", "one/step-3")):
        with make(served, run=run, start=tag) as loader:
            check_run(served, loader, 2, start=12)
    with pytest.raises(tokend.RefusedError, match="tag"):
        make(served, run="one", start="step-4")


@pytest.mark.parametrize("then", ["waits", "listens", "undoes"])
def test_a_late_reply_is_not_taken_for_the_next_one(served, then):
    """The daemon stores one checkpoint at a time, and answers the first when it is back."""
    with make(served, run="late", deadline=2) as loader:
        check_run(served, loader, 3)
        state = os.path.dirname(loader.checkpoint("none"))
        disk = hanging(state, state) if then == "undoes" else None
        disk.hang() if disk else served.freeze()
        with pytest.raises(tokend.ConnectError, match="has not answered for 2 s"):
            loader.checkpoint("first")
        if then == "undoes":
            loader._client.obey("skip", "samples 40")
            loader._client.undo()
            threading.Timer(0.5, disk.close).start()
        else:
            served.signal(signal.SIGCONT)
        if then == "listens":
            with make(served, run="other") as other:
                other.checkpoint("third")  # after the first
            loader._client.attend()
        path = loader.checkpoint("second")
        assert "second" in path and open(path, "rb").read() == loader.state_dict()["cursor"]
        check_run(served, loader, 3, start=12)


def test_attributes(served):
    with make(served, run="named", rank=1, world=2) as loader:
        assert (loader.stream, loader.run, loader.datasets) == ("train", "named", NAMES)
        assert (loader.rank, loader.world, loader.seq_len) == (1, 2, SEQ)
        loader.set_mix({"code": 1})
        assert loader.mix == {"web": 0.7, "code": 0.3}, "not yet in force"
        loader.seek(position=1024, micro_batch=2)
        assert loader.mix == {"web": 0, "code": 1} and loader.batch_size == loader.micro_batch == 2
        assert "train" in repr(loader) and "rank 1 of 2" in repr(loader)
    assert "not attached" in repr(loader)


def test_waiting_is_measured(served):
    with make(served, slots=2, run="measured", world=2) as loader:
        throughput = Throughput(loader)
        next(loader)
        served.freeze()
        threading.Timer(0.5, served.signal, [signal.SIGCONT]).start()
        while loader.stats()["waited_s"] < 0.3:
            next(loader)
        said, stats = throughput(), loader.stats()
        assert said["tokend/tokens"] == 2 * stats["tokens"] and said["tokend/wait_seconds"] > 0.3
        assert 0 < said["tokend/wait_share"] < said["tokend/data_share"] <= 1
        assert stats["waited_s"] <= stats["next_s"] and stats == loader.stats()
        assert throughput()["tokend/tokens_per_second"] == 0, "since the last call"
        loader.seek(world=1)
        next(loader)
        grown = throughput()["tokend/tokens"] - said["tokend/tokens"]
        assert grown == 4 * (SEQ + 1), "it does not jump with the world"


# ---- who may call a loader, and when ----


def rings():
    """How much ring memory this process has mapped."""
    with open("/proc/self/maps") as maps:
        return maps.read().count("/memfd:tokend-")


def calls(loader):
    return (
        lambda: next(loader),
        loader.state_dict,
        loader.seek,
        loader.control,
        lambda: loader.checkpoint("x"),
    )


def test_a_forked_child_gets_an_error(served):
    with make(served) as loader:
        check_run(served, loader, 2)
        child = os.fork()
        if child == 0:
            told = [rings()]
            for call in calls(loader):
                try:
                    call()
                except tokend.Error as error:
                    told.append("num_workers=0" in str(error))
            loader.close()
            del loader
            gc.collect()
            os._exit(0 if told == [0, *[True] * 5] else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert rings() == 2, "meta and data"
        injected(2)
        check_run(served, loader, 200, start=8)


def test_a_closed_loader_raises_and_its_batches_stay(served):
    with make(served) as loader:
        batch = next(loader)
        for double in (copy.copy, pickle.dumps):
            with pytest.raises(TypeError, match=r"pass it the state_dict\(\)"):
                double(loader)
    for call in (*calls(loader), loader.stats, lambda: loader.position):
        with pytest.raises(tokend.Error, match="^closed: "):
            call()
    check(served, batch, served.plan("train", 0, 4), NAMES)


CLOSED = """
import sys, threading, tokend

sys.setswitchinterval(1e-6)
both = threading.Barrier(5)


def look(delay):
    while True:
        both.wait()
        for _ in range(delay):
            pass
        try:
            for _ in range(20):
                loader.position
        except tokend.Error:
            pass
        both.wait()


for i in range(4):
    threading.Thread(target=look, args=[700 * i], daemon=True).start()
for _ in range(300):
    loader = tokend.Loader("train", 4, socket=sys.argv[1], framework="numpy")
    both.wait()
    loader.close()
    both.wait()
"""


def test_a_loader_may_be_closed_while_other_threads_look_at_it(served):
    done = python(CLOSED, served.socket)
    assert done.returncode == 0, done


class Enough(Exception):
    pass


def until_signalled(loader, daemon, handler):
    """The batches that are taken until next() waits for a stopped daemon and a signal comes."""

    def within(number, frame):  # not between two calls of next()
        if frame.f_code.co_filename.startswith(str(PACKAGE)):
            handler()

    batches, former = [next(loader)], signal.signal(signal.SIGALRM, within)
    daemon.freeze()
    signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)
    try:
        with pytest.raises((Enough, tokend.Error)) as raised:
            while len(batches) < 10:
                batches.append(next(loader))
    except BaseException:
        daemon.signal(signal.SIGCONT)  # other tests use it, too
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    return len(batches), raised.value


def test_a_signal_interrupts_a_wait_and_nothing_is_lost(served):
    """Its handler may ask for the state; so may another thread while next() waits."""

    def handler(*_):
        assert tokend.Cursor(loader.state_dict()["cursor"]).position == loader.position > 0
        raise Enough

    with make(served, slots=4) as loader:
        taken, _ = until_signalled(loader, served, handler)
        got = []
        reader = threading.Thread(target=lambda: got.append(next(loader)))
        reader.start()
        assert loader.state_dict() and loader.position == 4 * taken and not got
        served.signal(signal.SIGCONT)
        reader.join(20)
        check(served, got[0], served.plan("train", 4 * taken, 4), NAMES)
        check_run(served, loader, 20, start=4 * taken + 4)
        assert loader.stats()["lost_wakes"] == 0


def test_a_handler_may_not_wait(served):
    with make(served, slots=2) as loader:
        _, error = until_signalled(loader, served, lambda *_: loader.control())
        served.signal(signal.SIGCONT)
        assert str(error).startswith("busy: ") and "signal" in str(error)


def nth_call(n):
    """A profile function that raises after the n-th call of a function within the package, where
    Python may call a signal's handler. A method's end and its caller's next step are one.
    """

    def profile(frame, event, _):
        nonlocal n
        ours = frame.f_code.co_filename.startswith(str(PACKAGE))
        if ours and event in ("c_return", "return") and frame.f_code.co_name != "__next__":
            n -= 1
            if n == 0:
                raise Enough
        return None

    return profile


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "int32", "provenance": True},
        {"framework": "numpy"},
        {"transform": transforms.in_place, "workers": 2},
    ],
    ids=lambda options: "-".join(options),
)
def test_an_exception_after_any_call_within_next_loses_no_batch(served, options):
    with make(served, **options) as loader:
        position, hits = next(loader)["position"][0].item(), 0
        for n in range(1, 400):
            sys.setprofile(nth_call(n))
            try:
                batch = next(loader)
                sys.setprofile(None)
            except Enough:
                sys.setprofile(None)
                hits += 1
                batch = next(loader)
            position += 4
            assert batch["position"][0].item() == position, n
            assert loader.position == loader.taken, n
            if hits < n - 20:
                break
        assert hits > 3 and loader.taken == position + 4
