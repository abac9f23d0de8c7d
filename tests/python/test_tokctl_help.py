"""tokctl's --help contains every option of its tables, and wrong command lines are recognized."""

import re

from lib import TOKCTL, run


def said(*arguments, code=0):
    status, out, err = run(TOKCTL, *arguments)
    assert (status, out if code else err) == (code, b"" if code else ""), (arguments, out, err)
    return err if code else out.decode()


def commands():
    for name in re.findall(r"^  (\w+) ", said("--help"), re.M):
        text = said(name, "--help")
        inner = re.findall(r"^  (\w+) ", text, re.M)
        yield from ([name, each] for each in inner) if inner else [[name]]


def test_every_command_describes_its_options_and_recognizes_a_mistyped_one():
    found = list(commands())
    assert len(found) > 25 and ["cursor", "seek"] in found and ["verify"] in found
    for command in found:
        text = said(*command, "--help")
        assert said("help", *command) == said(*command, "-h") == text
        assert max(map(len, text.splitlines())) <= 100
        # the usage lines as one, then the lines of the options, each with its continuations
        synopsis, summary, _, *options = re.sub(r"\n {7,}(?!-)", " ", text).splitlines()
        assert synopsis.startswith(f"usage: tokctl {' '.join(command)}") and summary
        assert options[-1].split()[:2] == ["-h,", "--help"]
        for line in options[:-1]:
            letter, name = re.match(r"  (?:-(\w), |    )--([a-z-]+)[ \[]", line).groups()
            assert re.search(rf"[ \[](-{letter}|--{name})\b", synopsis), (command, name)
        wrong = said(*command, "--jsno", code=2)
        assert wrong.startswith(f"tokctl {' '.join(command)}: unknown option --jsno")
        assert ("did you mean --json?" in wrong) == ("--json" in text) and wrong.count("\n") == 1


WRONG = {
    "verfiy": "unknown command 'verfiy' (did you mean verify?)",
    "-c x status": "unknown option -c before the command",
    "completion fish": "must be",
    "cursor": "needs a subcommand; see `tokctl help cursor`",
    "cursor difff": "(did you mean diff?)",
    "plan --setp=1": "unknown option --setp (did you mean --step?)",
    "plan --json=1": "--json takes no value",
    "plan train": "needs -c FILE",
    "cat train --rank 0": "needs --world W",
    "cat train --rank": "--rank needs a value",
    "cat train --rank 0 --rank 1": "--rank is given twice",
    "cat train --micro 0": "--micro: '0' is not an integer from 1 to 65536",
    "status --watch=nan": "--watch: 'nan' is not a number from 0.1 to 86400",
    "pack a b --format fla": "--format: 'fla' is not one of flat|zstd|megatron",
    "status more": "unexpected argument 'more'",
}


def test_a_wrong_command_line_is_a_usage_error():
    for command, words in WRONG.items():
        assert words in said(*command.split(), code=2), command
