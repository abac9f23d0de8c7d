"""tokctl verify finds and names every deviation of records from the order: a table of records that
are made as real ranks make them, of what is changed in them, and of the verdict.
"""

import json
import os
import types

import numpy
import pytest
from tokend import Loader
from verifying import BEGIN, MADE, PASS, Scene, begin, entries, proves, timeless

from lib import TOKCTL, has, run, wait_for
from lib.web import metric

pytestmark = pytest.mark.asan
SUM = 18062606576434556466  # of the checksums of the first MADE positions


@pytest.fixture(scope="module")
def scene(shared):
    scene = Scene(shared)
    scene.plan = scene.planned(MADE)
    for name in ("begin", "begin.cursor"):
        run(TOKCTL, "cursor", "new", "-c", scene.config, "train", "-o", scene.cursor(name))
    return scene


def test_made_records_are_those_of_real_ranks(scene):
    """But for the times: those of tokctl cat, and of a Loader that skips, rewinds and rescales."""
    tag = scene.phase("real", 2, 3, 50, 60)
    keys = {"socket": scene.daemon.socket, "framework": "numpy"}
    loader = Loader("train", 4, rank=0, world=1, record=scene.directory("loader"), **keys)
    for move in (
        lambda: None,
        lambda: loader._client.obey("skip", "samples 40\n"),
        lambda: loader.seek(position=0),
        lambda: loader.seek(rank=1, world=2),
    ):
        move()
        for _ in range(5):
            next(loader)
    loader.close()
    parts = scene.made("1x4@0+5 1x4@20>60+5=0 1x4@80>0+5=0 2x4@20+5:1=0")
    (name,) = os.listdir(scene.directory("loader"))
    for path, want in (
        (f"{tag}-1.record", scene.made("2x3@60+50")["0-1"]),
        (f"{scene.directory('loader')}/{name}", numpy.concatenate([parts["0-0"], parts["0-1"]])),
    ):
        assert numpy.array_equal(timeless(entries(path)), timeless(want)), path
    sums = sum(map(int, scene.checksums)) % 2**64
    assert sums == SUM


# ---- what is changed in records ----


def index(all_, position):
    return numpy.flatnonzero(all_[:, 0] == position)[-1]  # a beginning is before all rows


def drop(files, name, position):
    files[name] = numpy.delete(files[name], index(files[name], position), 0)


def double(files, name, position):
    at = index(files[name], position)
    files[name] = numpy.insert(files[name], at, files[name][at], 0)


def flip(files, name, *positions):
    for position in positions:
        files[name][index(files[name], position), 1] ^= numpy.uint64(1 << 40)


def late_clock(files, name="1-0"):
    files[name][1, 0] -= numpy.uint64(1000 * 10**9)


def flip_both(files):
    flip(files, "0-0", 126)
    flip(files, "0-1", 3)
    late_clock(files, "0-1")


# ---- the table ----


def case(lives, members, *says, edit=None, args="", first="", **more):
    """@members: of the JSON; @says: words in the verdict; @first: the first fault, its position and
    number of rows.
    """
    want = {key: int(value) for key, value in (member.split("=") for member in members.split())}
    return types.SimpleNamespace(**locals())


