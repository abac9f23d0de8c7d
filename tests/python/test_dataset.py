"""A loader passed to a DataLoader as its dataset is refused, whatever is asked first.

The real Trainer of transformers is in tests/trainers/test_transformers_dataset.py.
"""

import os

import pytest
import tokend
from lib import wait_until
from torch.utils.data import DataLoader, IterableDataset

PLACE = "tokend.Loader: replaces a DataLoader, and is not a dataset"


def make(daemon, stream="train", **more):
    return tokend.Loader(stream, 4, socket=daemon.socket, rank=0, world=1, **more)


@pytest.mark.parametrize("stream", ["train", "finite"])
@pytest.mark.parametrize(
    "more",
    [{}, {"shuffle": True}, {"batch_size": None}, {"batch_size": 2, "num_workers": 1}],
    ids=str,
)
def test_a_dataloader_over_a_loader_is_refused(daemon, stream, more):
    with make(daemon, stream) as loader:
        with pytest.raises(TypeError, match=PLACE):
            next(iter(DataLoader(loader, **more)))
        assert loader.position == 0


class Wrapped(IterableDataset):
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


def test_a_dataloader_worker_is_refused_with_what_to_set(daemon):
    with make(daemon) as loader:
        with pytest.raises(tokend.ForkedError, match="num_workers=0"):
            next(iter(DataLoader(Wrapped(loader), batch_size=None, num_workers=1)))
        assert next(iter(DataLoader(Wrapped(loader), batch_size=None)))["position"].tolist() == [
            0,
            1,
            2,
            3,
        ]


def test_a_forked_child_is_refused_with_what_to_set(daemon):
    with make(daemon) as loader:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                next(loader)
            except tokend.ForkedError as error:
                os.write(write, str(error).encode())
            os._exit(0)
        wait_until(lambda: os.waitpid(child, os.WNOHANG)[0] == child, "the child's end")
        assert b"num_workers=0" in os.read(read, 1000)
