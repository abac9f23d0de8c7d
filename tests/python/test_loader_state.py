"""The state of a loader: fingerprints, commits, seeks, mixes and snapshots."""

import json

import pytest
from lib.forks import run_together
from loading import check, check_run, make

import tokend

# ---- state ----


def test_the_state_has_one_key_also_before_the_first_batch(daemon):
    with make(daemon) as loader, make(daemon, rank=1, world=2) as other:
        fresh = loader.state_dict()
        assert list(fresh) == ["cursor"]
        assert type(fresh["cursor"]) is bytes
        next(other), next(loader), next(loader)
        assert loader.state_dict() == other.state_dict()
        check_run(daemon, loader, 3, start=8)
        loader.load_state_dict(fresh)
        check_run(daemon, loader, 3, start=0)


def test_fingerprints_are_equal_at_equal_steps_only(daemon):
    with (
        make(daemon, rank=0, world=2) as a,
        make(daemon, rank=1, world=2) as b,
        make(daemon, micro=8) as c,
    ):
        assert a.fingerprint == b.fingerprint != c.fingerprint
        next(a)
        assert a.fingerprint != b.fingerprint
        next(b)
        assert a.fingerprint == b.fingerprint


def test_after_commit_the_state_is_the_committed_position(daemon):
    with make(daemon) as loader:
        nexts = []
        for _ in range(5):
            next(loader)
            nexts.append(loader.taken)
        assert loader.position == 20
        loader.commit(nexts[1])
        assert loader.position == 8
        assert tokend.Cursor(loader.state_dict()["cursor"]).position == 8
        with pytest.raises(tokend.ArgumentError, match="next: 9 is not the next of a batch"):
            loader.commit(9)
        loader.commit(nexts[1])  # a second time: nothing changes
        assert loader.position == 8
        with pytest.raises(tokend.ArgumentError):
            loader.commit(nexts[0])
        loader.seek(world=2, rank=0)  # after another step, batches of both sizes may be committed
        next(loader)
        loader.commit(nexts[4])
        loader.commit()
        assert loader.position == loader.taken == 28
        with pytest.raises(tokend.ArgumentError):
            loader.commit(36)


def test_after_a_commit_before_the_first_batch_the_state_is_the_beginning(daemon):
    with make(daemon, start=40) as loader:
        loader.commit()
        next(loader)
        assert (loader.position, loader.taken) == (40, 44)
        loader.commit()
        assert loader.position == 44


DCP = """
import json, sys
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import tokend

rank, world, op, socket, store, steps = sys.argv[1:]
dist.init_process_group(
    "gloo", init_method=f"file://{store}.{op}", rank=int(rank), world_size=int(world)
)
loader = tokend.Loader("train", 4, socket=socket)
state = {"step": torch.tensor(0), "loader": loader}
if op == "load":
    dcp.load(state, checkpoint_id=store)
rows = [next(loader)["position"].tolist() for _ in range(int(steps))]
if op == "save":
    state["step"] += int(steps)
    dcp.save(state, checkpoint_id=store)
print(json.dumps([int(state["step"]), rows]))
dist.destroy_process_group()
"""


def run_ranks(world, *arguments):
    printed = run_together(DCP, [[rank, world, *arguments] for rank in range(world)])
    return [json.loads(out.splitlines()[-1]) for out in printed]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_distributed_checkpoint_resumes_at_another_world_size(daemon, before, after):
    saved = run_ranks(before, "save", daemon.socket, daemon.directory / "dcp", 6)
    loaded = run_ranks(after, "load", daemon.socket, daemon.directory / "dcp", 4)
    assert [step for step, _ in saved + loaded] == [6] * (before + after)
    positions = [p for _, rows in saved + loaded for row in rows for p in row]
    assert sorted(positions) == list(range(4 * (6 * before + 4 * after)))


# ---- seeks and mixes ----


def test_seek(daemon):
    with make(daemon) as loader:
        early = loader.state_dict()["cursor"]
        check_run(daemon, loader, 5)
        loader.seek(position=4099)
        check_run(daemon, loader, 5, start=4099)
        loader.seek(early)
        check_run(daemon, loader, 2)
        loader.seek(rank=2, world=3, micro_batch=5)
        check_run(daemon, loader, 4, start=8, rank=2, world=3, micro=5)
        assert loader.position == 8 + 4 * 15


