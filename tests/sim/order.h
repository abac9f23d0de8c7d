/* The order of a run, from its definition alone: it shares no code with proto/order*.c. */
#ifndef TOKEND_SIM_ORDER_H
#define TOKEND_SIM_ORDER_H

#include "tests/sim/node.h"

enum { PADDED = 8, SEGMENTS = 256 };

struct plan_segment {
	uint64_t start;
	uint32_t datasets; /* when it was made: nodes of a larger tree are new */
	uint64_t units[PADDED], base[PADDED], phase[PADDED];
};

/* What a run serves: all its mixes so far, from position 0 on. */
struct plan {
	const struct stream_plan *stream;
	uint32_t datasets;
	unsigned source[PADDED]; /* [datasets] numbers in the stream's list */
	uint64_t windows[PADDED], hash[PADDED];
	uint64_t end; /* UINT64_MAX: endless */
	unsigned segments;
	struct plan_segment segment[SEGMENTS];
};

struct plan_place {
	uint32_t dataset;
	uint64_t epoch, window, shard, offset;
};

/* The windows of the path that the source is a part of. */
uint64_t plan_path_windows(const struct stream_plan *stream, const struct source *source);
void plan_begin(struct plan *plan, const struct stream_plan *stream, uint32_t datasets);
/* Appends source number @source, with weight 0. */
void plan_add(struct plan *plan, unsigned source);
/* A mix from @at on, in the order of the plan's datasets; later mixes end. */
void plan_mix(struct plan *plan, uint64_t at, const double *weights);
void plan_at(const struct plan *plan, uint64_t position, struct plan_place *place);

#endif
