"""A signal handler runs in the thread that waits: it may ask for the state, and other calls are
refused. If it raises, next() loses no batch.
"""

import random
import signal
import sys
import time
import warnings

import numpy
import pytest
import tokend
import transforms
from lib import PACKAGE
from loading import make
from tokend import Error, _tokend


def interrupted(daemon, handler):
    """Returns the result of a next() while a signal calls @handler(client), and the client."""
    client = _tokend.Client("train", 4, socket=daemon.socket, slots=2, deadline_ms=20000)
    rows = numpy.empty((2, 4), numpy.int64)
    assert client.next_into(0, rows.ctypes.data)
    daemon.freeze()
    former = signal.signal(signal.SIGALRM, lambda *_: handler(client))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        for _ in range(10):
            client.next_into(0, rows.ctypes.data)
    finally:
        signal.signal(signal.SIGALRM, former)
        daemon.signal(signal.SIGCONT)
        client.close()


class Enough(Exception):
    pass


def test_a_handler_may_ask_for_the_state(daemon):
    def handler(client):
        assert client.position() == client.taken() > 0 and client.cursor()
        raise Enough

    with pytest.raises(Enough):
        interrupted(daemon, handler)


@pytest.mark.timeout(30, method="thread")
@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.checkpoint("now"),
        lambda client: client.attend(),
        lambda client: client.close(),
    ],
)
def test_a_handler_may_not_wait(daemon, call):
    with pytest.raises(Error, match=r"busy: .* signal"):
        interrupted(daemon, call)


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


@pytest.mark.limit(120)
@pytest.mark.parametrize("iterates", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "int32"},
        {"tokens": True},
        {"loss_mask": True},
        {"provenance": True},
        {"prefetched": 2},
        {"framework": "numpy"},
        {"transform": transforms.in_place},
        {"transform": transforms.in_place, "workers": 2},
    ],
    ids=lambda options: "-".join(options),
)
def test_an_exception_after_any_call_within_next_loses_no_batch(daemon, options, iterates):
    if "dtype" in options:
        options = {"dtype": pytest.importorskip("torch").int32}
    with make(daemon, **options) as loader:
        batches = iter(loader) if iterates else loader
        position = next(batches)["position"][0].item()
        hits = 0
        for n in range(1, 400):
            sys.setprofile(nth_call(n))
            try:
                batch = next(batches)
                sys.setprofile(None)
            except Enough:
                sys.setprofile(None)
                hits += 1
                if "prefetched" not in options:
                    assert loader.position == loader.taken == position + 4, n
                batch = next(batches)
            position += 4
            assert batch["position"][0].item() == position, n
            if hits < n - 20:
                break
        assert hits > 3
        assert loader.taken == position + 4


def test_a_lent_batch_that_was_not_returned_is_an_error(daemon, monkeypatch):
    with make(daemon, view=True, hold=1) as loader:
        next(loader)

        def interrupted(_):
            raise Enough

        with monkeypatch.context() as patch:
            patch.setattr(loader._make, "lent", interrupted)
            with pytest.raises(Enough):
                next(loader)
        with pytest.raises(Error, match=r"interrupted .*; seek\(position=4\) takes it again"):
            next(loader)
        loader.seek(position=4)
        assert next(loader)["position"].tolist() == [4, 5, 6, 7]


def test_a_signals_exception_at_any_instant_loses_no_batch(daemon):
    def inside(_, frame):
        if frame.f_code.co_filename.startswith(str(PACKAGE)):
            raise Enough

    former, hits = signal.signal(signal.SIGALRM, inside), 0
    try:
        with make(daemon) as loader:
            expected, until = 0, time.monotonic() + 3
            while time.monotonic() < until:
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.random() * 4e-5 + 1e-6)
                    batch = next(loader)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    assert batch["position"][0].item() == expected
                    expected += 4
                except Enough:
                    hits += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert hits > 10


# ---- a state that counts the batch in hand ----


def warned(act):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    assert {warning.filename for warning in caught} <= {__file__}
    return [str(warning.message) for warning in caught]


def fails(loader):
    try:
        for _ in loader:
            raise Enough
    except Enough:
        return loader.state_dict()


def fails_and_saves_in_finally(loader):
    try:
        try:
            next(loader)
            raise Enough
        finally:
            loader.state_dict()
    except Enough:
        pass


def is_signalled(loader, handler=None):
    former = signal.signal(signal.SIGUSR1, handler or (lambda *_: loader.state_dict()))
    try:
        for _ in zip(range(2), loader):
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, former)


@pytest.mark.parametrize("act", [fails, fails_and_saves_in_finally, is_signalled])
def test_a_state_saved_within_a_step_warns_once(daemon, act):
    with make(daemon) as loader:
        (text,) = warned(lambda: act(loader))
        assert "call commit() after each step" in text
        assert warned(lambda: act(loader)) == []


def test_methods_and_partial_functions_are_handlers_too(daemon):
    import functools

    class Saver:
        def save(self, number, frame):
            self.loader.state_dict()

    saver = Saver()
    with make(daemon) as saver.loader:
        assert len(warned(lambda: is_signalled(saver.loader, saver.save))) == 1
    with make(daemon) as loader:
        handler = functools.partial(lambda loader, *_: loader.state_dict(), loader)
        assert len(warned(lambda: is_signalled(loader, handler))) == 1


def test_a_state_saved_after_a_step_does_not_warn(daemon):
    def save(*_):
        loader.state_dict()

    def act():
        for _ in zip(range(2), loader):
            save()
        for _ in loader:
            break
        save()  # a handler, but not called as one
        try:
            next(loader)
            loader.seek(position=0)
            raise Enough
        except Enough:
            save()
            try:
                next(loader)  # a loop in a handler
                save()
            finally:
                save()
        loader.close()

    former = signal.signal(signal.SIGUSR1, save)
    try:
        with make(daemon) as loader:
            assert warned(act) == []
        with make(daemon, "finite") as loader:
            batches = iter(loader)
            try:
                while True:
                    next(batches)
            except StopIteration:
                assert warned(save) == []
        for options in ({}, {"prefetched": 1}):
            with make(daemon, **options) as loader:
                if not options:
                    loader.commit()
                assert warned(lambda loader=loader: fails(loader)) == []
    finally:
        signal.signal(signal.SIGUSR1, former)


def test_a_state_saved_after_an_error_of_next_does_not_warn(daemon):
    def act():
        next(loader)
        daemon.kill()
        try:
            while True:
                next(loader)
        except tokend.Error:
            loader.state_dict()

    with make(daemon, deadline=1) as loader:
        assert warned(act) == []
