"""transformers' Trainer resumes exactly, also from a save within a step; its models get the right
labels.
"""

import os
import signal
import time

import pytest
import torch
import transformers
from tokend import Loader
from tokend.integrations.transformers import TokendTrainer
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from harness import VALID, Job
from lib import has, rows_at


def terminate(pids):
    """Sends SIGTERM, as a cluster does. The Trainer waits 3 s, then saves within a step."""
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    time.sleep(6)


def refusals(job):
    job.edit("max_steps=", "max_steps=9")
    job.edit("micro_batch=args.per_device_train_batch_size", "micro_batch=3")
    assert has(job.start(1, fails=True), "world and micro_batch, 1 and 3, are not", "1 and 2")
    job.edit("micro_batch=3", "micro_batch=2, rank=0, world=2")
    assert has(job.start(1, fails=True), "world and micro_batch, 2 and 2, are not", "1 and 2")
    job.edit("micro_batch=2, rank=0, world=2", "micro_batch=2")
    state = os.path.join(get_last_checkpoint(job.file("work/checkpoints")), "trainer_state.json")
    text = open(state).read()
    open(state, "w").write(text.replace('"TokendCursor"', '"Another"'))
    assert has(job.start(1, fails=True), "the checkpoint has no tokend cursor")


MODELS = {"llama": {}, "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4}, "gpt_neox": {}}
FINITE = {"seed": 1, "seq_len": 32, "samples": 6, "datasets": []}
FINITE["datasets"].append({"name": "web", "path": "shards/web"})


TINY = LlamaConfig(vocab_size=2048, hidden_size=16, intermediate_size=32,
    num_hidden_layers=1, num_attention_heads=2)  # fmt: skip


def arguments(job, **more):
    more = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, **more}
    return TrainingArguments(job.file("out"), report_to=[], use_cpu=True, **more)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_a_batch_is_right_for_a_models_own_loss():
    """Loss and gradients are those of the stream's labels, also with padding rows; a model that
    ignores shift_labels loses the last label of each row, no more.
    """
    common = {"vocab_size": 2048, "hidden_size": 64, "intermediate_size": 128}
    common |= {"num_hidden_layers": 2, "num_attention_heads": 4}
    with Job(None, streams={"finite": FINITE}) as job:
        place = {"socket": job.daemon.socket, "rank": 0, "world": 1}
        with Loader("finite", 4, **place) as data:
            plain = list(data)
        with Loader("finite", 4, shift_labels=True, **place) as data:
            batches = list(data)
    for name, more in MODELS.items():
        config = transformers.AutoConfig.for_model(name, **common, **more)
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        for batch, right in zip(batches, plain, strict=True):
            for last in (None, -1):
                got = dict(batch)
                if last:
                    del got["shift_labels"]
                logits = model(input_ids=right["input_ids"]).logits[:, :last].float()
                labels = right["labels"][:, :last]
                loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
                wanted = gradients(model, loss)
                own = model(**got).loss
                assert torch.allclose(own, loss, atol=1e-5), (name, own, loss)
                assert torch.allclose(gradients(model, own), wanted, atol=1e-5), name


