#include "daemon/catalog/opening.h"

#include <stdio.h>
#include <stdlib.h>

/* The config's weights and limits, in the order of a cursor's datasets. */
struct plan {
	bool begun;    /* the first step is a ramp that has begun; it starts from `begin` */
	double *begin; /* [cursor->datasets] the config's weights */
	struct cursor_step *step; /* [config->steps] */
	double *weights;	  /* [config->steps][cursor->datasets] weights of the steps */
	uint64_t *max_epochs;	  /* [cursor->datasets] */
};

static void plan_free(struct plan *p)
{
	free(p->begin);
	free(p->step);
	free(p->weights);
	free(p->max_epochs);
}

static bool plan_open(struct plan *p, const struct config_stream *config,
	const struct cursor *cursor, struct fault *fault)
{
	size_t steps = config->steps, n = cursor->datasets;

	*p = (struct plan){
		.begun = steps > 0 && config->step[0].from < config->step[0].to &&
			 config->step[0].from < cursor_mix_at(cursor),
		.begin = calloc(n, sizeof(*p->begin)),
		.step = calloc(steps + 1, sizeof(*p->step)),
		.weights = calloc((steps + 1) * n, sizeof(*p->weights)),
		.max_epochs = calloc(n, sizeof(*p->max_epochs)),
	};
	if (!p->begin || !p->step || !p->weights || !p->max_epochs)
		return fault_memory(fault);
	for (size_t i = 0; i < steps; i++) {
		const struct config_step *s = &config->step[i];

		p->step[i] = (struct cursor_step){s->from, s->to, s->steps, p->weights + i * n};
	}
	for (uint32_t d = 0; d < n; d++)
		p->max_epochs[d] = cursor->dataset[d].max_epochs;
	return true;
}

/* Whether the plan gives the config's dataset @i any weight. */
static bool has_weight(const struct plan *p, const struct config_stream *config, uint32_t i)
{
	for (uint32_t k = 0; k < config->steps; k++)
		if (config->step[k].weights[i] > 0)
			return true;
	return p->begun && config->dataset[i].weight > 0;
}

/* Copies the config's dataset @i to its place in the cursor's order. */
static bool plan_dataset(struct plan *p, const struct config_stream *config,
	const struct cursor *cursor, uint32_t i, struct fault *fault)
{
	const struct config_dataset *source = &config->dataset[i];
	int d = cursor_find(cursor, source->name);

	if (d < 0 && has_weight(p, config, i)) {
		char field[sizeof(fault->field)];

		snprintf(field, sizeof(field), "dataset %s: weight", source->name);
		return fault_set(fault, FAULT_ARGUMENT, field,
			"the schedule gives it weight, but the cursor does not have it yet; add it "
			"first (tokctl cursor add)");
	}
	if (d < 0)
		return true;
	p->max_epochs[d] = source->max_epochs;
	p->begin[d] = source->weight;
	for (uint32_t k = 0; k < config->steps; k++)
		p->weights[(size_t)k * cursor->datasets + (size_t)d] = config->step[k].weights[i];
	return true;
}

bool stream_schedule(const struct stream *stream, struct cursor *cursor, struct fault *fault)
{
	const struct config_stream *config = stream->config;
	struct fault cause;
	struct plan plan;
	bool done = plan_open(&plan, config, cursor, &cause);

	for (uint32_t i = 0; done && i < config->datasets; i++)
		done = plan_dataset(&plan, config, cursor, i, &cause);
	done = done && cursor_schedule(cursor, plan.begun ? plan.begin : NULL, plan.step,
			       config->steps, plan.max_epochs, &cause);
	plan_free(&plan);
	return done || stream_refuse(stream, &cause, fault);
}
