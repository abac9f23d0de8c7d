"""A mixture of experts resumes exactly, also with its experts on other numbers of processes."""

import json

from harness import Job

# Loss and gradients of the same rows with the experts on one process and on two.
SAME = """
for ep in 1, 2:
    mesh = init_device_mesh("cpu", (2 // ep, ep), mesh_dim_names=("data_share", "ep"))
    model, experts, optimizer = build(mesh)
    logits = model(batch["input_ids"])
    loss = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    loss.backward()
    for weight in experts:
        weight.grad /= ep
    sizes = [weight.grad.full_tensor().norm().item() for weight in model.parameters()]
    if dist.get_rank() == 0:
        import json

        print("SAME", json.dumps([loss.item(), *sizes]), flush=True)
"""
END = "del model, experts, "


def test_resumed_on_other_worlds_and_edited():
    with Job("train_moe.py") as job:
        job.start(1, hold=7)
        job.edit("max_steps = 15", "max_steps = 1000")
        job.start(4, 2, hold=7, then=job.edit_and_drain)
        job.starts[-1].layout = "2×EP 2"
        step = job.drained()
        job.edit("max_steps = 1000", f"max_steps = {step + 3}")
        job.edit(END, SAME + END + "weight, ")
        text = job.start(2, 2)
        job.starts[-1].layout = "EP 2"
        job.prove(steps=step + 3, resumed=[5, step])
        said = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("SAME ")]
        assert len(said) == 2 and len(said[0]) > 10, ("EP 1 and EP 2 were compared", said)
        wrong = [(a, b) for a, b in zip(*said, strict=True) if abs(a - b) > 1e-4 * a]
        assert not wrong, ("loss and gradients are the same with EP 1 and EP 2", wrong)
