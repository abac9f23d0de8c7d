"""The library of the Python tests. The names that most tests need are imported here.

process   the programs under test, running a command, environments
wait      waiting for a condition
text      checking texts
place     a directory with shards, configs and processes
daemon    a daemon under test, its status, all ways of reading
stock     a daemon with one stream of each kind, for the tests of the Python package
order     the rows that a rank must get
cat       tokctl cat as a trainer that waits in mid-run; a cursor at another position
wire      a client that implements the wire protocol itself, and a witness
users     clients of other users
web       metrics, and tokctl serve
fuse      a file system that can stop answering
stores    real object stores, as processes; fault_proxy injects faults between one and a client
prose     comments, messages and pages, taken out of the sources
pages     the parts of a page; page_runner executes its blocks

shard_writers writes shards with the formats' own writers; shard_cat reads them as tokend does.
order_reference and edits_reference are independent implementations of the order and of a cursor's
edits. declarations: tokend.h for ctypes. elastic_trainer: a trainer. killed_job kills a DDP job and
its daemon; killed_trainer is its rank. ranks forks the processes of a job from the test; forks has
them forked from another process. preload makes calls of a program fail. planted builds programs
with a planted bug. store_faults: the rows of a table.
"""

from .daemon import MODES, Daemon, mode_name, status
from .order import rank_rows, rows_at
from .place import Place, datasets
from .process import (
    BIN,
    PACKAGE,
    REPO,
    TOKCTL,
    TOKEND,
    child_environment,
    few_descriptors,
    free_port,
    run,
    with_parent,
)
from .text import has
from .users import As, client_of
from .wait import LONG, wait_for, wait_until
from .wire import PACKET_BYTES, PAGE, Client, Closed, Refused, Witness, attach_at_once
from .wire import connect, decode, forked_reader, receive, refusal

__all__ = [
    "BIN", "LONG", "MODES", "PACKAGE", "PACKET_BYTES", "PAGE", "REPO", "TOKCTL", "TOKEND",
    "As", "Client", "Closed", "Daemon", "Place", "Refused", "Witness",
    "attach_at_once", "client_of", "connect", "datasets", "decode", "child_environment",
    "few_descriptors", "forked_reader", "free_port", "has", "mode_name", "rank_rows", "receive",
    "refusal", "rows_at", "run", "status", "wait_for", "wait_until", "with_parent",
]  # fmt: skip
