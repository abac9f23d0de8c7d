/*
 * Schedules: planned changes of the mix, at once or in steps, become points for cursor_lay_out().
 * Integers only, so that all machines compute the same.
 */
#include "proto/cursor.h"

#include "proto/cursor_private.h"
#include "proto/phrases.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- checking steps ---- */

/* Fills @fault for one member of step @i: "schedule[2].at", with the index. Always false. */
__attribute__((format(printf, 4, 5))) static bool refuse_step(
	struct fault *fault, uint32_t i, const char *what, const char *format, ...)
{
	char field[sizeof(fault->field)], text[sizeof(fault->text)];
	va_list args;

	assert(i <= INT_MAX);
	snprintf(field, sizeof(field), "schedule[%u].%.80s", i, what);
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fault_set(fault, FAULT_CURSOR, field, "%s", text);
	fault->index = (int)i;
	return false;
}

static bool check_position(
	const struct cursor *c, uint32_t i, const char *what, uint64_t at, struct fault *fault)
{
	uint64_t last = UINT64_MAX / LIMIT_BLOCK * LIMIT_BLOCK;

	if (at % LIMIT_BLOCK != 0)
		return refuse_step(fault, i, what, PHRASE_MULTIPLE, at, LIMIT_BLOCK,
			at > last ? last : (at + LIMIT_BLOCK - 1) / LIMIT_BLOCK * LIMIT_BLOCK);
	if (at >= cursor_end(c))
		return refuse_step(fault, i, what,
			"%" PRIu64 " is not before the end of the stream, %" PRIu64
			", so no sample would have this mix",
			at, cursor_end(c));
	return true;
}

static bool check_step(
	const struct cursor *c, const struct cursor_step *steps, uint32_t i, struct fault *fault)
{
	const struct cursor_step *s = &steps[i];
	bool at_once = s->from == s->to;
	uint64_t room = s->to > s->from ? (s->to - s->from) / LIMIT_BLOCK : 0;
	const char *from = at_once ? "at" : "from";

	if (!check_position(c, i, from, s->from, fault) ||
		!check_position(c, i, at_once ? from : "to", s->to, fault))
		return false;
	if (s->to < s->from)
		return refuse_step(
			fault, i, "to", "%" PRIu64 " is before from, %" PRIu64, s->to, s->from);
	if (s->steps < 1 || (s->steps > 1 && s->steps > room))
		return refuse_step(fault, i, "steps",
			"%u; must be 1 to %" PRIu64 ", one for each block of %d", s->steps,
			room ? room : 1, LIMIT_BLOCK);
	if (i > 0 && (at_once ? s->from <= steps[i - 1].to : s->from < steps[i - 1].to))
		return refuse_step(fault, i, from,
			"%" PRIu64 " is not after the step before it, which ends at %" PRIu64
			"; put the steps into ascending order",
			s->from, steps[i - 1].to);
	return true;
}

bool cursor_check_steps(
	const struct cursor_step *steps, uint32_t n, uint32_t datasets, struct fault *fault)
{
	const struct cursor endless = {.datasets = datasets};
	uint64_t units[LIMIT_DATASETS];
	struct fault wrong;

	for (uint32_t i = 0; i < n; i++) {
		if (!check_step(&endless, steps, i, fault))
			return false;
		if (!order_units(steps[i].weights, datasets, units, &wrong))
			return refuse_step(fault, i, "weights", "%s", wrong.text);
	}
	return true;
}

/* Units of the mix that step @i leads to. */
static bool step_units(const struct cursor *c, const struct cursor_step *s, uint32_t i,
	uint64_t *units, struct fault *fault)
{
	struct fault units_fault;

	return cursor_units(c, s->weights, units, &units_fault) ||
	       refuse_step(fault, i, units_fault.field, "%s", units_fault.text);
}

/* ---- ramps ---- */

/* Computes the mix after @k of @steps from @before to @after. Weights hold the units exactly. */
static void ramp(const uint64_t *before, const uint64_t *after, uint32_t n, uint32_t k,
	uint32_t steps, double *weights)
{
	uint64_t units[LIMIT_DATASETS];
	double part[LIMIT_DATASETS];

	assert(k > 0 && k < steps && n <= LIMIT_DATASETS);
	for (uint32_t d = 0; d < n; d++) {
		uint64_t sum =
			before[d] * (steps - k) + after[d] * k; /* < 2^64: units are ≤ 2^32 */

		units[d] = sum / steps;
		part[d] = (double)(sum % steps); /* exact: below 2^32 */
	}
	order_give_rest(units, part, n);
	for (uint32_t d = 0; d < n; d++)
		weights[d] = (double)units[d];
}

/* ---- points ---- */

struct plan {
	uint32_t n, room;
	struct cursor_point *point;
	double *weights; /* of all points */
};

static void plan_free(struct plan *p)
{
	free(p->point);
	free(p->weights);
}

/* Room for a first point and those of all steps. */
static bool plan_open(struct plan *p, const struct cursor *c, const struct cursor_step *steps,
	uint32_t n, struct fault *fault)
{
	uint64_t count = 1;

	assert(c->datasets > 0);
	*p = (struct plan){0};
	for (uint32_t i = 0; i < n; i++) {
		if (!check_step(c, steps, i, fault))
			return false;
		count += steps[i].steps;
	}
	/* Each takes at least 4 bytes for its start and the list's header, and one per dataset. */
	if (count > LIMIT_CURSOR_BYTES / ((uint64_t)c->datasets + 4)) {
		fault_set(fault, FAULT_CURSOR, "schedule",
			"a cursor of %d bytes has no room for %" PRIu64
			" pending mixes of %u datasets; use fewer steps",
			LIMIT_CURSOR_BYTES, count, c->datasets);
		return false;
	}
	p->room = (uint32_t)count + 1;
	p->point = malloc((count + 1) * sizeof(*p->point));
	p->weights = malloc((count + 1) * c->datasets * sizeof(*p->weights));
	if (!p->point || !p->weights) {
		fault_memory(fault);
		return false;
	}
	return true;
}

