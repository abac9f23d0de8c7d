/* Streams of a config: their datasets, and the cursors that they begin with. */
#include "daemon/catalog/dataset_private.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void stream_identity(const struct config_stream *config, struct cursor *identity)
{
	*identity = (struct cursor){
		.seed = config->seed,
		.seq_len = config->seq_len,
		.extra = config->extra,
		.stride = config->stride,
		.epochs = config->epochs,
		.samples = config->samples,
	};
	memcpy(identity->stream, config->name, sizeof(identity->stream));
}

/* The line that a cursor's complaint is about, by its field: "dataset NAME: …", "schedule[N]: …".
 */
static int line_of(const struct config_stream *config, const char *field)
{
	unsigned step;

	if (sscanf(field, "schedule[%u]", &step) == 1 && step < config->steps)
		return config->step[step].line;
	if (strncmp(field, "schedule", 8) == 0)
		return config->schedule_line;
	for (uint32_t i = 0; i < config->datasets; i++) {
		const struct config_dataset *d = &config->dataset[i];
		size_t n = strlen(d->name);

		if (strcmp(field, "max_epochs") == 0 && d->max_epochs > 0)
			return d->max_epochs_line;
		if (strncmp(field, "dataset ", 8) == 0 && strncmp(field + 8, d->name, n) == 0 &&
			field[8 + n] == ':')
			return strcmp(field + 8 + n, ": max_epochs") == 0 ? d->max_epochs_line
									  : d->weight_line;
	}
	return config->line;
}

static bool refuse_stream(
	const struct stream *stream, const struct fault *fault, char *why, size_t why_bytes)
{
	snprintf(why, why_bytes, "%s:%d: streams.%s: %s: %s", stream->file,
		line_of(stream->config, fault->field), stream->config->name, fault->field,
		fault->text);
	return false;
}

static const struct fault no_memory = {.field = "memory", .text = "out of memory"};

static bool encode_begin(struct stream *stream)
{
	char bytes[LIMIT_CURSOR_BYTES];

	stream->begin_length = cursor_encode(&stream->begin, bytes, sizeof(bytes));
	assert(stream->begin_length > 0);
	stream->begin_bytes = malloc(stream->begin_length);
	if (stream->begin_bytes)
		memcpy(stream->begin_bytes, bytes, stream->begin_length);
	return stream->begin_bytes;
}

static bool begin(struct stream *stream, char *why, size_t why_bytes)
{
	const struct config_stream *source = stream->config;
	struct cursor_source *sources = calloc(source->datasets, sizeof(*sources));
	struct cursor_step *steps = calloc(source->steps + 1, sizeof(*steps));
	struct fault fault = no_memory;
	struct cursor identity;

	stream_identity(source, &identity);
	for (uint32_t i = 0; sources && i < source->datasets; i++)
		dataset_source(&stream->dataset[i], &sources[i]);
	for (uint32_t i = 0; steps && i < source->steps; i++) {
		const struct config_step *s = &source->step[i];

		steps[i] = (struct cursor_step){s->from, s->to, s->steps, s->weights};
	}
	bool done = sources && steps &&
		    cursor_begin(&stream->begin, &identity, sources, source->datasets, steps,
			    source->steps, &fault);

	free(sources);
	free(steps);
	if (done && !encode_begin(stream)) {
		fault = no_memory;
		done = false;
	}
	return done || refuse_stream(stream, &fault, why, why_bytes);
}

