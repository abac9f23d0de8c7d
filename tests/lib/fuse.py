"""A file system that can stop answering, fail, or forget its open files (ESTALE), as an NFS server:
a FUSE server for a directory's files, in its own process.

A process that waits for it can be killed. Closing a file that was only read does not wait.
"""

import ctypes
import mmap
import os
import select
import signal
import stat
import struct

from .wait import wait_for

MS_NOSUID, MS_NODEV, MNT_DETACH = 2, 4, 2
LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT = 1, 2, 3, 14, 15, 18, 25, 26
OPENDIR, READDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = 27, 28, 29, 36, 42
ENOENT, EINTR, ENOSYS, ENODEV, ESTALE = 2, 4, 38, 19, 116
ROOT, FIRST = 1, 2  # nodes: the directory, its first file
FOPEN_DIRECT_IO = 1
EVER = 1 << 62
# words that test and server share
HANGS, HELD, OPCODE, FORGET_NOW, STALE, ERROR, FAILS, TIMES, MOST, FAILED = range(10)

libc = ctypes.CDLL(None, use_errno=True)


class _Server:
    def __init__(self, fd, directory, words):
        self.fd, self.words = fd, words
        self.names = sorted(os.listdir(directory))
        self.directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self.files = [self.open(name) for name in self.names]
        self.nodes = {name: FIRST + i for i, name in enumerate(self.names)}
        self.held = []
        self.handles = self.forgotten = 0  # opened so far; of these, no longer valid

    def open(self, name):
        return os.open(name, os.O_RDONLY, dir_fd=self.directory)

    def forget(self):
        """Makes all handles invalid. A file that was replaced is found under its name."""
        self.forgotten = self.handles
        for name, node in list(self.nodes.items()):
            file = self.open(name)
            if os.path.sameopenfile(file, self.files[node - FIRST]):
                os.close(file)
            else:
                self.nodes[name] = FIRST + len(self.files)
                self.files.append(file)
        self.words[FORGET_NOW] = 0

    def stale(self, opcode, node, body):
        """Is the call for an open file that was forgotten, or for a file that was replaced?"""
        if opcode == READ:
            return struct.unpack_from("<Q", body)[0] <= self.forgotten
        return opcode in (GETATTR, OPEN) and node != ROOT and node not in self.nodes.values()

    def attributes(self, node):
        about = os.fstat(self.files[node - FIRST]) if node >= FIRST else None
        mode = stat.S_IFREG | 0o444 if about else stat.S_IFDIR | 0o555
        size, ns = (about.st_size, about.st_mtime_ns) if about else (0, 0)
        second, rest = divmod(ns, 10**9)
        ino, times = about.st_ino if about else node, [second] * 3 + [rest] * 3
        return struct.pack("<6Q10I", ino, size, 0, *times, mode, 1, 0, 0, 0, 4096, 0)

    def listing(self, offset):
        if offset:
            return b""
        out = b""
        for i, name in enumerate(self.names):
            raw = name.encode()
            node = self.nodes[name]
            out += struct.pack("<2Q2I", node, i + 1, len(raw), 8) + raw + bytes(-len(raw) % 8)
        return out

    def answer(self, unique, error, body=b""):
        try:
            os.write(self.fd, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)
        except FileNotFoundError:
            pass  # the caller was interrupted

    def serve(self, request):
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        body = request[40:]
        if self.stale(opcode, node, body):
            self.words[STALE] += 1
            return self.answer(unique, ESTALE)
        if self.words[TIMES] and opcode == self.words[FAILS]:
            self.words[TIMES] -= 1
            self.words[FAILED] += 1
            if self.words[ERROR]:
                return self.answer(unique, self.words[ERROR])
        if opcode == INIT:
            out = struct.pack("<4I2H2I2H", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0).ljust(64, b"\0")
        elif opcode == LOOKUP:
            name = body.rstrip(b"\0").decode()
            if name not in self.names:
                return self.answer(unique, ENOENT)
            found = self.nodes[name]
            out = struct.pack("<4Q2I", found, 0, 0, 0, 0, 0) + self.attributes(found)
        elif opcode == GETATTR:
            out = struct.pack("<QII", 0, 0, 0) + self.attributes(node)
        elif opcode in (OPEN, OPENDIR):
            self.handles += 1
            out = struct.pack("<QII", self.handles, FOPEN_DIRECT_IO if opcode == OPEN else 0, 0)
        elif opcode == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            out = os.pread(self.files[node - FIRST], min(size, self.words[MOST] or size), offset)
        elif opcode == READDIR:
            out = self.listing(struct.unpack_from("<QQ", body)[1])
        elif opcode in (FLUSH, RELEASE, RELEASEDIR):
            out = b""
        else:
            return self.answer(unique, ENOSYS)
        return self.answer(unique, 0, out)

    def take(self, request):
        _, opcode, unique, _ = struct.unpack_from("<IIQQ", request)
        if opcode in (FORGET, BATCH_FORGET):
            return
        if opcode == INTERRUPT:
            (other,) = struct.unpack_from("<Q", request, 40)
            for held in [h for h in self.held if struct.unpack_from("<Q", h, 8)[0] == other]:
                self.held.remove(held)
                self.answer(other, EINTR)
        elif self.words[HANGS] and (
            opcode == self.words[OPCODE]
            or (self.words[OPCODE] == 0 and opcode not in (INIT, FLUSH, RELEASE))
        ):
            self.held.append(request)
        else:
            self.serve(request)

    def run(self):
        os.set_blocking(self.fd, False)
        poll = select.poll()
        poll.register(self.fd, 1)
        while True:
            if self.words[FORGET_NOW]:
                self.forget()
            while self.held and not self.words[HANGS]:
                self.serve(self.held.pop(0))
            self.words[HELD] = len(self.held)
            if not poll.poll(5):
                continue
            try:
                self.take(os.read(self.fd, 1 << 20))
            except BlockingIOError:
                continue
            except OSError as e:
                if e.errno == ENODEV:
                    return
                if e.errno not in (ENOENT, EINTR):
                    raise