def test_another_loss_divides_by_its_labels():
    """Label smoothing and losses of the user shift labels themselves."""
    model = LlamaForCausalLM(TINY)

    def loss_of(outputs, labels, num_items_in_batch=None):
        logits = outputs.logits[:, :-1].flatten(0, 1)
        return cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum") / num_items_in_batch

    class Own(TokendTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("labels")
            return loss_of(model(**inputs), labels, num_items_in_batch)

    with Job(None, streams={"finite": FINITE}) as job:
        place = {"socket": job.daemon.socket, "rank": 0, "world": 1}

        def trained(kind, shift_labels, smoothing=0.0, **more):
            steps = {"max_steps": 1, "logging_steps": 1, "learning_rate": 0.0}
            args = arguments(job, label_smoothing_factor=smoothing, save_strategy="no", **steps)
            with Loader("finite", 2, shift_labels=shift_labels, **place) as data:
                trainer = kind(model, args, data=data, **more)
                trainer.train()
            return trainer.state.log_history[0]["loss"]

        with Loader("finite", 4, **place) as data:
            batch = next(data)
        with torch.no_grad():
            logits = model(input_ids=batch["input_ids"]).logits

        def right(last, **more):
            labels = batch["labels"][:, :last].flatten()
            return cross_entropy(logits[:, :last].flatten(0, 1), labels, **more).item()

        close = {"abs": 2e-4}
        for given in (False, True):
            assert trained(TokendTrainer, given) == pytest.approx(right(None), **close)
            smoothed = right(-1, label_smoothing=0.1)
            assert trained(TokendTrainer, given, 0.1) == pytest.approx(smoothed, **close)
            func = {"compute_loss_func": loss_of}
            assert trained(TokendTrainer, given, **func) == pytest.approx(right(-1), **close)
            assert trained(Own, given) == pytest.approx(right(-1), **close)


def test_flash_attention_gets_the_documents_of_all_rows():
    """It finds them by position_ids only in a batch of one row."""
    model = LlamaForCausalLM(TINY)
    model.config._attn_implementation = "flash_attention_2"
    with Job(None, eos=3, vocab=64, documents=True) as job:
        with Loader("train", 2, documents=True, socket=job.daemon.socket) as data:
            trainer = TokendTrainer(model, arguments(job, max_steps=1), data=data)
            trainer.state.max_steps, batches = 1, trainer.get_train_dataloader()
            batches.begin(trainer.state, None)
            batch = next(iter(batches))
    for side in "qk":
        lengths = batch[f"cu_seq_lens_{side}"].diff()
        assert len(lengths) == (batch["position_ids"] == 0).sum() > 2
        assert lengths.sum() == 2 * 32 and lengths.max() == batch[f"max_length_{side}"]


def test_resumed_on_other_worlds_and_edited():
    with Job("train_transformers.py", accumulate=2) as job:
        job.start(1, hold=7)
        text = job.prove_edited()
        job.start(1)
        assert job.steps(job.starts.pop()) == {}, "a start after the last step trains nothing"
        assert has(text, "tokend/tokens_per_second", "tokend/wait_share")
        refusals(job)


def test_saved_in_the_middle_of_a_step():
    with Job("train_transformers.py", accumulate=2, eos=3, documents=True) as job:
        job.edit("use_cpu=True", "use_cpu=True, enable_jit_checkpoint=True")
        rows = "micro_batch=args.per_device_train_batch_size"
        job.edit(rows, f"{rows}, documents=True")
        job.start(2, hold=7, then=terminate)
        job.start(1)
        job.prove(steps=15, resumed=[7])


@pytest.mark.parametrize("samples", [12, 14])
def test_a_finite_stream_is_an_epoch(samples):
    """Also if its last batch is less than a step, and if a resume begins at its end. Batches of a
    step that failed come again.
    """
    with Job(None, streams={"finite": {**FINITE, "samples": samples}}) as job:
        order = rows_at(job.yaml, "finite", 0, samples)[:, : job.seq_len].tolist()
        trained, failures = [], [MemoryError]

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.zeros(1))

            def forward(self, input_ids, labels):
                if failures:
                    raise failures.pop()
                trained.extend(order.index(row) for row in input_ids.tolist())
                return {"loss": self.weight.sum()}

        for start, steps in enumerate((3, 6)):
            args = arguments(job, max_steps=steps, save_steps=3)
            with Loader("finite", 2, socket=job.daemon.socket) as data:
                if failures:
                    with pytest.raises(MemoryError):
                        TokendTrainer(Model(), args, data=data).train()
                TokendTrainer(Model(), args, data=data).train(resume_from_checkpoint=start > 0)
                assert data.position == 12
        assert trained == [*range(12), *range(12, samples), *range(12)]


def test_an_epochs_last_step_comes_again_if_it_failed():
    failures = [MemoryError]

    class Model(torch.nn.Linear):
        def forward(self, input_ids, labels):
            if failures and data.taken == 8:
                raise failures.pop()
            return {"loss": self.weight.sum()}

    streams = {"finite": {**FINITE, "samples": 8}}
    with Job(None, streams=streams) as job, Loader("finite", 2, socket=job.daemon.socket) as data:
        with pytest.raises(MemoryError):
            TokendTrainer(Model(1, 1), arguments(job, max_steps=2), data=data).train()
        TokendTrainer(Model(1, 1), arguments(job, max_steps=1), data=data).train()
        assert data.position == 8


PLACE = "is not a dataset|not subscriptable"


def test_a_loader_is_not_a_dataset():
    """Passed as one, it raises an error that says what to do. For an endless stream, the Trainer
    first asks for max_steps itself.
    """
    with Job(None, streams={"valid": VALID}) as job:
        for stream, steps, error, text in (
            ("train", -1, ValueError, "max_steps"),
            ("train", 5, TypeError, PLACE),
            ("valid", -1, TypeError, PLACE),
            ("valid", 5, TypeError, PLACE),
        ):
            with Loader(stream, 2, socket=job.daemon.socket, run="dataset") as data:
                with pytest.raises(error, match=text):
                    args = arguments(job, max_steps=steps)
                    transformers.Trainer(torch.nn.Linear(1, 1), args, train_dataset=data).train()
                assert data.position == 0, "  no batch was taken"
