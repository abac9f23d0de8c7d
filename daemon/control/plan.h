/* Remarks about a stream: shards that look wrong, the end of its datasets, its schedule; and the
 * command that checks all of them. */
#ifndef TOKEND_PLAN_H
#define TOKEND_PLAN_H

#include "daemon/catalog/catalog.h"

/*
 * Passes them to @tell, line by line. @doubt: trainers are warned, because the tokens may not be
 * the ones that are meant.
 */
void plan_tell(const struct stream *s, void *context,
	void (*tell)(void *context, const struct stream *s, bool doubt, const char *text));
/* Logs them. */
void plan_log(const struct stream *s);
/*
 * Whether the config's weights have no effect on a run that is at @c, with both mixes in @text:
 * they were edited since the run began. False for a run whose mix has changed since then, by an
 * operator or a schedule.
 */
bool plan_mix_differs(const struct stream *s, const struct cursor *c, const char *run, char *text,
	size_t text_bytes);

/*
 * tokend --check (check.c): tries what would fail later. A ring of each stream must fit into
 * memory:. state_dir and the directory of the socket must be writable. A batch of each stream is
 * read as a session would read it. The plan of the streams goes to stdout, a line for each fault to
 * stderr. @stores: of the catalog's datasets. Returns the exit code.
 */
int check_run(const struct catalog *catalog, struct stores *stores);

#endif
