"""A kernel before Linux 6.16 for a daemon: without SO_PASSRIGHTS clients can send descriptors."""

from .preload import Preload

_SOURCE = r"""
#include <errno.h>
#include <sys/socket.h>

#define PASSRIGHTS 83
#define OPTION(call, value_type, size_type) \
	int call(int fd, int level, int name, value_type value, size_type n) \
	{ \
		NEXT(call); \
		if (level != SOL_SOCKET || name != PASSRIGHTS) \
			return next(fd, level, name, value, n); \
		words[ASKED]++; \
		errno = ENOPROTOOPT; \
		return -1; \
	}
OPTION(setsockopt, const void *, socklen_t)
OPTION(getsockopt, void *, socklen_t *)
"""


def old_kernel(place):
    """`env` is for the daemon; "asked" counts what it asked for."""
    return Preload(place, _SOURCE, ["asked"], "old-kernel")
