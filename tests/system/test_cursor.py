"""What `tokctl cursor` prints, and the faults that it names. test_order.py compares edits with a
reference.
"""

import json
import os

import pytest

from lib import TOKCTL, TOKEND, Daemon, has, run

PLAIN = {
    "seed": 7,
    "seq_len": 32,
    "datasets": [
        {"name": "web", "path": "web.bin", "weight": 3},
        {"name": "code", "path": "code.bin", "max_epochs": 2},
    ],
    "schedule": [
        {"at": 4096, "weights": {"web": 0.5, "code": 0.5}},
        {"from": 8192, "to": 40960, "steps": 32, "weights": {"web": 1, "code": 4}},
    ],
}

FAULTS = [
    # arguments after the file, exit status, words of the line
    (["mix", "wab=1"], 1, ["no dataset wab"]),
    (["mix", "web=nan"], 2, ["web=nan", "finite"]),
    (["mix", "web=1", "web=2"], 1, ["web", "two weights"]),
    (["mix", "web=1", "code=1e-12"], 1, ["code", "never served"]),
    (["mix", "web=1", "--at", "7000"], 1, ["7000 is not a multiple of 1024; use 7168"]),
    (["mix", "web=1", "--at", "4096"], 1, ["4096 is too early", "use 6144"]),
    (["mix", "code=1"], 1, ["no dataset is left"]),
    (["remove", "code", "--at", "102400"], 1, ["code", "0 already from position 102400 on"]),
    (["remove", "web"], 1, ["web", "no other dataset"]),
    (["remove", "web", "code"], 2, ["unexpected argument 'code'"]),
    (["skip", "--samples", "18446744073709551615"], 1, ["samples", "past"]),
    (["skip"], 2, ["cursor skip: needs --samples"]),
    (["skip", "--samples", "1", "--at", "1"], 2, ["unknown option --at"]),
    (["seek", "--to", "4095"], 1, ["4095 is before 4096"]),
    (["schedule", "-c", "nowhere.yaml"], 1, ["nowhere.yaml"]),
]


@pytest.fixture(scope="module")
def cursor(shared):
    """The cursor of a stream with a schedule, at 6000; `config` is its config."""
    shared.shard("web.bin", 200_000)
    shared.shard("code.bin", 320_100)
    made = shared.file("cursor")
    config = shared.config(streams={"train": PLAIN})
    tokctl("new", "-c", config, "train", "-o", shared.file("new"))
    tokctl("seek", shared.file("new"), "--to", 6000, "-o", made)
    return made


def tokctl(*arguments, code=0):
    status, out, err = run(TOKCTL, "cursor", *arguments)
    assert status == code, err
    return out.decode(), err


@pytest.mark.parametrize("arguments, status, words", FAULTS, ids=[str(f[0]) for f in FAULTS])
def test_a_fault_is_one_line_and_writes_nothing(cursor, arguments, status, words):
    verb, *arguments = arguments
    out, err = tokctl(verb, cursor, *arguments, "-o", f"{cursor}-edited", code=status)
    said = [line for line in err.splitlines() if "is not named" not in line]
    assert not out and len(said) == 1 and has(err, *words), err
    assert not os.path.exists(f"{cursor}-edited")


def test_show_check_and_log_say_what_a_schedule_makes(shared, cursor):
    new, config = shared.file("new"), shared.file("tokend.yaml")
    text, _ = tokctl("show", new)
    shown = json.loads(tokctl("show", new, "--json")[0])
    code = shown["datasets"][1]
    rows = text.splitlines()
    table = rows[rows.index("") + 6 :]
    starts = [segment["start"] for segment in shown["segments"]]
    assert [int(row.split()[0]) for row in table] == starts
    (named,) = [row.split() for row in rows if row.startswith("code ")]
    assert named[3:] == ["2", str(code["ends_at"]), str(code["unserved"])]
    end = (
        f"code: max_epochs 2: ends at position {code['ends_at']}; {code['unserved']} of its 2 × "
        f"{code['windows']} windows are never served"
    )
    changes = f"schedule: 2 steps; {len(starts) - 1} changes of the mix in all"
    status, out, err = run(TOKEND, "-c", config, "--check")
    assert status == 0 and not err and f"  {end}\n  {changes}\n" in out.decode(), (out, err)
    daemon = Daemon(shared, config)
    for line in (end, changes):
        assert daemon.log().count(f"tokend: stream train: {line}\n") == 1, daemon.log()
    assert daemon.stop() == 0


def test_a_mix_says_what_it_changes(shared, cursor):
    to = shared.file("mixed")
    out, err = tokctl("mix", cursor, "web=1", "-o", to)
    assert has(out, "mix from 6144: absent | web 100.000000 %\n", " | absent\n")
    assert err.splitlines() == [
        "tokctl: dataset code is not named and gets weight 0",
        "tokctl: the new mix begins at position 6144",
    ]
    assert tokctl("diff", to, to)[0] == ""
