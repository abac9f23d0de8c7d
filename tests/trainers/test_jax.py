"""JAX resumes exactly on other numbers of hosts, without torch; an operator's requests are carried
out by all of its processes; its arrays are the loader's own memory.
"""

import ctypes
import gc
import os
import sys

import jax
import jax.numpy as jnp
import numpy
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tokend import HeldError, Loader

from harness import HERE, RUN, Job

jax.config.update("jax_num_cpu_devices", 2)
TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
INT32 = {"input_ids": numpy.int32, "labels": numpy.int32}


class Hosts(Job):
    def launch(self, world, *arguments, **more):
        command = [sys.executable, os.path.join(HERE, "traced_jax.py"), str(world), self.example]
        start = super().launch(world, *arguments, command=command, **TWO_DEVICES, **more)
        start.layout = f"{world}×2"  # hosts of two devices
        return start

    def loader(self, **options):
        return Loader("train", 4, socket=self.daemon.socket, framework="numpy", **options)


# as flax's prefetch_to_device(data, 2), which holds one batch during a step
AHEAD = """
def ahead(batches):
    queue = [put(next(batches)), put(next(batches))]
    while queue:
        yield queue.pop(0)
        queue += map(put, itertools.islice(batches, 1))


def put(batch):"""


def prefetch(job):
    job.edit("import os", "import itertools\nimport os")
    job.edit("def put(batch):", AHEAD)
    job.edit("*put(batch)", "*batch")
    job.edit("16), data)", "16), ahead(data))")
    job.edit('framework="numpy"', 'framework="numpy", prefetched=1')


def test_killed_and_resumed_on_other_numbers_of_hosts():
    with Hosts("train_jax.py") as job:
        job.edit('framework="numpy"', f'framework="numpy", run="{RUN}"')
        job.start(2, hold=7)
        prefetch(job)
        job.start(1, hold=7)
        job.edit("1, 16), ", "1, 1000), ")
        ranks = "rank=jax.process_index(), world=jax.process_count()"
        job.edit("mesh=mesh", f"{ranks}, group=group()")
        job.edit("import sys", "import sys\nfrom tokend.integrations.jax import group")
        job.start(2, hold=7, then=job.edit_and_drain)
        step = job.drained()
        job.edit("1, 1000), ", f"1, {step + 4}), ")
        job.start(1)
        job.prove(steps=step + 3, resumed=[5, 10, step])


def test_hosts_that_share_a_models_rows_get_the_same_ones():
    with Hosts("train_jax.py", copies=2) as job:
        devices = "numpy.reshape(jax.devices(), (2, 2)), ('model', 'data')"
        job.edit('jax.devices(), ("data",)', devices.replace("numpy", "np"))
        job.start(2, hold=7)
        job.start(2)
        job.prove(steps=15, resumed=[5])


ALONE = """
import tokend
from jax.experimental import multihost_utils

if jax.process_index() == 0:
    try:
        Loader("train", 2, framework="numpy", mesh=mesh, deadline=2)
    except tokend.Error as error:
        print(error)
multihost_utils.sync_global_devices("both")
data.seek(position=4 * jax.process_index())
key = jax"""
EARLY = "early = Loader('train', 2, framework='numpy')\n"
START = "jax.distributed.initialize(s"
WRONG = [
    (
        [(START, EARLY + START), ("16), data)", "16), early)")],
        {"the loader was made before jax.distributed was initialised": 2},
    ),
    (
        [("mesh=mesh", "rank=jax.process_index(), world=jax.device_count()")],
        {"world: is 4, but JAX has 2 processes": 2},
    ),
    (
        [("key = jax", ALONE)],
        {
            "rank 1 of 2 did not come within 2 s": 1,
            "DisagreementError: agreement: process 1 of 2": 2,
        },
    ),
]


def test_loops_that_would_lose_or_repeat_rows_are_refused():
    with Hosts("train_jax.py") as job:
        for edits, said in WRONG:
            for old, new in edits:
                job.edit(old, new)
            text = job.start(2, fails=True)
            assert {part: text.count(part) for part in said} == said, text
            for old, new in edits:
                job.edit(new, old)


def address(array):
    return array.__array_interface__["data"][0]


def test_a_batch_is_not_copied():
    """JAX copies arrays that do not begin at 64 bytes, and int64."""
    with Hosts(None) as job, job.loader(dtype=INT32) as loader:
        by_row = NamedSharding(Mesh(jax.devices(), ("data",)), PartitionSpec("data"))
        for _, batch in zip(range(20), loader):
            for name in INT32:
                array, at = batch[name], address(batch[name])
                for put in (jax.device_put, jax.dlpack.from_dlpack):
                    assert put(array).unsafe_buffer_pointer() == at, (name, put)
                sharded = jax.make_array_from_process_local_data(by_row, array)
                half = array.nbytes // 2
                assert sharded.dtype == numpy.int32 and [
                    shard.data.unsafe_buffer_pointer() - at for shard in sharded.addressable_shards
                ] == [0, half], name


@jax.jit
def late(tokens, rounds):
    """The sum of the tokens, which are read after a long computation."""
    x = jax.lax.fori_loop(0, rounds, lambda _, x: jnp.sin(x @ x + 1.0), jnp.zeros((600, 600)))
    return jax.lax.cond(x.sum() > -1e30, lambda: tokens.astype(jnp.int32).sum(), lambda: 0)


def unheld(array):
    """The same memory, which JAX cannot hold."""
    there = (ctypes.c_char * array.nbytes).from_address(address(array))
    return jax.device_put(numpy.frombuffer(there, array.dtype).reshape(array.shape))


def taken_meanwhile(loader, put, rounds):
    """Takes batches while JAX reads one: (is its sum right, refusals, was JAX done before)."""
    gc.collect()  # JAX drops some of its references then
    batch = next(loader)
    want = int(batch["tokens"].sum(dtype=int))
    got, refused = late(put(batch["tokens"]), rounds), 0
    del batch
    for _ in range(20):
        try:
            next(loader)
        except HeldError:
            refused += 1
    early = got.is_ready()
    return int(got) == want, refused, early


@pytest.mark.parametrize("put", [jax.device_put, jnp.asarray, numpy.asarray, unheld])
def test_a_view_is_not_reused_while_jax_reads_it(put):
    """JAX holds the array, so the loader raises HeldError. If JAX did not, it would be noticed."""
    with Hosts(None) as job, job.loader(view=True, hold=1, slots=4) as loader:
        late(next(loader)["tokens"], 1).block_until_ready()
        rounds = 20
        right, refused, early = taken_meanwhile(loader, put, rounds)
        while early and rounds < 10_000:
            rounds *= 3
            right, refused, early = taken_meanwhile(loader, put, rounds)
        assert not early
        assert (refused > 0) == (put in (jax.device_put, numpy.asarray))
        assert right == (put is not unheld)
