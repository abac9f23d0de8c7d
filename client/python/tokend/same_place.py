"""Are the processes of a job at one place of one order? Found out where they attach, not in the
loss curve.
"""

import os
import socket

from ._tokend import Error
from .cursor import Cursor

LINES = 3  # of what differs between two cursors


class DisagreementError(Error):
    """The processes of this job are not at one place of one order, or their ranks do not fit
    together.
    """


def _coverage(table):
    """(index, why) of the first process whose rank does not fit with the others', or None."""
    world, seen = table[0][3], {}
    for i, (_, rank, peer, *_) in enumerate(table):
        if (rank, peer) in seen:
            return (
                i,
                f"rank: is rank {rank}, peer {peer}, as process {seen[rank, peer]} is: name its "
                "own rank, or its own peer",
            )
        seen[rank, peer] = i
    count = [0] * min(world, len(table) + 1)
    for rank, _ in seen:
        if rank < len(count):
            count[rank] += 1
    for rank, n in enumerate(count):
        if n != count[0] or n == 0:
            return 0, (
                f"world: is {world}, and of the group's {len(table)} processes {n} read as rank "
                f"{rank}, {count[0]} as rank 0: "
                "every rank must be there equally often"
            )
    return None


def _fault(table):
    """(index, why) of the first process that does not fit, or None; why is "" for another
    cursor.
    """
    for i, row in enumerate(table):
        if not row[0]:
            return i, "could not attach"
    for field, name in ((3, "world"), (4, "micro_batch")):
        for i, row in enumerate(table):
            if row[field] != table[0][field]:
                return i, f"{name}: is {row[field]}, that of process 0 is {table[0][field]}"
    for i, row in enumerate(table):
        if row[5] != table[0][5]:
            return i, ""
    return _coverage(table)


def check(group, client, peer, error=None):
    """Called by all processes of @group when each has attached, or could not: raises the same on
    all if they do not fit.
    """
    row, more = [0] * 6, {"error": str(error)}
    if error is None:
        shape = client.shape()
        row = [1, shape["rank"], peer, shape["world"], shape["rows"], client.fingerprint()]
        more = {"cursor": client.cursor().hex()}
    _compare(group, row, more)


def check_places(group, rank, world, peer, micro_batch):
    """Before they attach: two that claim one place would each wait for the other's end. One that
    already failed calls check().
    """
    _compare(group, [1, rank, peer, world, micro_batch, 0], {})


def _compare(group, row, more):
    table = group.gather(row)
    found = _fault(table)
    if found is None:
        return
    i, why = found
    mine = {"host": socket.gethostname(), "pid": os.getpid(), **more}
    first, other = (group.share(mine, source) for source in (0, i))
    if not why:
        lines = Cursor(bytes.fromhex(other["cursor"])).diff(bytes.fromhex(first["cursor"]))
        more = f" and {len(lines) - LINES} more" if len(lines) > LINES else ""
        here = f"process 0, rank {table[0][1]}, host {first['host']}"
        why = f"{'; '.join(lines[:LINES])}{more} (there | {here})"
    if "error" in other:
        why += f": {other['error']}"
    rank = f"rank {table[i][1]}, " if table[i][0] else ""
    raise DisagreementError(
        f"agreement: process {i} of {group.size} ({rank}host {other['host']}, pid {other['pid']}): "
        f"{why}"
    )
