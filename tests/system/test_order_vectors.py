"""The vectors of the order's specification, by tokctl: what is served at a position and when, parts
of paths, and the units of a mix. The functions below them are those of the reference with which
test_order.py compares tokctl.
"""

import json

import pytest

from lib import TOKCTL, Place, run
from lib import order_reference as ref

SHARDS = {
    "web": {"a.bin": 50001, "b.bin": 30000, "c.bin": 5},
    "code": {"x.bin": 9000, "y.bin": 12345},
    "math": {"z.bin": 3000},
    "slid": {"a.bin": 5, "b.bin": 3000, "c.bin": 3030},
}


def web(**keys):
    return {"name": "web", "path": "web", **keys}


def code(**keys):
    return {"name": "code", "path": "code", "shuffle": "block", "block": 8, "group": 3, **keys}


def math(path="math", **keys):
    return {"name": "math", "path": path, "shuffle": "none", "slide": True, **keys}


FIRST, HELD = {"part": [0, 0.9]}, {"part": [0.9, 1]}
RAMP = {"from": 0, "to": 4096, "steps": 3, "weights": {"math": 1}}
THREE = [web(weight=0.7), code(weight=0.25), math(weight=0.05)]
STREAMS = {
    "mixed": {
        "schedule": [{"at": 2048, "weights": {"web": 0.5, "code": 0.3, "math": 0.2}}],
        "datasets": THREE,
    },
    "ramp": {"schedule": [RAMP], "datasets": THREE},
    "epochs": {"epochs": 1, "datasets": [web(), code(), math()]},
    "samples": {"samples": 1500, "datasets": THREE},
    "web": {"datasets": [web(weight=2)]},
    "code": {"datasets": [code()]},
    "wide": {"datasets": [web(shuffle="block", block=2000, group=1)]},  # a block larger than it
    "slid": {"datasets": [math("slid")]},
    "first": {"datasets": [web(**FIRST)]},
    "first in order": {"datasets": [web(**FIRST, shuffle="none")]},
    "held": {"epochs": 1, "datasets": [{**web(**HELD), "name": "held-out"}]},
    "held in order": {"datasets": [web(**HELD, shuffle="none")]},
    "parts": {"datasets": [web(weight=0.7, **FIRST), code(weight=0.3, part=[0.25, 0.75])]},
    "thirds": {"datasets": [web(), code(), math()]},
    "quarters": {"datasets": [web(weight=1), code(weight=0), math(weight=3)]},
    "tiny": {"datasets": [web(weight=1), code(weight=1e-9)]},
}


@pytest.fixture(scope="module")
def ctl():
    """tokctl: the JSON that it prints."""
    with Place() as place:
        for name, shards in SHARDS.items():
            for shard, tokens in shards.items():
                place.shard(f"{name}/{shard}", tokens)
        streams = {name: {"seed": 42, "seq_len": 64, **keys} for name, keys in STREAMS.items()}
        config = place.config(streams=streams)

        def tokctl(command, *arguments):
            code, out, err = run(TOKCTL, *command.split(), "-c", config, *arguments)
            assert code == 0, err
            return [json.loads(line) for line in out.splitlines()]

        tokctl.file = place.file("cursor")
        yield tokctl


def at(ctl, stream, position):
    """The row that the stream serves there. `when` must find it there, too."""
    (row,) = ctl(f"plan --json --from {position} --count 1", stream)
    place = [f"--{key}={row[key]}" for key in ("dataset", "shard", "offset", "epoch")]
    found = {at["window"]: at["position"] for at in ctl("when --json", stream, *place)}
    assert found[row["window"]] == row["position"] == position
    return row


KEYS = ("position", "dataset", "epoch", "window", "shard", "offset")


@pytest.mark.parametrize(
    "row",
    [
        (0, "code", 0, 52, "x.bin", 3328),
        (1, "web", 0, 47, "a.bin", 3008),
        (2, "code", 0, 266, "y.bin", 8064),
        (190, "math", 1, 0, "z.bin", 37),
        (847, "math", 0, 0, "z.bin", 3),
        (1023, "web", 0, 720, "a.bin", 46080),
        (1024, "web", 0, 512, "a.bin", 32768),
        (2047, "code", 0, 4, "x.bin", 256),
        (2048, "code", 1, 277, "y.bin", 8768),
        (5000, "web", 2, 1106, "b.bin", 20800),
        (123456789, "code", 111557, 322, "y.bin", 11648),
        (10**13, "code", 9036144579, 283, "y.bin", 9152),
        (2**62, "web", 1846151328433702, 25, "a.bin", 1600),
        (2**64 - 1024, "code", 16668744647505598, 89, "x.bin", 5696),
    ],
)
def test_places(ctl, row):
    assert at(ctl, "mixed", row[0]) == dict(zip(KEYS, row, strict=True))


@pytest.mark.parametrize(
    "stream, windows",
    [  # the window at each position
        ("web", {0: 745, 1: 816, 2: 1168, 3: 411, 4: 363}),
        ("code", {0: 316, 23: 91, 24: 89, 311: 14, 312: 15, 331: 56}),
        ("wide", {0: 104, 1: 389, 2: 575, 3: 527}),
        ("epochs", {0: 588, 1: 297, 1626: 26}),
        ("first", {0: 860, 1: 878, 2: 471, 3: 150, 4: 1007}),
        ("first in order", {0: 768, 1: 769, 63: 831, 64: 960, 1087: 127}),
        ("held", {0: 571, 1: 566, 2: 1222, 3: 1240, 4: 523}),
        ("held in order", {0: 1216, 1: 1217, 63: 606, 64: 607, 160: 575}),
        ("parts", {0: 812, 1: 93, 2: 405, 1000: 801, 1024: 220, 5000: 1048, 10**12: 127}),
    ],
)
def test_windows(ctl, stream, windows):
    assert {position: at(ctl, stream, position)["window"] for position in windows} == windows


