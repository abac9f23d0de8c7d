"""The memory of batches: unchanged while anything holds a tensor over it, and free afterwards."""

import copy
import io
import random
import threading

import torch
from loading import check, make, python

MICRO = 4
NAMES = ["web", "code"]


def private_bytes():
    with open("/proc/self/smaps_rollup") as file:
        return 1024 * sum(int(line.split()[1]) for line in file if line.startswith("Private_Dirty"))


def test_what_a_trainer_keeps_is_never_overwritten(served, seed):
    """It keeps tensors, slices and NumPy's arrays for a while and drops them in another thread."""
    rng, kept, dropped, addresses = random.Random(seed), [], [], []
    forms = (lambda t: t, lambda t: t[1:, 3:], lambda t: t.numpy()[0], lambda t: t.view(-1))
    with make(served, slots=2) as loader:
        for _ in range(400):
            batch = next(loader)
            addresses.append(batch["input_ids"].data_ptr())
            for name in ("input_ids", "labels"):
                if rng.random() < 0.3:
                    held = rng.choice(forms)(batch[name])
                    kept.append((held, copy.deepcopy(held)))
            batch = None
            while len(kept) > 60:
                held, want = kept.pop(rng.randrange(len(kept)))
                assert (held == want).all()
                dropped.append(held)
                held = None
            if len(dropped) > 20:
                thread = threading.Thread(target=dropped.clear)
                thread.start()
                thread.join()
    for held, want in kept:  # also after close()
        assert (held == want).all()
    assert len(set(addresses)) < 0.8 * len(addresses), "no memory was used again"


def test_threads_that_take_batches_of_one_loader_share_no_memory(served):
    """Which thread gets which batch is up to them."""
    steps, batches = 200, []
    with make(served) as loader:
        threads = [
            threading.Thread(target=lambda: batches.extend(next(loader) for _ in range(steps // 4)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    batches.sort(key=lambda batch: int(batch["position"][0]))
    plan = served.plan("train", 0, MICRO * steps)
    for i, batch in enumerate(batches):
        check(served, batch, plan[MICRO * i : MICRO * i + MICRO], NAMES)


def test_autograd_holds_a_batch(served):
    """An embedding saves its ids in C++, where Python's counts do not show them. Also after memory
    was made in inference mode.
    """
    table = torch.nn.Embedding(1 << 16, 2)
    with make(served) as loader:
        with torch.inference_mode():
            next(loader)
        batch = next(loader)
        want, loss = batch["input_ids"].clone(), table(batch["input_ids"]).sum()
        batch = None
        for _ in range(100):
            next(loader)
        loss.backward()
        assert torch.equal(table.weight.grad[:, 0].nonzero()[:, 0], want.unique())


def test_a_batch_is_pickled_and_shared_as_any_tensor(served):
    with make(served) as loader:
        tensor, file = next(loader)["labels"], io.BytesIO()
        want = tensor.tolist()
        torch.save(tensor, file)
        assert len(file.getvalue()) < 2 * tensor.numel() * 8, "the other tensor is saved, too"
        file.seek(0)
        assert torch.load(file).tolist() == want
        assert tensor.share_memory_().is_shared() and tensor.tolist() == want


def test_what_is_dropped_is_used_again(served):
    """Of a trainer that holds 64 MiB at once; who keeps only small fields keeps no tokens."""
    with make(served, micro=512, slots=2) as loader:
        next(loader)
        held = [next(loader) for _ in range(128)]
        before, fields = private_bytes(), []
        for _ in range(3):
            fields += [batch["position"] for batch in held]
            held.clear()
            held += [next(loader) for _ in range(128)]
        grown = private_bytes() - before  # with the gaps that the small fields leave in the heap
        assert grown < 128 << 20, "all three would be 192"
        assert len({int(field[0]) for field in fields}) == 3 * 128


LITTLE = """
import os, sys, torch, tokend

torch.set_num_threads(1)


def private():
    return sum(
        int(line.split()[1])
        for line in open("/proc/self/smaps_rollup")
        if line.startswith(("Private_Clean", "Private_Dirty"))
    )


threads, before = len(os.listdir("/proc/self/task")), private()
loader = tokend.Loader("train", 4, socket=sys.argv[1], rank=0, world=1)
for _ in range(2000):
    batch = next(loader)
print(len(os.listdir("/proc/self/task")) - threads, private() - before)
"""


def test_a_rank_needs_no_thread_and_little_memory(served):
    threads, kib = map(int, python(LITTLE, served.socket).stdout.split())
    assert threads == 0 and kib < 8 * 1024, kib
