"""libtokend, by ctypes: errors, sessions, and edits of cursors. See tokend.h and src/bridge.c."""

from __future__ import annotations

import _thread
import ctypes
import os
import time
from collections.abc import Callable, Generator, Mapping
from ctypes import addressof, byref, c_char, c_int, c_uint64, c_void_p, cast, create_string_buffer
from threading import RLock, get_ident
from typing import Any

from . import phrases

DOCUMENTS, LOSS_MASK = 1, 2  # of tokend_annotations()
NOTED, DONE, FAILED = 1, 2, 3  # enum tokend_outcome
MICRO_BATCH, CURSOR_BYTES, JSON_BYTES = 64 << 10, 96 << 10, 4 << 20
WHY_BYTES, PATH_BYTES = 1400, 4096
EAGAIN, EFORKED = -9, -8
MOVED, WIDE = 2, 3  # results of bridge.c
BUSY = (
    "busy: the loader is waiting in this thread, and a signal's handler interrupted it; set a flag "
    "in the handler, and act on it when the call has returned"
)

# ---- errors ----


class Error(Exception):
    """Base class of all errors of tokend."""


class ArgumentError(Error, ValueError):
    """An invalid value. Nothing was changed."""


class ConnectError(Error, ConnectionError):
    """No daemon answered at the socket within the deadline."""


class RefusedError(Error):
    """The daemon refused. The message begins with the option or config key."""


class DataError(Error):
    """The stream stopped: a shard is unreadable, truncated or replaced."""


class ResourceError(Error, MemoryError):
    """Out of memory or file descriptors."""


class WaitError(Error, TimeoutError):
    """No batch came within deadline."""


_KINDS = {-1: ArgumentError, -2: ConnectError, -3: RefusedError, -4: DataError, -6: ResourceError}
_KINDS[-11] = WaitError  # by enum tokend_error; others are an Error
for _error in (Error, *_KINDS.values()):
    _error.__module__ = "tokend"


def _raise(code: int, why: bytes) -> None:
    """Raises an error. A store chooses some of the words, and long texts are cut."""
    raise _KINDS.get(code, Error)(why.decode(errors="replace"))


# ---- the library ----


def _struct(name: str, members: str) -> Any:
    """The struct @name of C. @members: "KIND NAME NAME…; KIND NAME…"."""
    kinds = {
        "text": ctypes.c_char_p,
        "pointer": c_void_p,
        "int": c_int,
        "u32": ctypes.c_uint32,
        "u64": c_uint64,
        "fields": c_uint64 * 6,
        "kind": c_char * 16,
        "args": c_char * 65536,
    }
    parts = [part.split() for part in members.split(";")]
    fields = [(member, kinds[kind]) for kind, *names in parts for member in names]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Options = _struct(
    "tokend_options",
    "u64 size; text socket stream run; u64 rank world; u32 micro_batch peer slots deadline_ms;"
    "u32 connect_ms; text cursor; u64 cursor_bytes; text tag; u64 position; int start_at_position;"
    "int helper; pointer warn warn_context; int strict; pointer idle notice context; text config;"
    "u64 max_wait_ms",
)
Batch = _struct(
    "tokend_batch",
    "pointer tokens row; u32 rows rows_valid window_tokens token_bytes; u64 position next number;"
    "u64 handle",
)
Shape = _struct(
    "tokend_shape",
    "u32 rows window_tokens token_bytes slots; u64 seq_len rank world batches data_bytes;"
    "u64 lost_wakes reattached waited_ns",
)
Edit = _struct(
    "tokend_edit",
    "int kind; text cursor; u64 cursor_bytes number; pointer name weight; u32 names; text from;"
    "u64 from_bytes; pointer to; u64 capacity; pointer why; u64 why_bytes",
)
Ordered = _struct("tokend_request", "u64 number; kind kind; args args")
Look = _struct(
    "look",
    "u64 tokens labels ids starts; fields field; u32 rows width token_bytes label_bytes;"
    "u32 seq rows_valid documents longest annotations stored_window stored_bytes;"
    "u64 stored next handle position wide",
)
_path = os.path.join(os.path.dirname(__file__), "bridge.so.1")
# Calls that may wait let go of the interpreter's lock; others hold it.
_waiting, _quick = ctypes.CDLL(_path), ctypes.PyDLL(_path)
for _library in _waiting, _quick:
    for _result, _names in (
        (c_uint64, "position taken contents fingerprint request_number derive"),
        (ctypes.c_int64, "cursor cursor_edit cursor_show"),
        (ctypes.c_char_p, "version why run socket config"),
        (None, "release shape detach attend undo"),  # errors of the last two are not raised
    ):
        for _name in _names.split():
            getattr(_library, f"tokend_{_name}").restype = _result
