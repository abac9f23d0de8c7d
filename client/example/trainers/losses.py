"""The loss of each dataset, computed from the logits without a second forward pass."""

import torch
import torch.distributed as dist
from tokend import Batch


def by_dataset(logits: torch.Tensor, batch: Batch, names: list[str]) -> dict[str, float]:
    """Returns {dataset: mean loss of its tokens in this step, over all ranks}. All ranks call it.

    logits is float [rows, seq_len, vocabulary]; names is loader.datasets.
    """
    losses = torch.nn.functional.cross_entropy(
        logits.detach().transpose(1, 2), batch["labels"], reduction="none"
    ).sum(1)
    tokens = (batch["labels"] != -100).sum(1)
    sums = torch.zeros(2, len(names), dtype=torch.float64, device=logits.device)
    rows = batch["dataset"].clamp(min=0).to(logits.device)  # padding rows have 0 tokens
    sums.index_add_(1, rows, torch.stack([losses, tokens]).double())
    if dist.is_initialized():
        dist.all_reduce(sums)
    return {
        name: (loss / count).item() for name, loss, count in zip(names, *sums, strict=True) if count
    }
