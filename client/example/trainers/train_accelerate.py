"""A loop with accelerate's Accelerator: gradient accumulation, save_state() and load_state().

accelerate launch --multi_gpu --num_processes 2 train_accelerate.py, or torchrun. Started again, on
any number of processes, it resumes.
"""

import glob

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from tokend import Loader

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
set_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(2048, 64), torch.nn.Linear(64, 2048))
optimizer = torch.optim.AdamW(model.parameters())
# after the Accelerator, which initializes torch.distributed: rank and world come from there
data = Loader("train", 2, device=accelerator.device)  # tokend
model, optimizer, data = accelerator.prepare(model, optimizer, data)  # returns data as it is
accelerator.register_for_checkpointing(data)  # tokend: without it, data begins at 0 after a restart

max_steps, step = 15, 0
whole = glob.glob("checkpoints/*/custom_checkpoint_0.pkl")  # accelerate writes it last
if whole:
    step = max(int(path.split("/")[1].removeprefix("step-")) for path in whole)
    accelerator.load_state(f"checkpoints/step-{step}")
for batch in data:
    with accelerator.accumulate(model):
        logits = model(batch["input_ids"])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    if not accelerator.sync_gradients:
        continue  # in the middle of a step, whose gradients save_state() would not save
    step += 1
    request = data.control()  # tokend: from tokctl
    if step % 5 == 0 or (request and request.save):  # tokend
        accelerator.save_state(f"checkpoints/step-{step}")
        if request:  # tokend
            accelerator.wait_for_everyone()  # tokend: the main process has saved
            request.done(f"checkpoints/step-{step}")  # tokend
    if step == max_steps or data.should_stop:  # tokend
        break
# DDP keeps the process group alive
model, optimizer = accelerator.free_memory(model, optimizer)
accelerator.end_training()
