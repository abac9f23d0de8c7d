"""traced_jax.py HOSTS PROGRAM: runs a JAX trainer with one process a host, and logs what it trains
on.

Each process gets the arguments ADDRESS:PORT HOSTS HOST. Its events (events.py):

  {"rank": R}               the process, once
  {"rows": [[token, …], …]} train_step() was called with the global array that has these rows in
                            this process's devices
  {"step": N}               the step in the state that train_step() returned
  {"loader": STREAM}        a tokend.Loader was created; it records to $TRACE_RECORDS/STREAM
  {"held": N}               before train_step() after the N-th step, with N in $TRACE_HOLD
"""

import functools
import runpy
import socket
import subprocess
import sys


def launch(hosts, program):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    all_of_them = [
        subprocess.Popen([sys.executable, __file__, "-", program, address, hosts, str(host)])
        for host in range(int(hosts))
    ]
    sys.exit(max(abs(process.wait()) for process in all_of_them))


def traced(step):
    import numpy

    from events import hold, note

    steps = 0

    @functools.wraps(step)
    def train_step(state, input_ids, labels):
        nonlocal steps
        note(
            rows=[
                row for s in input_ids.addressable_shards for row in numpy.asarray(s.data).tolist()
            ]
        )
        hold(steps)
        state, loss = step(state, input_ids, labels)
        note(step=int(state["step"]))
        steps += 1
        return state, loss

    return train_step


def main(program, *arguments):
    import jax

    from events import note, record_loaders

    compiled = jax.jit

    def jit(function, *more, **named):
        made = compiled(function, *more, **named)
        return traced(made) if function.__name__ == "train_step" else made

    jax.jit = jit
    record_loaders()
    note(rank=int(arguments[-1]))
    sys.argv[:] = [program, *arguments]
    runpy.run_path(program, run_name="__main__")
    assert "torch" not in sys.modules, "a JAX trainer needs no torch"


if __name__ == "__main__":
    main(*sys.argv[2:]) if sys.argv[1] == "-" else launch(*sys.argv[1:])
