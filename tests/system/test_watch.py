"""`tokctl status --watch`, on a real terminal and in a pipe: it is cut to the terminal, sorts, and
survives the daemon.
"""

import json
import signal

from requesting import Bench, Trainer

from lib import TOKCTL, wait_for
from lib.terminal import Terminal

STEPS = {"amber": 2, "birch": 6, "cedar-of-a-name-that-is-longer-than-others": 4}  # runs


def runs(terminal):
    """The runs in the order of the screen, by their first five letters."""
    return [line.split()[1][:5] for line in terminal.lines() if line.startswith("train ")]


def test_watch(place):
    bench = Bench(place)
    watch = f"{TOKCTL} status --watch=0.1 --sort position --socket {bench.daemon.socket}"
    trainers = [Trainer(bench, run=name) for name in STEPS]
    for trainer, steps in zip(trainers, STEPS.values(), strict=True):
        trainer.step(steps)
    text = lambda: open(place.file("out")).read()
    for more in ([], ["--json"]):
        with open(place.file("out"), "wb") as out:
            process = place.spawn([*watch.split(), *more], stdout=out)
        assert wait_for(lambda: text().count("cedar") >= 3)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0 and "\x1b" not in text()
        if more:
            assert [json.loads(line).get("run", "")[:5] for line in text().splitlines()][:4] == [
                "birch", "cedar", "amber", ""]  # fmt: skip
        else:
            assert "\n\nSTREAM " in text() and "3 sessions," in text()
    with Terminal(place, columns=120) as terminal:
        terminal.type(f"cd {place.path}; {watch}")
        lines = terminal.shows("TOKENS/S", "tokend at", "amber", "birch", "cedar")
        assert max(map(len, lines)) <= 120 and "ready>" not in "".join(lines)
        assert wait_for(lambda: runs(terminal) == ["birch", "cedar", "amber"])
        trainers[0].step(20)
        assert wait_for(lambda: runs(terminal) == ["amber", "birch", "cedar"]), "live"
        terminal.resize(30, 4)  # two lines are left for three sessions
        assert wait_for(lambda: runs(terminal) == ["amber", "birch"])
        terminal.resize(120, 24)
        bench.daemon.kill()
        terminal.shows("no daemon at")
        bench.daemon.start()
        terminal.shows("tokend at", "0 sessions")
        terminal.press("C-c")
        terminal.type("echo exit $?")
        terminal.shows("exit 0")
        for trainer in trainers:
            trainer.step(8)  # more than its old ring holds
            trainer.close()
