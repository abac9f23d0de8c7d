"""`tokctl top` on a real terminal: it fits, sorts, survives the daemon, and leaves no trace."""

from requesting import Bench, Trainer

from lib import TOKCTL, run, wait_for
from lib.terminal import Terminal

STEPS = {"amber": 2, "birch": 6, "cedar-of-a-name-that-no-column-can-hold": 4}  # runs


def runs(terminal):
    """The runs in the order of the screen, by their first five letters."""
    return [line.split()[1][:5] for line in terminal.lines() if line.startswith("train ")]


def test_a_terminal(place):
    bench = Bench(place)
    top = f"{TOKCTL} top --interval 0.1 --socket {bench.daemon.socket}"
    trainers = [Trainer(bench, run=name) for name in STEPS]
    for trainer, steps in zip(trainers, STEPS.values(), strict=True):
        trainer.step(steps)
    code, out, err = run(*top.split(), "--count", 3)
    assert (code, err, out.count(b"TOKENS/S"), b"\x1b" in out) == (0, "", 3, False)
    assert out.count(b"amber") == 3 and b"3 sessions," in out
    with Terminal(place) as terminal:
        terminal.type(f"cd {place.path}; stty -g >before; {top}")
        lines = terminal.shows("tokend up", "3 sessions", "amber", "birch", "cedar", "q quits")
        assert len(lines) == 24 and max(map(len, lines)) <= 80
        assert any("cedar-of-a-~" in line for line in lines), "a name that is cut says so"
        while "sort: POSITION" not in terminal.lines()[23]:
            footer = terminal.lines()[23]
            terminal.press("Right")
            assert wait_for(lambda footer=footer: terminal.lines()[23] != footer)
        assert wait_for(lambda: runs(terminal) == ["birch", "cedar", "amber"])
        trainers[0].step(20)
        assert wait_for(lambda: runs(terminal) == ["amber", "birch", "cedar"]), "live"
        terminal.resize(30, 7)  # two lines are left for three sessions
        assert wait_for(lambda: len(runs(terminal)) == 2 and terminal.lines()[6][:7] == "q quits")
        terminal.resize(80, 24)
        bench.daemon.kill()
        terminal.shows("no daemon at")
        assert wait_for(lambda: len(runs(terminal)) == 3), "the last sessions stay"
        bench.daemon.start()
        terminal.shows("tokend up", "0 sessions")
        terminal.press("q")
        terminal.type("echo exit $?; stty -g | cmp - before && echo the ''same")
        terminal.shows("exit 0", "the same")
        for trainer in trainers:
            trainer.step(8)  # more than its old ring holds
            trainer.close()
    assert bench.daemon.stop() == 0
