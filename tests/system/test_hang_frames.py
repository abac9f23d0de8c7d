"""Storage hangs while compressed frames are read. Their decode buffers do not count against other
streams.
"""

from lib import TOKCTL, Client, Daemon, datasets, rows_at, run, status, wait_for
from lib.injected import injected
from lib.fuse import hanging

FRAME = 1 << 20  # bytes, decoded and compressed: random tokens do not shrink
MEMORY = 32 << 20  # a quarter is for frames: four of them, with their compressed bytes
TOKENS, SHARDS = 3 << 20, 4
SEQ_LEN, MICRO, SLOTS = 1023, 4, 64


def pack(place, name):
    for i in range(SHARDS):
        place.shard(f"flat-{name}/{i}.bin", TOKENS)
    flat = [place.file(f"flat-{name}", f"{i}.bin") for i in range(SHARDS)]
    code, _, err = run(
        TOKCTL,
        "pack",
        *flat,
        place.file(name),
        "--format",
        "zstd",
        "--frame",
        FRAME,
        "--shards",
        SHARDS,
    )
    if code:
        raise RuntimeError(f"tokctl pack: {err}")
    return place.file(name)


def check(place, daemon, mount):
    near = Client(daemon.socket).attach(stream="near", micro=MICRO, slots=8)
    hung = Client(daemon.socket).attach(stream="hung", micro=MICRO, slots=SLOTS)
    for _ in range(SLOTS):
        hung.next()
    near.next()
    mount.hang()
    for _ in range(SLOTS):  # takes the ready batches; then the daemon reads more
        try:
            hung.next(0.2)
        except TimeoutError:
            break
    wait_for(lambda: mount.held() >= 2)
    assert mount.held() >= 2, ("frames are being read", mount.held())
    known = wait_for(
        lambda: any(s["stream"] == "hung" and s.get("slow_ms") for s in status(daemon.socket)[0]), 6
    )
    assert known, "status reports the hang"
    rows, wrong = rows_at(daemon.config, "flat", MICRO, 400 * MICRO), 0
    try:
        for number in range(200):
            wrong += not (near.next(10.0) == rows[number * MICRO : (number + 1) * MICRO]).all()
        seen = "200 batches"
    except TimeoutError as e:
        seen = str(e)
    assert seen == "200 batches", "the other stream continues"
    assert wrong == 0, "and its batches are right"
    injected(45)
    mount.answer()
    assert hung.next() is not None, "the stream that hung continues"
    near.close()
    hung.close()


def test_frames_that_hang_do_not_stop_other_streams(place):
    near, files = pack(place, "near"), pack(place, "files")
    mount = hanging(files, place.file("hung", ""))
    shapes = {"near": near, "hung": mount.mount, "flat": place.file("flat-near", "")}
    streams = {
        n: {"seed": 3, "seq_len": SEQ_LEN, "datasets": [{**datasets("d")[0], "path": p}]}
        for n, p in shapes.items()
    }
    try:
        daemon = Daemon(place, place.config(streams=streams, memory=MEMORY))
        check(place, daemon, mount)
        assert daemon.stop() == 0, "the daemon ends with 0"
    finally:
        mount.close()
