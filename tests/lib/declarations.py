"""The structs of client/lib/tokend.h, for ctypes."""

import ctypes as c

import numpy


class Options(c.Structure):
    _fields_ = [
        ("size", c.c_size_t), ("socket", c.c_char_p), ("stream", c.c_char_p), ("run", c.c_char_p),
        ("rank", c.c_uint64),
        ("world", c.c_uint64), ("micro_batch", c.c_uint32), ("peer", c.c_uint32), ("slots",
        c.c_uint32),
        ("deadline_ms", c.c_uint32), ("connect_ms", c.c_uint32), ("cursor", c.c_char_p),
        ("cursor_bytes", c.c_size_t),
        ("tag", c.c_char_p), ("position", c.c_uint64), ("start_at_position", c.c_int), ("helper",
        c.c_int),
        ("warn", c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_char_p)), ("warn_context", c.c_void_p),
    ]  # fmt: skip


class Row(c.Structure):
    _fields_ = [
        ("position", c.c_uint64), ("epoch", c.c_uint64), ("window", c.c_uint64), ("offset",
        c.c_uint64),
        ("dataset", c.c_uint32), ("shard", c.c_uint32),
    ]  # fmt: skip


class Batch(c.Structure):
    _fields_ = [
        ("tokens", c.c_void_p), ("row", c.POINTER(Row)), ("rows", c.c_uint32), ("rows_valid",
        c.c_uint32),
        ("window_tokens", c.c_uint32), ("token_bytes", c.c_uint32), ("position", c.c_uint64),
        ("next", c.c_uint64),
        ("number", c.c_uint64), ("handle", c.c_uint64),
    ]  # fmt: skip

    def array(self):
        kind = {2: c.c_uint16, 4: c.c_uint32}[self.token_bytes]
        at = c.cast(self.tokens, c.POINTER(kind))
        return numpy.ctypeslib.as_array(at, (self.rows, self.window_tokens))
