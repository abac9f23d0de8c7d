#include "daemon/shard/reread.h"

#include <fcntl.h>
#include <stddef.h>

/*
 * The kernel drops only pages entirely within the range, so extend it to the boundaries of the
 * largest folios.
 */
enum { PAGE_MOST = 2 << 20 };

/* Set by main(); see reread.h. */
static reread_receiver *receiver_of;
static void *receiver_context;

void reread_forget(int fd, uint64_t at, uint64_t n)
{
	uint64_t from = at / PAGE_MOST * PAGE_MOST;
	uint64_t end = n > 0 ? (at + n + PAGE_MOST - 1) / PAGE_MOST * PAGE_MOST : from;

	posix_fadvise(fd, (off_t)from, (off_t)(end - from), POSIX_FADV_DONTNEED);
}

void reread_was_good(int fd, uint64_t at, uint64_t n, const char *why)
{
	if (receiver_of)
		receiver_of(receiver_context, fd, at, n, why);
}

void reread_tell(reread_receiver *receiver, void *context)
{
	receiver_of = receiver;
	receiver_context = context;
}
