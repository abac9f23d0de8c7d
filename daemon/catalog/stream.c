#include "daemon/catalog/opening.h"

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

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

/* The line of the config that a cursor's fault is about. */
static int line_of(const struct config_stream *config, const struct fault *cause)
{
	char dataset[sizeof(cause->field)];

	if (begins(cause->field, "schedule"))
		return cause->index >= 0 && (uint32_t)cause->index < config->steps
			       ? config->step[cause->index].line
			       : config->schedule_line;
	for (uint32_t i = 0; i < config->datasets; i++) {
		const struct config_dataset *d = &config->dataset[i];

		if (strcmp(cause->field, "max_epochs") == 0 && d->max_epochs > 0)
			return d->max_epochs_line;
		snprintf(dataset, sizeof(dataset), "dataset %.48s: max_epochs", d->name);
		if (strcmp(cause->field, dataset) == 0)
			return d->max_epochs_line;
		snprintf(dataset, sizeof(dataset), "dataset %.48s: ", d->name);
		if (begins(cause->field, dataset))
			return d->weight_line;
	}
	return config->line;
}

bool stream_refuse(const struct stream *stream, const struct fault *cause, struct fault *fault)
{
	char field[sizeof(fault->field) + LIMIT_NAME_BYTES + 16];

	snprintf(field, sizeof(field), "streams.%s: %s", stream->config->name, cause->field);
	config_refuse(
		fault, stream->file, line_of(stream->config, cause), field, "%s", cause->text);
	if (cause->code == FAULT_MEMORY)
		fault->code = FAULT_MEMORY;
	return false;
}

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

static bool begin(struct stream *stream, struct fault *fault)
{
	const struct config_stream *source = stream->config;
	struct cursor_source *sources = calloc(source->datasets, sizeof(*sources));
	struct cursor_step *steps = calloc(source->steps + 1, sizeof(*steps));
	struct cursor identity;
	bool done;

	stream_identity(source, &identity);
	for (uint32_t i = 0; sources && i < source->datasets; i++)
		dataset_source(&stream->dataset[i], &sources[i]);
	for (uint32_t i = 0; steps && i < source->steps; i++) {
		const struct config_step *s = &source->step[i];

		steps[i] = (struct cursor_step){s->from, s->to, s->steps, s->weights};
	}
	done = sources && steps ? cursor_begin(&stream->begin, &identity, sources, source->datasets,
					  steps, source->steps, fault)
				: fault_memory(fault);
	free(sources);
	free(steps);
	return done && (encode_begin(stream) || fault_memory(fault));
}

/*
 * Whether no document would ever end in @d: its tokens are too narrow for the eos, and a shard has
 * no index. Whether a manifest's shards have one is not known yet.
 */
static bool is_endless(const struct stream *stream, const struct dataset *d)
{
	return stream->config->documents && stream->config->has_eos &&
	       stream->config->eos > UINT16_MAX && d->token_bytes == 2 &&
	       (stream->token_bytes == 2 || (!d->listed && d->unindexed < d->table.shards));
}

static bool refuse_eos(const struct stream *stream, const struct dataset *d, struct fault *fault)
{
	const struct config_stream *source = stream->config;
	char field[sizeof(fault->field)];

	snprintf(field, sizeof(field), "streams.%s.eos", source->name);
	return config_refuse(fault, stream->file, source->eos_line, field,
		"%" PRIu64
		" does not fit u16, so no document of dataset %s would end; must be at most %d",
		source->eos, d->config->name, UINT16_MAX);
}

/* A stream serves all datasets in one width, that of the widest. */
static bool set_width(struct stream *stream, struct fault *fault)
{
	uint32_t n = stream->config->datasets;

	stream->token_bytes = 0;
	for (uint32_t i = 0; i < n; i++)
		if (stream->dataset[i].token_bytes > stream->token_bytes)
			stream->token_bytes = stream->dataset[i].token_bytes;
	assert(stream->token_bytes == 2 || stream->token_bytes == 4);
	for (uint32_t i = 0; i < n; i++) {
		struct dataset *d = &stream->dataset[i];

		if (is_endless(stream, d))
			return refuse_eos(stream, d, fault);
		if (d->token_bytes < stream->token_bytes)
			dataset_widen(d, stream->token_bytes);
		assert(d->token_bytes == stream->token_bytes);
		dataset_check(d);
	}
	return true;
}

/* Marks datasets that have windows of an earlier one's part, or part of its windows. */
static void find_overlaps(const struct stream *stream)
{
	for (uint32_t i = 0; i < stream->config->datasets; i++)
		for (uint32_t j = 0; j < i; j++) {
			struct dataset *d = &stream->dataset[i], *e = &stream->dataset[j];

			if ((dataset_is_part(d) || dataset_is_part(e)) &&
				d->config->lo < e->config->hi && e->config->lo < d->config->hi &&
				dataset_same_path(d, e))
				d->overlaps = e;
		}
}

bool stream_open(struct stream *stream, const struct config_stream *source,
	const struct config *config, struct stores *stores, FILE *saved, struct fault *fault)
{
	pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	struct fault cause;

	stream->config = source;
	stream->file = config->path;
	stream->dataset = calloc(source->datasets, sizeof(*stream->dataset));
	if (!stream->dataset) {
		fault_memory(&cause);
		return stream_refuse(stream, &cause, fault);
	}
	for (uint32_t i = 0; i < source->datasets; i++) {
		struct dataset *d = &stream->dataset[i];
		const struct opening o = {
			config, source, &source->dataset[i], stores, d, &lock, fault, saved};

		d->config = &source->dataset[i];
		if (!dataset_open(&o))
			return false;
	}
	find_overlaps(stream);
	if (!set_width(stream, fault))
		return false;
	return begin(stream, &cause) || stream_refuse(stream, &cause, fault);
}