def test_the_incomplete_block_and_slides(ctl):
    rows = ctl("plan --json --from 0 --count 332", "code")
    assert [row["position"] for row in rows if row["window"] >= 328] == [167, 177, 180, 182]
    for epoch, offsets in {0: [26, 15], 1: [32, 7]}.items():  # windows move in each epoch
        rows = [at(ctl, "slid", 93 * epoch + x) for x in (0, 46)]
        assert [row["shard"] for row in rows] == ["b.bin", "c.bin"]
        assert [row["offset"] for row in rows] == offsets


@pytest.mark.parametrize("stream, end", [("epochs", 1627), ("held", 161), ("samples", 1500)])
def test_a_finite_stream_ends(ctl, stream, end):
    rows = ctl(f"plan --json --from {end - 5} --count 9", stream)
    assert [row["position"] for row in rows] == list(range(end - 5, end))
    if stream == "samples":  # the order is that of an endless stream
        assert rows == ctl(f"plan --json --from {end - 5} --count 5", "mixed")


@pytest.mark.parametrize(
    "stream, units",
    [  # of each segment, by its start
        ("mixed", {
            0: [3006477107, 1073741824, 214748365], 2048: [2147483648, 1288490189, 858993459]}),
        ("ramp", {
            0: [3006477107, 1073741824, 214748365], 1024: [2004318071, 715827883, 1574821342],
            2048: [1002159036, 357913941, 2934894319], 4096: [0, 0, 4294967296]}),
        ("thirds", {0: [1431655766, 1431655765, 1431655765]}),
        ("quarters", {0: [1073741824, 0, 3221225472]}),
        ("tiny", {0: [4294967292, 4]}),
        ("first", {0: [4294967296]}),
    ],
)  # fmt: skip
def test_units_and_digests(ctl, stream, units):
    ctl(f"cursor new -o {ctl.file}", stream)
    code, out, err = run(TOKCTL, "cursor", "show", ctl.file, "--json")
    assert code == 0, err
    shown = json.loads(out)
    assert {s["start"]: s["units"] for s in shown["segments"]} == units
    if stream == "mixed":
        assert shown["segments"][1]["base"] == [1434, 512, 102]
    known = {("web", 1249): 0xB3960AFE8C9F9EC6, ("code", 332): 0xE6B64183FA5596CF}
    known["web", 1088] = 0x9BD4F3240491E0E  # of a part
    for d in shown["datasets"]:
        assert d["digest"] == known.get((d["name"], d["windows"]), d["digest"])


def test_the_reference_matches_the_vectors():
    assert ref.derive(0) == 0xE220A8397B1DCDAF
    assert ref.name_hash("web") == 0x5EA0E11948721EF1
    assert ref.derive(42, 2, ref.name_hash("web"), 0) == 0x3894EF7BC1893F4
    for n, head in {
        10: [0, 7, 9, 8, 5, 3, 4, 1, 2, 6],
        65537: [40482, 6588, 63700, 63687, 26586],
        1000003: [126770, 273815, 323932, 242574, 507617],
        10**12: [452799140793, 480236514164, 581263406330, 351288628086],
    }.items():
        assert [ref.permute(n, ref.derive(1), x) for x in range(len(head))] == head
    first = ref.first_segment(ref.units_of([0.7, 0.25, 0.05]))
    datasets, ordinals = zip(*(first.split(j) for j in range(12)))
    assert datasets == (0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0)
    assert ordinals == (0, 0, 1, 2, 3, 1, 4, 5, 6, 0, 2, 7)
    second = ref.next_segment(first, 2048, ref.units_of([0.5, 0.3, 0.2]))
    assert second.base == [1434, 512, 102]
    assert second.phase == {1: 1356305375, 2: 429496320, 3: 429496727}


def test_a_dataset_of_a_million_million_windows(place):
    """Its one shard is a hole."""
    with open(place.file("web/0.bin"), "wb") as file:
        file.truncate(2 * 10**12 + 2)
    stream = {"seed": 1, "seq_len": 1, "datasets": [{"name": "web", "path": "web"}]}
    config = place.config(streams={"train": stream})
    order = ref.Order(1, 1, [ref.Dataset("web", [("0.bin", 10**12 + 1)])], [1])
    for start in (0, 10**12 - 5, 7 * 10**14):
        where = ["--from", start, "--count", 10, "--json"]
        code, out, err = run(TOKCTL, "plan", "-c", config, "train", *where)
        assert code == 0, err
        rows = [json.loads(line) for line in out.splitlines()]
        assert rows == [vars(order.place(at)) for at in range(start, start + 10)]


def test_a_long_table_has_the_values_of_its_json(place):
    """Its first rows set the widths of the columns; from then on rows are printed as they come."""
    place.shard("web/0.bin", 40_000)
    stream = {"seed": 1, "seq_len": 1, "datasets": [{"name": "web", "path": "web"}]}
    command = [TOKCTL, "plan", "-c", place.config(streams={"train": stream}), "train"]
    command += ["--from", 9000, "--count", 5000]  # positions become longer
    head, *lines = run(*command)[1].decode().splitlines()
    rows = [dict(zip(head.split(), line.split(), strict=True)) for line in lines]
    expected = [json.loads(line) for line in run(*command, "--json")[1].splitlines()]
    assert rows == [{key: str(value) for key, value in row.items()} for row in expected]
