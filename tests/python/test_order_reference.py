"""The reference of the order matches the test vectors of order.md.

tests/system/test_order_check.py compares the daemon with the reference.
"""

from lib import order_reference as ref
import pytest

WEB_SHARDS = [("a.bin", 50001), ("b.bin", 30000), ("c.bin", 5)]
CODE_SHARDS = [("x.bin", 9000), ("y.bin", 12345)]
MATH_SHARDS = [("z.bin", 3000)]


def web(**how):
    return ref.Dataset("web", WEB_SHARDS, **how)


def code():
    return ref.Dataset("code", CODE_SHARDS, shuffle="block", block=8, group=3)


def math(shards=None):
    return ref.Dataset("math", shards or MATH_SHARDS, shuffle="none", slide=True)


def three(**how):
    how = how or {"weights": [0.7, 0.25, 0.05]}
    return ref.Order(42, 64, [web(), code(), math()], **how)


@pytest.fixture
def mixed():
    order = three()
    order.mix(2048, [0.5, 0.3, 0.2])
    return order


def test_hashing():
    assert ref.derive(0) == 0xE220A8397B1DCDAF
    assert ref.name_hash("web") == 0x5EA0E11948721EF1
    assert ref.derive(42, 2, ref.name_hash("web"), 0) == 0x3894EF7BC1893F4


@pytest.mark.parametrize(
    "n, head",
    [
        (10, [0, 7, 9, 8, 5, 3, 4, 1, 2, 6]),
        (65537, [40482, 6588, 63700, 63687, 26586]),
        (1000003, [126770, 273815, 323932, 242574, 507617]),
        (10**12, [452799140793, 480236514164, 581263406330, 351288628086]),
    ],
)
def test_permute(n, head):
    key = ref.derive(1)
    assert [ref.permute(n, key, x) for x in range(len(head))] == head
    assert [ref.unpermute(n, key, y) for y in head] == list(range(len(head)))


@pytest.mark.parametrize(
    "weights, units",
    [
        ((0.7, 0.25, 0.05), [3006477107, 1073741824, 214748365]),
        ((1, 1, 1), [1431655766, 1431655765, 1431655765]),
        ((1, 0, 3), [1073741824, 0, 3221225472]),
        ((1,), [4294967296]),
        ((1, 1e-9), [4294967292, 4]),
    ],
)
def test_units(weights, units):
    assert ref.units_of(weights) == units


def test_split():
    segment = ref.first_segment(ref.units_of([0.7, 0.25, 0.05]))
    expected = [
        (0, 0),
        (1, 0),
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 1),
        (0, 4),
        (0, 5),
        (0, 6),
        (2, 0),
        (1, 2),
        (0, 7),
    ]
    assert [segment.split(j) for j in range(12)] == expected
    assert [segment.join(d, k) for d, k in expected] == list(range(12))


def test_windows(mixed):
    assert [dataset.windows for dataset in mixed.datasets] == [1249, 332, 46]


def test_second_segment(mixed):
    segment = mixed.segments[1]
    assert segment.base == [1434, 512, 102]
    assert segment.phase == {1: 1356305375, 2: 429496320, 3: 429496727}


def test_appending_does_not_change_the_second_segment(mixed):
    order = three()
    order.add(ref.Dataset("late", [("l.bin", 10000)]))
    order.mix(2048, [0.5, 0.3, 0.2, 0])
    assert order.segments[1].base == [1434, 512, 102, 0]
    assert order.segments[1].phase == mixed.segments[1].phase


PLACES = [
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
]


@pytest.mark.parametrize("expected", PLACES, ids=[str(p[0]) for p in PLACES])
def test_places(mixed, expected):
    place = mixed.place(expected[0])
    assert place == ref.Place(*expected)
    names = [dataset.name for dataset in mixed.datasets]
    assert mixed.when(names.index(place.dataset), place.epoch, place.window) == place.position


def test_block():
    order = three()
    windows = {0: 316, 23: 91, 24: 89, 311: 14, 312: 15, 331: 56}
    dataset = order.datasets[1]
    assert {x: ref.window_of(dataset, 42, 0, x) for x in windows} == windows
    tail = [x for x in range(332) if ref.window_of(dataset, 42, 0, x) >= 328]
    assert tail == [167, 177, 180, 182]
    assert all(
        ref.unwindow(dataset, 42, 0, ref.window_of(dataset, 42, 0, x)) == x for x in range(332)
    )


def test_block_larger_than_the_dataset():
    order = ref.Order(42, 64, [web(shuffle="block", block=2000, group=1)], [1])
    dataset = order.datasets[0]
    assert [ref.window_of(dataset, 42, 0, x) for x in range(4)] == [104, 389, 575, 527]


def test_digests():
    assert ref.digest(WEB_SHARDS) == 0xB3960AFE8C9F9EC6
    assert ref.digest(CODE_SHARDS) == 0xE6B64183FA5596CF


def test_slide():
    order = ref.Order(42, 64, [math([("a", 5), ("b", 3000), ("c", 3030)])], [1])
    assert order.datasets[0].windows == 93
    assert [order.locate(0, 0, window) for window in (0, 46)] == [(1, 26), (2, 15)]
    assert [order.locate(0, 1, window) for window in (0, 46)] == [(1, 32), (2, 7)]


def test_one_dataset():
    order = ref.Order(42, 64, [web()], [2])
    assert [order.at(i)[2] for i in range(5)] == [745, 816, 1168, 411, 363]


def test_parts():
    first, second = web(part=(0, 0.9)), web(part=(0.9, 1))
    second.name = "held-out"
    orders = [ref.Order(42, 64, [first], [1]), ref.Order(42, 64, [second], epochs=1)]
    assert [(d.windows, [d.of_part[y] for y in (0, 1, 63, 64, -1)]) for d in (first, second)] == [
        (1088, [768, 769, 831, 960, 127]),
        (161, [1216, 1217, 606, 607, 575]),
    ]
    assert [order.at(i)[2] for order in orders for i in range(5)] == [
        *(860, 878, 471, 150, 1007),
        *(571, 566, 1222, 1240, 523),
    ]
    assert orders[1].end == 161
    middle = code()
    middle.part = (0.25, 0.75)
    mix = ref.Order(42, 64, [web(part=(0, 0.9)), middle], [0.7, 0.3])
    assert [mix.at(i) for i in (0, 1, 2, 1000, 1024, 5000, 10**12)] == [
        *((0, 0, 812), (1, 0, 93), (0, 0, 405), (0, 0, 801), (0, 0, 220), (0, 2, 1048)),
        (1, 1562500000, 127),
    ]
    assert mix.when(0, 2, 1048) == 5000
    assert mix.when(0, 0, second.of_part[0]) is None


def test_epochs():
    order = three(epochs=1)
    assert order.end == 1627
    places = [order.place(i) for i in (0, 1, 1626)]
    assert [(p.dataset, p.window) for p in places] == [("web", 588), ("code", 297), ("code", 26)]
    assert order.place(1627) is None
