"""Libraries that a test preloads into a program, to make its calls fail. Test and library share a
page of numbers.
"""

import mmap
import os
import shutil
import subprocess

import pytest

_BEGIN = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static _Atomic int64_t *words;

__attribute__((constructor)) static void begin(void)
{
	int fd = open(getenv("PRELOAD_PAGE"), O_RDWR | O_CLOEXEC);

	words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
}
"""


class Preload:
    """A library of C @source, which reads and writes `words`. @names: the names of the words.
    `env` is the environment that preloads it. Each has another @label.
    """

    def __init__(self, place, source, names, label="preload"):
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if not compiler:
            pytest.skip("no C compiler")
        self.names = names
        library, page = place.file(label, "preload.so"), place.file(label, "page")
        text = _BEGIN + "enum { " + ", ".join(name.upper() for name in names) + " };\n" + source
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-xc", "-", "-o", library, "-ldl"],
            input=text.encode(),
            check=True,
        )
        with open(page, "wb") as f:
            f.truncate(4096)
        with open(page, "r+b") as f:
            self.words = memoryview(mmap.mmap(f.fileno(), 4096)).cast("q")
        self.env = {**os.environ, "LD_PRELOAD": library, "PRELOAD_PAGE": page}
        self.env["ASAN_OPTIONS"] = "verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", "")

    def get(self, name):
        return self.words[self.names.index(name)]

    def set(self, **words):
        for name, value in words.items():
            self.words[self.names.index(name)] = value
