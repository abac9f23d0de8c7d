"""Passes over a loader: their ends and beginnings. The record of a run proves them, also
of loops that take batches ahead of their step.
"""

import signal

import pytest
import transforms
from lib.forks import run_together
from loading import WINDOWS, make, positions, python, verify, warned

import tokend

WHOLE = -(-WINDOWS // 5)  # batches of a pass in batches of 5


def first(n, batches):
    return [batch for _, batch in zip(range(n), batches)]


# ---- ends and beginnings ----


def test_a_pass_that_was_left_continues(served):
    def some():
        yield from loader

    with make(served, "finite", 5) as loader:
        seen = first(3, loader)
        seen += first(1, some())  # a generator that is left does not close the loader
        assert positions(seen) == list(range(20))
        assert positions(loader) == list(range(20, WINDOWS))


@pytest.mark.parametrize("more", [{}, {"transform": transforms.in_place, "workers": 2}], ids=len)
def test_the_next_pass_begins_again_at_the_first_position(served, more):
    with make(served, "finite", 5, **more) as loader:
        for _ in range(3):
            assert positions(loader) == list(range(WINDOWS))
        assert len(loader) == WHOLE
        for _ in range(2):
            loader.reset()
            assert loader.position == loader.taken == 0
            assert positions(first(3, loader)) == list(range(15))
    with make(served, **more) as loader:
        first(5, loader)
        state = loader.state_dict()
        loader.reset()
        loader.reset(state)
        assert positions([next(loader)]) == [20, 21, 22, 23]


def test_a_pass_ends_for_good_and_the_state_is_that_of_the_end(served):
    with make(served, "finite", 5) as loader:
        before = iter(loader)
        assert len(list(before)) == WHOLE
        end, again = loader.state_dict(), iter(loader)
        assert loader.state_dict() == end and loader.position == WINDOWS
        assert next(loader, None) is None  # the loader itself stays at the end
        assert positions([next(again)]) == [0, 1, 2, 3, 4]
        assert next(before, None) is None
        assert positions(again) == list(range(5, WINDOWS))
        seen = []
        for batch in loader:
            seen += positions([batch])[:1]
            if len(seen) == 3:
                loader.reset()
            elif len(seen) == 5:
                break
        assert seen == [0, 5, 10, 0, 5], "a loop goes where reset() goes"


@pytest.mark.parametrize("world, begun, again", [(1, 1, 1), (4, 3, 4), (2, 2, 1), (2, 1, 3)])
def test_a_state_saved_at_the_end_has_no_batches_once(served, directory, world, begun, again):
    """A record shows that the pass which some ranks had begun before a crash begins again."""

    def resume(rank):
        with make(served, "finite", 5, rank=rank, world=again, record=directory) as loader:
            loader.load_state_dict(state)
            passes = []
            (text,) = warned(lambda: passes.append(list(loader)))
            assert "this pass has no batches" in text and "position 468" in text
            assert warned(lambda: passes.append(list(loader))) == [] or again > 1  # padding
        return passes

    for rank in range(world):
        with make(served, "finite", 5, rank=rank, world=world, record=directory) as loader:
            list(loader)
            state = loader.state_dict()
            first(3 if rank < begun else 0, loader)
    passes = [resume(rank) for rank in range(again)]
    assert passes[0][0] == [] and (again > 1 or positions(passes[0][1]) == list(range(WINDOWS)))
    counts = [[0, WINDOWS, 0, 0, 0], [1, WINDOWS, 15 * begun, 0, 0]]
    assert verify(served, "finite", directory) == (0, counts)


def test_len_is_what_one_pass_gives(served):
    def given():
        """The length, and the batches of the next pass, within which it does not change."""
        length = len(loader)
        return length, sum(len(loader) == length for _ in loader)

    with make(served, "finite", 5, rank=1, world=3) as loader:
        whole = -(-WINDOWS // 15)
        assert given() == given() == (whole, whole)
        for _, _batch in zip(range(3), loader):
            assert len(loader) == whole
        assert given() == (whole - 3,) * 2, "the rest of a pass that was left"
        loader.seek(position=460, rank=0, world=1)
        state = loader.state_dict()
    with make(served, "finite", 5, start=state) as loader:
        assert loader.batches_per_pass == WHOLE
        assert (given(), given()) == ((2, 2), (WHOLE, WHOLE))
    with make(served) as loader:
        for name, ask in (("len", len), ("batches_per_pass", lambda of: of.batches_per_pass)):
            with pytest.raises(TypeError, match=f"^{name}: the stream has no end"):
                ask(loader)


def test_a_pass_ends_with_its_last_batch(served):
    """Nobody need take the StopIteration: a loop may count."""
    with make(served, "finite", 5, start=400) as loader:
        for i, _batch in enumerate(loader, 1):
            assert len(loader) == 14
            if i == len(loader):
                break
        batches = iter(loader)
        assert positions(next(batches) for _ in range(len(loader))) == list(range(WINDOWS))
        assert loader.position == WINDOWS and len(loader) == WHOLE


TOGETHER = """
import sys, torch.distributed as dist, tokend
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
with tokend.Loader("finite", 4, socket=sys.argv[3]) as loader:
    state = loader.state_dict()
    for _ in range(2):
        print(*(next(loader)["position"].tolist()[0] for _ in range(2)))
        loader.reset()
    next(loader)
    loader.reset(state if rank else None)
    next(loader)
    try:
        loader.reset(state if rank else loader.state_dict())
    except tokend.DisagreementError:
        print("disagree")
dist.barrier()
"""


def test_all_processes_reset_together(served):
    ways = (served.directory / "meet", served.socket)
    said = [out.split("\n") for out in run_together(TOGETHER, [[r, *ways] for r in range(2)])]
    assert said == [["0 8", "0 8", "disagree", ""], ["4 12", "4 12", "disagree", ""]]


# ---- records ----


def test_a_record_separates_the_passes_of_ranks_that_are_passes_apart(served, directory):
    """Rank 1 begins after rank 0's last pass. Each reset() begins a pass, too."""
    for rank in range(2):
        more = {"rank": rank, "world": 2, "record": directory, "run": "job"}
        with make(served, "finite", 5, **more) as loader:
            for _ in range(2):
                assert len(list(loader)) == 47
            first(5, loader)
            loader.reset()
            first(3, loader)
    names = sorted(file.name.split(".")[0:2] for file in directory.iterdir())
    assert names == [["job", "0-0"], ["job", "1-0"]]
    rows = (WINDOWS, WINDOWS, 50, 30)
    passes = [[i, n, 0, 0, 0] for i, n in enumerate(rows)]
    assert verify(served, "finite", directory) == (0, passes)
    code, part = verify(served, "finite", directory, "--from", 100, "--to", 200)
    assert (code, part[:2]) == (0, [[0, 100, 0, 0, 0], [1, 100, 0, 0, 0]])


def test_a_row_lost_or_taken_again_is_found(served, directory):
    with make(served, "finite", 5, record=directory) as loader:
        list(loader)
        loader.reset()
        loader.seek()
        with pytest.raises(tokend.ArgumentError):
            loader.seek(rank=1)
        loader._client.record(bytes(directory / "other.record"))  # knows of the new pass
        first(1, loader)
        at = loader.position
    with make(served, "finite", 5, record=directory, start=at + 5) as loader:
        list(loader)
        loader.seek(position=at + 5)  # voids what was taken from there
        list(loader)
    code, passes = verify(served, "finite", directory)
    assert code == 1 and passes == [[0, WINDOWS, 0, 0, 0], [1, WINDOWS - 5, WINDOWS - 10, 5, 0]]


# ---- loops that take batches ahead ----

# The loop of nanoGPT's train.py fetches the next batch during a step, and saves the checkpoint
# first. It is killed in its tenth step.
LOOP = """
import os, signal, sys, tokend

socket, records, save, trained, way = sys.argv[1:]
more = {"record": records, "framework": "numpy"}
loader = tokend.Loader("train", 2, socket=socket, **more)
if os.path.exists(save):
    loader.load_state_dict({"cursor": bytes.fromhex(open(save).read())})
if way == "commit":
    loader.commit()
log = open(trained, "a")
batch, taken = next(loader), loader.taken
for step in range(100):
    if step % 5 == 0 and step:
        open(save + ".new", "w").write(loader.state_dict()["cursor"].hex())
        os.replace(save + ".new", save)
        if step == 10:
            log.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    print(*batch["position"].tolist(), file=log)  # the step
    if way == "commit":
        loader.commit(taken)
    batch, taken = next(loader), loader.taken
"""


@pytest.mark.parametrize("way, lost", [("naive", 6), ("commit", 0)])
def test_the_remedies_lose_nothing_in_a_loop_that_fetches_ahead(served, directory, way, lost):
    for _ in range(4):
        done = python(LOOP, served.socket, *(directory / n for n in ("records", "save", "t")), way)
        assert done.returncode == -signal.SIGKILL, done.stderr
    rows = [int(position) for position in (directory / "t").read_text().split()]
    assert len(rows) == len(set(rows)) == 80 and max(rows) == 79 + lost
    recorded = verify(served, "train", directory / "records")
    assert recorded == (0, [[0, 80 + lost + (2 if lost else 0), 0, 0, 0]])
