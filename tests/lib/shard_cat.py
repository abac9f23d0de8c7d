"""Shards as tokend's readers see them, through tests/unit/shard_cat.c."""

import json
import subprocess

import numpy

from .process import BIN

CAT = BIN.parent / "check/shard-cat"  # of the variant under test


TYPES = {2: "<u2", 4: "<u4"}  # by the width that is served


def facts(path, *options, refused=False):
    """The facts about a shard, without its tokens. @refused: the error line instead."""
    (seen,) = many([path], *options)
    assert ("error" in seen) == refused, seen
    return seen["error"] if refused else seen


def read(path, *options):
    """(facts, tokens)"""
    done = subprocess.run([CAT, "-s", *options, path], capture_output=True)
    line, raw = done.stdout.split(b"\n", 1)
    assert done.returncode == 0, line
    seen = json.loads(line)
    return seen, numpy.frombuffer(raw, TYPES[seen["token_bytes"]])


def many(paths, *options):
    """The facts or error of each of many files, read by one process."""
    done = subprocess.run([CAT, *options, *paths], capture_output=True, text=True)
    assert done.returncode in (0, 1) and not done.stderr, done
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(seen) == len(paths)
    return seen
