"""Other libraries' loops around a plain loader work, or are refused. tests/trainers runs the real
ones.

Here the calling module has the name of the real one, because the loader looks at that name.
"""

import sys
import types

import pytest

import tokend

ENDLESS = 1 << 40  # batches


def module(name, code, **names):
    made = types.ModuleType(name)
    exec(compile(code, name, "exec"), made.__dict__)
    made.__dict__.update(names)
    return made


LENGTH = "def sized_len(loader):\n    return len(loader)\n"


@pytest.mark.parametrize(
    "name", ["lightning.fabric.utilities.data", "pytorch_lightning.loops.fit_loop"]
)
def test_lightning_gets_a_length_and_takes_no_batch_ahead(daemon, name):
    lightning, other = module(name, LENGTH), module("other", LENGTH)
    with tokend.Loader("train", 4, socket=daemon.socket) as loader:
        assert lightning.sized_len(loader) == ENDLESS
        for ask in (len, other.sized_len):
            with pytest.raises(TypeError, match="no end"):
                ask(loader)
    with tokend.Loader("finite", 4, socket=daemon.socket) as loader:
        total = len(loader)
        assert lightning.sized_len(loader) == total, (
            "an epoch has its real length, for what is done at its end"
        )
        loader.seek(position=80)
        assert len(loader) == total - 20
        assert lightning.sized_len(loader) == ENDLESS, "it counts the 20 batches of before into it"
        rest = list(loader)
        assert len(rest) == total - 20
        assert lightning.sized_len(loader) == ENDLESS
        assert len(list(loader)) == total, "the next epoch is whole"


DEAL = """
class DataLoaderDispatcher:
    def __init__(self, dataset, processes):
        self.dataset, self.state = dataset, State(processes)
    def __iter__(self):
        yield from self.dataset

class IterableDatasetShard:
    def __init__(self, dataset, processes):
        self.dataset, self.num_processes = dataset, processes
    def __iter__(self):
        yield from self.dataset

class DataLoaderShard(IterableDatasetShard):
    pass

class State:
    def __init__(self, processes):
        self.num_processes = processes

class Stateful(IterableDatasetShard):
    def __init__(self, dataset, processes):
        self.batches = iter(dataset)
        self.state = State(processes)
    def __iter__(self):
        yield from self.batches

Stateful.__name__ = "DataLoaderDispatcher"  # around torchdata's StatefulDataLoader
"""


@pytest.mark.parametrize(("kind", "processes", "refused"), [
    ("DataLoaderDispatcher", 2, True), ("IterableDatasetShard", 2, True), ("Stateful", 2, True),
    ("DataLoaderDispatcher", 1, False), ("DataLoaderShard", 2, False),
])  # fmt: skip
def test_accelerate_may_not_deal_out_one_ranks_batches(
    daemon, monkeypatch, kind, processes, refused
):
    accelerate = module("accelerate.data_loader", DEAL)
    monkeypatch.setitem(sys.modules, "accelerate", types.ModuleType("accelerate"))
    with tokend.Loader("train", 4, socket=daemon.socket) as loader:

        def dataset():
            yield from loader

        around = loader if kind == "Stateful" else dataset()
        batches = iter(getattr(accelerate, kind)(around, processes))
        if refused:
            with pytest.raises(tokend.ArgumentError, match="accelerate's DataLoader deals out"):
                next(batches)
            assert loader.position == 0
        else:
            assert next(batches)["position"].tolist() == [0, 1, 2, 3]
