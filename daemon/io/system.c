#include "daemon/io/io.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef STATX_DIOALIGN /* Linux 6.1 */
#define STATX_DIOALIGN	     0
#define stx_dio_offset_align stx_blksize
#endif

unsigned io_align(int fd)
{
	struct statx found;
	unsigned align = 0;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &found) == 0 &&
		(found.stx_mask & STATX_DIOALIGN))
		align = found.stx_dio_offset_align;
	if (align == 0 || align > IO_ALIGN || (align & (align - 1)) != 0)
		return IO_ALIGN;
	return align < IO_SECTOR ? IO_SECTOR : align;
}

bool io_knows_nowait(int fd)
{
	char byte;
	struct iovec to = {.iov_base = &byte, .iov_len = 1};

	/* EINVAL: the file is open with O_DIRECT, and the read is not aligned. */
	return preadv2(fd, &to, 1, 0, RWF_NOWAIT) >= 0 || errno == EAGAIN || errno == EINVAL;
}

int64_t io_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

bool io_fault(struct fault *fault, int error, const char *what)
{
	assert(error > 0);
	return fault_errno(fault, error, "io", "%s: %s", what, strerrorname_np(error));
}
