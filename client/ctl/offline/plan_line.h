/* The lines of `tokctl plan`. */
#ifndef TOKEND_CTL_PLAN_LINE_H
#define TOKEND_CTL_PLAN_LINE_H

#include "client/ctl/common/out.h"
#include "client/ctl/offline/history.h"
#include "client/ctl/offline/windows.h"

struct plan_line {
	uint64_t position, rank, row;
	bool padding; /* the row is after the end of a finite stream */
	struct order_place place;
	const char *shard;
	uint64_t number; /* of the shard */
	uint64_t offset;
	const void *tokens;
};

struct plan {
	const struct ctl_history *history;
	const struct dataset **map; /* [datasets] */
	struct ctl_windows *reader; /* NULL: no --tokens */
	void *tokens;		    /* of the lines of a block */
	struct ctl_window *windows; /* likewise */
	struct plan_line *lines;
	uint64_t block, held; /* lines at most, and lines that are not printed yet */
	uint64_t window_tokens;
	uint32_t token_bytes;
	bool json;
	bool ranks; /* lines have a rank and a row */
	size_t position_width, dataset_width, window_width, offset_width;
};

/* Makes each column as wide as its longest possible entry, which is known before the first line.
 * @last: position. */
void plan_measure(struct plan *p, uint64_t last);
void plan_put_head(struct ctl_out *out, const struct plan *p);
void plan_put(struct ctl_out *out, const struct plan *p, const struct plan_line *line);

#endif
