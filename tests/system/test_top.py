"""`tokctl top` on a real terminal: it fits, sorts, survives the daemon, and leaves no trace."""

import os
import re
import signal
import subprocess

import pytest
from requesting import Bench, Trainer

from lib import TOKCTL, run, wait_for
from lib.terminal import Terminal

STEPS = {"amber": 2, "birch": 6, "cedar-of-a-name-that-no-column-can-hold": 4}  # runs
BLOCKS = "▁▂▃▄▅▆▇█"


@pytest.fixture(scope="module")
def bench(shared):
    bench = Bench(shared)
    bench.trainers = [Trainer(bench, run=name) for name in STEPS]
    for trainer, steps in zip(bench.trainers, STEPS.values()):
        trainer.step(steps)
    yield bench
    for trainer in bench.trainers:
        trainer.close()
    assert bench.daemon.stop() == 0


@pytest.fixture
def terminal(bench):
    with Terminal(bench.place) as terminal:
        top = f"{TOKCTL} top --interval 0.1 --socket {bench.daemon.socket}"
        terminal.type(f"cd {bench.place.path}; stty -g >before; {top}")
        yield terminal


def runs(lines):
    """The runs in the order of the screen, by their first five letters."""
    return [line.split()[1][:5] for line in lines if line.startswith("train ")]


def press(terminal, key):
    """Presses a key that changes the footer. Returns the lines afterwards."""
    footer = terminal.lines()[23]
    terminal.press(key)
    assert wait_for(lambda: terminal.lines()[23] != footer)
    return terminal.lines()


def ended(terminal, bench, code):
    """The terminal is as it was: its modes, its cursor, and the shell's lines."""
    terminal.type("echo exit $?; stty -g | cmp - before && echo the ''same")
    terminal.shows(f"exit {code}", "the same")
    assert terminal("display", "-p", "#{alternate_on} #{cursor_flag}").strip() == "0 1"


def test_fits_and_sorts(bench, terminal):
    lines = terminal.shows("STREAM", "amber", "birch", "cedar", "q quits")
    assert len(lines) == 24 and max(map(len, lines)) <= 80
    assert re.match(r"tokend up \d+ s, 3 sessions, \d+ of 1024 MiB, at /", lines[0]), lines[0]
    assert lines[23].startswith("q quits"), "no line is wrapped"
    assert any(c in lines[1] for c in BLOCKS), "a sparkline of all sessions"
    assert any("cedar-of-a-~" in line for line in lines), "a name that is cut does not look whole"
    print("\n".join(lines))

    orders = set()
    for _ in range(7):  # once around all columns
        lines = press(terminal, "Right")
        orders.add((lines[23].split("sort: ")[1].split(",")[0], *runs(lines)))
    assert ("RUN", "amber", "birch", "cedar") in orders
    assert ("POSITION", "birch", "cedar", "amber") in orders
    while "POSITION" not in lines[23]:
        lines = press(terminal, "<")
    terminal.press("r")
    assert wait_for(lambda: runs(terminal.lines()) == ["amber", "cedar", "birch"]), "reversed"

    bench.trainers[0].step(20)
    wait_for(lambda: runs(terminal.lines()) == ["cedar", "birch", "amber"])
    assert runs(terminal.lines()) == ["cedar", "birch", "amber"], "live"
    assert wait_for(
        lambda: any(set(BLOCKS[1:]) & set(line) for line in terminal.lines() if "amber" in line)
    ), "its rate is in its sparkline"
    terminal.press("q")
    ended(terminal, bench, 0)


def test_resizes(bench, terminal):
    terminal.shows("cedar", "q quits")
    terminal.resize(130, 10)
    lines = terminal.shows("cedar-of-a-name-that-no-column-can-hold")
    assert wait_for(lambda: terminal.lines()[9].startswith("q quits")), (
        "the footer is the last line"
    )
    terminal.resize(30, 7)  # two lines are left for three sessions
    assert wait_for(lambda: len(runs(terminal.lines())) == 2)
    assert max(map(len, terminal.lines())) <= 30
    terminal.press("Down")
    assert wait_for(lambda: "cedar" in runs(terminal.lines()))
    terminal.resize(80, 24)
    lines = terminal.shows("WAITS", "amber", "birch", "cedar", "r reverses")
    assert lines[23].startswith("q quits")
    os.kill(top_of(terminal), signal.SIGTERM)
    ended(terminal, bench, 0)


def top_of(terminal):
    """The pid of tokctl."""
    shell = terminal("display", "-p", "#{pane_pid}").strip()
    return int(subprocess.run(["pgrep", "-P", shell], capture_output=True, text=True).stdout)


def test_waits_for_the_next_daemon(bench, terminal):
    terminal.shows("amber", "up ")
    bench.daemon.kill()
    lines = terminal.shows("no daemon at")
    assert len(runs(lines)) == 3, "the last sessions stay"
    bench.daemon.start()
    terminal.shows("tokend up", "0 sessions")
    for trainer in bench.trainers:
        trainer.step(8)  # more than its old ring holds
    terminal.shows("3 sessions", "amber", "birch", "cedar")
    terminal.press("C-\\")
    ended(terminal, bench, 0)


def test_other_terminals_get_text(bench):
    """No terminal, one that cannot move its cursor, and one without UTF-8."""
    top = f"{TOKCTL} top --interval 0.01 --socket {bench.daemon.socket}"
    with Terminal(bench.place, columns=120) as terminal:
        terminal.type(f"TERM=dumb {top} --count 2; {top} --count 1 | cat; echo printed $?")
        lines = terminal.shows("tokend at", "printed 0")
        assert sum("RANK of WORLD" in line for line in lines) == 3
        terminal.type("clear")
        assert wait_for(lambda: "RANK of WORLD" not in "".join(terminal.lines()))
        terminal.type(f"TERM=none {top}; echo ended $?")
        terminal.shows("RANK of WORLD")
        terminal.press("C-c")
        terminal.shows("ended 0")
        terminal.type(f"clear; LC_ALL=C {top}")
        lines = terminal.shows("q quits", "amber", "___")
        assert not set(BLOCKS) & set("".join(lines))
        terminal.press("q")
        terminal.shows("ready>")
    code, out, err = run(TOKCTL, "top", "--socket", bench.place.file("none"))
    assert (code, out) == (1, b"") and "tokctl: " in err
