/*
 * The mixes of a run, as far back as they are known. Errors are printed.
 */
#ifndef TOKEND_CTL_HISTORY_H
#define TOKEND_CTL_HISTORY_H

#include "client/ctl/offline/stream.h"
#include "proto/cursor.h"

/* The order over the segments of several cursors of one run. */
struct ctl_history {
	const struct cursor *widest;	/* the cursor with the longest list of datasets; owned */
	struct order order;		/* of all segments; borrows from the history */
	char run[LIMIT_NAME_BYTES + 1]; /* whole name of the run, if one was given */
	struct ctl_history_parts *parts;
};

/*
 * Takes the mixes from the cursor files @paths, or from the mix log of run @run
 * (STATE_DIR/STREAM/RUN/mixes), or, without either, from the config. @n paths and @run exclude each
 * other. The files may come in any order; if their mixes do not follow from each other, it fails. A
 * log is read back to its first file, or to the first that cannot be read or does not follow from
 * those before it; a line on stderr then says which. ctl_history_close() is needed only after
 * success.
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
		.help = "run to take the mixes of, from its mix log"                               \
	}
void ctl_history_close(struct ctl_history *h);

#endif
