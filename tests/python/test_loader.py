"""tokend.Loader against a real daemon, with real torch."""

import copy
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading

import numpy
import pytest
import tokend
import torch
from lib import child_environment, wait_until
from lib.stock import StockDaemon

SEQ = 64


def make(daemon, stream="train", micro=4, **more):
    return tokend.Loader(stream, micro, socket=daemon.socket, **{"rank": 0, "world": 1, **more})


def check(daemon, batch, rows, names, window=SEQ + 1):
    """The batch is exactly these rows of the plan."""
    assert batch["position"].tolist() == [row["position"] for row in rows]
    assert [names[d] for d in batch["dataset"].tolist()] == [row["dataset"] for row in rows]
    expected = numpy.stack([daemon.tokens(row, window) for row in rows])
    assert numpy.array_equal(numpy.asarray(batch["input_ids"]), expected[:, :SEQ])
    assert numpy.array_equal(numpy.asarray(batch["labels"]), expected[:, 1 : SEQ + 1])


def check_run(
    daemon, loader, batches, stream="train", start=0, rank=0, world=1, micro=4, cursor=None
):
    """Takes batches; they are this rank's share of the plan from position start on."""
    plan = daemon.plan(stream, start, batches * world * micro, cursor)
    names = loader.datasets
    for step in range(batches):
        at = (step * world + rank) * micro
        check(daemon, next(loader), plan[at : at + micro], names)


# ---- batches ----


def test_batches_are_int64_tensors_that_follow_the_plan(daemon):
    with make(daemon) as loader:
        batch = next(loader)
        assert {name: (tuple(t.shape), t.dtype) for name, t in batch.items()} == {
            "input_ids": ((4, SEQ), torch.int64),
            "labels": ((4, SEQ), torch.int64),
            "position": ((4,), torch.int64),
            "dataset": ((4,), torch.int64),
        }
        assert torch.equal(batch["labels"][:, :-1], batch["input_ids"][:, 1:])
        assert loader.datasets == ["web", "code"]
        check_run(daemon, loader, 400, start=4)
        assert loader.stats()["lost_wakes"] == 0
        assert loader.stats()["batches"] == 401
        assert loader.stats()["tokens"] == 401 * 4 * (SEQ + 1)


@pytest.mark.parametrize(
    ("rank", "world", "micro", "start"),
    [(0, 2, 3, 0), (1, 2, 3, 0), (4, 5, 1, 1000), (2, 3, 7, 2047)],
)
def test_every_rank_gets_its_share(daemon, rank, world, micro, start):
    with make(daemon, micro=micro, rank=rank, world=world, start=start) as loader:
        check_run(daemon, loader, 40, start=start, rank=rank, world=world, micro=micro)
        assert loader.position == start + 40 * world * micro


def test_batches_do_not_change_when_the_ring_goes_on(daemon):
    with make(daemon, slots=2) as loader:
        kept = [next(loader) for _ in range(20)]
    for step, batch in enumerate(kept):
        check(daemon, batch, daemon.plan("train", 4 * step, 4), ["web", "code"])


def test_u32_tokens(daemon):
    with make(daemon, "wide") as loader:
        row = daemon.plan("wide", 0, 1)[0]
        assert numpy.array_equal(next(loader)["input_ids"][0].numpy(), daemon.tokens(row, SEQ))


def test_without_extra_the_last_label_is_ignored(daemon):
    with make(daemon, "whole") as loader:
        batch = next(loader)
        assert torch.equal(batch["labels"][:, :-1], batch["input_ids"][:, 1:])
        assert batch["labels"][:, -1].tolist() == [-100] * 4
        for i, row in enumerate(daemon.plan("whole", 0, 4)):
            assert numpy.array_equal(batch["input_ids"][i].numpy(), daemon.tokens(row, SEQ))


