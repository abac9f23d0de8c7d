"""The completions for bash and zsh have every command, option and choice of the programs, in the
real shells.
"""

import os
import pty
import re
import select
import shlex
import subprocess

import pytest

from lib import REPO, TOKCTL, TOKEND, run
from test_man import commands, options

FILES = REPO / "build/gcc/completion"


def in_bash(program, lines, cwd):
    """The completions of each line, from bash's own `complete` of the program."""
    asked = [f"source {FILES}/{program}.bash", f"complete -p {program}"]
    for line in lines:
        words = line.split(" ")
        asked += [
            f"COMP_WORDS=({' '.join(shlex.quote(word) for word in words)})",
            f"COMP_CWORD={len(words) - 1}; _{program}",
            'echo "${COMPREPLY[*]}"',
        ]
    done = subprocess.run(
        ["bash", "--norc"], input="\n".join(asked), cwd=cwd, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    registered, *answers = done.stdout.splitlines()
    assert registered == f"complete -o default -F _{program} {program}"
    return dict(zip(lines, map(str.split, answers), strict=True))


def test_unknown_completion_is_a_usage_error():
    code, _, err = run(TOKCTL, "help", "--completion", "fish")
    assert code == 2 and "tokctl.bash" in err


@pytest.mark.parametrize("name", ["tokctl.bash", "tokend.bash", "_tokctl", "_tokend"])
def test_files_are_built(name):
    code, out, err = run(TOKCTL, "help", "--completion", name)
    assert (code, err) == (0, "")
    assert (FILES / name).read_bytes() == out
    if name.endswith(".bash"):
        code, out, _ = run("shellcheck", "-s", "bash", FILES / name)
        assert code == 0, out.decode()


def test_bash_completes_every_command_and_option(tmp_path):
    listed = dict(commands())
    top = [name for name in listed if " " not in name]
    edits = [name.split(" ")[1] for name in listed if name.startswith("cursor ")]
    found = in_bash(
        "tokctl",
        ["tokctl ", "tokctl cursor ", "tokctl help "]
        + [f"tokctl {name} --" for name in listed if name not in ("cursor", "cache")]
        + ["tokctl st", "tokctl pack --format ", "tokctl pack --format = z"],
        tmp_path,
    )
    assert found["tokctl "] == [*top, "help", "-h", "--help", "--version"]
    assert [word for word in found["tokctl cursor "] if word[0] != "-"] == edits
    assert found["tokctl help "] == ["--man", "--completion", *top]
    for name, text in listed.items():
        if name not in ("cursor", "cache"):
            have = [word[2:] for word in found[f"tokctl {name} --"]]
            assert have == options(text), name
    assert found["tokctl st"] == ["start", "stop", "status"]
    assert found["tokctl pack --format "] == ["flat", "zstd", "megatron"]
    assert found["tokctl pack --format = z"] == ["zstd"]
    found = in_bash("tokend", ["tokend --"], tmp_path)
    assert [word[2:] for word in found["tokend --"]] == options(run(TOKEND, "--help")[1].decode())


class Zsh:
    """An interactive zsh on a terminal."""

    def __init__(self, directory):
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.chdir(directory)
            environment = {"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "ready> "}
            os.execvpe("zsh", ["zsh", "-f", "-i"], environment)
        self.pid = pid
        self.read_until(b"ready> ")
        self.type("unset zle_bracketed_paste; stty cols 200 rows 60\n")
        self.read_until(b"ready> ")
        self.type(f"fpath=({FILES} $fpath); autoload -Uz compinit; compinit -u -D; LISTMAX=999\n")
        self.read_until(b"ready> ")

    def type(self, text):
        os.write(self.terminal, text.encode())

    def read_until(self, end):
        out = b""
        while not re.search(end, out, re.S):
            assert select.select([self.terminal], [], [], 20)[0], out
            out += os.read(self.terminal, 1 << 16)
        return out.decode()

    def complete(self, line):
        """The text on the terminal after the line and a tab."""
        self.type(f"{line}\t\x15echo do''ne\n")  # Control-U removes the line
        return self.read_until(b"done\r\n.*ready> ")

    def end(self):
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


def test_zsh_completes_with_descriptions(tmp_path):
    (tmp_path / "only.yaml").touch()
    zsh = Zsh(tmp_path)
    try:
        shown = zsh.complete("tokctl ")
        listed = re.findall(r"^  (\w+)  +(.{9,30})", run(TOKCTL, "--help")[1].decode(), re.M)
        for name, phrase in listed:
            assert re.search(rf"\b{name} +-- {re.escape(phrase)}", shown), name
        assert "plan" in dict(listed)
        shown = zsh.complete("tokctl cursor mix --")
        assert "--at" in shown and "--output" in shown and "--world" not in shown
        assert "megatron" in zsh.complete("tokctl pack --format ")
        assert "tokctl plan -c only.yaml" in zsh.complete("tokctl plan -c on")
        assert "tokend --check" in zsh.complete("tokend --ch")
    finally:
        zsh.end()