version: str = _quick.tokend_version().decode()
# One call, so that a signal's handler comes before it or after it: (handle, counts, next, keep).
take_quickly = _quick.tokend_python_take
take_quickly.argtypes = c_void_p, c_void_p, c_uint64, c_int
_SAID = ctypes.CFUNCTYPE(c_int, ctypes.c_char_p)
_GONE = ctypes.CFUNCTYPE(None, c_uint64, c_uint64, ctypes.POINTER(c_int))


def _weights(by_name: Mapping[str, float]) -> tuple[Any, Any, int]:
    """A mix as arrays of names and weights, and their length."""
    n = len(by_name)
    names = (ctypes.c_char_p * n)(*(name.encode() for name in by_name))
    return names, (ctypes.c_double * n)(*by_name.values()), n


def _made(length: int, to: Any, why: Any) -> bytes:
    if length < 0:
        _raise(length, why.value)
    return ctypes.string_at(to, length)


def cursor_edit(kind: int, cursor: bytes, number: int, weights: Mapping[str, float]) -> bytes:
    """The edited cursor. @kind: enum tokend_edit_kind."""
    to, why = create_string_buffer(CURSOR_BYTES), create_string_buffer(WHY_BYTES)
    names, values, n = _weights(weights)
    edit = Edit(kind, cursor, len(cursor), number, addressof(names), addressof(values), n)
    edit.to, edit.capacity = addressof(to), CURSOR_BYTES
    edit.why, edit.why_bytes = addressof(why), WHY_BYTES
    return _made(_quick.tokend_cursor_edit(byref(edit)), to, why)


def cursor_show(cursor: bytes) -> bytes:
    """The cursor as JSON."""
    json, why = create_string_buffer(JSON_BYTES), create_string_buffer(WHY_BYTES)
    sizes = [c_uint64(len(part)) for part in (cursor, json, why)]
    n = _quick.tokend_cursor_show(cursor, sizes[0], json, sizes[1], why, sizes[2])
    return _made(n, json, why)


def derive(seed: int, tag: int, value: int) -> int:
    """The key that the order derives from them."""
    return _quick.tokend_derive(*map(c_uint64, (seed, tag, value)))  # type: ignore[no-any-return]


def program(name: str) -> str:
    """The path of tokend or tokctl."""
    path = create_string_buffer(PATH_BYTES)
    if _quick.tokend_program(name.encode(), path, c_uint64(PATH_BYTES)) == 0:
        return os.fsdecode(path.value)
    raise Error(
        f"config: {name} is neither in the package nor on PATH; install it, or set TOKEND_BIN to "
        "its directory"
    )


# ---- sessions ----


class _Callbacks:
    """The functions that libtokend calls while it waits. They do not refer to the Client: one that
    is dropped detaches.
    """

    def __init__(self) -> None:
        self.state: Any = RLock()  # locked while the handle is in use
        self.thread = 0  # which waits in libtokend, or 0
        self.looks = False  # for a batch: then others may use the handle during callbacks
        self.raised: BaseException | None = None  # by a signal's handler, or a warning
        said = self._said()
        next(said)
        self.said = _SAID(said.send)
        self.gone: Any = None

    def _said(self) -> Generator[bool, bytes | None, None]:
        """Gets a warning, or None every 100 ms and after signals. Gives whether the call must end.

        Python calls the handlers of signals where a generator goes on, here within the try. A plain
        function would begin with them, and ctypes would drop what they raise.
        """
        while True:
            try:
                while True:
                    while self.thread and not self.state._is_owned():
                        self.state.acquire()
                    line = yield self.raised is not None
                    if line is not None:
                        phrases.warn(line.decode(errors="replace"))
                    elif self.looks:
                        self.state.release()
                        time.sleep(0.001)  # or this thread would have it again before others wake
            except GeneratorExit:
                return
            except BaseException as error:
                self.raised = error