def test_a_finite_stream_ends_on_all_ranks_at_once_and_serves_every_window_once(daemon):
    windows = (30_001 - 1) // SEQ
    seen, lengths = [], set()
    for rank in range(3):
        with make(daemon, "finite", micro=5, rank=rank, world=3) as loader:
            batches = list(loader)
            lengths.add((len(loader), len(batches)))
            assert next(loader, None) is None
            assert loader.position == windows
        for batch in batches:
            padding = batch["position"] == -1
            assert torch.equal(padding, batch["dataset"] == -1)
            assert (batch["input_ids"][padding] == 0).all()
            assert (batch["labels"][padding] == -100).all()
            assert (batch["labels"][~padding] >= 0).all()
            seen += batch["position"][~padding].tolist()
    assert windows % 15 != 0  # or nothing was padded
    assert lengths == {(-(-windows // 15),) * 2}
    assert sorted(seen) == list(range(windows))


def test_length(daemon):
    with make(daemon) as endless, make(daemon, "finite", micro=10, start=460) as short:
        with pytest.raises(TypeError):
            len(endless)
        assert bool(endless)
        assert len(short) == 1
        assert len(list(short)) == 1


# ---- state ----


def test_state_is_there_before_the_first_batch_and_always_under_one_key(daemon):
    with make(daemon) as loader, make(daemon, rank=1, world=2) as other:
        fresh = loader.state_dict()
        assert list(fresh) == ["cursor"]
        assert type(fresh["cursor"]) is bytes
        next(other), next(loader), next(loader)
        assert loader.state_dict() == other.state_dict()
        check_run(daemon, loader, 3, start=8)
        loader.load_state_dict(fresh)
        check_run(daemon, loader, 3, start=0)


def test_equal_fingerprints_at_equal_steps_only(daemon):
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


def test_commit_holds_the_state_back_for_a_trainer_that_fetches_ahead(daemon):
    with make(daemon) as loader:
        nexts = []
        for _ in range(5):
            next(loader)
            nexts.append(loader.taken)
        assert loader.position == 20
        loader.commit(nexts[1])
        assert loader.position == 8
        assert tokend.Cursor(loader.state_dict()["cursor"]).position == 8
        with pytest.raises(tokend.ArgumentError, match="next: 9 is not that of a batch taken"):
            loader.commit(9)
        loader.commit(nexts[1])  # again: nothing changes
        assert loader.position == 8
        with pytest.raises(tokend.ArgumentError):
            loader.commit(nexts[0])
        loader.seek(world=2, rank=0)  # another step: batches of both sizes may be committed
        next(loader)
        loader.commit(nexts[4])
        loader.commit()
        assert loader.position == loader.taken == 28
        with pytest.raises(tokend.ArgumentError):
            loader.commit(36)


def test_a_commit_before_the_first_batch_holds_the_state_where_the_session_begins(daemon):
    with make(daemon, start=40) as loader:
        loader.commit()
        next(loader)
        assert (loader.position, loader.taken) == (40, 44)
        loader.commit()
        assert loader.position == 44


DCP = """
import json, os, sys
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import tokend
op, socket, store, steps = sys.argv[1:5]
dist.init_process_group("gloo", init_method=f"file://{store}.{op}", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
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
"""  # noqa: E501


def run_ranks(world, *arguments):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", DCP, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(RANK=str(rank), WORLD_SIZE=str(world), OMP_NUM_THREADS="1"),
        )
        for rank in range(world)
    ]
    results = [json.loads(rank.communicate(timeout=120)[0].splitlines()[-1]) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world
    return results


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_distributed_checkpoint_goes_on_at_another_world_size(daemon, before, after):
    saved = run_ranks(before, "save", daemon.socket, daemon.directory / "dcp", 6)
    loaded = run_ranks(after, "load", daemon.socket, daemon.directory / "dcp", 4)
    assert [step for step, _ in saved + loaded] == [6] * (before + after)
    positions = [p for _, rows in saved + loaded for row in rows for p in row]
    assert sorted(positions) == list(range(4 * (6 * before + 4 * after)))


# ---- going elsewhere ----


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
        with pytest.raises(tokend.ArgumentError, match="rank: 3 is not below world"):
            loader.seek(rank=3, world=3)
        broken = bytearray(loader.state_dict()["cursor"])
        broken[-1] ^= 1
        with pytest.raises(tokend.RefusedError, match="checksum"):
            loader.load_state_dict({"cursor": bytes(broken)})
        with pytest.raises(tokend.ArgumentError, match="beyond the end"):
            finite.seek(position=469)
        check_run(daemon, loader, 2, start=8)


@pytest.mark.parametrize("cursor", [5, 10**12, "abc", {"cursor": b""}])
def test_seek_takes_nothing_but_a_cursor(daemon, cursor):
    with make(daemon) as loader:
        with pytest.raises(
            TypeError,
            match=r"cursor: a \w+, must be a Cursor or its bytes; a position is seek\(position=N\)",
        ):
            loader.seek(cursor)
        check_run(daemon, loader, 1)


@pytest.mark.parametrize(
    ("torch", "name", "said"),
    [
        ("import no_such_part", None, "ModuleNotFoundError No module named 'no_such_part'"),
        ("import no_such_part", "torch", "ModuleNotFoundError No module named 'no_such_part'"),
        (
            "raise ImportError('libcudart.so.12: cannot open')",
            None,
            "ImportError libcudart.so.12: cannot open",
        ),
        (
            "raise ModuleNotFoundError(name='torch')",
            None,
            "ImportError framework: neither torch nor numpy is installed: pip install torch",
        ),
        ("", "numpy", "ImportError framework: numpy is not installed: pip install numpy"),
    ],
)
def test_a_torch_that_is_there_and_broken_is_not_gone_without(directory, torch, name, said):
    (directory / "torch.py").write_text(torch)
    (directory / "numpy.py").write_text("raise ModuleNotFoundError(name='numpy')")
    program = (
        f"from tokend import arrays\ntry: arrays.framework({name!r})\nexcept ImportError as e: "
        "print(type(e).__name__, e)"
    )
    environment = child_environment()
    environment["PYTHONPATH"] = f"{directory}:{environment['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.stdout.strip() == said, done.stderr


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
    # Across the change, the cursor alone knows the new mix.
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
        state = loader.state_dict()["cursor"]  # of the committed place: it knows all three mixes
        check_run(daemon, loader, 80, start=1032, micro=16, cursor=state)
    with make(daemon, micro=16, start=state) as loader:
        check_run(daemon, loader, 80, start=1016, micro=16, cursor=state)


def test_set_mix_refuses_what_cannot_be(daemon):
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
            ({"web": "x"}, "^mix: weight of dataset web: 'x', must be"),
        ]:
            for edit in (loader.set_mix, loader.cursor.mix):
                with pytest.raises(TypeError, match=text):
                    edit(weights)
        with pytest.raises(tokend.ArgumentError, match="epochs"):
            finite.set_mix({"code": 1})
        with pytest.raises(TypeError, match="^tag: 3, must be a text"):
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


# ---- faults ----


def test_a_killed_daemon_is_not_noticed(daemon):
    with make(
        daemon, rank=0, world=2, slots=16
    ) as loader:  # fewer than the steps after the last kill
        plan = daemon.plan("train", 0, 300 * 8)
        for step in range(300):
            if step % 100 == 50:
                daemon.kill()
                restart = threading.Timer(0.2, daemon.start)
                restart.start()
            check(daemon, next(loader), plan[step * 8 : step * 8 + 4], ["web", "code"])
            if step % 100 == 99:
                restart.join()
        assert loader.stats()["reattached"] == 3
        assert loader.stats()["lost_wakes"] == 0


def test_checkpoint_finds_a_restarted_daemon(daemon):
    with make(daemon) as loader:
        check_run(daemon, loader, 3)
        daemon.stop()
        daemon.start()
        loader.checkpoint("after")
        check_run(daemon, loader, 3, start=12)
        assert loader.stats()["reattached"] == 1


def test_a_daemon_that_stays_away_is_an_error_with_the_place_to_resume_from(daemon):
    with make(daemon, deadline=0.3, slots=4) as loader:
        check_run(daemon, loader, 1)
        daemon.kill()
        with pytest.raises(
            tokend.ConnectError, match="resume from the cursor, which is at position"
        ) as error:
            for _ in range(10):
                next(loader)
        place = loader.position
        assert f"position {place}" in str(error.value)
        assert 4 <= place <= 20
        with pytest.raises(ConnectionError):
            next(loader)
        daemon.start()
        loader.seek()
        check_run(daemon, loader, 3, start=place)


def test_a_daemon_that_comes_back_with_another_seed_is_refused(daemon):
    with make(daemon, slots=4) as loader:
        batch = next(loader)
        daemon.kill()
        daemon.configure(seed=43)
        daemon.start()
        with pytest.raises(tokend.RefusedError, match="seed"):
            for _ in range(10):
                next(loader)
        daemon.configure()
        check(daemon, batch, daemon.plan("train", 0, 4), ["web", "code"])


def test_a_truncated_shard_stops_the_stream_and_is_named(daemon):
    with make(daemon, slots=2) as loader:
        next(loader)
        os.truncate(daemon.directory / "web" / "a.bin", 1000)
        with pytest.raises(tokend.DataError, match="dataset web: shard a.bin at token"):
            for _ in range(1000):
                next(loader)
        place = loader.position
        with pytest.raises(tokend.DataError):
            next(loader)
        assert tokend.Cursor(loader.state_dict()["cursor"]).position == place


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"stream": "nosuch"}, tokend.RefusedError, "stream: nosuch"),
        ({"stream": ""}, tokend.ArgumentError, "stream"),
        ({"rank": 2, "world": 2}, tokend.ArgumentError, "rank: 2 is not below world, 2"),
        ({"world": 0}, tokend.ArgumentError, "world: 0"),
        ({"micro": 0}, tokend.ArgumentError, "micro_batch: 0, must be 1"),
        ({"micro": 65537}, tokend.ArgumentError, "micro_batch: 65537"),
        ({"micro": -1}, ValueError, "micro_batch: -1"),
        ({"slots": 4097}, tokend.ArgumentError, "slots"),
        (
            {"micro": 65536, "slots": 4096},
            tokend.RefusedError,
            "micro_batch: 4096 slots .* 65536 rows = 268435456 rows",
        ),
        (
            {"micro": 16384, "slots": 64},
            tokend.RefusedError,
            r"slots: a ring of 64 slots needs .* of 67108864 are left",
        ),
        (
            {"stream": "finite", "start": 469},
            tokend.RefusedError,
            "469 lies beyond the end of the stream, 468",
        ),
        ({"start": -1}, ValueError, "start: -1"),
        ({"start": b"nonsense"}, tokend.RefusedError, "not a cursor"),
        ({"start": 1.5}, TypeError, "start"),
        ({"start": "../x"}, tokend.Error, "tag"),
        ({"run": "a/b"}, tokend.ArgumentError, "run"),
        ({"rank": 1, "world": None}, ValueError, "both or neither"),
        ({"framework": "jax"}, ValueError, "framework"),
        ({"stream": 3}, TypeError, "stream: 3, must be a text"),
        ({"run": 3}, TypeError, "run: 3, must be a text"),
        ({"run": "x" + "ö" * 33}, tokend.ArgumentError, "run: 'xö{31}…', must be a name"),
        (
            {"run": "two\nlines"},
            tokend.ArgumentError,
            r"^run: 'two\?lines', must be a name of 1 to 64 bytes",
        ),
        ({"deadline": "3"}, ValueError, "deadline: '3', must be seconds"),
        ({"deadline": float("inf")}, ValueError, "deadline: inf"),
        ({"deadline": float("nan")}, ValueError, "deadline: nan"),
        ({"group": 3}, TypeError, "group: 3, must be a torch.distributed process group"),
        (
            {"start": {"cursor": b"x" * 1000}},
            TypeError,
            r"^start: a dict, must be .* load_state_dict\(\)",
        ),
        ({"cp": "zag"}, tokend.ArgumentError, "cp: 'zag', must be 'zigzag'"),
        ({"cp": ("a", 2, "zigzag")}, tokend.ArgumentError, "cp: rank 'a' is not below size 2"),
        ({"record": "/dev/null"}, tokend.ArgumentError, "record: /dev/null: .*: name a directory"),
    ],
)
def test_what_cannot_be_is_refused_by_name(daemon, arguments, error, text):
    with pytest.raises(error, match=text):
        make(daemon, **arguments)
    with make(daemon) as loader:
        check_run(daemon, loader, 1)


