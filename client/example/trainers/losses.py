"""Recipe: the loss of each dataset, from what the batch says of its rows. On a model's logits,
without a second forward pass.
"""

import torch
import torch.distributed as dist
from tokend import Batch


def by_dataset(
    logits: torch.Tensor, batch: Batch[torch.Tensor], names: list[str]
) -> dict[str, float]:
    """{dataset: mean loss of its tokens in this step's rows, on all data ranks}; names:
    loader.datasets. All ranks call it.

    logits: float [rows, seq_len, vocabulary]; batch: the loader's.
    """
    losses = torch.nn.functional.cross_entropy(
        logits.detach().transpose(1, 2), batch["labels"], reduction="none"
    ).sum(1)
    tokens = (batch["labels"] != -100).sum(1)
    sums = torch.zeros(2, len(names), dtype=torch.float64, device=logits.device)
    rows = batch["dataset"].clamp(min=0).to(logits.device)  # those of padding count 0 tokens
    sums.index_add_(1, rows, torch.stack([losses, tokens]).double())
    if dist.is_initialized():
        dist.all_reduce(sums)
    return {
        name: (loss / count).item() for name, loss, count in zip(names, *sums, strict=True) if count
    }
