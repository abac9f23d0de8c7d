/* Storage that does not answer: logged when it begins and ends, and kept for status and metrics. */
#ifndef TOKEND_HANG_H
#define TOKEND_HANG_H

#include "daemon/catalog/catalog.h"
#include "daemon/control/data_thread.h"
#include "proto/wire.h"

struct hangs {
	const struct catalog *catalog;
	struct reader_hang of[LIMIT_STREAMS]; /* by the stream's number */
};

/* Once a second. */
void hangs_clock(struct hangs *hangs, struct data_thread *data_thread);
const struct reader_hang *hang_of(const struct hangs *hangs, const struct stream *stream);
/* The stream whose storage has not answered for the longest time, or NULL. */
const struct stream *hang_longest(const struct hangs *hangs);
/* Puts it into a message, unless there is none; the message borrows @path. */
void hang_put(const struct reader_hang *hang, struct wire *w, char *path, size_t path_bytes);

#endif
