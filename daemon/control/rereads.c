#include "daemon/control/rereads.h"

#include "daemon/control/log.h"
#include "daemon/shard/reread.h"

#include <errno.h>
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

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (readlink(link, path, sizeof(path) - 1) < 0)
		snprintf(path, sizeof(path), "(name unknown: %s)", strerror(errno));
	atomic_fetch_add(&total, 1);
	log_client(getuid(), LOG_WARNING,
		"shard %s: bytes %" PRIu64 " to %" PRIu64
		" were damaged when read (%s) and good when read again; nothing was lost; check "
		"this node's "
		"memory and disk",
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