def _completed(gone: Callable[[int, int], None]) -> Any:
    """@gone for libtokend. It must complete: a Ctrl-C comes afterwards."""

    def call(base: int, size: int, done: Any) -> None:
        interrupted = False
        while not done[0]:
            try:
                gone(base, size)
                done[0] = 1
            except KeyboardInterrupt:
                interrupted = True
            except BaseException:
                done[0] = 1
                raise
        if interrupted:
            _thread.interrupt_main()

    return _GONE(call)


class Client:
    """One session with a daemon. The arguments are members of tokend_options.

    Calls that may wait hold `turn`, and all calls hold `state`. While look_into() waits, it unlocks
    `state` regularly, so that other threads and the handlers of signals can read the cursor.
    """

    def __init__(self, stream: str, micro_batch: int, **options: Any) -> None:
        self.handle, self.turn, self._callbacks = c_void_p(), RLock(), _Callbacks()
        self.counts = (c_uint64 * 2)()  # batches and tokens taken
        self.state = self._callbacks.state
        o = Options(size=ctypes.sizeof(Options), micro_batch=micro_batch, world=1)
        for name, value in {"stream": stream, **options}.items():
            if value is not None:
                path = isinstance(value, (str, os.PathLike))
                setattr(o, name, os.fsencode(value) if path else value)
        o.cursor_bytes = len(options.get("cursor") or b"")
        o.start_at_position = options.get("position") is not None
        o.warn_context = cast(self._callbacks.said, c_void_p)
        o.idle, o.warn = o.warn_context, cast(_quick.tokend_python_warn, c_void_p)
        why = create_string_buffer(WHY_BYTES)
        arguments = byref(self.handle), byref(o), why, c_uint64(WHY_BYTES)
        with self.turn, self.state:
            r = self._waits(_waiting.tokend_attach, *arguments)
            self.checked(r, why.value)

    def __del__(self, detach: Any = _waiting.tokend_detach) -> None:
        detach(self.handle)

    # ---- calls ----

    def _enter(self, waits: bool = True) -> None:
        """Before the locks: in a child of fork() they may be locked for ever."""
        if self.handle and _quick.tokend_forked(self.handle):
            _raise(EFORKED, _quick.tokend_why(self.handle))
        callbacks = self._callbacks
        if callbacks.thread == get_ident() and (waits or not callbacks.looks):
            raise Error(BUSY)

    def _open(self) -> Any:
        if not self.handle:
            raise Error("closed: this loader was closed; make a new one")
        return self.handle

    def _waits(self, function: Any, *arguments: Any) -> Any:
        self._callbacks.thread = get_ident()
        try:
            return function(*arguments)
        finally:
            self._callbacks.thread = 0

    def checked(self, r: Any, why: bytes | None = None) -> Any:
        """Raises what a callback raised, or the error that the result @r of a call says."""
        raised, self._callbacks.raised = self._callbacks.raised, None
        if raised is not None:
            raise raised
        if isinstance(r, int) and r < 0:
            # Loader's deadline= is also the library's max_wait
            why = why or _quick.tokend_why(self.handle)
            _raise(r, b"deadline" + why[8:] if why.startswith(b"max_wait") else why)
        return r

    def _now(self, name: str, *arguments: Any) -> Any:
        """A call that does not wait."""
        self._enter(waits=False)
        with self.state:
            return self.checked(getattr(_quick, f"tokend_{name}")(self._open(), *arguments))

    def _wait(self, name: str, *arguments: Any) -> Any:
        """A call that may wait."""
        self._enter()
        with self.turn, self.state:
            function = getattr(_waiting, f"tokend_{name}")
            return self.checked(self._waits(function, self._open(), *arguments))

    # ---- batches ----

    def look_into(self, look: Any) -> bool:
        """Waits for the next batch, and copies it to where @look says. Returns False at the end of
        the stream. Does not take the batch: call take() then.
        """
        callbacks = self._callbacks
        self._enter()
        with self.turn, self.state:
            r = _quick.tokend_python_look(self._open(), byref(look), 0)
            if r == EAGAIN:
                callbacks.looks = True
                try:
                    r = self._waits(_waiting.tokend_python_look, self.handle, byref(look), 1)
                finally:
                    callbacks.looks = False
            self.checked(r)
        if r == MOVED:
            raise ArgumentError(
                "a signal handler or another thread sought during next(); call it again"
            )
        if r == WIDE:
            raise ArgumentError(
                f"dtype: token {look.wide} of position {look.position} does not fit into int32; "
                "use int64"
            )
        return bool(r)

    def take(self, next: int, keep: bool = False) -> bool:
        """Takes the batch with the next of look_into(). Returns False if another thread was
        faster. @keep: release() releases it.
        """
        self._enter()
        with self.turn, self.state:
            return bool(self.checked(take_quickly(self.handle, self.counts, next, keep)))

    # ---- members ----

    def shape(self) -> dict[str, Any]:
        """Sizes, counters and names."""
        shape = Shape()
        self._now("shape", byref(shape))
        made = {name: getattr(shape, name) for name, _ in Shape._fields_}
        for name in "run", "socket", "config":
            text = self._now(name)
            made[name] = None if text is None else os.fsdecode(text)
        made["batches"], made["tokens"] = self.counts
        waited, annotations = shape.waited_ns / 1e9, self._now("annotations")
        return {**made, "waited_s": waited, "annotations": annotations}

    @property
    def cursor(self) -> bytes:
        to = create_string_buffer(CURSOR_BYTES)
        return ctypes.string_at(to, self._now("cursor", to, c_uint64(CURSOR_BYTES)))

    position = property(lambda self: self._now("position"))
    taken = property(lambda self: self._now("taken"))
    contents = property(lambda self: self._now("contents"))
    fingerprint = property(lambda self: self._now("fingerprint"))
    request_number = property(lambda self: self._now("request_number"))

    # ---- moves ----

    def commit(self, next: int) -> None:
        self._now("commit", c_uint64(next))

    def seek(
        self, cursor: bytes | None, rank: int, world: int, micro_batch: int, again: bool = False
    ) -> None:
        """@cursor None: the last batch taken. @again: another pass over a finite stream."""
        numbers = map(c_uint64, (len(cursor or b""), rank, world))
        self._wait("seek_pass" if again else "seek", cursor, *numbers, micro_batch)

    def set_mix(self, weights: Mapping[str, float]) -> int:
        """Returns the first position of the new mix."""
        acts_from = c_uint64()
        self._wait("set_mix", *_weights(weights), byref(acts_from))
        return acts_from.value

    def checkpoint(self, tag: str) -> str:
        """Returns the path."""
        path = create_string_buffer(PATH_BYTES)
        self._wait("checkpoint", tag.encode(), path, c_uint64(PATH_BYTES))
        return os.fsdecode(path.value)

    def record(self, path: str) -> None:
        self._wait("record", os.fsencode(path))

    # ---- an operator's requests ----

    def attend(self) -> None:
        self._wait("attend")

    def request(self) -> tuple[int, str, str]:
        """Returns (number, kind, args)."""
        request = Ordered()
        self._wait("request", byref(request))
        return request.number, request.kind.decode(), request.args.decode()

    def obey(self, kind: str, args: str) -> int:
        """Returns the first position at which the order differs."""
        acts_from = c_uint64()
        self._wait("obey", kind.encode(), args.encode(), byref(acts_from))
        return acts_from.value

    def undo(self) -> None:
        self._wait("undo")

    def answer(self, number: int, outcome: int, text: str) -> None:
        self._wait("answer", c_uint64(number), outcome, text.encode())

    # ---- the ring's memory, for device.py ----

    def memory(self, gone: Callable[[int, int], None]) -> tuple[int, int] | None:
        """Address and bytes of the ring's slots; None: the same ring as in the former call.
        @gone(address, bytes) is called before it is unmapped: always the same function.
        """
        self._callbacks.gone = self._callbacks.gone or _completed(gone)
        base, size = c_uint64(), c_uint64()
        callback = _quick.tokend_python_gone, self._callbacks.gone
        new = self._now("memory", byref(base), byref(size), *callback)
        return (base.value, size.value) if new else None

    def release(self, handle: int) -> None:
        """Releases a batch that was taken with keep."""
        self._wait("release", byref(Batch(handle=handle)))

    def close(self) -> None:
        """Ends the session and frees everything."""
        if not self.handle or _quick.tokend_forked(self.handle):
            return
        self._enter()
        with self.turn, self.state:
            handle, self.handle = self.handle, c_void_p()  # never detached twice
            # waits for copies, which may wait for a thread that needs the interpreter's lock
            self._waits(_waiting.tokend_detach, handle)
