"""Cursors as values: what `tokctl cursor` and tokend.Cursor print, make and refuse. test_order.py
compares edits with a reference.
"""

import ctypes as c
import json
import os
import pathlib
import pickle

import pytest
import tokend
from lib import REPO, TOKCTL, TOKEND, has, run

PLAIN = {
    "seed": 7,
    "seq_len": 32,
    "datasets": [
        {"name": "web", "path": "web.bin", "weight": 3},
        {"name": "code", "path": "code.bin", "weight": 1, "max_epochs": 2},
    ],
    "schedule": [
        {"at": 4096, "weights": {"web": 0.5, "code": 0.5}},
        {"from": 8192, "to": 40960, "steps": 32, "weights": {"web": 1, "code": 4}},
    ],
}

FAULTS = [
    # arguments after the file, exit status, words of the line
    (["mix", "wab=1"], 1, ["dataset wab", "is not in the cursor"]),
    (["mix", "web=nan"], 2, ["web=nan", "finite"]),
    (["mix", "web=1", "web=2"], 1, ["web", "one weight"]),
    (["mix", "web=1", "code=1e-12"], 1, ["code", "never served"]),
    (["mix", "web=1", "--at", "7000"], 1, ["7000 is not a multiple of 1024; use 7168"]),
    (["mix", "web=1", "--at", "4096"], 1, ["4096 is too early", "use 6144"]),
    (["mix", "code=1"], 1, ["no dataset is left"]),
    (["remove", "code", "--at", "102400"], 1, ["code", "0 already from position 102400 on"]),
    (["remove", "web"], 1, ["web", "no other dataset"]),
    (["skip", "--samples", "18446744073709551615"], 1, ["samples", "past"]),
    (["seek", "--to", "-1"], 2, ["-1"]),
    (["schedule", "-c", "nowhere.yaml"], 1, ["nowhere.yaml"]),
]


@pytest.fixture(scope="module")
def cursor(shared):
    """The cursor of a stream with a schedule, at 6000."""
    shared.shard("web.bin", 200_000)
    shared.shard("code.bin", 320_100)
    made = shared.file("cursor")
    tokctl("new", "-c", shared.config(streams={"train": PLAIN}), "train", "-o", shared.file("new"))
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
    assert not out and err.count("\n") == 1 and has(err, *words), err
    assert not os.path.exists(f"{cursor}-edited")


def test_show_and_check_say_what_a_schedule_makes(shared, cursor):
    new = shared.file("new")
    os.mkfifo(pipe := shared.file("pipe"))
    assert has(tokctl("show", pipe, code=1)[1], "0 bytes are not a cursor")  # it does not wait
    assert "state_dict()" in tokctl("seek", shared.file("web.bin"), "--to=1", "-o", new, code=1)[1]
    shown = json.loads(tokctl("show", new, "--json")[0])
    code = shown["datasets"][1]
    rows = tokctl("show", new)[0].splitlines()
    table = [row.split() for row in rows if row.startswith(("current", "pending"))]
    starts = [segment["start"] for segment in shown["segments"]]
    assert [int(start) for _, start, *_ in table] == starts
    assert table[0][2:] == ["web", "75.000000", "%,", "code", "25.000000", "%"]
    (named,) = [row.split() for row in rows if row.startswith("code ")]
    assert named[3:6] == ["2", str(code["ends_at"]), str(code["unserved"])]
    status, out, err = run(TOKEND, "-c", shared.file("tokend.yaml"), "--check")
    end = f"ends at position {code['ends_at']}; {code['unserved']} of its 2 × {code['windows']} win"
    changes = f"never served\n  schedule: 2 steps; {len(starts) - 1} changes of the mix in all\n"
    assert status == 0 and has(out.decode(), f"  code: max_epochs 2: {end}", changes), (out, err)


def test_a_mix_says_what_it_changes(shared, cursor):
    to = shared.file("mixed")
    out, err = tokctl("mix", cursor, "web=1", "-o", to)
    assert err == "tokctl: dataset code is not named and gets weight 0\n"
    assert has(out, "mix from 6144: absent | web 100.000000 %\n", " | absent\n")
    assert tokctl("diff", to, to)[0] == ""


@pytest.mark.parametrize("steps, fits", [(1300, True), (6000, False), (20_000, False)])
def test_a_cursor_has_room_for_thousands_of_mixes(place, steps, fits):
    place.shard("web.bin", 200_000)
    names = ['"' * 60 + name for name in "abcdefghijkl"]  # the longest JSON
    rows = [{"name": name, "path": "web.bin", "weight": 1} for name in names]
    ramp = {"from": 2**50, "to": 2**62, "steps": steps, "weights": {names[0]: 1}}
    stream = {"seed": 2**64 - 1, "seq_len": 32, "datasets": rows, "schedule": [ramp]}
    config, to = place.config(streams={"train": stream}), place.file("long")
    _, err = tokctl("new", "-c", config, "train", "-o", to, code=0 if fits else 1)
    if fits:
        shown = json.loads(tokctl("show", to, "--json")[0])
        assert len(shown["segments"]) == 1 + steps
    else:
        assert has(err, "schedule: a cursor of 98304 bytes", "fewer steps") and err.count("\n") == 1


# The format of a cursor: equal cursors have equal bytes.
BYTES = bytes.fromhex(
    "746b646304000000c66faf49cd8b51368da56f7264657201a673747265616da5747261696ea4736565642aa7"
    "7365715f6c656e40a5657874726101a673747269646540a665706f63687300a773616d706c657300a8646174"
    "6173657473939aa3776562cd04e1cfb3960afe8c9f9ec6014040000000009aa4636f6465cd014ccfe6b64183"
    "fa5596cf020803000000009aa46d6174682e0700404001000000a46e657874cd0bb8a46261736593000000a5"
    "70686173659400ce79999999ce80000000ce06666666a56d69786573940093ceb3333333ce40000000ce0ccc"
    "cccdcd100093ce80000000ce4ccccccdce33333333"
)


