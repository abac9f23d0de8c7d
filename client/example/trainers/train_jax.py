"""JAX, data parallel over all devices of all hosts, a NumPy checkpoint every 5 steps.

python train_jax.py ADDRESS:PORT HOSTS HOST, one process a host; HOST is from 0, the address is that
of host 0. Started again, on any number of hosts, it resumes.
"""

import json
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tokend import Loader

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
mesh = Mesh(jax.devices(), ("data",))
by_row = NamedSharding(mesh, PartitionSpec("data"))
everywhere = NamedSharding(mesh, PartitionSpec())


def loss_of(params, input_ids, labels):
    logits = params["embedding"][input_ids] @ params["head"]
    chosen = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    losses = jax.nn.logsumexp(logits, -1) - chosen
    return losses.mean(where=labels >= 0)  # tokend: label -100, without a loss


@jax.jit
def train_step(state, input_ids, labels):
    loss, gradients = jax.value_and_grad(loss_of)(state["params"], input_ids, labels)
    params = jax.tree.map(lambda p, g: p - 0.5 * g, state["params"], gradients)
    return {"params": params, "step": state["step"] + 1}, loss


def put(array):  # without a copy where the device is a CPU
    return jax.make_array_from_process_local_data(by_row, array)


class Processes:  # tokend: of the job, which compare their cursors and agree on tokctl's requests
    index, size = jax.process_index(), jax.process_count()

    def gather(self, value):
        mine = json.dumps(value).encode()
        longest = multihost_utils.process_allgather(np.int32(len(mine))).max()
        padded = np.frombuffer(mine.ljust(longest), np.uint8)
        return [json.loads(row.tobytes()) for row in multihost_utils.process_allgather(padded)]

    def greatest(self, *numbers):
        return [max(column) for column in zip(*self.gather(numbers), strict=True)]

    def meet(self, patience):
        """gather() waits for all processes itself."""

    def gone(self):
        return False


data = Loader(  # tokend
    "train",  # tokend
    micro_batch=jax.local_device_count(),  # tokend: rows of this host
    mesh=mesh,  # tokend: hosts that share rows of the global batch get the same ones
    group=Processes() if Processes.size > 1 else None,  # tokend
    framework="numpy",  # tokend
    dtype={"input_ids": np.int32, "labels": np.int32},  # tokend: JAX would copy int64 to int32
)  # tokend
key = jax.random.key(0)
embedding, head = jax.random.normal(key, (2, 2048, 64))
params, done = {"embedding": embedding, "head": head.T / 8}, 0
if os.path.exists("checkpoint.npz"):
    saved = np.load("checkpoint.npz")
    params, done = {name: saved[name] for name in params}, int(saved["step"])
    data.load_state_dict({"cursor": saved["cursor"].tobytes()})  # tokend
state = jax.device_put({"params": params, "step": jnp.int32(done)}, everywhere)
for step, batch in zip(range(done + 1, 16), data):
    state, loss = train_step(state, put(batch["input_ids"]), put(batch["labels"]))
    request = data.control()  # tokend: from tokctl
    if step % 5 == 0 or (request and request.save):  # tokend
        cursor = np.frombuffer(data.state_dict()["cursor"], np.uint8)  # tokend
        if jax.process_index() == 0:
            np.savez("new.npz", **state["params"], step=state["step"], cursor=cursor)  # tokend
            os.replace("new.npz", "checkpoint.npz")
        multihost_utils.sync_global_devices("saved")  # tokend: other hosts report it
        if request:  # tokend
            request.done(f"checkpoint of step {step}")  # tokend
    if data.should_stop:  # tokend
        break  # tokend
jax.distributed.shutdown()
