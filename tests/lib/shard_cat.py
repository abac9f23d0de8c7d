"""Shards as tokend's readers see them, through tests/unit/shard_cat.c."""

import json
import subprocess

import numpy

from .process import BIN

CAT = BIN.parent / "check/shard-cat"  # of the variant under test


def facts(path, *options, refused=False):
    """The facts about a shard, without its tokens. @refused: the error line instead."""
    done = subprocess.run([CAT, *options, path], capture_output=True, text=True)
    assert done.returncode == int(refused), done
    seen = json.loads(done.stdout)
    return seen["error"] if refused else seen


def tokens(path, *options):
    done = subprocess.run([CAT, "-s", *options, path], capture_output=True)
    line, raw = done.stdout.split(b"\n", 1)
    assert done.returncode == 0, line
    return numpy.frombuffer(raw, {2: "<u2", 4: "<u4"}[json.loads(line)["token_bytes"]])
