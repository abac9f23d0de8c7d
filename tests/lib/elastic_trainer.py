"""One process of a small but complete job that an operator may change while it runs.

It does what trainers do: it reduces with the other processes in every step, saves every few steps
and on request, leaves on request, and begins at the checkpoint if there is one. Summing's model is
a sum over all tokens that it trained on, so a repeated, lost or altered sample shows in the model.
"""

import os

import tokend
import torch
import torch.distributed as distributed

SUM = 1 << 62  # the model's sums are modulo this


class Trainer:
    saved = ("step", "mixes")  # in the checkpoint, in addition to the data's cursor
    every = 8  # steps between two checkpoints

    def __init__(self, checkpoint, micro, **keys):
        """More keys are those of the Loader."""
        torch.set_num_threads(1)
        self.checkpoint, self.step, self.mixes, start = checkpoint, 0, [], "begin"
        if os.path.exists(checkpoint):
            saved = torch.load(checkpoint)
            start = saved.pop("data")["cursor"]
            self.restore(saved)
        self.loader = tokend.Loader("train", micro, start=start, deadline=60, **keys)

    def state(self):
        return {name: getattr(self, name) for name in self.saved}

    def restore(self, saved):
        self.__dict__.update(saved)

    def save(self):
        """Rank 0 replaces the checkpoint; a kill leaves the old one or the new one."""
        if distributed.get_rank() == 0:
            state = {**self.state(), "data": self.loader.state_dict()}
            torch.save(state, f"{self.checkpoint}.new")
            os.replace(f"{self.checkpoint}.new", self.checkpoint)

    def carry_out(self, request):
        if request.save:
            self.save()
            distributed.barrier()  # now it is saved for all
            request.done()

    def ends(self):
        return self.loader.should_stop

    def control(self):
        request = self.loader.control()
        if request is not None:
            self.carry_out(request)

    def run(self):
        while not self.ends():
            self.train(next(self.loader))
            self.step += 1
            self.control()
            if self.step % self.every == 0:
                distributed.barrier()  # all have noted their steps
                self.save()

    def leave(self):
        self.loader.close()
        distributed.barrier()  # all are done with the group
        distributed.destroy_process_group()


class Summing(Trainer):
    """Its environment is that of torchrun (RANK, WORLD_SIZE, …)."""

    saved = ("step", "samples", "sum", "skips", "mixes", "errors")

    def __init__(self, checkpoint, micro, **keys):
        distributed.init_process_group("gloo")
        self.samples = self.sum = 0
        self.skips, self.errors = [], []
        super().__init__(checkpoint, micro, **keys)

    def train(self, batch):
        tokens = torch.cat([batch["input_ids"], batch["labels"][:, -1:]], 1)
        weights = batch["position"] % 8191 + 1  # two samples that change places change the sum
        gradient = torch.stack([torch.tensor(len(tokens)), (tokens.sum(1) * weights).sum()])
        distributed.all_reduce(gradient)
        self.samples += int(gradient[0])
        self.sum = (self.sum + int(gradient[1])) % SUM

    def carry_out(self, request):
        if request.error:
            self.errors.append(request.error)
        elif request.kind == "mix":
            self.mixes = [mix for mix in self.mixes if mix[0] < request.acts_from]
            self.mixes.append([request.acts_from, request.args["weights"]])
        elif request.kind == "skip":
            self.skips.append([request.acts_from - request.args["samples"], request.acts_from])
        super().carry_out(request)


def main(**options):
    trainer = Summing(**options)
    trainer.run()
    trainer.leave()