SOUND = "2x3@0+50"  # of two ranks: position 126 is rank 0's, 130 rank 1's
RESTARTED = "1x4@0+250 1x4@500+250"
SPARE = "3x4@0+40 3x4@240+20:1"
WORLDS = "4x2@0+50 4x2@400+50 2x3@400+40"
STOPPED = "3x2@0+20:0 3x2@0+18:1 3x2@0+19:2"
SKIP = "2x4@0+10 2x4@80>120+5=0"
odd = [position for position in range(300) if position // 3 % 2]  # rank 1's

CASES = {
    "exact": case(SOUND, "to=300 generations=1 void=0 records=2"),
    "a part of the range": case(SOUND, "from=100 to=223 outside=177", args="--from 100 --to 223"),
    # restarts and rescales
    "another world": case(WORLDS, "to=640 generations=2 void=400"),
    "one rank anew": case(SPARE, "to=480 generations=1 void=80", "again, but not rank 0: give"),
    "late ranks": case(
        "2x2@0+25:0 3x2@100+20:0 2x2@0+25:1 3x2@100+20:1 3x2@100+20:2",
        "to=220 generations=2 void=0",
    ),
    "killed before all ranks had begun": case(
        "4x2@0+15 3x2@120+4:0,1 2x2@120+3:1,0 3x2@120+20:2,0,1", "to=240 generations=4 void=28"
    ),
    "two from the beginning": case(
        "1x4@0+60 1x4@0+60", "to=240 void=240", "0 to 239 once; 240 rows are void, first those of",
        "0-0.record from 0 on, where rank 0 began again; if both", edit=(len,),
    ),
    "each rank anew": case("2x4@0+50:0 2x4@0+11:1 2x4@80+60:1 2x4@400+20:0", "to=560 void=4"),
    "a restart that was discarded": case(
        "1x4@0+50 1x4@100+5 1x4@200+10", "to=240 lost=80", "or a restart from position 100 was",
        first="lost 120 80",
    ),
    "the clock was set back": case(
        RESTARTED, "to=1000", "OK: every sample from 0 to 999 once; ", "0-0.record begins after",
        "1-0.record by its clock", "clock was set back", edit=(late_clock,),
    ),
    # skips
    "a skip": case(SKIP, "to=160 skipped=40", "0 to 159 once, but 40 skipped", skips=[[80, 120]]),
    "two skips that meet": case(
        "2x4@0+10 2x4@80>120+0=0 2x4@120>160+5=0", "from=100 to=200 skipped=60 outside=80",
        args="--from 100", skips=[[100, 160]],
    ),
    "a skip before the first row": case(
        "2x4@0+10 2x4@80>120+0 2x4@120+5", "to=160 skipped=40", skips=[[80, 120]]
    ),
    "a skip undone": case(f"{SKIP} 2x4@40+20", "to=200 void=80", skips=[]),
    # a beginning whose rows were lost in a crash of the machine
    "begin, die": case("2x4@0+10 2x4@0+0 2x4@80+10", "to=160 void=0"),
    # rows that are missing
    "a row": case(
        SOUND, "to=300 lost=1", "positions were never taken", ", 1 lost", edit=(drop, "0-1", 130),
        first="lost 130 1",
    ),
    "a rank": case(
        SOUND, "to=300 lost=150", "no record of rank 1 of 2 from position 0 on was given; give the "
        "records of all ranks and nodes: of the samples from 0 to 299, 0 repeated, 150 lost, 0 "
        "altered", edit=(dict.pop, "0-1"), args="--from 0 --to 300", first="lost 3 3",
    ),
    "the end of a step": case(
        STOPPED, "to=116 lost=2 whole_to=108", "rank 1 of 3 recorded nothing from position 110 on",
        ", 2 lost", "add --to 108",
    ),
    # rows that are too many, and other ones
    "a row twice": case(
        SOUND, "to=300 repeated=1", "0-0.record has rows that were taken before", "1 repeated",
        edit=(double, "0-0", 126), first="repeated 126 1",
    ),
    "another checksum": case(
        SOUND, "to=300 altered=1", "0-1.record has other tokens than shard a.bin of dataset code",
        "1 altered", edit=(flip, "0-1", 130), first="altered 130 1",
    ),
    "findings are in the order of files": case(
        SOUND, "to=300 altered=2", edit=(flip_both,), first="altered 126 1"
    ),
    "other checksums, cursors given": case(
        SOUND, "to=300 altered=150", "0-1.record has other tokens", edit=(flip, "0-1", *odd),
        args="--cursor begin --cursor begin.cursor",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "together"),
    [(name, how) for name in CASES for how in (False, True) if not (how and CASES[name].edit)],
)
def test_the_verdict_is_as_expected(scene, name, together):
    """Nothing but what is expected is found, and each fault is in its shard. Each process has its
    own record, or all lives of a rank are in one, as for a job that reuses its file names.
    """
    a = CASES[name]
    files = scene.made(a.lives, together)
    if a.edit:
        act, *where = a.edit
        act(files, *where)
    directory = scene.write(f"{name} {together}", files)
    options = [scene.cursor(w) if w.startswith("begin") else w for w in a.args.split()]
    want = dict(a.want)
    found = bool({"repeated", "lost", "altered"} & set(want))
    said = scene.verify(directory, *options, code=int(found))
    proves(said, want.pop("from", 0), want.pop("to"), **want)
    assert said["skips"] == a.more.get("skips", said["skips"])
    assert has(said["verdict"], *a.says)
    faults = [f"{f['fault']} {f['position']} {f['count']}" for f in said["faults"]]
    _, text, _ = run(TOKCTL, "verify", "-c", scene.config, "train", directory, *options)
    lines = text.decode().splitlines()
    assert lines[0] == said["verdict"] and list(said)[-1] == "verdict"
    assert faults[:1] == [a.first] or not a.first
    for fault in said["faults"]:
        assert scene.plan[fault["position"]].items() <= fault.items()
        words = "{fault}: position {position} to {last}  dataset {dataset}  shard {shard}  offset "
        words = words.format(**fault, last=fault["position"] + fault["count"] - 1)
        assert any(x.startswith(f"{words}{fault['offset']}  ") for x in lines), lines


def test_files_and_directories_of_several_nodes(scene):
    """A file that is named twice is read once. Peers of a rank are proved separately."""
    one, other = scene.directory("node 0"), scene.directory("node 1")
    scene.write("node 0", {"0-0": scene.made(SOUND)["0-0"]})
    scene.write("node 1", {"0-1": scene.made(SOUND)["0-1"]})
    with open(f"{one}/notes.txt", "w") as file:
        file.write("not a record, and not read")
    said = scene.verify(f"{one}/0-0.record", one, other, f"{one}/0-0.record")
    assert (said["samples"], said["records"]) == (300, 2)
    directory = scene.write("peers", scene.made("1x4@0+30 1x4@0+30%5"))
    _, out, _ = run(TOKCTL, "verify", "-c", scene.config, "train", directory, "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(a["peer"], a["samples"], a["repeated"]) for a in lines] == [(0, 120, 0), (5, 120, 0)]


def test_passes_of_peers_in_one_file(scene):
    """Peer 5 is in its first pass, of which it lost a part, though peer 0 was in its second."""
    files = scene.made("1x4@0+30 1x4@0+10=0 1x4@0+20=0%5")
    second = numpy.flatnonzero(files["0-0"][:, 0] == BEGIN)[1]
    files["0-0"][second, 1] |= numpy.uint64(PASS)
    directory = scene.write("passes", files)
    code, out, _ = run(TOKCTL, "verify", "-c", scene.config, "train", directory, "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    passes = [(a["peer"], a["pass"], a["samples"], a["lost"]) for a in lines]
    assert (code, passes) == (1, [(0, 0, 120, 0), (0, 1, 40, 0), (5, 0, 80, 40)])
    assert "no pass reached --from 200" in scene.refused(directory, "--from", 200)


# ---- mixes ----


def mixed(scene, name, to, weights):
    code, _, err = run(
        TOKCTL, "cursor", "mix", scene.cursor(name), *weights, "-o", scene.cursor(to)
    )
    assert code == 0, err


def test_a_record_has_all_that_a_proof_needs(scene):
    """Mixes changed by a loop and between processes, and undone by a restart: nothing but the
    records, renamed and in another directory, and the shards are looked at.
    """
    keys = {"socket": scene.daemon.socket, "framework": "numpy", "run": "mixes"}
    record, starts = scene.directory("mixes"), [0]
    for weights in ({"code": 1.0}, {"web": 1.0, "code": 1.0}, {"web": 1.0}):
        with Loader("train", 8, rank=0, world=1, record=record, start=starts[-1], **keys) as loader:
            for step in range(400):
                next(loader)
                if step == 100:
                    loader.set_mix(weights)
                if step == 300:
                    starts.append(loader.state_dict()["cursor"])
    moved = scene.directory("moved")
    for number, name in enumerate(os.listdir(record)):
        os.rename(f"{record}/{name}", f"{moved}/{number}.record")
    elsewhere = {"streams": scene.streams, "state_dir": scene.directory("no state")}
    config = scene.place.config("elsewhere.yaml", **elsewhere)
    code, out, err = run(TOKCTL, "verify", "-c", config, "train", moved, "--json")
    assert (code, err) == (0, ""), (out, err)
    said = json.loads(out)
    proves(said, 0, 8 * (2 * 301 + 400), void=8 * 2 * 99)
    assert wait_for(lambda: metric(scene.daemon.socket, "tokend_state_dir_jobs") == 0)
    last = scene.place.file("state/train/mixes/.run.cursor")
    for name in ("mixes", last):
        assert said == scene.verify(moved, "--run", name), "its last cursor has that past"
    assert scene.verify(moved, "--cursor", scene.cursor("begin"), code=1)["altered"] > 1000


def test_ranks_with_different_mixes_are_found(scene):
    """Each rank has the tokens of its own cursor, but together they are not a run."""
    scene.phase("split", 2, 4, 128, to="split")  # to 1024
    mixed(scene, "split", "split code", ["web=0", "code=1"])
    directory = scene.directory("split")
    for rank, start in enumerate(("split", "split code")):
        where = ["--rank", rank, "--world", 2, "--micro", 4, "--batches", 20, "--run", "split"]
        where += ["--cursor", scene.cursor(start), "--record", f"{directory}/{rank}.record"]
        code, _, err = run(TOKCTL, "cat", "train", *where, "--socket", scene.daemon.socket)
        assert code == 0, err
    said = scene.verify(directory, code=1)
    assert 0 < said["altered"] <= 80 and said["repeated"] == said["lost"] == 0
    assert has(said["verdict"], "0.record has other tokens than", "load the same checkpoint")


def test_records_of_several_runs_are_named(scene):
    files = scene.made("1x4@0+30 1x4@120+30")
    names = {"a.0-0.7-1": files["0-0"], "b-2.0-0.8-2": files["1-0"]}
    said = scene.verify(scene.write("runs", names))
    proves(said, 0, 240)
    assert has(said["verdict"], "OK: ", "; runs a, b-2 were taken for one job")


# ---- invalid input ----


def with_word(at, word, whole):
    """Word @at of the record, counted from its end if negative."""
    words = numpy.frombuffer(whole, "<u8").copy()
    words[at] = word
    return words.tobytes()


REFUSED = {
    "too short": (lambda whole: whole[:63], "nothing was recorded"),
    "no record": (lambda whole: b"streams: {}, and more text", "not a record"),
    "a long cursor": (lambda whole: with_word(9, 1 << 40, whole), "damaged"),
    "a changed cursor": (lambda whole: with_word(20, 0, whole), "damaged: its cursor"),
    "an impossible rank": (lambda whole: with_word(5, 3, whole), "damaged"),
    "a huge position": (lambda whole: with_word(-2, 1 << 62, whole), "give --from and --to"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_records_are_refused(scene, name):
    edit, word = REFUSED[name]
    whole = scene.made("1x4@0+10")["0-0"].tobytes()
    path = scene.write(f"refused {name}", {"a": edit(whole)}) + "/a.record"
    message = scene.refused(path)
    assert has(message, path, word) or has(message, word, "--"), message


def test_records_of_another_stream_are_refused(scene):
    run(TOKCTL, "cursor", "new", "-c", scene.config, "other", "-o", scene.cursor("other"))
    with open(scene.cursor("other"), "rb") as file:
        record = begin(1, 0, 0, 0, 1, 4, 0, file.read(), 1)
    path = scene.write("another stream", {"a": record}) + "/a.record"
    assert has(scene.refused(path), path, "another stream than train", "stream", "other")


def test_torn_ends_are_ignored(scene):
    whole = scene.made("1x4@0+10")["0-0"].tobytes()
    proves(scene.verify(scene.write("torn entry", {"a": whole[:-5]})), 0, 39)
    proves(scene.verify(scene.write("torn beginning", {"a": whole[:48] + whole})), 0, 40)


def test_arguments_are_refused(scene):
    sound, empty = scene.write("sound", scene.made(SOUND)), scene.directory("empty")
    for code, arguments, words in (
        (1, [empty], [empty, "no *.record"]),
        (1, ["/dev/zero"], ["not a regular file"]),
        (1, [sound, "--from", 20, "--to", 20], ["is empty; give --to above --from"]),
    ):
        assert has(scene.refused(*arguments, code=code), *words)
