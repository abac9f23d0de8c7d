#include "daemon/catalog/stream_schedule.h"

#include "daemon/catalog/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Steps as another cursor's list of datasets has them. */
struct plan {
	struct cursor_step *step; /* [config->steps + 1] */
	double *weights;	  /* [config->steps + 1][cursor->datasets] */
	uint64_t *max_epochs;	  /* [cursor->datasets] */
	uint32_t
		shift; /* 1: the first step is not the schedule's but what the config begins with */
};

static void plan_free(struct plan *p)
{
	free(p->step);
	free(p->weights);
	free(p->max_epochs);
}

static bool plan_open(struct plan *p, const struct stream *stream, const struct cursor *cursor)
{
	const struct config_stream *config = stream->config;
	size_t steps = (size_t)config->steps + 1;
	/* What the schedule's own first ramp comes from is known only to the config. */
	bool begun = config->steps > 0 && config->step[0].from < config->step[0].to &&
		     config->step[0].from < cursor_mix_at(cursor);

	*p = (struct plan){
		.step = calloc(steps, sizeof(*p->step)),
		.weights = calloc(steps * cursor->datasets, sizeof(*p->weights)),
		.max_epochs = calloc(cursor->datasets, sizeof(*p->max_epochs)),
		.shift = begun,
	};
	if (!p->step || !p->weights || !p->max_epochs)
		return false;
	p->step[0] = (struct cursor_step){.steps = 1, .weights = p->weights};
	for (uint32_t i = 0; i < config->steps; i++) {
		const struct config_step *s = &config->step[i];

		p->step[i + p->shift] = (struct cursor_step){s->from, s->to, s->steps,
			p->weights + (size_t)(i + p->shift) * cursor->datasets};
	}
	for (uint32_t d = 0; d < cursor->datasets; d++)
		p->max_epochs[d] = cursor->dataset[d].max_epochs;
	return true;
}

/* The weight of the config's dataset @i at the plan's step @k. */
static double weight_at(
	const struct plan *p, const struct config_stream *config, uint32_t k, uint32_t i)
{
	return k < p->shift ? config->dataset[i].weight : config->step[k - p->shift].weights[i];
}

/* Puts what the config says of its dataset @i where the cursor has it. */
static bool plan_dataset(struct plan *p, const struct stream *stream, const struct cursor *cursor,
	uint32_t i, struct fault *fault)
{
	const struct config_stream *config = stream->config;
	int d = cursor_find(cursor, config->dataset[i].name);

	if (d >= 0)
		p->max_epochs[d] = config->dataset[i].max_epochs;
	for (uint32_t k = 0; k < config->steps + p->shift; k++) {
		double weight = weight_at(p, config, k, i);

		if (d < 0 && weight > 0) {
			snprintf(fault->field, sizeof(fault->field), "dataset %s: weight",
				config->dataset[i].name);
			snprintf(fault->text, sizeof(fault->text),
				"the schedule gives it some, and the cursor does not have it yet; "
				"add it "
				"first (tokctl cursor add)");
			return false;
		}
		if (d >= 0)
			p->weights[(size_t)k * cursor->datasets + (size_t)d] = weight;
	}
	return true;
}

/* A complaint about step N of the plan is about entry N - shift of the schedule. */
static void renumber(struct fault *fault, uint32_t shift)
{
	struct fault given = *fault;
	unsigned step;
	int rest = 0;

	if (sscanf(given.field, "schedule[%u]%n", &step, &rest) == 1 && rest > 0 && step >= shift)
		snprintf(fault->field, sizeof(fault->field), "schedule[%u]%s", step - shift,
			given.field + rest);
}

bool stream_schedule(
	const struct stream *stream, struct cursor *cursor, char *why, size_t why_bytes)
{
	struct fault fault = {.field = "memory", .text = "out of memory"};
	struct plan plan;
	bool done = plan_open(&plan, stream, cursor);

	for (uint32_t i = 0; done && i < stream->config->datasets; i++)
		done = plan_dataset(&plan, stream, cursor, i, &fault);
	if (done && !cursor_schedule(cursor, plan.step, stream->config->steps + plan.shift,
			    plan.max_epochs, &fault)) {
		renumber(&fault, plan.shift);
		done = false;
	}
	plan_free(&plan);
	return done || stream_refuse(stream, &fault, why, why_bytes);
}
