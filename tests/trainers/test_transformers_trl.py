"""TRL's SFTTrainer resumes exactly; its loss is that of the stream's mask."""

import glob

import numpy
import pytest
import torch
from tokend import Loader
from tokend.integrations.trl import TokendSFT
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig

from harness import Job
from lib import rows_at


class Masked(Job):
    """Masks all tokens that are multiples of 3, as if they were a prompt's."""

    def __init__(self, example, **options):
        super().__init__(example, loss_mask=True, datasets=DATASETS, **options)

    def config(self, **options):
        for path in glob.glob(self.file("shards", "*", "*.bin")):
            mask = numpy.fromfile(path, "<u2") % 3 != 0
            mask.astype("u1").tofile(self.file("masks", *path.split("/")[-2:]))
        return super().config(**options)


DATASETS = [
    {"name": name, "path": f"shards/{name}", "label_mask": f"masks/{name}", "weight": weight}
    for name, weight in (("web", 0.7), ("code", 0.3))
]


def test_an_operator_changes_the_mix_skips_and_drains():
    with Masked("train_trl.py") as job:
        job.start(1, hold=7)
        job.edit("max_steps=15", "max_steps=1000")
        job.start(2, hold=7, then=job.edit_and_drain)
        step = job.drained()
        job.edit("max_steps=1000", f"max_steps={step + 3}")
        job.start(1)
        job.prove(steps=step + 3, resumed=[5, step])


def trainer(job, loader, **options):
    args = SFTConfig(
        job.file("out"),
        max_steps=1,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        **options,
    )
    torch.manual_seed(0)
    tiny = {"vocab_size": 2048, "hidden_size": 64, "intermediate_size": 128}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, num_attention_heads=4, **tiny))
    words = Tokenizer(models.WordLevel({"<eos>": 0}, "<eos>"))
    named = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>")
    return TokendSFT(model, args, data=loader, processing_class=named)


def test_the_loss_is_that_of_the_mask_and_of_documents():
    with Masked(None, vocab=16, documents=True, eos=3) as job:
        rows = torch.from_numpy(rows_at(job.yaml, "train", 0, 4).astype("int64"))
        tokens, labels = rows[:, :-1], rows[:, 1:]
        at = torch.arange(job.seq_len).expand(4, -1)
        begins = torch.cat([at[:, :1] == 0, tokens[:, :-1] == 3], 1)
        within = at - (at * begins).cummax(1).values
        for documents, places in ((False, at), (True, within)):
            name = f"documents-{documents}"
            asked = {"documents": documents, "attention_mask": not documents}
            with Loader("train", 2, socket=job.daemon.socket, run=name, **asked) as data:
                sft = trainer(job, data)
                with torch.no_grad():
                    logits = sft.model(tokens, position_ids=places).logits
                counted = labels % 3 != 0
                wanted = torch.nn.functional.cross_entropy(logits[counted], labels[counted])
                sft.train()
            logged = sft.state.log_history[0]
            assert abs(logged["loss"] - wanted.item()) < 1e-5, (name, logged, wanted)
            assert logged["num_tokens"] == tokens.numel(), (name, logged)


def test_settings_that_would_have_no_effect_are_rejected():
    with Masked(None) as job, Loader("train", 2, socket=job.daemon.socket, run="bad") as loader:
        for setting in ("packing", "padding_free", "completion_only_loss", "assistant_only_loss"):
            with pytest.raises(ValueError, match=f"{setting}: prepares a dataset"):
                trainer(job, loader, **{setting: True})
        with pytest.raises(
            ValueError, match="max_length: 16 is less than the stream's seq_len, 32"
        ):
            trainer(job, loader, max_length=16)
