"""Many batches at full speed across position 2^63: memory, descriptors, threads and counters stay
flat. `make soak` runs this for longer.
"""

import pytest

from lib.long_life import LongLife

pytestmark = pytest.mark.nightly
BATCHES = {"compressed": 30_000_000, "plain": 4_000_000}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_long_life_leaves_nothing_behind(place, kind):
    begin = (1 << 63) - BATCHES[kind] // 2
    life = LongLife(place, begin, kind == "compressed")
    totals = life.run(300, BATCHES[kind])
    assert totals["batches"] == BATCHES[kind]
    assert life.daemon.stop() == 0
