"""The memory of tensors is used again, but never while anything holds a tensor over it."""

import copy
import io
import os
import random
import resource
import threading

import pytest
from loading import SEQ, check_run, make
from tokend import _tokend

torch = pytest.importorskip("torch")

MICRO = 4
MIB = 1 << 20


def private_bytes():
    with open("/proc/self/smaps_rollup") as file:
        return 1024 * sum(int(line.split()[1]) for line in file if line.startswith("Private_Dirty"))


@pytest.mark.parametrize(
    "more",
    [{}, {"tokens": True}, {"dtype": {"input_ids": "int32"}}],
    ids=["pair", "tokens", "int32"],
)
def test_what_a_trainer_keeps_is_never_overwritten(daemon, seed, more):
    """It keeps tensors, slices and NumPy's arrays for a while and drops them in another thread."""
    rng, kept, dropped, addresses = random.Random(seed), [], [], []
    forms = (lambda t: t, lambda t: t[1:, 3:], lambda t: t.numpy()[0], lambda t: t.view(-1))
    with make(daemon, **more) as loader:
        for _ in range(400):
            batch = next(loader)
            addresses += [
                batch[name].data_ptr() for name in ("input_ids", "tokens") if name in batch
            ]
            for name in ("input_ids", "labels", "tokens"):
                if name in batch and rng.random() < 0.3:
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
    assert len(set(addresses)) < len(addresses) / 2, "no memory was used again"


def test_autograd_holds_a_batch(daemon):
    """An embedding saves its ids in C++, where Python's counts do not show them."""
    table = torch.nn.Embedding(1 << 16, 2)
    with make(daemon) as loader, make(daemon) as other:
        batch = next(loader)
        want, loss = batch["input_ids"].clone(), table(batch["input_ids"]).sum()
        batch = None
        for _ in range(100):
            next(loader)
        loss.backward()
        assert torch.equal(table.weight.grad[:, 0].nonzero()[:, 0], want.unique())
        check_run(daemon, other, 3)


def test_batches_made_in_inference_mode_can_be_trained_on(daemon):
    """Also those that were only made ahead there."""
    table = torch.nn.Embedding(1 << 16, 2)
    with make(daemon) as loader, make(daemon, tokens=True) as unsplit:
        with torch.inference_mode():
            next(loader), next(unsplit)
        for batch in (next(loader), next(unsplit)):
            assert not any(tensor.is_inference() for tensor in batch.values())
        table(next(loader)["input_ids"]).sum().backward()


def test_a_batch_is_pickled_copied_and_shared_as_any_tensor(daemon):
    """Only its memory cannot grow: torch did not allocate it."""
    with make(daemon) as loader:
        batch = next(loader)
        for name in ("input_ids", "labels"):
            tensor, file = batch[name], io.BytesIO()
            want = tensor.tolist()
            with pytest.raises(RuntimeError, match="not resizable"):
                tensor.flatten().resize_(2 * tensor.numel())
            assert tensor.tolist() == want
            torch.save(tensor, file)
            assert len(file.getvalue()) < 2 * tensor.numel() * 8, "the other tensor is saved, too"
            file.seek(0)
            assert torch.load(file).tolist() == copy.deepcopy(tensor).tolist() == want
            assert tensor.share_memory_().is_shared() and tensor.tolist() == want
            tensor.add_(1)
            assert (tensor - 1).tolist() == want


def test_a_forked_child_frees_its_copies(daemon):
    with make(daemon) as loader:
        batch, older = next(loader), next(loader)
        pid = os.fork()
        if pid == 0:
            right = batch["input_ids"].shape == (MICRO, SEQ)
            batch["input_ids"].zero_()
            del batch, older
            os._exit(0 if right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert batch["input_ids"].any()
        check_run(daemon, loader, 5, start=2 * MICRO)


def test_free_memory_is_bounded():
    """After a trainer held 64 MiB at once, 4 MiB stay, before any other call; a pool's end frees
    the rest.
    """
    buffers = _tokend.Buffers(1, MIB // 8, 8)
    before = private_bytes()

    def tensor():
        return torch.from_dlpack(buffers.take()[1])

    held = [tensor().fill_(1) for _ in range(64)]
    assert private_bytes() - before > 60 * MIB
    held.clear()
    assert private_bytes() - before < 8 * MIB
    held = [tensor().fill_(1) for _ in range(16)]
    last = tensor()
    held.clear()
    buffers = None
    assert last.fill_(2).sum() == MIB // 4
    last = None
    assert private_bytes() - before < 3 * MIB


def test_memory_is_used_again_without_page_faults():
    """Of a size that malloc() would return to the kernel each time."""
    size = 40 * MIB
    buffers = _tokend.Buffers(1, size // 8, 8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.from_dlpack(buffers.take()[1]).fill_(1)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < 2 * size / resource.getpagesize()


def test_a_capsule_that_nobody_takes_returns_its_buffer():
    buffers = _tokend.Buffers(2, 8, 8, 8, 4)
    first = buffers.take()[:2]
    assert {buffers.take()[:2] for _ in range(10)} == {first}
    for sizes in ((0, 8, 8), (2, 8, 0), (2, 8, 8, 8, 0), (2, 1 << 32, 8), (2, 8, 9)):
        with pytest.raises(ValueError):
            _tokend.Buffers(*sizes)
    with pytest.raises(MemoryError):
        _tokend.Buffers(1 << 31, 1 << 31, 4)
    for sizes in ((), (2, 8), (2, 8, 8, 8), (2, *(8, 8) * 7)):
        with pytest.raises(TypeError):
            _tokend.Buffers(*sizes)


def test_arrays_of_one_dimension_follow_each_other():
    """next_into() writes the fields of rows without gaps."""
    addresses = _tokend.Buffers(3, *(0, 8) * 6).take()
    assert [address - addresses[0] for address in addresses[:6]] == [24 * i for i in range(6)]
    fields = [torch.from_dlpack(capsule) for capsule in addresses[6:]]
    assert {(field.shape, field.dtype) for field in fields} == {((3,), torch.int64)}


def test_a_mask_of_padding_is_its_own(daemon):
    """In autograd, a write to the mask of one batch must not change that of another."""
    with make(daemon, tokens=True) as loader:
        masks = [next(loader)["padding"] for _ in range(9)]
        masks[3][0] = True
        assert [mask._version for mask in masks].count(0) == 8
        assert not any(mask._is_view() or mask.any() for mask in masks[:3] + masks[4:])


def test_who_keeps_the_fields_of_batches_keeps_no_tokens(daemon):
    with make(daemon) as loader:
        fields = [next(loader)["position"] for _ in range(50)]
        before = private_bytes()
        fields += [next(loader)["position"] for _ in range(1000)]
        each = (private_bytes() - before) / 1000
    assert len({int(field[0]) for field in fields}) == len(fields)
    assert each < 2 * MICRO * SEQ * 8  # of input_ids and labels
