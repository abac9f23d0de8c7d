/* The order of a run: proto/order.c with the mixes that the simulator has noted itself. */
#ifndef TOKEND_SIM_PLAN_H
#define TOKEND_SIM_PLAN_H

#include "tests/sim/node.h"

enum { SEGMENTS = 256 };

/* What a run serves: all its mixes so far, from position 0 on. */
struct plan {
	const struct stream_plan *stream;
	uint32_t datasets;
	unsigned source[DATASETS]; /* [datasets] numbers in the stream's list */
	struct order_dataset dataset[DATASETS];
	uint64_t end; /* UINT64_MAX: endless */
	unsigned segments;
	const struct order_segment *segment[SEGMENTS]; /* never freed: copies share them */
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
/* Where a window of the path begins, by counting. */
void plan_locate(const struct stream_plan *stream, const struct source *source,
	const struct order_dataset *dataset, struct plan_place *place);

#endif
