#include "daemon/control/rereads.h"

#include "daemon/control/log.h"
#include "daemon/shard/reread.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* In the thread that reads. Shards do not know their paths. */
static void on_reread(void *context, int fd, uint64_t at, uint64_t n, const char *why)
{
	struct rereads *rereads = context;
	char link[40], path[PATH_MAX] = "";

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (readlink(link, path, sizeof(path) - 1) < 0)
		snprintf(path, sizeof(path), "(name unknown: %s)", strerror(errno));
	atomic_fetch_add(&rereads->total, 1);
	log_client(getuid(), LOG_WARNING,
		"shard %s: bytes %" PRIu64 " to %" PRIu64
		" were damaged when read (%s), and intact when read again; no data was lost; check "
		"this node's memory and disk",
		path, at, at + n, why);
}

void rereads_watch(struct rereads *rereads)
{
	reread_tell(on_reread, rereads);
}
