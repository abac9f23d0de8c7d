"""client/example/trainer.c, which includes only tokend.h, carries out an operator's requests."""

import glob
import json
import os
import re

import pytest

from lib import BIN, TOKCTL, Daemon, run, status, wait_for

SEQ, ROWS, SKIPPED = 32, 8, 4096


def ask(daemon, *arguments):
    code, out, err = run(TOKCTL, *arguments, "--json", "--socket", daemon.socket)
    assert code == 0, err
    return next((told for told in map(json.loads, out.splitlines()) if "acts_from" in told), None)


@pytest.mark.tsan
def test_the_c_trainer_carries_out_requests(place):
    for name in ("web", "code"):
        place.shard(f"{name}.bin", 1 << 20)
    data = [{"name": n, "path": f"{n}.bin"} for n in ("web", "code")]
    stream = {"seed": 1, "seq_len": SEQ, "vocab": 50000, "datasets": data}
    daemon = Daemon(place, place.config(streams={"train": stream}))
    log = place.file("trainer.log")
    command = [f"{BIN}/example-trainer", "train", daemon.config, "", "1000000000"]
    with open(log, "w") as out:
        trainer = place.spawn(command, stdout=out, stderr=out)
    assert wait_for(lambda: status(daemon.socket)[0])

    skipped = ask(daemon, "skip", "train", "--samples", str(SKIPPED))
    assert skipped["acts_from"] - skipped["from"] == SKIPPED
    mixed = ask(daemon, "mix", "train", "web=0.25", "code=0.75")
    assert mixed["acts_from"] % 1024 == 0 and mixed["acts_from"] >= mixed["from"]
    ask(daemon, "checkpoint", "train", "--tag", "asked")
    ask(daemon, "checkpoint", "train")
    saved = {os.path.basename(path) for path in glob.glob(place.file("state/train/*/*.cursor"))}
    assert saved == {"asked.cursor", "example.cursor"}
    unknown = run(TOKCTL, "mix", "train", "books=1", "--socket", daemon.socket)
    assert unknown[0] == 1 and "books" in unknown[2]
    assert trainer.poll() is None
    ask(daemon, "drain", "train", "--tag", "left")
    assert trainer.wait(60) == 0, open(log).read()

    steps, position = map(
        int, re.search(r"(\d+) steps, .* position (\d+)", open(log).read()).groups()
    )
    assert position == steps * ROWS + SKIPPED
    code, out, err = run(f"{BIN}/example-trainer", "train", daemon.config, "left", "10")
    assert (code, err) == (0, "")
    assert re.fullmatch(rf"10 steps, .* position {position + 10 * ROWS}\n", out.decode())
