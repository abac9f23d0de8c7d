"""The loss of each dataset, from where a batch's rows are from: python loss_by_dataset.py CONFIG."""

import sys

import torch
from tokend import Loader

model = torch.nn.Sequential(torch.nn.Embedding(50304, 32), torch.nn.Linear(32, 50304))
data = Loader("train", 4, config=sys.argv[1])
names = data.datasets
total, count = torch.zeros(len(names)), torch.zeros(len(names))
for _step, batch in zip(range(8), data):
    logits = model(batch["input_ids"])
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")  # 0 where ignored
    there = (batch["labels"] != -100).sum(1)
    rows = there > 0  # no padding
    total.index_add_(0, batch["dataset"][rows], losses.detach().view_as(batch["labels"]).sum(1)[rows])
    count.index_add_(0, batch["dataset"][rows], there[rows].float())
    losses.sum().div(there.sum()).backward()
# In a job of several ranks: all_reduce(total), all_reduce(count).
print({name: round(loss, 3) for name, loss in zip(names, (total / count).tolist(), strict=True)})
data.close()
