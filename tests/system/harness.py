"""What the system tests share: a directory of their own, real daemons in it, and a client that speaks the wire by itself.

The client here is written from proto/wire.h and proto/ring.h, not from client/: it can say what libtokend would never say, and
it checks the bytes against `tokctl plan` and the shards, which know nothing of rings and sockets.
"""

import array
import ctypes
import json
import mmap
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import msgpack
import numpy

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("TOKEND_BIN") or os.path.join(REPO, "build", "bin")
TOKEND = os.path.join(BIN, "tokend")
TOKCTL = os.path.join(BIN, "tokctl")

PACKET_BYTES = 128 * 1024
PAGE = 4096
LONG = 20.0  # seconds after which something that must happen has not

_libc = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1


def with_parent():
    """For preexec_fn: no child outlives the test, however that ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


# ---- checks ----


class Checks:
    """One line a check. A name that fails is shown with what was seen."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def ok(self, name, good, seen=""):
        if good:
            self.passed += 1
            print(f"ok    {name}", flush=True)
        else:
            self.failed += 1
            print(f"FAIL  {name}: {seen}", flush=True)
        return bool(good)

    def equal(self, name, got, want):
        return self.ok(name, got == want, f"got {got!r}, want {want!r}")

    def has(self, name, text, *words):
        missing = [w for w in words if w not in text]
        return self.ok(name, not missing, f"{missing} not in {text!r}")

    def skip(self, name, why):
        self.skipped += 1
        print(f"skip  {name}: {why}", flush=True)

    def exit(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        sys.exit(1 if self.failed or not self.passed else 0)


def wait_for(condition, seconds=LONG, pause=0.005):
    """The first true value of condition(), or its last false one."""
    until = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() > until:
            return value
        time.sleep(pause)


# ---- a place with shards, configs and daemons ----


class Place:
    """A temporary directory; everything started in it is gone when it is left."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="tokend-")
        os.chmod(self.path, 0o755)  # other uids must find the socket
        self.children = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, lambda n, _: sys.exit(128 + n))
        signal.alarm(240)  # many times what a test takes: one that hangs fails, and cleans up
        return self

    def __exit__(self, *_):
        for child in self.children:
            if child.poll() is None:
                child.kill()
                child.wait()
        shutil.rmtree(self.path, ignore_errors=True)

    def file(self, *parts):
        path = os.path.join(self.path, *parts)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def shard(self, name, tokens, seed=1, dtype="<u2"):
        """A flat shard of random tokens: no window looks like another one."""
        path = self.file(name)
        rng = numpy.random.default_rng([seed, len(name), *name.encode()])
        rng.integers(0, 1 << 16, tokens, dtype=numpy.uint32).astype(dtype).tofile(path)
        return path

    def config(self, name="tokend.yaml", **keys):
        """JSON is YAML: the config is written as it is meant."""
        path = self.file(name)
        whole = {"socket": self.file("tokend.sock"), "state_dir": self.file("state"), **keys}
        with open(path, "w") as f:
            json.dump(whole, f, indent=1)
        return path

    def spawn(self, arguments, **keys):
        keys.setdefault("preexec_fn", with_parent)
        keys.setdefault("stdin", subprocess.DEVNULL)
        child = subprocess.Popen(arguments, **keys)
        self.children.append(child)
        return child


def datasets(*names, **keys):
    return [{"name": n, "path": n, **keys} for n in names]


def run(*arguments, **keys):
    """A command to its end: its exit code, stdout and stderr."""
    keys.setdefault("timeout", 60)
    done = subprocess.run(
        [str(a) for a in arguments], capture_output=True, preexec_fn=with_parent, **keys
    )
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


class Daemon:
    """tokend -c CONFIG. Its stderr goes to a file, where log() reads it."""

    def __init__(self, place, config, socket_path=None, arguments=(), ready=True, **keys):
        self.place = place
        self.config = config
        self.socket = socket_path or json.load(open(config))["socket"]
        self.arguments = list(arguments) + (["--socket", socket_path] if socket_path else [])
        self.log_path = f"{self.socket}.log"
        self.keys = keys
        self.process = None
        self.start(ready)

    def start(self, ready=True):
        with open(self.log_path, "ab") as log:
            self.log_from = log.tell()
            self.process = self.place.spawn(
                [TOKEND, "-c", self.config, *self.arguments], stdout=log, stderr=log, **self.keys
            )
        if ready and not wait_for(
            lambda: "ready at" in self.log() or self.process.poll() is not None
        ):
            raise RuntimeError(f"tokend is not ready: {self.log()}")
        if ready and self.process.poll() is not None:
            raise RuntimeError(f"tokend exited with {self.process.returncode}: {self.log()}")

    @property
    def pid(self):
        return self.process.pid

    def alive(self):
        return self.process.poll() is None

    def log(self):
        """What this daemon said since it was started."""
        with open(self.log_path, "rb") as f:
            f.seek(self.log_from)
            return f.read().decode(errors="replace")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.place.children.remove(self.process)

    def stop(self):
        """SIGTERM; the exit code."""
        self.process.terminate()
        code = self.process.wait(LONG)
        self.place.children.remove(self.process)
        return code

    def fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def settled_fds(self):
        """fds(), once it has not changed for a tenth of a second: what was closed here is closed there a moment later."""
        seen = []
        while len(seen) < 10 or len(set(seen[-10:])) > 1:
            seen.append(self.fds())
            time.sleep(0.01)
        return seen[-1]

    def memory_kib(self, field):
        with open(f"/proc/{self.pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith(field + ":"))

    def rings(self):
        """Rings it has mapped: sessions, counted from outside."""
        try:
            with open(f"/proc/{self.pid}/maps") as f:
                return f.read().count("/memfd:tokend-data")
        except OSError:
            return 0


MODES = [("uring", False), ("pread", False), ("uring", True), ("pread", True)]


def reading_modes(checks, place):
    """(io, direct) of a config, all that can be had: where io_uring is forbidden to the test itself, half of them cannot be tested."""
    place.shard("probe/a.bin", 30_000)
    streams = {"train": {"seed": 3, "seq_len": 64, "datasets": datasets("probe")}}
    try:
        Daemon(
            place,
            place.config(
                "probe.yaml", io="uring", socket=place.file("probe.sock"), streams=streams
            ),
        ).stop()
        return MODES
    except RuntimeError as e:
        checks.skip("io: uring", str(e).strip())
        return [m for m in MODES if m[0] == "pread"]


# ---- what must come ----


def rows_at(config, stream, first, count, *more):
    """The windows at positions [first, first + count), [count, window]: by tokctl plan and numpy."""
    whole = json.load(open(config))
    about = whole["streams"][stream]
    window = about["seq_len"] + about.get("extra", 1)
    code, out, err = run(
        TOKCTL, "plan", "-c", config, stream, "--from", first, "--count", count, "--json", *more
    )
    if code:
        raise RuntimeError(f"tokctl plan: {err}")
    roots = {d["name"]: os.path.join(os.path.dirname(config), d["path"]) for d in about["datasets"]}
    dtype = {
        d["name"]: {"u16": "<u2", "u32": "<u4"}[d.get("dtype", "u16")] for d in about["datasets"]
    }
    shards, rows = {}, []
    for line in out.splitlines():
        at = json.loads(line)
        key = (at["dataset"], at["shard"])
        if key not in shards:
            shards[key] = numpy.fromfile(os.path.join(roots[key[0]], key[1]), dtype[key[0]])
        rows.append(shards[key][at["offset"] : at["offset"] + window])
    return numpy.stack(rows)


def rank_rows(rows, rank, world, micro):
    """Of the rows of all ranks, those of one: [batches, micro, window]."""
    batches = len(rows) // (world * micro)
    return rows[: batches * world * micro].reshape(batches, world, micro, -1)[:, rank]


# ---- the wire ----


class Refused(Exception):
    """An error packet."""

    def __init__(self, packet):
        super().__init__(f"{packet.get('code')}: {packet.get('field')}: {packet.get('text')}")
        self.packet = packet


class Closed(Exception):
    """The daemon closed without a word."""


def connect(path):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(LONG)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PACKET_BYTES)
    try:
        s.connect(path)
    except OSError:
        s.close()
        raise
    return s


def receive(s):
    """The next packet's bytes and descriptors. b"" is the end; a reset comes before the last words, so it is passed over."""
    while True:
        try:
            data, ancillary, _, _ = s.recvmsg(PACKET_BYTES, socket.CMSG_SPACE(8 * 4))
        except ConnectionResetError:
            continue
        except BrokenPipeError:
            data, ancillary = b"", []
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        return data, list(fds)


def decode(data):
    """A message, whatever a mutated name in it looks like."""
    return msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogateescape")


class Client:
    """A session, or less: every step can be done wrongly."""

    def __init__(self, path, hello=True):
        self.s = connect(path)
        self.fds = []
        self.meta = self.data = None
        self.ended = None  # why nothing more will be published
        if hello:
            self.ask(op="hello", version=1, host="test")

    def send(self, raw):
        self.s.send(raw)

    def tell(self, **message):
        self.send(msgpack.packb(message))

    def hear(self):
        """The next message; wake-ups are passed over."""
        while True:
            data, fds = receive(self.s)
            self.fds += fds
            if data == b"":
                raise Closed()
            if len(data) > 1:
                break
        packet = decode(data)
        if packet["op"] == "error":
            raise Refused(packet)
        return packet

    def ask(self, **message):
        try:
            self.tell(**message)
        except (BrokenPipeError, ConnectionResetError):
            pass  # why is still to be heard
        return self.hear()

    def last_words(self):
        """Everything until the daemon closes: [packets]. TimeoutError if it does not."""
        packets = []
        while True:
            data, fds = receive(self.s)
            for fd in fds:
                os.close(fd)
            if data == b"":
                return packets
            if len(data) > 1:
                packets.append(decode(data))

    def attach(
        self, stream="train", rank=0, world=1, micro=2, run="test", peer=0, slots=4, **start
    ):
        message = {
            "op": "attach",
            "stream": stream,
            "run": run,
            "rank": rank,
            "world": world,
            "micro": micro,
            "peer": peer,
        }
        self.feed = self.ask(**message, slots=slots, **(start or {"begin": 1}))
        self.map()
        return self

    def map(self):
        meta_fd, data_fd = self.fds
        self.meta = mmap.mmap(meta_fd, self.feed["meta_bytes"], mmap.MAP_SHARED, mmap.PROT_READ)
        self.data = mmap.mmap(data_fd, self.feed["data_bytes"])
        fields = struct.unpack_from("<4I5Q", self.meta, 16)
        self.slots, self.rows, self.window, self.token_bytes = fields[:4]
        self.slot_bytes, self.slot_stride, self.control_at = fields[4:7]
        self.documents, self.loss_mask = struct.unpack_from("<2I", self.meta, 72)
        self.batch = 0  # the next one
        # struct writes byte by byte; a word of these is loaded and stored at once
        self.meta_words = memoryview(self.meta).cast("Q")
        self.data_words = memoryview(self.data).cast("Q")
        self.dtype = {2: "<u2", 4: "<u4"}[self.token_bytes]

    def published(self):
        return self.meta_words[128 // 8]

    def end(self):
        return self.meta_words[136 // 8]

    def wake_at(self):
        return self.meta_words[192 // 8]

    def set_released(self, value):
        self.data_words[self.control_at // 8] = value

    def wait(self, seconds=LONG):
        """Until the next batch is there. Looks twice a millisecond: a test has no need of wake-ups."""
        until = time.monotonic() + seconds
        while self.published() <= self.batch:
            if self.ended and self.published() <= self.batch:  # what is published comes first
                raise self.ended
            if not self.ended and select.select([self.s], [], [], 0.0005)[0]:
                data, _ = receive(self.s)
                packet = decode(data) if len(data) > 1 else {"op": "wake"}
                if data == b"":
                    self.ended = Closed()
                elif packet["op"] == "error":
                    self.ended = Refused(packet)
            if time.monotonic() > until:
                raise TimeoutError(f"no batch {self.batch}: published {self.published()}")

    def offset(self, number):
        """Of a slot in the data segment; none crosses a GiB, and no ring here has one."""
        return number % self.slots * self.slot_stride

    def row_documents(self, number):
        """Where documents begin in each row of a slot: what is behind slots and rows in the meta segment."""
        counts = PAGE + 16 * self.slots + 40 * self.slots * self.rows
        starts, found = counts + 4 * self.slots * self.rows, []
        for i in range(number % self.slots * self.rows, (number % self.slots + 1) * self.rows):
            (count,) = struct.unpack_from("<I", self.meta, counts + 4 * i)
            found.append(
                list(struct.unpack_from(f"<{count}I", self.meta, starts + 4 * i * self.window))
            )
        return found

    def row_masks(self, number):
        """Each row's loss mask, [rows, window]: behind the documents, if there are any."""
        rows = self.slots * self.rows
        at = (
            PAGE
            + 16 * self.slots
            + 40 * rows
            + (4 * rows * (1 + self.window) if self.documents else 0)
        )
        at += number % self.slots * self.rows * self.window
        raw = self.meta[at : at + self.rows * self.window]
        return numpy.frombuffer(raw, "u1").reshape(self.rows, self.window)

    def next(self, seconds=LONG):
        """The next batch, copied, and its slot given back."""
        self.wait(seconds)
        at = self.offset(self.batch)
        raw = self.data[at : at + self.slot_bytes]
        self.batch += 1
        self.set_released(self.batch)
        if 0 < self.wake_at() <= self.batch:
            try:
                self.s.send(b"\0")
            except OSError:
                pass  # next time wait() says why
        return numpy.frombuffer(raw, self.dtype).reshape(self.rows, self.window)

    def close(self):
        if self.meta is not None:
            for part in (self.meta_words, self.data_words, self.meta, self.data):
                part.release() if isinstance(part, memoryview) else part.close()
        for fd in self.fds:
            os.close(fd)
        self.fds, self.meta, self.data = [], None, None
        self.s.close()


class Witness:
    """A client that behaves, and compares every batch it gets."""

    def __init__(self, daemon, rows, stream="train", **keys):
        self.client = Client(daemon.socket).attach(stream=stream, **keys)
        rank, world = keys.get("rank", 0), keys.get("world", 1)
        self.batches = rank_rows(rows, rank, world, self.client.rows)
        self.checked = self.wrong = 0

    def step(self, count=1):
        """Reads on. False if a batch was wrong."""
        for _ in range(count):
            if not numpy.array_equal(self.client.next(), self.batches[self.checked]):
                self.wrong += 1
            self.checked += 1
        return self.wrong == 0

    def close(self):
        self.client.close()


def status(path):
    """What `tokctl status --json` says: (sessions, total)."""
    code, out, err = run(TOKCTL, "status", "--json", "--socket", path)
    if code:
        raise RuntimeError(f"tokctl status: {err}")
    lines = [json.loads(line) for line in out.splitlines()]
    return lines[:-1], lines[-1]


# ---- other users ----


class As:
    """A client of another user: the daemon sees the uid that a process has when it connects."""

    def __init__(self, uid):
        self.uid = uid

    def __enter__(self):
        os.seteuid(self.uid)

    def __exit__(self, *_):
        os.seteuid(0)


def client_of(daemon, uid):
    with As(uid):
        return Client(daemon.socket)
