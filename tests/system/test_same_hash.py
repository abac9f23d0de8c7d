"""A cursor with a dataset name that has the hash of another name is refused. It once ended the
daemon, which compares hashes first.
"""

import pytest

from lib import TOKCTL, Client, Daemon, Refused, Witness, has, rows_at, run
from lib.injected import injected

NAME, SAME_HASH = "web", "dsauekTVgbaD3bYisrOl"  # both have the 64-bit FNV-1a hash 5ea0e11948721ef1


def streams(name):
    return {"train": {"seed": 7, "seq_len": 64, "datasets": [{"name": name, "path": "web"}]}}


def test_a_name_with_the_same_hash_is_refused(place):
    place.shard("web/a.bin", 40_000)
    foreign, path = place.config("foreign.yaml", streams=streams(SAME_HASH)), place.file("cursor")
    assert run(TOKCTL, "cursor", "new", "-c", foreign, "train", "-o", path)[0] == 0
    with open(path, "rb") as f:
        cursor = f.read()
    daemon = Daemon(place, place.config(streams=streams(NAME)))
    witness = Witness(daemon, rows_at(daemon.config, "train", 0, 400))
    witness.step(10)
    with open(place.file("state", "train", "test", "stolen.cursor"), "wb") as f:
        f.write(cursor)
    for ask in (
        lambda: Client(daemon.socket).attach(cursor=cursor),
        lambda: Client(daemon.socket).attach(tag="stolen"),
        lambda: witness.client.ask(op="checkpoint", tag="step", cursor=cursor),
    ):
        with pytest.raises(Refused) as refused:
            ask()
        assert has(str(refused.value), SAME_HASH, "no longer has it")
        injected(43)
    assert witness.step(10)
    witness.close()
