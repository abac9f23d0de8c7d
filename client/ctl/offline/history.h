/*
 * The mixes of a run, as far as they are known. Errors are printed.
 */
#ifndef TOKEND_CTL_HISTORY_H
#define TOKEND_CTL_HISTORY_H

#include "client/ctl/offline/stream.h"
#include "proto/cursor.h"

/* Several cursors of one run, joined: one order over all their segments. */
struct ctl_history {
	const struct cursor *widest; /* the cursor with the longest list of datasets; owned */
	struct order order;	     /* of all segments; borrows from the history */
	struct ctl_history_parts *parts;
};

/*
 * Sources: the cursors in files @paths, or the mix log of run @run (STATE_DIR/STREAM/RUN/mixes),
 * or, with neither, the config. @n paths and @run exclude each other. The files, in any order, are
 * rejected if they do not join. A log goes back as far as it joins and can be read; if a file ends
 * it before the run's beginning, stderr says which.
 */
bool ctl_history_open(struct ctl_history *h, const struct ctl_stream *s, const char *const *paths,
	unsigned n, const char *run);
/* The options that give @paths and @run. */
#define CTL_HISTORY_CURSOR                                                                         \
	{                                                                                          \
		.name = "cursor", .kind = CTL_LIST, .value = "F",                                  \
		.help = "a cursor of the run, whose mixes count"                                   \
	}
#define CTL_HISTORY_RUN                                                                            \
	{                                                                                          \
		.name = "run", .value = "RUN", .help = "the mixes of this run's mix log"           \
	}
void ctl_history_close(struct ctl_history *h);

#endif
