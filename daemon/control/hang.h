/* Storage that does not answer: logs when that begins and ends, and reports it in status and
 * metrics. All on the loop. */
#ifndef TOKEND_HANG_H
#define TOKEND_HANG_H

#include "daemon/catalog/catalog.h"
#include "daemon/control/data_thread.h"

struct hangs {
	const struct catalog *catalog;
	struct reader_hang of[LIMIT_STREAMS]; /* by slot */
};

/* Call once a second. */
void hangs_clock(struct hangs *hangs, struct data_thread *data_thread);
/* The stream's hang; its ticks are 0 while storage answers. */
const struct reader_hang *hang_of(const struct hangs *hangs, const struct stream *stream);
/* The stream whose storage has not answered for the longest time, or NULL. */
const struct stream *hang_longest(const struct hangs *hangs);
/* The path of the shard that has not answered, or its name if that is too long. */
void hang_shard(const struct reader_hang *hang, char *path, size_t path_bytes);

#endif