static bool open_stream(struct stream *stream, const struct config_stream *source,
	const struct config *config, char *why, size_t why_bytes)
{
	stream->config = source;
	stream->file = config->path;
	stream->dataset = calloc(source->datasets, sizeof(*stream->dataset));
	if (!stream->dataset) {
		snprintf(why, why_bytes, "%s:%d: streams.%s: out of memory", config->path,
			source->line, source->name);
		return false;
	}
	for (uint32_t i = 0; i < source->datasets; i++) {
		struct dataset *d = &stream->dataset[i];
		struct opening o = {config, source, &source->dataset[i], d, why, why_bytes};

		d->config = &source->dataset[i];
		if (!dataset_open(&o))
			return false;
		if (i == 0)
			stream->token_bytes = d->token_bytes;
		if (d->token_bytes != stream->token_bytes)
			return dataset_refuse(&o, d->config->line, "dtype",
				"u%" PRIu32 " tokens, but those of dataset %s are u%" PRIu32
				"; a stream must have one width",
				8 * d->token_bytes, source->dataset[0].name,
				8 * stream->token_bytes);
	}
	if (source->documents && source->has_eos && stream->token_bytes == 2 &&
		source->eos > UINT16_MAX) {
		snprintf(why, why_bytes,
			"%s:%d: streams.%s.eos: %" PRIu64
			" is no u16 token, so no document would end; must be at most %d",
			config->path, source->eos_line, source->name, source->eos, UINT16_MAX);
		return false;
	}
	return begin(stream, why, why_bytes);
}

/* ---- the catalog ---- */

/* @only: the stream to open, NULL for all. */
static struct catalog *open_catalog(
	const struct config *config, const struct config_stream *only, char *why, size_t why_bytes)
{
	struct catalog *catalog = calloc(1, sizeof(*catalog));

	if (catalog)
		catalog->stream = calloc(config->streams, sizeof(*catalog->stream));
	if (!catalog || !catalog->stream) {
		snprintf(why, why_bytes, "%s:1: streams: out of memory", config->path);
		goto fail;
	}
	catalog->config = config;
	for (uint32_t i = 0; i < config->streams; i++)
		if ((!only || only == &config->stream[i]) &&
			!open_stream(
				&catalog->stream[i], &config->stream[i], config, why, why_bytes))
			goto fail;
	return catalog;
fail:
	catalog_free(catalog);
	return NULL;
}

struct catalog *catalog_open(const struct config *config, char *why, size_t why_bytes)
{
	return open_catalog(config, NULL, why, why_bytes);
}

struct catalog *catalog_open_stream(
	const struct config *config, const char *stream, char *why, size_t why_bytes)
{
	const struct config_stream *only = config_stream(config, stream);
	size_t n;

	if (only)
		return open_catalog(config, only, why, why_bytes);
	snprintf(why, why_bytes, "%s:%d: streams: none is called %s; there are:", config->path,
		config->stream[0].line, stream);
	for (uint32_t i = 0; i < config->streams && (n = strlen(why)) + 1 < why_bytes; i++)
		snprintf(why + n, why_bytes - n, "%s%s", i ? ", " : " ", config->stream[i].name);
	return NULL;
}

void catalog_free(struct catalog *catalog)
{
	if (!catalog)
		return;
	for (uint32_t i = 0; catalog->stream && i < catalog->config->streams; i++) {
		struct stream *stream = &catalog->stream[i];

		for (uint32_t d = 0; stream->dataset && d < stream->config->datasets; d++)
			dataset_close(&stream->dataset[d]);
		free(stream->dataset);
		cursor_free(&stream->begin);
		free(stream->begin_bytes);
	}
	free(catalog->stream);
	free(catalog);
}

const struct stream *catalog_stream(const struct catalog *catalog, const char *name)
{
	for (uint32_t i = 0; i < catalog->config->streams; i++)
		if (catalog->stream[i].config && strcmp(catalog->stream[i].config->name, name) == 0)
			return &catalog->stream[i];
	return NULL;
}

void stream_map(
	const struct stream *stream, const struct cursor *cursor, const struct dataset **out)
{
	for (uint32_t d = 0; d < cursor->datasets; d++) {
		out[d] = NULL;
		for (uint32_t i = 0; i < stream->config->datasets; i++)
			if (strcmp(cursor->dataset[d].name, stream->dataset[i].config->name) == 0)
				out[d] = &stream->dataset[i];
	}
}

/* ---- the config's plan for a cursor ---- */

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
	struct fault fault = no_memory;
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
	return done || refuse_stream(stream, &fault, why, why_bytes);
}
