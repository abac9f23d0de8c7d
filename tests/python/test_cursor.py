"""tokend.Cursor: its properties, its edits, and that it is a value."""

import os
import pickle

import pytest
from lib import TOKCTL, run

import tokend


@pytest.fixture
def loader(daemon):
    with tokend.Loader("train", 4, socket=daemon.socket) as loader:
        yield loader


@pytest.fixture
def cursor(loader):
    return loader.cursor


def test_it_is_a_value_with_properties(loader):
    next(loader), next(loader)
    cursor = loader.cursor
    assert bytes(cursor) == loader.state_dict()["cursor"]
    about = (cursor.position, cursor.stream, cursor.seed, cursor.datasets, cursor.end)
    assert about == (8, "train", 42, ["web", "code"], None)
    (segment,) = cursor.segments
    assert (segment["start"], segment["pending"]) == (0, False)
    assert segment["weights"] == pytest.approx({"web": 0.7, "code": 0.3})
    assert str(cursor) == "train at 8, seed 42: web 70 %, code 30 %"
    assert str(cursor.mix({"web": 1}, at=4096)).endswith("; from 4096 on web 100 %")
    same, other = pickle.loads(pickle.dumps(cursor)), cursor.seek(9)
    assert cursor == tokend.Cursor(memoryview(bytes(cursor))) == same != other
    assert len({cursor, same, other}) == 2 and cursor != bytes(cursor)
    assert cursor.position == 8  # edits return new cursors
    with pytest.raises(AttributeError):
        cursor.position = 3


def test_a_finite_stream_has_an_end(daemon):
    with tokend.Loader("finite", 4, socket=daemon.socket) as loader:
        assert loader.cursor.end == 468
        assert str(loader.cursor) == "finite at 0 of 468, seed 7: code 100 %"


def test_other_bytes_are_refused(cursor):
    broken = bytearray(bytes(cursor))
    broken[-1] ^= 1
    for wrong in (b"", bytes(broken)):
        with pytest.raises(tokend.ArgumentError, match="cursor"):
            tokend.Cursor(wrong)
    with pytest.raises(TypeError):
        tokend.Cursor("train")


def test_save_replaces_a_file_and_load_reads_it(cursor, tmp_path):
    path = tmp_path / "there.cursor"
    path.write_text("what was there before")
    cursor.save(path)
    assert tokend.Cursor.load(path) == cursor
    assert path.read_bytes() == bytes(cursor)
    cursor.save(str(path))
    assert os.listdir(tmp_path) == ["there.cursor"]
    with pytest.raises(FileNotFoundError):
        cursor.save(tmp_path / "nowhere" / "there.cursor")


EDITS = {  # as tokctl cursor makes them, and as the package does
    "seek --to 4096": lambda c: c.seek(4096),
    "seek --to 100": lambda c: c.seek(4096).rewind(100),
    "skip --samples 10": lambda c: c.skip(10),
    "mix web=1 code=3": lambda c: c.mix({"web": 1, "code": 3}),
    "mix --at 8192 code=1": lambda c: c.mix({"code": 1}, at=8192),
    "remove code": lambda c: c.remove("code"),
}


@pytest.mark.parametrize("command", EDITS)
def test_edits_are_those_of_tokctl(daemon, cursor, tmp_path, command):
    here, there = tmp_path / "here", tmp_path / "there"
    verb, *arguments = command.split()
    before, after = cursor.seek(50), EDITS[command](cursor.seek(50))
    before.save(here)
    code, out, err = run(TOKCTL, "cursor", verb, here, *arguments, "-o", there)
    assert (code, after) == (0, tokend.Cursor.load(there)), err
    assert before.diff(after) == before.diff(bytes(after)) == out.decode().splitlines() != []
    assert daemon.tokctl("cursor", "show", "--json", there) == [after.to_dict()]
    assert after.diff(after) == []


def test_impossible_edits_are_refused(cursor):
    for edit, error, text in [
        (lambda: cursor.mix({"wiki": 1}), tokend.ArgumentError, "wiki"),
        (lambda: cursor.mix({"web": 1}, at=1000), tokend.ArgumentError, "1024"),
        (lambda: cursor.rewind(1), tokend.ArgumentError, "ahead|skip|behind"),
        (lambda: cursor.remove("wiki"), tokend.ArgumentError, "wiki"),
        (lambda: cursor.add("web", cursor), tokend.ArgumentError, "web"),
        (lambda: cursor.skip(1.5), TypeError, None),
        (lambda: cursor.mix({"web": None}), TypeError, "mix: weight of dataset web"),
        (lambda: cursor.seek(-1), ValueError, "must be 0 to 18446744073709551615"),
        (lambda: cursor.skip(2**64), ValueError, "must be 0 to 18446744073709551615"),
    ]:
        with pytest.raises(error, match=text):
            edit()
