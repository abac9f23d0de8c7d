"""Each fault of a store, injected by a proxy between daemon and radosgw. Faults that can heal are
waited for: the bytes are exact, and no trainer sees an error. Others stop the stream by name.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
from jobs import BUCKET, Reader, distinct, windows

from lib import Refused, has, status, wait_until
from lib.fault_proxy import Fault
from lib.injected import injected
from lib.store_faults import PIECE, WINDOW

BATCHES = 150


def answers(*pairs):
    """A fault that answers with each (status, code) in turn."""
    left = list(pairs) * 1000

    def next_one(_):
        status, code = left.pop(0)
        return Fault(status=status, code=code)

    return next_one


def claims(text):
    """The answer claims the range @text: of bytes @at to @end, or of as many 2 bytes later."""

    def of(request):
        at, n = request.range
        said = text.format(at=at, end=at + n - 1, later=at + 2, over=at + n + 1)
        return Fault(headers={"Content-Range": said}, flip=None if said.endswith("*") else 0)

    return of


BUSY = answers(
    (500, "InternalError"), (502, ""), (503, "SlowDown"), (504, ""), (429, ""), (522, ""),
    (400, "SlowDown"),
)  # fmt: skip
# Answers that are not believed have a wrong byte, so that it is seen if they are.
WRONG = {"flip": 0}
PAGE = b"<html><body>502 Bad Gateway</body></html>"

# name: (row, fault, times, of how many requests)
HEALS = {
    "busy": (1, BUSY, 40, 0.3),
    "busy, and says for how long": (
        1,
        Fault(status=503, code="SlowDown", headers={"Retry-After": "1"}),
        3,
        0.3,
    ),
    "slow client, says the store": (1, Fault(status=400, code="RequestTimeout"), 10, 0.3),
    "reset": (2, Fault(reset=True), 20, 0.3),
    "reset after some bytes": (2, Fault(reset=True, cut=100), 20, 0.3),
    "closed without an answer": (2, Fault(status=206, body=b"", cut=0), 20, 0.3),
    "no first byte": (3, Fault(hang=True), 3, 0.3),
    "stalled body": (3, Fault(stall=200), 3, 0.3),
    "drips": (3, Fault(drip=0.1), 3, 0.3),
    "late": (3, Fault(delay=0.5), 20, 0.3),
    "rubbish": (4, lambda r: Fault(extra=PAGE, headers={"Content-Length": r.range[1]}), 20, 0.3),
    "short": (4, Fault(cut=300), 20, 0.3),
    "short, with the length of it": (4, Fault(body=b"\1" * 100), 20, 0.3),
    "long": (4, Fault(extra=b"\1" * 100, **WRONG), 20, 0.3),
    "other range": (5, claims("bytes {later}-{over}/800000"), 20, 0.3),
    "range without a size": (5, claims("bytes {at}-{end}/*"), 20, 0.3),
    "no range": (5, Fault(headers={"Content-Range": None}, **WRONG), 20, 0.3),
    "range that is cut": (5, claims("bytes {at}-{end}"), 20, 0.3),
    "rubbish as the range": (5, Fault(headers={"Content-Range": "bytes ../9"}, **WRONG), 20, 0.3),
    "no ETag": (12, Fault(headers={"Etag": None}, **WRONG), 20, 0.3),
    "page with 200": (6, Fault(status=200, body=PAGE), 20, 0.3),
    "empty page with 200": (6, Fault(status=200, body=b""), 20, 0.3),
    "length that is none": (4, Fault(headers={"Content-Length": "-5"}), 20, 0.3),
    "length of an exabyte": (4, Fault(headers={"Content-Length": "9" * 20}), 3, 0.3),
    "headers of 1 MB": (6, Fault(headers={f"X-{i}": "x" * 1000 for i in range(1000)}), 5, 0.3),
    "token expired": (7, Fault(status=400, code="ExpiredToken"), 10, 0.3),
    "token invalid": (7, Fault(status=403, code="InvalidToken"), 10, 0.3),
    "not authorised": (7, Fault(status=401, body=b""), 10, 0.3),
    "key unknown, later": (7, Fault(status=403, code="InvalidAccessKeyId"), 10, 0.3),
}


FIRST = {row: name for name, (row, *_) in reversed(HEALS.items())}.values()  # of each row


@pytest.mark.parametrize("mode", [WINDOW, PIECE])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FIRST else pytest.mark.nightly) for n in HEALS]
)
def test_faults_that_can_heal_are_waited_for(job, proxy, name, mode):
    row, fault, times, probability = HEALS[name]
    daemon = job.daemon(job.config_by(mode))
    reader = Reader(job, daemon, micro=2, slots=16 if mode == WINDOW else 2)
    reader.read(10 if mode == WINDOW else 1)
    begin, before = len(proxy.requests), proxy.injected[name]
    proxy.inject(name, fault, times, windows, probability)
    reader.read(BATCHES)
    happened = proxy.injected[name] - before
    wait_until(lambda: proxy.injected[name] - before >= min(times, 3), f"{name}, injected")
    got = [r for r in proxy.requests[begin:] if windows(r)]
    assert len(got) <= distinct(got) + happened + 1, "GETs ≤ windows + retries"
    sessions, _ = status(daemon.socket)
    assert len(sessions) == 1
    reader.close()
    assert daemon.stop() == 0
    assert job.store.secret_key not in daemon.log()
    injected(mode + row, happened)


def test_a_key_that_servers_learn_one_by_one(job, proxy):
    """One range is denied again and again, while others are not."""
    daemon = job.daemon()
    reader = Reader(job, daemon, micro=2, slots=16)
    reader.read(10)
    denied, before = [], proxy.injected["key"]

    def deny(request):
        asked = (request.path, request.range)
        if not denied:
            denied.append(asked)
        return Fault(status=403, code="InvalidAccessKeyId") if asked == denied[0] else None

    proxy.inject("key", deny, 7, windows)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(reader.read, BATCHES)
        wait_until(lambda: denied, "a range that is denied")
        other = Reader(job, daemon, position=4096, run="other", micro=2, slots=16)
        other.read(BATCHES)
        read.result()
    assert proxy.injected["key"] == before + 7
    reader.close(), other.close()
    assert daemon.stop() == 0
    injected(WINDOW + 7, 7)


def test_a_key_that_is_unknown_for_a_moment(job, proxy):
    """As when a gateway starts. Nothing was read before, so the key may be wrong."""
    proxy.inject("unknown", Fault(status=403, code="InvalidAccessKeyId"), 4, windows)
    daemon = job.daemon()
    Reader(job, daemon, micro=2, slots=16).read(BATCHES)
    assert proxy.injected["unknown"] == 4 and daemon.stop() == 0


def refused(reader):
    """The fault that ends a stream."""
    with pytest.raises(Refused) as ended:
        reader.read(2000)
    return str(ended.value)


# name: (row, fault, words of the message)
STOPS = {
    "one object forbidden": (10, Fault(status=403, code="AccessDenied"), ["web/2.bin", "403"]),
    "missing": (11, Fault(status=404, code="NoSuchKey"), ["web/2.bin", "404"]),
    "precondition failed": (12, Fault(status=412, code="PreconditionFailed"), ["web/2.bin"]),
    "other ETag": (12, Fault(headers={"Etag": '"other"'}), ["web/2.bin", "other"]),
    "weak ETag": (12, Fault(headers={"Etag": 'W/"e"'}), ["web/2.bin", "ETag"]),
    "shorter": (12, Fault(status=416, headers={"Content-Range": "bytes */50"}), ["web/2.bin"]),
    "other size": (
        12,
        lambda r: Fault(headers={"Content-Range": f"bytes {r.range[0]}-{sum(r.range) - 1}/800002"}),
        ["web/2.bin", "800002", "800000"],
    ),
    "archived": (13, Fault(status=403, code="InvalidObjectState"), ["web/2.bin", "archived"]),
    "other region": (
        13,
        Fault(
            status=301,
            code="PermanentRedirect",
            headers={"x-amz-bucket-region": "eu-west-9", "Location": "http://127.0.0.1:1/"},
        ),
        ["eu-west-9", "region"],
    ),
    "method not allowed": (13, Fault(status=405, code="MethodNotAllowed"), ["web/2.bin", "405"]),
    "no such range": (13, Fault(status=416, code="InvalidRange"), ["web/2.bin", "416"]),
    "gzip": (13, Fault(headers={"Content-Encoding": "gzip"}), ["web/2.bin", "Content-Encoding"]),
    "no ranges": (13, Fault(status=200, body=bytes(800_000)), ["web/2.bin", "ranges"]),
    "no ranges, and no length": (
        13,
        Fault(
            status=200,
            headers={"Content-Length": None, "Transfer-Encoding": "chunked", "Etag": '"e"'},
            body=b"c3500\r\n" + bytes(800_000) + b"\r\n0\r\n\r\n",
        ),
        ["web/2.bin", "ranges"],
    ),
}


@pytest.fixture(scope="module")
def copies(job):
    """A stream over a copy of the shards for each of STOPS, and one that no fault concerns."""
    names = [f"stop{i}" for i in range(len(STOPS))] + ["sound"]
    for name in names:
        job.store.upload(BUCKET, job.place.file("web"), f"{name}/web/")
    return {name: f"lab://{BUCKET}/{name}/web/" for name in names}


@pytest.mark.parametrize("mode", [WINDOW, PIECE])
def test_faults_that_cannot_heal_stop_the_stream_by_name(job, proxy, copies, mode):
    """Each in a copy of the shards and a stream of its own; all streams at once."""
    before = proxy.injected.copy()
    daemon = job.daemon(job.config_by(mode, copies, memory=256 << 20))
    readers = [Reader(job, daemon, micro=2, slots=2, stream=name) for name in copies]
    sound = readers.pop()
    for i, (name, reader) in enumerate(zip(STOPS, readers)):
        reader.read(10)
        path = f"/{BUCKET}/stop{i}/web/2.bin"
        proxy.inject(name, STOPS[name][1], 1 << 30, lambda r, path=path: r.path == path)

    def read_sound():
        """Only while others can be read is it the object, not the keys."""
        name = "one object forbidden"
        wait_until(lambda: proxy.injected[name] > before[name], name)
        sound.read(BATCHES)

    with ThreadPoolExecutor(len(copies)) as pool:
        others = pool.submit(read_sound)
        said = dict(zip(STOPS, pool.map(refused, readers)))
        others.result()
    for name, reader in zip(STOPS, readers):
        row, _, words = STOPS[name]
        assert has(said[name], *words), f"{name}: {said[name]}"
        assert "\n" not in said[name] and job.store.secret_key not in said[name] + daemon.log()
        assert proxy.injected[name] > before[name]
        reader.close()
        injected(mode + row, proxy.injected[name] - before[name])
    sound.close()
    proxy.clear()
    for name in copies:  # an operator has mended them
        again = Reader(job, daemon, micro=2, run="again", stream=name)
        again.read(50)
        again.close()
    assert daemon.stop() == 0
