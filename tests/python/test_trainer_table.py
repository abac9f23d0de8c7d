"""The table of trainers counts changed lines and kills, and names the trainers without a run."""

import json
import re

import pytest
from lib.trainer_table import EXAMPLES, HEAD, TRAINERS, changed, read, table

RUN = {
    "example": "train_ddp.py",
    "version": "2.13.0",
    "killed": 3,
    "resumed": [5, 10],
    "worlds": [1, 2, 1],
    "samples": 40,
    "repeated": 0,
    "lost": 0,
    "altered": 0,
    "skipped": 0,
}


def written(*runs):
    return read("\n".join(json.dumps(RUN | run) for run in runs))


def test_a_trainer_is_one_line_of_its_runs():
    head, line = table(written({}, {"killed": 0, "samples": 2, "lost": 1}), whole=False)[0]
    assert head == HEAD
    assert line.split() == ["DDP", "2.13.0", str(changed("train_ddp.py")), "3", "5,", "10", "1",
                            "→", "2", "→", "1", "42", "0/1/0"]  # fmt: skip


def test_a_trainer_without_a_run_is_missing_from_a_whole_run():
    missing = table(written({}), whole=True)[1]
    assert "DDP" not in missing and len(missing) == len(TRAINERS) - 1


@pytest.mark.parametrize("example", TRAINERS)
def test_every_example_marks_its_requests(example):
    lines = (EXAMPLES / example).read_text().splitlines()
    marked = [line for line in lines if "tokend" in line.lower()]
    asked = [line for line in lines if re.search(r"control\(\)|request|should_stop", line)]
    asked = [line for line in asked if not line.lstrip().startswith("#")]
    assert changed(example) > 1
    assert not [line for line in asked if line not in marked], "lines without a mark"
