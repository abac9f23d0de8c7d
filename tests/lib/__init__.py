"""What the Python tests share. Each module says what it offers; the names that most tests need are
here, too.

process   the programs under test, running a command, environments
wait      waiting for a condition
text      checking texts
place     a directory with shards, configs and processes
daemon    a daemon under test, its status, the ways in which it can read
stock     a daemon with one stream of each kind, for the tests of the Python package
order     the rows that must come
wire      a client that speaks the wire by itself, and a witness
users     clients of other users
fuse      a file system that stops to answer
release   an older release, built from the history; compat_trainer: a trainer with its package

shard_writers, shard_cat: shards of their real writers, and what tokend's readers see in them.
order_reference, edits_reference: the order and the edits of a cursor, written a second time from
their description. declarations: tokend.h for ctypes. elastic_trainer: a trainer.
"""

from .daemon import MODES, Daemon, mode_name, status
from .order import rank_rows, rows_at
from .place import Place, datasets
from .process import BIN, PACKAGE, REPO, TOKCTL, TOKEND, child_environment, run, with_parent
from .text import has
from .users import As, client_of
from .wait import LONG, wait_for, wait_until
from .wire import PACKET_BYTES, PAGE, Client, Closed, Refused, Witness, connect, decode, receive

__all__ = [
    "BIN", "LONG", "MODES", "PACKAGE", "PACKET_BYTES", "PAGE", "REPO", "TOKCTL", "TOKEND",
    "As", "Client", "Closed", "Daemon", "Place", "Refused", "Witness",
    "client_of", "connect", "datasets", "decode", "child_environment", "has", "mode_name",
    "rank_rows", "receive", "rows_at", "run", "status",
    "wait_for", "wait_until", "with_parent",
]  # fmt: skip
