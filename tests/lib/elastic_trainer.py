#!/usr/bin/env python3
"""One process of a small but complete job that an operator may change while it runs.

It does what trainers do: it reduces with the other processes in every step, saves every few steps
and on request, leaves on request, and begins at the checkpoint if there is one. Its model is a sum
over all tokens that it trained on, so a repeated, lost or altered sample shows in the model.

Its environment is that of torchrun (RANK, WORLD_SIZE, …). ELASTIC contains its arguments as JSON.
"""

import json
import os
import signal
import sys

import numpy
import tokend
import torch
import torch.distributed as distributed

SUM = 1 << 62  # the model's sums are modulo this


class Trainer:
    def __init__(
        self, socket, checkpoint, record, micro, every=8, control=True, steps=None, dies=None
    ):
        torch.set_num_threads(1)
        distributed.init_process_group("gloo")
        self.checkpoint, self.every, self.steps, self.control = checkpoint, every, steps, control
        self.step = self.samples = self.sum = 0
        self.skips, self.mixes, self.errors = [], [], []
        start = "begin"
        if os.path.exists(checkpoint):
            saved = torch.load(checkpoint)
            start = saved.pop("data")["cursor"]
            self.__dict__.update(saved)
        self.loader = tokend.Loader(
            "train", micro, socket=socket, record=record, start=start, deadline=60
        )
        # The sums of each step show which batch or which all-reduce was wrong.
        self.sums = open(f"{checkpoint}.{distributed.get_rank()}-{os.getpid()}.sums", "ab", 0)
        if dies:
            self.die_when(dies)

    def save(self):
        if distributed.get_rank() == 0:
            names = ("step", "samples", "sum", "skips", "mixes", "errors")
            state = {name: getattr(self, name) for name in names} | {
                "data": self.loader.state_dict()
            }
            torch.save(state, f"{self.checkpoint}.new")
            os.replace(f"{self.checkpoint}.new", self.checkpoint)

    def train(self, batch):
        tokens = torch.cat([batch["input_ids"], batch["labels"][:, -1:]], 1)
        weights = batch["position"] % 8191 + 1  # two samples that change places change the sum
        gradient = torch.stack([torch.tensor(len(tokens)), (tokens.sum(1) * weights).sum()])
        mine = int(gradient[1])
        distributed.all_reduce(gradient)
        entry = [self.step, int(batch["position"][0]), len(tokens), mine, int(gradient[1])]
        self.sums.write(numpy.array(entry).tobytes())
        self.step += 1
        self.samples += int(gradient[0])
        self.sum = (self.sum + int(gradient[1])) % SUM

    def carry_out(self, request):
        if request.error:
            self.errors.append(request.error)
        elif request.kind == "mix":
            self.mixes = [mix for mix in self.mixes if mix[0] < request.acts_from] + [
                [request.acts_from, request.args["weights"]]
            ]
        elif request.kind == "skip":
            self.skips.append([request.acts_from - request.args["samples"], request.acts_from])
        if request.save:
            self.save()
            distributed.barrier()  # now it is saved for all
            request.done()

    def run(self):
        for batch in self.loader:
            self.train(batch)
            request = self.loader.control() if self.control else None
            if request is not None:
                self.carry_out(request)
            if self.step % self.every == 0:
                self.save()
            if self.loader.should_stop or self.step == self.steps:
                break
        self.loader.close()
        distributed.barrier()  # all are done with the group
        distributed.destroy_process_group()

    # ---- accidents ----

    def die_when(self, moment):
        """Kills this process after it has fetched a request, or after it has carried it out and
        before it answers.
        """
        control = self.loader._control
        name = {"fetched": "_fetch", "obeyed": "_obey"}[moment]
        whole = getattr(control, name)

        def half(*arguments):
            whole(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(control, name, half)


def main():
    Trainer(**json.loads(os.environ["ELASTIC"])).run()


if __name__ == "__main__":
    sys.exit(main())
