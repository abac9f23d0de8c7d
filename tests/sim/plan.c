#include "tests/sim/plan.h"

uint64_t plan_path_windows(const struct stream_plan *stream, const struct source *s)
{
	uint64_t windows = 0;

	for (uint64_t i = 0; i < s->shards; i++)
		windows += order_shard_windows(
			s->tokens[i], stream->seq_len + stream->extra, stream->stride);
	return windows;
}

void plan_add(struct plan *p, unsigned source)
{
	CHECK(p->datasets < DATASETS);
	const struct source *s = &p->stream->source[source];
	struct order_dataset *d = &p->dataset[p->datasets];

	*d = (struct order_dataset){.name_hash = order_name_hash(s->name, strlen(s->name)),
		.windows = plan_path_windows(p->stream, s),
		.block = s->block,
		.group = s->group,
		.shuffle = s->shuffle,
		.slide = s->slide};
	if (s->lo > 0 || s->hi < ORDER_UNITS)
		CHECK(order_part(d, d->windows, s->lo, s->hi));
	p->source[p->datasets++] = source;
}

/* The segment from @at on. Its memory is the simulator's, not that of the process that calls. */
static void add_segment(struct plan *p, uint64_t at, const uint64_t *units)
{
	struct fiber *self = fiber_current;

	CHECK(p->segments < SEGMENTS);
	fiber_current = NULL;
	p->segment[p->segments] = p->segments == 0 ? order_segment_first(units, p->datasets)
						   : order_segment_next(p->segment[p->segments - 1],
							     at, units, p->datasets);
	fiber_current = self;
	CHECK(p->segment[p->segments++]);
}

void plan_begin(struct plan *p, const struct stream_plan *stream, uint32_t datasets)
{
	uint64_t units[DATASETS], sum = 0;
	double weights[DATASETS];
	struct fault fault;

	*p = (struct plan){.stream = stream, .end = UINT64_MAX};
	for (uint32_t d = 0; d < datasets; d++) {
		plan_add(p, d);
		weights[d] = stream->source[d].weight;
		units[d] = stream->epochs * p->dataset[d].windows;
		sum += units[d];
	}
	if (stream->epochs)
		p->end = sum;
	else
		CHECK(order_units(weights, datasets, units, &fault));
	if (stream->samples)
		p->end = stream->samples;
	add_segment(p, 0, units);
}

void plan_mix(struct plan *p, uint64_t at, const double *weights)
{
	uint64_t units[DATASETS];
	struct fault fault;

	while (p->segments > 1 && p->segment[p->segments - 1]->start >= at)
		p->segments--;
	CHECK(order_units(weights, p->datasets, units, &fault));
	add_segment(p, at, units);
}

void plan_locate(const struct stream_plan *stream, const struct source *s,
	const struct order_dataset *d, struct plan_place *to)
{
	uint64_t window = stream->seq_len + stream->extra, left = to->window, n;

	for (to->shard = 0;
		left >= (n = order_shard_windows(s->tokens[to->shard], window, stream->stride));
		to->shard++)
		left -= n;
	to->offset = left * stream->stride +
		     order_slide(d, stream->seed, to->epoch, to->shard,
			     order_shard_slack(s->tokens[to->shard], window, stream->stride));
}

void plan_at(const struct plan *p, uint64_t position, struct plan_place *to)
{
	struct order order = {.seed = p->stream->seed,
		.end = p->end == UINT64_MAX ? 0 : p->end,
		.exact_end = p->stream->epochs > 0,
		.datasets = p->datasets,
		.segments = p->segments,
		.dataset = p->dataset,
		.segment = p->segment};
	struct order_place place;

	CHECK(order_at(&order, position, &place));
	*to = (struct plan_place){
		.dataset = place.dataset, .epoch = place.epoch, .window = place.window};
	plan_locate(p->stream, &p->stream->source[p->source[place.dataset]],
		&p->dataset[place.dataset], to);
}