def test_no_daemon(directory):
    with pytest.raises(tokend.ConnectError, match="no daemon answers at .*/socket"):
        tokend.Loader("train", 4, socket=directory / "socket", rank=0, world=1)
    with pytest.raises(tokend.ConnectError, match="at most 107"):
        tokend.Loader("train", 4, socket="/" + "x" * 200, rank=0, world=1)


def test_a_forked_child_is_told_so(daemon):
    with make(daemon) as loader:
        check_run(daemon, loader, 2)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            told = []
            for call in (
                lambda: next(loader),
                loader.state_dict,
                lambda: loader.checkpoint("x"),
                loader.seek,
            ):
                try:
                    call()
                except tokend.ForkedError as error:
                    told.append(str(error)[:5])
            loader.close()
            del loader
            gc.collect()
            os.write(writer, ",".join(told).encode())
            os._exit(0)
        os.close(writer)
        assert os.waitpid(child, 0)[1] == 0
        assert os.read(reader, 100) == b"fork:,fork:,fork:,fork:"
        os.close(reader)
        check_run(daemon, loader, 200, start=8)


def make_closed(daemon, **arguments):
    loader = make(daemon, **arguments)
    loader.close()
    return loader


def test_a_closed_loader_says_so(daemon):
    loader = make(daemon)
    batch = next(loader)
    loader.close()
    loader.close()
    calls = (
        lambda: next(loader),
        loader.state_dict,
        lambda: loader.position,
        lambda: loader.checkpoint("x"),
        loader.seek,
    )  # noqa: E731
    for call in (*calls, loader.control, make_closed(daemon, rank=1, world=2).control):
        with pytest.raises(tokend.Error, match="closed"):
            call()
    check(daemon, batch, daemon.plan("train", 0, 4), ["web", "code"])


