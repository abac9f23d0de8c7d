"""tokctl's --help and usage lines contain every option of its tables."""

import re

import pytest

from lib import TOKCTL, run

OFFLINE = ["plan", "when", "inspect", "pack", "verify", "report"]
ONLINE = ["cat", "start", "stop", "status", "top", "doctor", "mix", "skip"]
ONLINE += ["checkpoint", "drain", "rescale"]
CURSOR = ["new", "show", "diff", "seek", "skip", "mix", "add", "remove", "schedule"]
COMMANDS = [[name] for name in OFFLINE + ONLINE] + [["cursor", name] for name in CURSOR]
COMMANDS += [["cache", "ls"], ["cache", "drop"], ["cache", "warm"]]


def unwrapped(text):
    """The usage lines as one, then the lines of the options, each with its continuations."""
    return re.sub(r"\n {7,}(?!-)", " ", text)


def said(*arguments):
    code, out, err = run(TOKCTL, *arguments)
    return code, out.decode(), err


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_lists_every_option_of_the_usage_line(command):
    code, out, err = said(*command, "--help")
    assert max(map(len, out.splitlines())) <= 100
    synopsis, summary, empty, *options = unwrapped(out).splitlines()
    assert (code, err, empty) == (0, "", "") and summary
    assert synopsis.startswith(f"usage: tokctl {' '.join(command)}")
    assert said("help", *command) == (0, out, "")
    assert said(*command, "-h") == (0, out, "")
    # Each option has a line, and is in the synopsis.
    assert options[-1].split() == ["-h,", "--help", "print", "this", "text"]
    for line in options[:-1]:
        letter, name = re.match(r"  (?:-(\w), |    )--([a-z-]+) ", line).groups()
        assert (
            f"-{letter}" in synopsis.split()
            or f"[-{letter}" in synopsis
            or (re.search(rf"[ \[]--{name}\b", synopsis))
        ), name


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_mistyped_option_is_recognized(command):
    """One line, with the option that was meant and where all are listed."""
    name = " ".join(command)
    code, out, err = said(*command, "--jsno")
    assert (code, out) == (2, "")
    assert err == (
        f"tokctl {name}: unknown option --jsno (did you mean --json?); see `tokctl help {name}`\n"
        if "--json" in said(*command, "--help")[1]
        else f"tokctl {name}: unknown option --jsno; see `tokctl help {name}`\n"
    )


def test_help_lists_every_command():
    code, out, err = said("--help")
    assert (code, err) == (0, "")
    assert re.findall(r"^  (\w+) ", out, re.M) == [
        *OFFLINE[:4],
        "cat",
        "cursor",
        *OFFLINE[4:],
        *ONLINE[1:5],
        "cache",
        *ONLINE[5:],
    ]
    assert said("help")[1] == out
    code, out, err = said("cursor", "--help")
    assert (code, err) == (0, "") and re.findall(r"^  (\w+) ", out, re.M) == CURSOR


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], ""),
        (["nothing"], "unknown command 'nothing'; `tokctl help` lists all"),
        (["verfiy"], "unknown command 'verfiy' (did you mean verify?)"),
        (["-c", "x", "status"], "unknown option -c before the command"),
        (["help", "verfiy"], "did you mean verify?"),
        (["help", "cursor", "skp"], "did you mean skip?"),
        (["help", "plan", "plan"], "unknown command 'plan'"),
        (["cursor"], "needs a subcommand; see `tokctl help cursor`"),
        (["cursor", "nothing"], "unknown subcommand 'nothing'; see"),
        (["cursor", "difff"], "(did you mean diff?)"),
        (["plan", "--setp=1"], "unknown option --setp (did you mean --step?)"),
        (["plan", "-x"], "unknown option -x"),
        (["plan", "--json=1"], "--json takes no value"),
        (["plan", "train"], "needs -c FILE"),
        (["cat", "train", "--rank", "0"], "needs --world W"),
        (["cat", "train", "--rank"], "--rank needs a value"),
        (["cat", "train", "--rank", "0", "--rank", "1"], "--rank is given twice"),
        (["cat", "train", "--slots", "4294967296"], "--slots: '4294967296' is not an integer"),
        (["cat", "train", "--micro", "0"], "--micro: '0' is not an integer from 1 to 65536"),
        (["top", "--interval", "nan"], "--interval: 'nan' is not a number from 0.01 to 86400"),
        (["pack", "a", "b", "--format", "fla"], "--format: 'fla' is not one of flat|zstd|megatron"),
        (["status", "more"], "unexpected argument 'more'"),
        (["verify", "-c", "x", "train"], "needs STREAM RECORD..."),
        (["mix", "train"], "needs STREAM DATASET=WEIGHT..."),
        (["skip", "train", "--samples", "0"], "from 1 to 2^64 - 1"),
        (["rescale", "train", "--world", "2", "--at", "1024"], "unknown option --at"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_command_line_is_a_usage_error(arguments, words):
    code, out, err = said(*arguments)
    assert (code, out) == (2, "") and words in err
