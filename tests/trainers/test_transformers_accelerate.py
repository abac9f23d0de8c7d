"""A loop with accelerate resumes exactly, and no setting of accelerate loses rows silently."""

from harness import Job


def test_save_state_and_load_state_resume_on_other_worlds():
    with Job("train_accelerate.py", accumulate=2) as job:
        job.start(1, hold=7)
        job.edit("max_steps, step = 15", "max_steps, step = 1000")
        job.start(2, hold=7, then=job.edit_and_drain)
        step = job.drained()
        job.edit("max_steps, step = 1000", f"max_steps, step = {step + 3}")
        job.start(1)
        job.prove(steps=step + 3, resumed=[5, step])
