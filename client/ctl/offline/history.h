/*
 * The mixes of a run, from one of its cursors. Errors are printed.
 */
#ifndef TOKEND_CTL_HISTORY_H
#define TOKEND_CTL_HISTORY_H

#include "client/ctl/offline/stream.h"
#include "proto/cursor.h"

struct ctl_history {
	struct cursor cursor;
	struct order order; /* from its first mix on; borrows from the cursor */
};

/*
 * Takes the mixes from the cursor file that reaches furthest of @n @paths; or from the last cursor
 * at which run @run attached, in state_dir; or from the config. Paths and @run exclude each other.
 * It fails if one of @paths is not on the past of that cursor.
 * ctl_history_close() is needed only after success.
 */
bool ctl_history_open(struct ctl_history *h, const struct ctl_stream *s, const char *const *paths,
	unsigned n, const char *run);
/* The options that give @paths and @run. */
#define CTL_HISTORY_CURSOR                                                                         \
	{                                                                                          \
		.name = "cursor", .kind = CTL_LIST, .value = "FILE",                               \
		.help = "cursor of the run to take its mixes from; default: the config's mixes"    \
	}
#define CTL_HISTORY_RUN                                                                            \
	{                                                                                          \
		.name = "run", .value = "RUN",                                                     \
		.help = "run to take the mixes of, from its last cursor in state_dir, or from a "  \
			"cursor's file"                                                            \
	}
/* Have two cursors the same mix from the same position on, with the same past? */
bool ctl_same_segment(const struct order_segment *a, const struct order_segment *b);
void ctl_history_close(struct ctl_history *h);

#endif
