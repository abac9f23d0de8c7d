#include "daemon/catalog/stream.h"

#include "daemon/catalog/dataset_open.h"

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

bool stream_refuse(
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
	return done || stream_refuse(stream, &fault, why, why_bytes);
}

bool stream_open(struct stream *stream, const struct config_stream *source,
	const struct config *config, char *why, size_t why_bytes)
{
	pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

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
		const struct opening o = {
			config, source, &source->dataset[i], d, &lock, why, why_bytes};

		d->config = &source->dataset[i];
		if (!dataset_open(&o))
			return false;
		if (i == 0)
			stream->token_bytes = d->token_bytes;
		if (d->token_bytes != stream->token_bytes)
			return opening_refuse(&o, d->config->line, "dtype",
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