def test_bytes_of_a_cursor():
    cursor = tokend.Cursor(BYTES)
    shown = cursor.to_dict()
    assert (cursor.position, shown["stream"], shown["seed"]) == (3000, "train", 42)
    assert [d["name"] for d in shown["datasets"]] == ["web", "code", "math"]
    first, second = shown["segments"]
    assert (first["start"], first["base"], second["start"]) == (0, [0, 0, 0], 4096)
    assert first["units"] == [3006477107, 1073741824, 214748365] and not shown["past"]
    assert bytes(cursor.mix({"web": 0.5, "code": 0.3, "math": 0.2}, at=4096)) == BYTES
    later = cursor.seek(4096).to_dict()
    (segment,) = later["segments"]
    assert segment["base"] == [2867, 1024, 205] and later["past"] == [first]
    assert bytes(cursor.seek(4096).rewind(3000)) == BYTES


def test_a_cursor_in_python_is_a_value():
    cursor = tokend.Cursor(BYTES)
    mixes = "web 70 %, code 25 %, math 5 %; from 4096 on web 50 %, code 30 %, math 20 %"
    assert str(cursor) == f"<tokend.Cursor train at 3000, seed 42: {mixes}>" and cursor.end is None
    assert [segment["pending"] for segment in cursor.segments] == [False, True]
    assert cursor.segments[0]["weights"] == pytest.approx({"web": 0.7, "code": 0.25, "math": 0.05})
    same, other = pickle.loads(pickle.dumps(cursor)), cursor.seek(3009)
    assert cursor == tokend.Cursor(memoryview(BYTES)) == same != other
    assert len({cursor, same, other}) == 2 and cursor != BYTES
    assert cursor.position == 3000  # edits return new cursors
    with pytest.raises(AttributeError):
        cursor.position = 3


EDITS = {  # as tokctl cursor makes them, and as the package does
    "seek --to 6000": lambda cursor: cursor.seek(6000),
    "seek --to 4100": lambda cursor: cursor.rewind(4100),
    "skip --samples 10": lambda cursor: cursor.skip(10),
    "mix web=1 code=3": lambda cursor: cursor.mix({"web": 1, "code": 3}),
    "mix --at 8192 code=1": lambda cursor: cursor.mix({"code": 1}, at=8192),
}


@pytest.mark.parametrize("command", EDITS)
def test_edits_in_python_are_those_of_tokctl(place, command):
    before, here, there = (tokend.Cursor(BYTES).seek(5000), place.file("here"), place.file("there"))
    after, (verb, *arguments) = EDITS[command](before), command.split()
    pathlib.Path(here).write_bytes(bytes(before))
    tokctl(verb, here, *arguments, "-o", there)
    assert bytes(after) == pathlib.Path(there).read_bytes() != bytes(before)
    assert json.loads(tokctl("show", there, "--json")[0]) == after.to_dict()


ARGUMENT, BEYOND = tokend.ArgumentError, "must be 0 to 18446744073709551615"


@pytest.mark.parametrize(
    "edit, error, text",
    [
        (lambda cursor: cursor.mix({"wiki": 1}), ARGUMENT, "wiki"),
        (lambda cursor: cursor.mix({"web": 1}, at=4000), ARGUMENT, "1024"),
        (lambda cursor: cursor.rewind(3001), ARGUMENT, "is ahead of the cursor"),
        (lambda cursor: cursor.skip(1.5), TypeError, None),
        (lambda cursor: cursor.mix({"web": None}), TypeError, "mix: weight of dataset web"),
        (lambda cursor: cursor.skip(2**64), ValueError, BEYOND),
        (lambda cursor: tokend.Cursor(BYTES[:-1]), ARGUMENT, "cursor"),
        (lambda cursor: tokend.Cursor("train"), TypeError, None),
        # No block is left after the last positions.
        (lambda cursor: cursor.seek(2**64 - 1023).mix({"web": 1}), ARGUMENT, None),
    ],
)
def test_impossible_edits_in_python_are_refused(edit, error, text):
    with pytest.raises(error, match=text):
        edit(tokend.Cursor(BYTES))


class Edit(c.Structure):
    _fields_ = [("kind", c.c_int), ("cursor", c.c_void_p), ("cursor_bytes", c.c_size_t)]
    _fields_ += [("number", c.c_uint64), ("name", c.c_void_p), ("weight", c.c_void_p)]
    _fields_ += [("names", c.c_uint32), ("from_", c.c_void_p), ("from_bytes", c.c_size_t)]
    _fields_ += [("to", c.c_void_p), ("capacity", c.c_size_t)]
    _fields_ += [("why", c.c_char_p), ("why_bytes", c.c_size_t)]


def test_a_small_buffer_is_an_error_and_unchanged():
    run_edit = c.CDLL(os.path.join(REPO, "build/lib/libtokend.so.1")).tokend_cursor_edit
    run_edit.restype = c.c_int64
    n, why = len(BYTES), c.create_string_buffer(500)
    data = c.create_string_buffer(BYTES, n)
    where = {"cursor": c.addressof(data), "cursor_bytes": n, "to": c.addressof(data)}
    edit = Edit(number=3001, why=c.addressof(why), why_bytes=500, **where)
    for edit.capacity in range(n):
        assert run_edit(c.byref(edit)) == -6 and b"capacity" in why.value
        assert data.raw == BYTES
    edit.capacity = n
    assert run_edit(c.byref(edit)) == n and data.raw != BYTES  # in place