def test_a_refused_seek_changes_nothing(daemon):
    with make(daemon, "finite") as finite, make(daemon) as loader:
        check_run(daemon, loader, 2)
        with pytest.raises(tokend.RefusedError, match="stream"):
            loader.seek(finite.state_dict()["cursor"])
        with pytest.raises(tokend.ArgumentError, match="rank: 3 is not less than world"):
            loader.seek(rank=3, world=3)
        broken = bytearray(loader.state_dict()["cursor"])
        broken[-1] ^= 1
        with pytest.raises(tokend.RefusedError, match="checksum"):
            loader.load_state_dict({"cursor": bytes(broken)})
        with pytest.raises(tokend.ArgumentError, match="past the end"):
            finite.seek(position=469)
        check_run(daemon, loader, 2, start=8)


@pytest.mark.parametrize("cursor", [5, 10**12, "abc", {"cursor": b""}])
def test_seek_accepts_only_a_cursor(daemon, cursor):
    with make(daemon) as loader:
        with pytest.raises(
            TypeError,
            match=r"cursor: a \w+ is not a Cursor .*; pass a position as seek\(position=N\)",
        ):
            loader.seek(cursor)
        check_run(daemon, loader, 1)


def test_set_mix_acts_from_one_position_on_all_ranks(daemon):
    loaders = [make(daemon, rank=rank, world=2) for rank in range(2)]
    for loader in loaders:
        next(loader)
    acts = {loader.set_mix({"code": 3, "web": 1}) for loader in loaders}
    assert acts == {1024}
    cursors = {loader.state_dict()["cursor"] for loader in loaders}
    assert len(cursors) == 1
    before, after = daemon.plan("train", 8, 2000), daemon.plan("train", 8, 2000, cursors.pop())
    assert before[:1016] == after[:1016]
    assert sum(row["dataset"] == "code" for row in after[1016:]) > 2 * sum(
        row["dataset"] == "code" for row in before[1016:]
    )
    for rank, loader in enumerate(loaders):
        for step in range(250):
            at = (step * 2 + rank) * 4
            check(daemon, next(loader), after[at : at + 4], ["web", "code"])
    # After the change only the cursor has the new mix.
    state = loaders[0].state_dict()
    for loader in loaders:
        loader.close()
    with make(daemon, start=state["cursor"]) as loader:
        check(daemon, next(loader), daemon.plan("train", 2008, 4, state["cursor"]), ["web", "code"])


def test_a_mix_may_follow_one_that_has_begun_and_is_not_committed(daemon):
    with make(daemon, micro=16, start=1000) as loader:
        next(loader)
        loader.commit()
        assert loader.set_mix({"web": 1, "code": 1}) == 1024
        assert loader.set_mix({"web": 1, "code": 2}) == 1024  # not begun: replaced
        next(loader)
        assert loader.set_mix({"web": 2, "code": 1}) == 2048
        state = loader.state_dict()["cursor"]  # of the committed position: it has all three mixes
        check_run(daemon, loader, 80, start=1032, micro=16, cursor=state)
    with make(daemon, micro=16, start=state) as loader:
        check_run(daemon, loader, 80, start=1016, micro=16, cursor=state)


def test_set_mix_refuses_impossible_mixes(daemon):
    with make(daemon) as loader, make(daemon, "finite") as finite:
        for weights, text in [
            ({"wb": 1}, "no dataset wb"),
            ({"web": -1}, "weight"),
            ({"web": float("nan")}, "weight"),
            ({}, "sum"),
        ]:
            with pytest.raises(tokend.ArgumentError, match=text):
                loader.set_mix(weights)
        for weights, text in [
            ([1], "^mix: a list"),
            ({3: 1}, "^mix: 3"),
            ({"web": "x"}, "^mix: weight of dataset web: 'x' is not a number"),
        ]:
            for edit in (loader.set_mix, loader.cursor.mix):
                with pytest.raises(TypeError, match=text):
                    edit(weights)
        with pytest.raises(tokend.ArgumentError, match="epochs"):
            finite.set_mix({"code": 1})
        with pytest.raises(TypeError, match="^tag: 3 is not a string"):
            loader.checkpoint(3)
        check_run(daemon, loader, 2)


def test_checkpoint_and_start_from_its_tag(daemon):
    with make(daemon, run="one") as loader:
        check_run(daemon, loader, 3)
        path = loader.checkpoint("step-3")
        assert open(path, "rb").read() == loader.state_dict()["cursor"]
        with pytest.raises(tokend.ArgumentError, match="tag"):
            loader.checkpoint("a/b")
        check_run(daemon, loader, 2, start=12)
    with make(daemon, run="one", start="step-3") as loader:
        check_run(daemon, loader, 2, start=12)
    with make(daemon, run="two", start="one/step-3") as loader:
        check_run(daemon, loader, 2, start=12)
    with pytest.raises(tokend.RefusedError, match="tag"):
        make(daemon, run="one", start="step-4")