@pytest.mark.parametrize("double", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_loader_has_no_copies(daemon, double):
    with make(daemon) as loader:
        with pytest.raises(
            TypeError,
            match=(
                r"cannot be copied or pickled: make one in the process that reads; "
                r"state_dict\(\) can be"
            ),
        ):
            double(loader)


def test_sessions_end_with_their_loader(daemon):
    def sessions():
        return daemon.tokctl("status", "--socket", daemon.socket, "--json")[-1]["sessions"]

    loader = make(daemon)
    assert sessions() == 1
    del loader
    gc.collect()
    wait_until(lambda: sessions() == 0, "the end of the session")


class Interrupt(Exception):
    pass


def stop_and_drain(daemon, loader):
    """Stops the daemon where it is and takes what it had published, until next() waits and a signal
    interrupts it.
    """

    def interrupt(number, frame):
        raise Interrupt

    daemon.freeze()
    former = signal.signal(signal.SIGALRM, interrupt)
    batches = []
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Interrupt):
            while len(batches) < 10:
                batches.append(next(loader))
    finally:
        signal.signal(signal.SIGALRM, former)
    return batches


def test_a_signal_interrupts_a_wait_and_nothing_is_lost(daemon):
    with make(daemon, slots=4) as loader:
        taken = len(stop_and_drain(daemon, loader))
        daemon.signal(signal.SIGCONT)
        check_run(daemon, loader, 20, start=4 * taken)
        assert loader.stats()["lost_wakes"] == 0


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_threads_that_take_batches_of_one_loader_share_no_memory(daemon, framework):
    """Whose batch is which is theirs to sort out."""
    batches, steps = [], 400
    with make(daemon, framework=framework) as loader:
        threads = [
            threading.Thread(target=lambda: batches.extend(next(loader) for _ in range(steps // 4)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(batch["position"][0].item() for batch in batches) == list(range(0, 4 * steps, 4))
    plan = daemon.plan("train", 0, 4 * steps)
    for batch in sorted(batches, key=lambda batch: batch["position"][0].item()):
        check(daemon, batch, plan[:4], ["web", "code"])
        del plan[:4]


def test_another_thread_gets_the_state_while_next_waits(daemon):
    with make(daemon, slots=4) as loader:
        taken = len(stop_and_drain(daemon, loader))
        got = []
        reader = threading.Thread(target=lambda: got.append(next(loader)))
        reader.start()
        assert tokend.Cursor(loader.state_dict()["cursor"]).position == loader.position == 4 * taken
        assert not got
        daemon.signal(signal.SIGCONT)
        reader.join(20)
        check(daemon, got[0], daemon.plan("train", 4 * taken, 4), ["web", "code"])


# ---- the rest ----


def test_without_torch_batches_are_numpy_arrays(daemon):
    program = textwrap.dedent("""
        import json, sys
        class NoTorch:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "torch":
                    raise ModuleNotFoundError("torch is not here", name=name)
        sys.meta_path.insert(0, NoTorch())
        import tokend
        with tokend.Loader("train", 4, socket=sys.argv[1]) as loader:
            batch = next(loader)
            assert "torch" not in sys.modules
            print(json.dumps({name: [type(a).__module__, str(a.dtype), a.tolist()] for name, a in batch.items()}))
            finite = list(tokend.Loader("finite", 7, socket=sys.argv[1]))
            assert (finite[-1]["labels"][finite[-1]["position"] == -1] == -100).all()
    """)  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", program, daemon.socket],
        capture_output=True,
        text=True,
        check=False,
        env=child_environment(),
    )
    assert done.returncode == 0, done.stderr
    batch = json.loads(done.stdout)
    assert {name: value[:2] for name, value in batch.items()} == {
        name: ["numpy", "int64"] for name in batch
    }
    check(
        daemon,
        {name: numpy.array(value[2]) for name, value in batch.items()},
        daemon.plan("train", 0, 4),
        ["web", "code"],
    )
    with make(daemon, framework="numpy") as loader:
        check_run(daemon, loader, 5)


# ---- a daemon of one's own ----


EMBEDDED = """
import sys, tokend
with tokend.Loader("train", 4, config=sys.argv[1], rank=int(sys.argv[2]), world=2) as loader:
    print([next(loader)["position"][0].item() for _ in range(3)], flush=True)
    sys.stdin.readline()
"""


def kill_private(directory):
    """Ends the private daemons of this directory by their own pids."""
    for path in (directory / "tokend").glob("*.sock"):
        for line in StockDaemon.tokctl(None, "status", "--socket", path, "--json")[-1:]:
            os.kill(line["pid"], signal.SIGTERM)
            wait_until(lambda path=path: not path.exists(), "the end of a private daemon")


def test_a_config_starts_one_private_daemon_for_all_ranks(directory):
    config = StockDaemon(directory).config
    environment = child_environment(XDG_RUNTIME_DIR=str(directory))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", EMBEDDED, str(config), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        assert [json.loads(rank.stdout.readline()) for rank in ranks] == [[0, 8, 16], [4, 12, 20]]
        sockets = list((directory / "tokend").glob("*.sock"))
        assert len(sockets) == 1
        assert (
            StockDaemon.tokctl(None, "status", "--socket", sockets[0], "--json")[-1]["sessions"]
            == 2
        )
        for rank in ranks:
            rank.communicate("\n", timeout=20)
        assert [rank.returncode for rank in ranks] == [0, 0]
    finally:
        kill_private(directory)


def test_a_config_whose_daemon_runs_already_starts_none(daemon, monkeypatch):
    monkeypatch.setenv("TOKEND_BIN", str(child_environment()["TOKEND_BIN"]))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(daemon.directory))
    monkeypatch.setenv("TOKEND_SOCKET", "/nowhere")
    with tokend.Loader("train", 4, config=daemon.config, rank=0, world=1) as loader:
        check_run(daemon, loader, 3)
    assert not (daemon.directory / "tokend").exists()


def test_a_config_that_is_none_is_one_line(directory):
    for path, why in (
        (directory / "not.yaml", "No such file or directory"),
        (directory, "Is a directory"),
    ):
        with pytest.raises(tokend.Error, match=rf"^config: {path}: {why}: name a config file"):
            tokend.Loader("train", 4, config=path, rank=0, world=1)
    with pytest.raises(TypeError, match="^config: 5, must be the path of a config file$"):
        tokend.Loader("train", 4, config=5, rank=0, world=1)


def test_a_config_with_a_fault_raises_the_daemons_own_line(directory, monkeypatch):
    config = StockDaemon(directory).config
    config.write_text(config.read_text().replace("weight: 0.7", "weight: -1"))
    monkeypatch.setenv("TOKEND_BIN", str(child_environment()["TOKEND_BIN"]))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    with pytest.raises(tokend.Error, match=r"tokend.yaml:\d+: .*weight"):
        tokend.Loader("train", 4, config=config, rank=0, world=1)


# ---- proof ----


def test_what_is_taken_is_recorded_in_a_file_of_its_own(daemon):
    place = daemon.directory / "records"
    loaders = [make(daemon, rank=rank, world=2, run="job", record=place) for rank in range(2)]
    for loader in loaders:
        for _ in range(3):
            next(loader)
        loader.close()
    files = sorted(place.iterdir())
    assert [file.name.rsplit(".", 2)[0] for file in files] == ["job.0-0", "job.1-0"]
    assert all(file.name.endswith(".record") and f".{os.getpid()}-" in file.name for file in files)
    for rank, file in enumerate(files):
        entries = numpy.fromfile(file, "<u8").reshape(-1, 2)
        assert entries[0].tolist() == [2**64 - 1, 1]
        assert entries[-12:, 0].tolist() == [
            8 * step + 4 * rank + i for step in range(3) for i in range(4)
        ]
    (daemon.directory / "file").touch()
    with pytest.raises(tokend.ArgumentError, match="record: .*/file: File exists"):
        make(daemon, record=daemon.directory / "file")