class Hanging:
    """The files of @directory, mounted at @mount. PermissionError: mounting is not allowed."""

    def __init__(self, directory, mount):
        self.mount = mount
        os.makedirs(mount, exist_ok=True)
        self.words = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        server = _Server(fd, directory, self.words)  # before the mount, which may hide @directory
        options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if (
            libc.mount(
                b"tokend-test", mount.encode(), b"fuse.tokend-test", MS_NOSUID | MS_NODEV, options
            )
            < 0
        ):
            error = ctypes.get_errno()
            os.close(fd)
            raise PermissionError(error, os.strerror(error))
        self.pid = os.fork()
        if self.pid == 0:
            libc.prctl(1, signal.SIGKILL, 0, 0, 0)
            try:
                server.run()
            finally:
                os._exit(0)
        os.close(fd)

    def hang(self, opcode=0):
        """Stops answering calls of this kind; 0: all calls but those that close a file."""
        self.words[OPCODE] = opcode
        self.words[HANGS] = 1

    def fail(self, error, opcode=READ, times=EVER):
        """The next calls of this kind fail with @error. @times = 0: no longer."""
        self.words[ERROR], self.words[FAILS] = error, opcode
        self.words[TIMES] = times

    def shorten(self, most):
        """Reads get no more than @most bytes, and are counted as failed; 0: what they asked for."""
        self.words[MOST] = most
        self.fail(0, READ, EVER if most else 0)

    def failed(self):
        """How many calls failed."""
        return self.words[FAILED]

    def held(self):
        """The number of unanswered calls."""
        return self.words[HELD]

    def answer(self):
        self.words[HANGS] = 0
        wait_for(lambda: self.held() == 0)

    def forget(self):
        """From now on, files that are open give ESTALE, and names lead to the files that have them
        now.
        """
        self.words[FORGET_NOW] = 1
        wait_for(lambda: not self.words[FORGET_NOW])

    def stale(self):
        """The number of calls that got ESTALE."""
        return self.words[STALE]

    def die(self):
        """Ends the server. All calls that wait for it fail."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.pid = 0

    def close(self):
        # Unmount first: a process that is released must not find a mount without a server.
        libc.umount2(self.mount.encode(), MNT_DETACH)
        self.words[HANGS] = 0
        if self.pid:
            self.die()


def hanging(directory, mount):
    """A Hanging(); skips the test where FUSE cannot be mounted."""
    import pytest  # which the benchmarks do not need

    try:
        return Hanging(directory, mount)
    except (PermissionError, FileNotFoundError) as error:
        pytest.skip(f"a FUSE file system cannot be mounted here: {error}")
