#include "rereads.h"

#include "../shard/reread.h"
#include "log.h"

#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static _Atomic uint64_t total;

/* In the thread that reads: shards know no names. */
static void told(int fd, uint64_t at, uint64_t n, const char *why)
{
	char link[40], path[PATH_MAX] = "";
	ssize_t length;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, path, sizeof(path) - 1);
	snprintf(path + (length > 0 ? length : 0), 1, "%s", "");
	atomic_fetch_add(&total, 1);
	log_line(LOG_WARNING,
		"shard %s: bytes %" PRIu64 " to %" PRIu64
		" were damaged when they were read (%s) and are good now that they were read again; nothing "
		"was lost; "
		"check this node's memory, its disk and the way to it",
		path, at, at + n, why);
}

void rereads_log(void)
{
	reread_tell(told);
}

uint64_t rereads_total(void)
{
	return atomic_load(&total);
}
