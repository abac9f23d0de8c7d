"""JAX resumes exactly on other numbers of hosts, without torch; an operator's requests are carried
out by all of its processes.
"""

import os
import sys

import jax
from tokend import Loader

from harness import HERE, RUN, Job

jax.config.update("jax_num_cpu_devices", 2)
TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}


class Hosts(Job):
    def launch(self, world, *arguments, **more):
        command = [sys.executable, os.path.join(HERE, "traced_jax.py"), str(world), self.example]
        start = super().launch(world, *arguments, command=command, **TWO_DEVICES, **more)
        start.layout = f"{world}×2"  # hosts of two devices
        return start

    def loader(self, **options):
        return Loader("train", 4, socket=self.daemon.socket, framework="numpy", **options)


def test_killed_and_resumed_on_other_numbers_of_hosts():
    with Hosts("train_jax.py") as job:
        job.edit('framework="numpy"', f'framework="numpy", run="{RUN}"')
        job.start(2, hold=7)
        job.start(1, hold=7)
        job.edit("1, 16), ", "1, 1000), ")
        job.edit("mesh=mesh", "rank=jax.process_index(), world=jax.process_count()")
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


ELSEWHERE = "data.seek(position=4 * jax.process_index())\nkey = jax"
EARLY = "early = Loader('train', 2, framework='numpy')\n"
START = "jax.distributed.initialize(s"
WRONG = [
    (
        [(START, EARLY + START), ("16), data)", "16), early)")],
        {"the loader was made before jax.distributed was initialised": 2},
    ),
    (
        [("mesh=mesh", "rank=jax.process_index(), world=jax.device_count()")],
        {"world: is 4, but 0 of the group's 2 processes read as rank 2": 2},
    ),
    ([("key = jax", ELSEWHERE)], {"DisagreementError: agreement: process 1 of 2": 2}),
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
