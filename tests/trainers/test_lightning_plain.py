#!/usr/bin/env python3
"""A plain Loader in Lightning's fit(): saved every 5 steps, resumed from there, no row lost or taken twice."""

import json
import os
import sys

from harness import Checks, system

TRAIN = """
import json, os, sys
import lightning as L, tokend, torch
from lightning.pytorch.callbacks import ModelCheckpoint

socket, stream, out, steps, accumulate = sys.argv[1:]

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(65536, 4)

    def training_step(self, batch, index):
        with open(out, "a") as file:
            print(json.dumps(batch["position"].tolist()), file=file)
        return self.embedding(batch["input_ids"]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

saves = ModelCheckpoint(out + ".saved", "last", every_n_train_steps=5, enable_version_counter=False)
ends = {"max_epochs": 1} if steps == "all" else {"max_steps": int(steps)}
trainer = L.Trainer(accelerator="cpu", devices=1, logger=False, callbacks=[saves], enable_progress_bar=False, enable_model_summary=False,
                    accumulate_grad_batches=int(accumulate), **ends)
saved = out + ".saved/last.ckpt"
loader = tokend.Loader(stream, 4, socket=socket, rank=0, world=1)
trainer.fit(Module(), loader, ckpt_path=saved if os.path.exists(saved) else None)
"""

checks = Checks()
with system.Place() as place:
    system.TOKEND = os.path.join(os.path.dirname(sys.executable), "tokend")
    place.shard("web/a.bin", 10_000)
    train = {"seed": 1, "seq_len": 32, "datasets": system.datasets("web")}
    daemon = system.Daemon(
        place, place.config(streams={"train": train, "finite": {**train, "epochs": 1}})
    )
    # Stream, accumulated batches, the ends of the starts, batches up to the save that the next start goes on from.
    runs = (
        ("train", 1, (7, 12), [5]),
        ("train", 2, (7, 12), [10]),
        ("finite", 1, (7, 22, "all"), [5, 20]),
    )
    for stream, accumulate, starts, saves in runs:
        out, rows = place.file(f"{stream}-{accumulate}"), []
        for number, steps in enumerate(starts):
            code, _, err = system.run(
                sys.executable,
                "-c",
                TRAIN,
                daemon.socket,
                stream,
                out,
                steps,
                accumulate,
                timeout=200,
            )
            checks.equal(
                f"{stream}, {accumulate} batches a step, up to {steps}",
                (code, err if code else ""),
                (0, ""),
            )
            with open(out) as file:
                rows += [
                    position for line in file for position in json.loads(line) if position >= 0
                ]
            os.unlink(out)
            if number < len(saves):
                checks.ok("  some steps were not saved", len(rows) > 4 * saves[number], len(rows))
                del rows[4 * saves[number] :]
        end = 312 if stream == "finite" else 4 * accumulate * starts[-1]
        checks.equal("  each row once, in order", rows, list(range(end)))
    checks.equal("exit 0", daemon.stop(), 0)
checks.exit()