/* Adds a point. Returns its weights, for the caller to fill. */
static double *add_point(struct plan *p, const struct cursor *c, uint64_t at)
{
	double *weights = p->weights + (size_t)p->n * c->datasets;

	assert(p->n < p->room && at % LIMIT_BLOCK == 0);
	assert(p->n == 0 || at >= p->point[p->n - 1].at);
	p->point[p->n++] = (struct cursor_point){at, weights};
	return weights;
}

/* Adds the points of @steps; the mix before them has @before units. */
static bool plan_steps(struct plan *p, const struct cursor *c, uint64_t *before,
	const struct cursor_step *steps, uint32_t n, struct fault *fault)
{
	uint64_t after[LIMIT_DATASETS];

	for (uint32_t i = 0; i < n; i++) {
		const struct cursor_step *s = &steps[i];

		if (!step_units(c, s, i, after, fault))
			return false;
		for (uint32_t k = 1; k < s->steps; k++) {
			uint64_t way = s->to - s->from;
			/* way · k / steps, with no product of 2^64 or more */
			uint64_t at = s->from + way / s->steps * k + way % s->steps * k / s->steps;

			ramp(before, after, c->datasets, k, s->steps,
				add_point(p, c, at / LIMIT_BLOCK * LIMIT_BLOCK));
		}
		/* The last point has the weights as given, so that the others keep their exact
		 * ratio if a dataset is left out. */
		memcpy(add_point(p, c, s->to), s->weights, c->datasets * sizeof(*s->weights));
		memcpy(before, after, c->datasets * sizeof(*before));
	}
	return true;
}

/* Drops the points before @least, except the last of them, which then acts from @least. */
static const struct cursor_point *ahead(struct plan *p, uint64_t least)
{
	uint32_t i = 0;

	while (i + 1 < p->n && p->point[i + 1].at <= least)
		i++;
	if (p->n > 0 && p->point[i].at < least)
		p->point[i].at = least;
	p->n -= i;
	assert(p->n == 0 || p->point[i].at >= least);
	assert(p->n < 2 || p->point[i + 1].at > least);
	return p->point + i;
}

/* Lays out @steps, after @weights if they are given. A cursor without a segment gets its first
 * ones. */
static bool lay_steps(struct cursor *c, const double *weights, const struct cursor_step *steps,
	uint32_t n, struct fault *fault)
{
	uint64_t before[LIMIT_DATASETS] = {0}, least = 0;
	struct plan p;
	bool ok = false;

	if (c->segments > 0) {
		const struct order_segment *now = cursor_now(c);

		memcpy(before, now->units, now->datasets * sizeof(*before));
		least = cursor_mix_at(c);
		if (n > 0 && least == 0)
			return fault_set(fault, FAULT_CURSOR, "schedule", PHRASE_NO_BLOCK, c->next,
				LIMIT_BLOCK);
	}
	assert(weights || c->segments > 0);
	if (weights && !cursor_units(c, weights, before, fault))
		return false;
	if (plan_open(&p, c, steps, n, fault)) {
		if (weights)
			memcpy(add_point(&p, c, 0), weights, c->datasets * sizeof(*weights));
		ok = plan_steps(&p, c, before, steps, n, fault);
	}
	if (ok) {
		const struct cursor_point *points = ahead(&p, least);

		ok = cursor_lay_out(c, points, p.n, false, fault);
	}
	plan_free(&p);
	return ok;
}

bool cursor_schedule(struct cursor *c, const double *weights, const struct cursor_step *steps,
	uint32_t n, const uint64_t *max_epochs, struct fault *fault)
{
	uint64_t before[LIMIT_DATASETS];

	if (c->epochs)
		return fault_set(fault, FAULT_CURSOR, "schedule", PHRASE_EPOCHS, c->stream);
	for (uint32_t d = 0; d < c->datasets; d++) {
		before[d] = c->dataset[d].max_epochs;
		if (max_epochs)
			c->dataset[d].max_epochs = max_epochs[d];
	}
	if (lay_steps(c, weights, steps, n, fault))
		return true;
	for (uint32_t d = 0; d < c->datasets; d++)
		c->dataset[d].max_epochs = before[d];
	return false;
}

/* ---- the mixes of a new cursor ---- */

static bool begin_epochs(struct cursor *out, uint32_t step_count, struct fault *fault)
{
	uint64_t units[LIMIT_DATASETS];

	if (step_count > 0)
		return fault_set(fault, FAULT_CURSOR, "schedule", PHRASE_EPOCHS, out->stream);
	if (!cursor_epoch_units(out, units, fault))
		return false;
	return cursor_append(out, order_segment_first(units, out->datasets)) || fault_memory(fault);
}

bool cursor_begin(struct cursor *out, const struct cursor *identity,
	const struct cursor_source *sources, uint32_t n, const struct cursor_step *steps,
	uint32_t step_count, struct fault *fault)
{
	double weights[LIMIT_DATASETS];

	if (!cursor_identity(out, identity, sources, n, fault))
		return false;
	assert(out->datasets == n && out->segments == 0);
	if (out->epochs)
		return begin_epochs(out, step_count, fault);
	for (uint32_t d = 0; d < n; d++)
		weights[d] = sources[d].weight;
	if (step_count > 0 && steps[0].to == 0)
		return refuse_step(fault, 0, "at",
			"0; must be above 0: the first mix is the datasets' weights");
	return lay_steps(out, weights, steps, step_count, fault);
}
