"""Compares the processes of a job when they attach: cursors, ranks, world, micro_batch."""

import os

from ._tokend import Error
from .cursor import Cursor

LINES = 3  # differences of two cursors that a message shows


class DisagreementError(Error):
    """The processes of a job are not at one cursor, or their ranks do not fit together."""


def _coverage(table):
    """Returns (index, other, why): the first process whose rank does not fit, and the one that it
    does not fit to. Or None.
    """
    world, seen = table[0][3], {}
    for i, (_, rank, peer, *_) in enumerate(table):
        if (rank, peer) in seen:
            return (
                i,
                seen[rank, peer],
                f"rank: rank {rank}, peer {peer} is also that of {{}}; "
                "pass each process its own rank or peer",
            )
        seen[rank, peer] = i
    count = [0] * min(world, len(table) + 1)
    for rank, _ in seen:
        if rank < len(count):
            count[rank] += 1
    for rank, n in enumerate(count):
        if n != count[0] or n == 0:
            why = (
                f"world: is {world}, but {n} of the group's {len(table)} processes read as rank "
                f"{rank} and {count[0]} as rank 0; every rank needs the same number of processes"
            )
            return 0, 0, why
    return None


def _fault(table):
    """Returns (index, other, why) of the first process that does not fit, or None. {} in why
    stands for the other process. why is "" if their cursors differ.
    """
    for i, row in enumerate(table):
        if not row[0]:
            return i, 0, "could not attach"
    for field, name in ((3, "world"), (4, "micro_batch")):
        for i, row in enumerate(table):
            if row[field] != table[0][field]:
                return i, 0, f"{name}: {row[field]} differs from {table[0][field]} at {{}}"
    for i, row in enumerate(table):
        if row[5] != table[0][5]:
            return i, 0, ""
    for i, row in enumerate(table):
        if row[6] != table[0][6]:
            return i, 0, "shards: names and lengths are those at {}, but the tokens are not"
    return _coverage(table)


def check(group, client, peer, error=None):
    """Called by all processes of @group once each has attached or failed to (@error). Raises the
    same on all if they do not fit.
    """
    row, more = [0] * 7, {"error": str(error)}
    if error is None:
        shape = client.shape()
        row = [1, shape["rank"], peer, shape["world"], shape["rows"], client.fingerprint()]
        row.append(client.contents())
        more = {"cursor": client.cursor().hex()}
    _compare(group, row, more)


def check_places(group, rank, world, peer, micro_batch):
    """Called before they attach, because two processes with one rank and peer would wait for each
    other. A process that has already failed calls check().
    """
    _compare(group, [1, rank, peer, world, micro_batch, 0, 0], {})


def _compare(group, row, more):
    table = group.gather(row)
    found = _fault(table)
    if found is None:
        return
    i, j, why = found
    mine = {"host": os.uname().nodename, "pid": os.getpid(), **more}
    first, other = (group.share(mine, source) for source in (j, i))
    where = f"process {j} (rank {table[j][1]}, host {first['host']}, pid {first['pid']})"
    if why:
        why = why.format(where)
    else:
        lines = Cursor(bytes.fromhex(other["cursor"])).diff(bytes.fromhex(first["cursor"]))
        more = f" and {len(lines) - LINES} more" if len(lines) > LINES else ""
        why = f"{'; '.join(lines[:LINES])}{more} (there | {where})"
    if "error" in other:
        why += f": {other['error']}"
    rank = f"rank {table[i][1]}, " if table[i][0] else ""
    raise DisagreementError(
        f"agreement: process {i} of {group.size} ({rank}host {other['host']}, pid {other['pid']}): "
        f"{why}"
    )
