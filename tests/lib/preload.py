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

#define NEXT(name) \
	static __typeof__(name) *next; \
	if (!next) \
		next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
"""

# Calls that open a file: int opening(const char *call, const char *path); not 0: -1 with errno.
OPENS = r"""
#include <stdarg.h>
#include <sys/stat.h>

#define OPEN(name, parameters, ...) \
	int name parameters \
	{ \
		NEXT(name); \
		va_list more; \
		va_start(more, flags); \
		mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
		va_end(more); \
		return opening(#name, path) ? -1 : next(__VA_ARGS__); \
	}
OPEN(open, (const char *path, int flags, ...), path, flags, mode)
OPEN(open64, (const char *path, int flags, ...), path, flags, mode)
OPEN(openat, (int at, const char *path, int flags, ...), at, path, flags, mode)
OPEN(openat64, (int at, const char *path, int flags, ...), at, path, flags, mode)

/* glibc's open() with flags that the compiler does not know, under _FORTIFY_SOURCE */
int __open_2(const char *path, int flags)
{
	NEXT(__open_2);
	return opening("open", path) ? -1 : next(path, flags);
}
"""


class Preload:
    """A library of C @source, which reads and writes `words`. @names: the names of the words.
    `env` is the environment that preloads it, and `own` the variables that do. Each has another
    @label.
    """

    def __init__(self, place, source, names, label="preload"):
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if not compiler:
            pytest.skip("no C compiler")
        self.names = names
        text = _BEGIN + "enum { " + ", ".join(name.upper() for name in names) + " };\n" + source
        library, page = place.file("preload", f"{hash(text)}.so"), place.file("preload", label)
        if not os.path.exists(library):
            subprocess.run(
                [compiler, "-shared", "-fPIC", "-O1", "-xc", "-", "-o", library, "-ldl"],
                input=text.encode(),
                check=True,
            )
        with open(page, "wb") as f:
            f.truncate(4096)
        with open(page, "r+b") as f:
            self.words = memoryview(mmap.mmap(f.fileno(), 4096)).cast("q")
        self.own = {"LD_PRELOAD": library, "PRELOAD_PAGE": page}
        self.env = {**os.environ, **self.own}
        self.env["ASAN_OPTIONS"] = "verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", "")

    def get(self, name):
        return self.words[self.names.index(name)]

    def set(self, **words):
        for name, value in words.items():
            self.words[self.names.index(name)] = value
