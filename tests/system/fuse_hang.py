"""A file system that hangs: a FUSE mount whose server answers the first message and nothing else, as NFS without its server."""

import ctypes
import os
import select
import struct

_libc = ctypes.CDLL(None, use_errno=True)
MNT_DETACH = 2
FUSE_INIT = 26


class Hang:
    """Mounted over @path until release(): every call below it waits until then, and fails afterwards."""

    def __init__(self, path):
        self.path = path.encode()
        self.fd = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if _libc.mount(b"tokend-hang", self.path, b"fuse", 0, options):
            error = ctypes.get_errno()
            os.close(self.fd)
            raise OSError(error, f"mount: {os.strerror(error)}")
        request = os.read(self.fd, 1 << 17)
        _, opcode, unique = struct.unpack_from("<IIQ", request)
        if opcode != FUSE_INIT:
            raise RuntimeError(f"the first message is {opcode}")
        body = (
            struct.pack("<4I", 7, 31, 0, 0)
            + struct.pack("<HHIIHHI", 12, 9, 4096, 1, 1, 0, 0)
            + bytes(28)
        )
        os.write(self.fd, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)

    def hangs(self):
        """Has a call come to it?"""
        return bool(select.select([self.fd], [], [], 0)[0])

    def release(self):
        if self.fd < 0:
            return
        _libc.umount2(self.path, MNT_DETACH)
        os.close(self.fd)
        self.fd = -1
