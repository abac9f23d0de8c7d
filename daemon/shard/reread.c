#include "daemon/shard/reread.h"

#include <fcntl.h>
#include <stddef.h>

/* Pages are dropped only if they lie in the range as a whole, and so are the large ones that some
 * file systems keep. */
enum { PAGE_MOST = 2 << 20 };

/* main()'s: see reread.h. */
static reread_told *told_of;
static void *told_context;

void reread_forget(int fd, uint64_t at, uint64_t n)
{
	uint64_t from = at / PAGE_MOST * PAGE_MOST;
	uint64_t end = n > 0 ? (at + n + PAGE_MOST - 1) / PAGE_MOST * PAGE_MOST : from;

	posix_fadvise(fd, (off_t)from, (off_t)(end - from), POSIX_FADV_DONTNEED);
}

void reread_was_good(int fd, uint64_t at, uint64_t n, const char *why)
{
	if (told_of)
		told_of(told_context, fd, at, n, why);
}

void reread_tell(reread_told *told, void *context)
{
	told_of = told;
	told_context = context;
}
