"""traced.py [-m] PROGRAM ARGUMENTS…: runs an unmodified trainer and logs what it trains on.

Its events (events.py):

  {"rank": R}               the process, once
  {"rows": [[token, …], …]} the outermost module was called with these inputs (not under no_grad)
  {"zero": 1}               the optimizer's gradients were cleared
  {"step": N}               the optimizer made step N, by its own count in the checkpoint
  {"loader": STREAM}        a tokend.Loader was created; it records to $TRACE_RECORDS/STREAM
  {"held": N}               in the forward pass after the N-th step, with N in $TRACE_HOLD
"""

import faulthandler
import os
import runpy
import signal
import sys
import threading
import time

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from events import hold, note, record_loaders

_inside = threading.local()
_steps = 0


def inputs(arguments, named):
    """The tokens in a module's arguments. None: later stages and recomputed layers get hidden
    states.
    """
    for name in ("input_ids", "tokens", "input"):
        if torch.is_tensor(named.get(name)):
            return named[name]
    first = (
        arguments[0] if arguments else next((a for a in named.values() if torch.is_tensor(a)), None)
    )
    return (
        first
        if torch.is_tensor(first) and first.ndim == 2 and first.dtype in (torch.int32, torch.int64)
        else None
    )


def before(module, arguments):
    if (
        torch.compiler.is_compiling()
        or getattr(_inside, "module", None) is not None
        or not torch.is_grad_enabled()
    ):
        return
    # Hooks for all modules are not given the arguments that have names; the caller has them.
    tokens = inputs(arguments, sys._getframe(1).f_locals.get("kwargs", {}))
    if tokens is None or tokens.is_meta:  # litgpt counts operations with tokens on meta
        return
    _inside.module = module
    note(rows=tokens.tolist())
    hold(_steps)


def after(module, arguments, output):
    if not torch.compiler.is_compiling() and getattr(_inside, "module", None) is module:
        _inside.module = None


def stepped(optimizer, *_):
    global _steps
    state = next((s for s in optimizer.state.values() if "step" in s), None)
    if state is not None:
        _steps += 1
        note(step=int(state["step"]))


def settle():
    """Waits until gloo's threads have freed the last collectives, shortly after those complete.

    For that they need the interpreter's lock. If the process exits before, they abort.
    """
    still = 0
    while still < 3:
        time.sleep(0.01)
        still = 0 if any(running(thread) for thread in os.listdir("/proc/self/task")) else still + 1


def running(thread):
    try:
        name, state = (
            open(f"/proc/self/task/{thread}/stat").read().split(" (", 1)[1].rsplit(") ", 1)
        )
    except OSError:
        return False  # it has ended
    return name == "pt_gloo_runloop" and state[0] == "R"


def main():
    faulthandler.register(signal.SIGUSR1)  # prints the stacks of a process that hangs
    note(rank=int(os.environ.get("RANK", 0)))
    torch.nn.modules.module.register_module_forward_pre_hook(before)
    torch.nn.modules.module.register_module_forward_hook(after, always_call=True)
    register_optimizer_step_post_hook(stepped)
    clear = torch.optim.Optimizer.zero_grad

    def zero_grad(optimizer, *arguments, **named):
        note(zero=1)
        return clear(optimizer, *arguments, **named)

    torch.optim.Optimizer.zero_grad = zero_grad
    record_loaders()
    try:
        if sys.argv[1] == "-m":
            del sys.argv[:2]
            sys.path[0] = os.getcwd()
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            del sys.argv[0]
            sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
            runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        settle()


if __name__ == "__main__":
    main()
