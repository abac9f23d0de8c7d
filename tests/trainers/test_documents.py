"""Documents packed by tokctl, mixed with plain ones, resume exactly; padding is not trained on."""

import re

import numpy

from harness import SEQ, VOCAB, Job
from lib import TOKCTL, run

EOS = 1
CHECK = """
    ends = batch["input_ids"].flatten() == 1
    assert not (ends & (labels == 1)).any(), "padding repeats the end of a document"
    print("PADDING", int((ends & (labels == -100)).sum()), flush=True)
    begin, end = batch["cu_seqlens"][1:3].tolist()
    ids, at = (batch[name].flatten()[None, begin:end] for name in ("input_ids", "position_ids"))
    with torch.no_grad():
        alone = model.module(ids, at, torch.tensor([0, end - begin]))
    assert torch.allclose(alone, logits[begin:end], atol=1e-5), "attention stays in a document"
"""


class Packed(Job):
    def config(self, **keys):
        """Called before the daemon starts: packs documents of 12 to 24 tokens into rows."""
        rng = numpy.random.default_rng(3)
        ends = rng.integers(12, 25, 3_000).cumsum()
        tokens = rng.integers(2, VOCAB, ends[-1], dtype=numpy.uint16)
        tokens[ends - 1] = EOS
        plain, rows = self.file("documents.bin"), self.file("shards", "rows", "0.bin")
        tokens.tofile(plain)
        code, _, error = run(TOKCTL, "pack", plain, rows, "--fit", SEQ + 1, "--eos", EOS)
        assert code == 0, error
        return super().config(**keys)


def test_a_mix_of_packed_and_plain_documents_resumes_on_other_worlds():
    mix = [{"name": n, "path": f"shards/{n}", "weight": 0.5} for n in ("rows", "web")]
    keys = {"documents": True, "loss_mask": True, "eos": EOS, "stride": SEQ + 1}
    with Packed("train_documents.py", **keys, datasets=mix) as job:
        job.edit("tokend: -100 in the padding of packed rows", CHECK)
        text = job.start(1, hold=7) + job.start(3, hold=7) + job.start(2)
        job.prove(steps=15, resumed=[5, 10])
        losses = [float(loss) for loss in re.findall(r"loss (\S+) of", text)]
        # all three are killed as soon as one has made its seventh step
        assert len(losses) >= 7 + 3 * 6 + 2 * 5 and numpy.isfinite(losses).all(), losses
        assert sum(map(int, re.findall(r"PADDING (\d+)", text))) > 0, "some rows have padding"
