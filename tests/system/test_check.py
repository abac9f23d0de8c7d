"""tokend --check tries what would fail later, and each bad input gets one clear line."""

import json
import os
import subprocess

import numpy
import pytest

from lib import TOKEND, child_environment, has

pytestmark = pytest.mark.asan

TEXT = "# The shards of web\n\nTokenized by someone else, and moved here.\n"
RNG = numpy.random.default_rng(16)
IDS = RNG.integers(0, 50257, 20_000)
NEGATIVE = numpy.where(numpy.arange(len(IDS)) == 77, -5, IDS).astype("<i4")


@pytest.fixture(scope="module")
def files(shared):
    """Shards of all kinds, each in its directory."""
    IDS.astype("<u2").tofile(shared.file("web", "a.bin"))
    IDS.astype("<u4").tofile(shared.file("u32", "a.bin"))
    IDS.astype("<i8").tofile(shared.file("int64", "a.bin"))
    numpy.save(shared.file("negative", "a.npy"), NEGATIVE)
    for name, other, text in (
        ("readme", "README.md", TEXT),
        ("index", "index.json", json.dumps({"chunks": [{"filename": "a.bin"}]})),
    ):
        IDS.astype("<u2").tofile(shared.file(name, "a.bin"))
        with open(shared.file(name, other), "w") as f:
            f.write(text)
    return shared


def check(files, path="web", whole=None, stream=None, **about):
    """(exit code, stdout, stderr) for a config of one dataset."""
    entry = {"name": "web", "path": path, **about}
    train = {"seed": 1, "seq_len": 64, "datasets": [entry], **(stream or {})}
    config = files.config(streams={"train": train}, **(whole or {}))
    done = subprocess.run(
        [TOKEND, "-c", config, "--check"],
        capture_output=True,
        text=True,
        env=child_environment(HOME="/home/ada"),
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_good_config_is_rehearsed(files):
    code, out, err = check(files, stream={"vocab": 50257, "eos": 50256, "documents": True})
    assert (code, err) == (0, ""), (code, err)
    assert has(out, "a ring of micro_batch 8: 64 slots", "has room for", "read 8 rows: tokens ")
    assert not os.path.exists(files.file("state")), "nothing is left"
    assert not [name for name in os.listdir(files.path) if "check" in name]


ROWS = {
    "u32 as u16": ({"path": "u32"}, "looks like u32", "set dtype: u32"),
    "u32, u16 is set": ({"path": "u32", "dtype": "u16"}, "looks like u32", "but dtype: u16"),
    "int64 as u16": ({"path": "int64"}, "looks like int64", ".npy, which states its type"),
    "beyond vocab": ({"stream": {"vocab": 1000}}, "below the stream's vocab, 1000", "larger vocab"),
    "negative npy": ({"path": "negative"}, "token 77 is -5; must be 0 to"),
    "memory: 1": ({"whole": {"memory": 1}}, "memory: 1 bytes are too few", "set memory: "),
    "unwritable state_dir": ({"whole": {"state_dir": "/proc/x"}}, "state_dir: uid", "/proc/x"),
    "no directory of socket": ({"whole": {"socket": "/none/x/s"}}, "socket: uid", "its directory"),
    "hf": ({"path": "hf://datasets/web/"}, "path: hf:// is unknown", "gs"),
    "~": ({"path": "~/web"}, "~ is not expanded; write /home/ada/web"),
    "$HOME": ({"path": "$HOME/web"}, "($HOME) are not expanded; write /home/ada/web"),
    "README.md": ({"path": "readme"}, "README.md: is text", "readme/*.bin"),
    "index.json": ({"path": "index"}, "index.json: is a Mosaic index by its name", "index/*.bin"),
    "unknown dataset": (
        {"stream": {"schedule": [{"at": 1024, "weights": {"wbe": 1}}]}},
        "is not a dataset of the stream, which has web; did you mean web?",
    ),
    "wrong level": ({"stream": {"shuffle": "none"}}, "shuffle: is a key of a dataset; move it"),
    "no such user": ({"whole": {"allow_uids": ["nobdy-1"]}}, "no user is called nobdy-1"),
    "no such group": ({"whole": {"admin_uids": ["@grp-1"]}}, "no group is called grp-1"),
    "unknown key": ({"stream": {"sead": 1}}, "unknown key; did you mean seed?"),
}


@pytest.mark.parametrize("row", ROWS)
def test_bad_input_gets_one_line(files, row):
    about, *words = ROWS[row]
    code, _, err = check(files, **about)
    assert (code, err.count("\n")) == (1, 1) and err.startswith("tokend: "), (code, err)
    assert has(err, *words) and "format: flat" not in err, err


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")
def test_a_directory_that_one_may_not_write_to(files):
    """--check and the start give the same remedy."""
    os.chmod(files.path, 0o755)
    os.makedirs(files.file("own", "x"), exist_ok=True)
    os.chmod(files.file("own"), 0o777)
    train = {"seed": 1, "seq_len": 64, "datasets": [{"name": "web", "path": "web"}]}
    state = files.file("own", "state")
    config = files.config(streams={"train": train}, socket=files.file("t.sock"), state_dir=state)
    for arguments in (["--check"], []):
        done = subprocess.run(
            [TOKEND, "-c", config, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            user=65534,
        )
        assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
        assert has(done.stderr, "uid 65534 cannot create", "have its owner allow that")


def test_names_of_users_and_groups_are_accepted(files):
    code, _, err = check(files, whole={"allow_uids": ["root", "@root"], "admin_uids": ["daemon"]})
    assert (code, err) == (0, "")
