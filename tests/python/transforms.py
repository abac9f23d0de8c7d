"""Transforms for the tests, at a module's top level, so that workers can import them."""

import threading
import time

import numpy

LOCK = threading.RLock()  # a trainer may hold one


def shuffle(tokens, position, rng):
    """Uses everything that a transform may use."""
    return rng.permutation(tokens) + position % 7


def in_place(tokens, position, rng):
    with LOCK:
        tokens[0] = position % 1000
    return tokens


def raises_at_42(tokens, position, rng):
    if position == 42:
        raise RuntimeError("one\n  two")
    return tokens


def hangs(tokens, position, rng):
    time.sleep(3600)


def shortens(tokens, position, rng):
    return tokens[1:]


def halves(tokens, position, rng):
    return tokens / 2


def grows(tokens, position, rng):
    return tokens + numpy.int64(2**33)


def interrupted_at_8(tokens, position, rng):
    """Raises KeyboardInterrupt once, in the second row of a batch."""
    if position == 8 and not interrupted_at_8.was:
        interrupted_at_8.was = True
        raise KeyboardInterrupt
    return tokens


interrupted_at_8.was = False
