"""The table of faults at the end of `make test`: how often each fault of the catalogue was
injected, by which tests, and whether all of these tests passed.
"""

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
    55: "somebody else listens at the daemon's socket",
}
NOTES = {4: "stand-in driver", 22: "stand-in driver", 37: "comes with object stores"}
LATER = {37}  # rows that no test can inject yet


def read(text):
    """The counts in a file that `injected()` wrote: {row: times}."""
    counts = {}
    for line in text.splitlines():
        row, times = map(int, line.split())
        counts[row] = counts.get(row, 0) + times
    unknown = sorted(counts.keys() - ROWS.keys())
    if unknown:
        raise ValueError(f"the catalogue has no row {unknown[0]}")
    return {row: times for row, times in counts.items() if times}


def table(tests, whole):
    """The lines of the table, and the rows that no test injected although they should have been.
    @tests: (name, passed, counts) of each test. @whole: all tests were run, so all rows are listed.
    """
    lines = [f"{'row':>3}  {'fault':<56}{'injected':>9}  {'held':<5}tests"]
    missing = []
    for row, fault in ROWS.items():
        by = {name: (passed, counts[row]) for name, passed, counts in tests if row in counts}
        if not by and not whole:
            continue
        failed = [name for name, (passed, _) in by.items() if not passed]
        held = "no" if failed else "yes" if by else "-"
        names = ", ".join(f"{name}: FAILED" if name in failed else name for name in sorted(by))
        note = f"({NOTES[row]})" if row in NOTES else ""
        times = sum(times for _, times in by.values())
        lines.append(f"{row:>3}  {fault:<56}{times:>9}  {held:<5}{names or 'none'} {note}".rstrip())
        if not by and row not in LATER:
            missing.append(row)
    return (lines if len(lines) > 1 else []), missing
