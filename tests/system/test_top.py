"""`tokctl top` on a real terminal: it fits, sorts, survives the daemon, and leaves no trace."""

import pytest
from requesting import Bench, Trainer

from lib import TOKCTL, run, wait_for
from lib.terminal import Terminal

STEPS = {"amber": 2, "birch": 6, "cedar-of-a-name-that-no-column-can-hold": 4}  # runs


@pytest.fixture
def bench(place):
    bench = Bench(place)
    bench.top = f"{TOKCTL} top --interval 0.1 --socket {bench.daemon.socket}"
    bench.trainers = [Trainer(bench, run=name) for name in STEPS]
    for trainer, steps in zip(bench.trainers, STEPS.values(), strict=True):
        trainer.step(steps)
    yield bench
    for trainer in bench.trainers:
        trainer.close()
    assert bench.daemon.stop() == 0


def runs(terminal):
    """The runs in the order of the screen, by their first five letters."""
    return [line.split()[1][:5] for line in terminal.lines() if line.startswith("train ")]


def test_a_terminal(bench):
    with Terminal(bench.place) as terminal:
        terminal.type(f"cd {bench.place.path}; stty -g >before; {bench.top}")
        lines = terminal.shows("tokend up", "3 sessions", "amber", "birch", "cedar", "q quits")
        assert len(lines) == 24 and max(map(len, lines)) <= 80
        assert any("cedar-of-a-~" in line for line in lines), "a name that is cut says so"
        while "sort: POSITION" not in terminal.lines()[23]:
            footer = terminal.lines()[23]
            terminal.press("Right")
            assert wait_for(lambda footer=footer: terminal.lines()[23] != footer)
        assert wait_for(lambda: runs(terminal) == ["birch", "cedar", "amber"])
        bench.trainers[0].step(20)
        assert wait_for(lambda: runs(terminal) == ["amber", "birch", "cedar"]), "live"
        terminal.resize(30, 7)  # two lines are left for three sessions
        assert wait_for(lambda: len(runs(terminal)) == 2 and terminal.lines()[6][:7] == "q quits")
        assert max(map(len, terminal.lines())) <= 30
        terminal.resize(80, 24)
        assert wait_for(lambda: len(runs(terminal)) == 3)
        bench.daemon.kill()
        terminal.shows("no daemon at")
        assert len(runs(terminal)) == 3, "the last sessions stay"
        bench.daemon.start()
        terminal.shows("tokend up", "0 sessions")
        terminal.press("q")
        terminal.type("echo exit $?; stty -g | cmp - before && echo the ''same")
        terminal.shows("exit 0", "the same")
        assert terminal("display", "-p", "#{alternate_on} #{cursor_flag}").strip() == "0 1"
        for trainer in bench.trainers:
            trainer.step(8)  # more than its old ring holds


def test_no_terminal(bench):
    code, out, err = run(*bench.top.split(), "--count", 3)
    assert (code, err, out.count(b"TOKENS/S"), b"\x1b" in out) == (0, "", 3, False)
    assert out.count(b"amber") == 3 and b"3 sessions," in out
    code, out, err = run(TOKCTL, "top", "--socket", bench.place.file("none"))
    assert (code, out) == (1, b"") and "tokctl: " in err
