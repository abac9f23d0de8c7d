"""The table of faults at the end of `make test`: how often each fault of the catalogue was
injected, by which tests, and whether all of these tests passed.
"""

import ast
import re
import textwrap
from typing import NamedTuple

ROWS = {
    1: "trainer SIGKILLed mid-batch",
    2: "forked child keeps the socket or the mapping",
    3: "trainer hangs",
    4: "slot released before its copy ends",
    5: "daemon SIGKILLed",
    6: "daemon upgraded, or its config changed, under trainers",
    7: "systemctl stop, and start minutes later",
    8: "daemon's loop hangs",
    9: "EIO on a shard",
    10: "truncated shard",
    11: "bit flip in a shard",
    12: "shard replaced or overwritten while served",
    13: "short read",
    14: "ENOSPC, EIO or failed fsync at a snapshot",
    15: "torn or bit-flipped snapshot",
    16: "power cut at any write",
    17: "snapshot of another dataset, seed, seq_len or format",
    18: "snapshot from a newer version",
    19: "snapshots of several nodes disagree",
    20: "clock jumps",
    21: "out of memory",
    22: "memlock limit, registration refused",
    23: "client punches holes into its data segment",
    24: "fd limit",
    25: "malformed, truncated, over-long or nested messages",
    26: "slow-loris, unread replies",
    27: "unexpected fds sent to the daemon",
    28: "wrong uid",
    29: "hostile ring words from a client",
    30: "client shrinks or seals the memfd",
    31: "a data rank attached twice, another one missing",
    32: "trainers disagree on world size or micro-batch",
    33: "rescale or drain with batches in flight",
    34: "tensor-parallel peers at different speeds, one dies",
    35: "mix, drain or rescale while ranks are at different steps",
    36: "NFS ESTALE or hang",
    37: "object store: 503, slow, short or changed",
    38: "io_uring forbidden",
    39: "resume past the end, negative, garbage cursor",
    40: "a node lacks a shard, or has another config or cursor",
    41: "empty dataset, empty or short shard, bad weight",
    42: "client writes into slots while reads land there",
    43: "cursor with a dataset name of the same hash",
    44: "refusal that will pass",
    45: "storage of one stream hangs",
    46: "session with huge batches, or a flood of messages",
    47: "cgroup's memory limit below `memory:`",
    48: "another uid attaches to a run, saves or drains",
    49: "log's reader slow or gone, log lines provoked",
    50: "two daemons with one state_dir",
    51: "state_dir hangs",
    52: "data thread hangs",
    53: "one bit flips on its way from the disk, once",
    54: "broken config pushed to the fleet",
    55: "another process listens at the daemon's socket",
}
NOTES = {
    4: "stand-in driver",
    22: "stand-in driver",
    45: "weaker bound: other streams continue; their waits are in bench/RESULTS.md",
    46: "weaker bound: others are served; figures in bench/RESULTS.md",
}
INDENT, WIDTH = 81, 150  # the column of the tests' names; the longest line


class Test(NamedTuple):
    """A test's result. Its counts are {row: {name of a function or program: times}}."""

    name: str
    passed: bool
    counts: dict
    broken: frozenset = frozenset()  # the rows of functions that counted a fault, but failed
    rows: frozenset = frozenset()  # the rows that its source names
    skipped: str = ""  # why it was skipped, or a part of it


def read(text, name, passed, rows=ROWS):
    """(counts, broken) of a Test, from the file that `injected()` and conftest.py wrote. A function
    counts if it passed after it had seen the fault. Lines without one: program @name, if @passed.
    """
    counts, broken = {}, set()
    words = [line.split() for line in text.splitlines()]
    outcomes = {name: {"passed" if passed else "failed"}}
    for outcome, function in (pair for pair in words if not pair[0].isdigit()):
        outcomes.setdefault(function, set()).add(outcome)
    for row, times, *function in (line for line in words if line[0].isdigit()):
        if int(row) not in rows:
            raise ValueError(f"the catalogue has no row {row}")
        key = function[0] if function else name
        seen = outcomes.get(key, {"failed"})
        if "failed" in seen:
            broken.add(int(row))
        elif "passed" in seen and int(times):
            by = counts.setdefault(int(row), {})
            by[key] = by.get(key, 0) + int(times)
    return counts, frozenset(broken)


def named(path, text, among=ROWS):
    """The rows that a test's source names in calls of `injected()`."""
    if path.endswith(".py"):
        calls = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and n.args]
        calls = [call for call in calls if getattr(call.func, "id", "") == "injected"]
        parts = [part for call in calls for part in ast.walk(call.args[0])]
        rows = [part.value for part in parts if isinstance(part, ast.Constant)]
    else:
        calls = re.findall(r"\binjected[( ]([^,;\n]*)", text)
        rows = [int(n) for call in calls for n in re.findall(r"\b\d+\b", call)]
    return frozenset(row for row in rows if row in among)


def table(tests, whole, rows=ROWS):
    """The lines of the table, and the rows that no test injected although they should have been.
    @tests: a Test each. @whole: all tests were run, so all @rows are listed.

    A row is held if a test saw the fault and then passed, and no other one failed. A test also
    fails the row if it ended before the fault that its source names.
    """
    lines = [f"{'row':>3}  {'fault':<56}{'injected':>9}  {'held':<9}tests"]
    missing = []
    for row, fault in rows.items():
        by = [test for test in tests if row in test.counts]
        failed = [t for t in tests if row in t.broken]
        failed += [t for t in tests if not t.passed and row in t.rows and row not in t.counts]
        skipped = [t.skipped for t in tests if row in t.rows and t.skipped]
        if not by and not failed and not whole:
            continue
        note = NOTES.get(row, "")
        held = "no" if failed else "yes" if by else "skipped" if skipped else "-"
        names = sorted({name for test in by for name in test.counts[row]})
        if held == "yes" and note.startswith("weaker"):
            held = "weaker"
        if held == "skipped":
            names = sorted({f"skipped: {why}" for why in skipped})
        if held == "-":
            missing.append(row)
        times = sum(sum(test.counts[row].values()) for test in by)
        names = sorted({f"FAILED: {test.name}" for test in failed}) + names or ["none"]
        first = f"{row:>3}  {fault:<56}{times:>9}  {held:<9}"
        text = ", ".join(names) + (f" ({note})" if note else "")
        keys = {"break_long_words": False, "break_on_hyphens": False}
        keys |= {"initial_indent": first, "subsequent_indent": " " * INDENT}
        lines.append(textwrap.fill(text, WIDTH, **keys))
    return (lines if len(lines) > 1 else []), missing
