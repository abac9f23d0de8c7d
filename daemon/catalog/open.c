/*
 * Opens a dataset: finds its shards, checks them against the stream, and numbers the windows. A
 * fault names the line of the config that caused it.
 */
#include "daemon/catalog/opening.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define LINE_OF(key)                                                                               \
	{                                                                                          \
#key, offsetof(struct config_dataset, key##_line)                                  \
	}

/* Keys that are reported. Others are where the dataset is. */
static const struct {
	const char *key;
	size_t line;
} keys[] = {LINE_OF(path), LINE_OF(manifest), LINE_OF(format), LINE_OF(label_mask), LINE_OF(slide),
	LINE_OF(part)};

bool opening_refuse(const struct opening *o, const char *key, const char *text, ...)
{
	int index = (int)(o->source - o->stream->dataset), line = o->source->line;
	char field[sizeof(o->fault->field)], what[sizeof(o->fault->text)];
	va_list args;

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (strcmp(key, keys[i].key) == 0)
			line = *(const int *)((const char *)o->source + keys[i].line);
	snprintf(field, sizeof(field), "streams.%s.datasets[%d].%s", o->stream->name, index, key);
	va_start(args, text);
	vsnprintf(what, sizeof(what), text, args);
	va_end(args);
	return config_refuse(o->fault, o->config->path, line, field, "%s", what);
}

bool opening_refuse_memory(const struct opening *o)
{
	opening_refuse(o, "path", PHRASE_MEMORY);
	o->fault->code = FAULT_MEMORY;
	return false;
}

bool opening_refuse_shard(const struct opening *o, const char *path, const struct fault *cause)
{
	opening_refuse(o, "path", "%s: %s", path, cause->text);
	if (cause->error) {
		o->fault->code = cause->code;
		o->fault->error = cause->error;
	}
	return false;
}

struct shard_hint opening_hint(const struct opening *o)
{
	return (struct shard_hint){
		.type = o->source->token_bytes == 4 ? SHARD_U32 : SHARD_U16,
		.has_type = o->source->has_dtype,
		.column = o->source->column,
		.window_tokens = o->stream->seq_len + o->stream->extra,
		.budget_bytes = dataset_frames_budget(o->config),
	};
}

static bool add_up(const struct opening *o)
{
	struct dataset *d = o->dataset;
	uint64_t total = 0;

	d->path_digest = order_digest_begin(d->table.shards);
	for (uint64_t s = 0; s < d->table.shards; s++) {
		d->path_digest = order_digest_add(
			d->path_digest, dataset_shard_name(d, s), d->table.tokens[s]);
		if (__builtin_add_overflow(total, d->table.tokens[s], &total))
			return opening_refuse(
				o, "path", "more than 2^64 tokens in total; must be fewer");
	}
	/* The numbers of tokens do not tell whether samples are windows or joined. */
	if (d->format->mixes_rows && d->sample_tokens == 0)
		d->path_digest = order_derive(d->path_digest, d->table.shards);
	d->digest = dataset_is_part(d) ? order_derive(d->path_digest, o->source->lo, o->source->hi)
				       : d->path_digest;
	return true;
}

/* ---- requirements of the stream ---- */

/* Whether the dataset has weight, initially or in the schedule. */
static bool has_weight(const struct config_stream *stream, const struct config_dataset *source)
{
	size_t d = (size_t)(source - stream->dataset);

	for (uint32_t i = 0; i < stream->steps; i++)
		if (stream->step[i].weights[d] > 0)
			return true;
	return source->weight > 0;
}

static bool check_windows(const struct opening *o)
{
	const struct table *t = &o->dataset->table;
	uint64_t largest = 0;

	if (t->windows > 0 || (!o->stream->epochs && !has_weight(o->stream, o->source)))
		return true;
	for (uint64_t s = 1; s < t->shards; s++)
		if (t->tokens[s] > t->tokens[largest])
			largest = s;
	return opening_refuse(o, "path",
		"no shard is as long as a window: the largest, %s, has %" PRIu64
		" tokens, and a window has %" PRIu64 " (seq_len %" PRIu64 " + extra %" PRIu64
		"); use longer shards, a smaller seq_len or %s",
		dataset_shard_name(o->dataset, largest), t->tokens[largest], t->window_tokens,
		o->stream->seq_len, o->stream->extra,
		o->stream->epochs ? "no such dataset" : "weight 0");
}

/* Parts have no token in common if windows do not overlap, and always begin at the same tokens. */
static bool check_part(const struct opening *o)
{
	struct dataset *d = o->dataset;
	struct order_dataset part;
	uint64_t runs = order_runs(d->table.windows);
	char least[ORDER_SHARE_BYTES];

	d->windows = d->table.windows;
	if (!dataset_is_part(d))
		return true;
	if (o->source->slide)
		return opening_refuse(o, "slide",
			"moves windows into other parts of the path (part, line %d); must be false",
			o->source->part_line);
	if (d->sample_tokens == 0 && d->table.stride < o->stream->seq_len)
		return opening_refuse(o, "part",
			"stride %" PRIu64 " is below seq_len %" PRIu64
			", so that windows of two parts would have tokens in common; set stride: "
			"%" PRIu64 " or more",
			d->table.stride, o->stream->seq_len, o->stream->seq_len);
	if (!order_part(&part, d->table.windows, o->source->lo, o->source->hi))
		return opening_refuse(o, "part",
			"has none of the %" PRIu64
			" windows of the path, which are dealt in %" PRIu64
			" runs of %d; must be a share of at least %s",
			d->table.windows, runs, ORDER_RUN,
			order_share_text((ORDER_UNITS + runs - 1) / (runs ? runs : 1), least));
	d->windows = part.windows;
	return true;
}

/* Samples were cut when they were written, so a window must be exactly one sample. */
static bool check_samples(const struct opening *o)
{
	struct dataset *d = o->dataset;
	uint64_t sample = d->sample_tokens,
		 extra = o->stream->extra < sample ? o->stream->extra : 0;

	if (sample == 0)
		return true;
	if (sample != d->table.window_tokens)
		return opening_refuse(o, "path",
			"its samples have %" PRIu64 " tokens, but a window has %" PRIu64
			" (seq_len %" PRIu64 " + extra %" PRIu64 "); set seq_len: %" PRIu64
			" and extra: %" PRIu64,
			sample, d->table.window_tokens, o->stream->seq_len, o->stream->extra,
			sample - extra, extra);
	if (o->source->slide)
		return opening_refuse(o, "slide",
			"its windows are samples of %" PRIu64
			" tokens, which cannot be cut elsewhere; must be false",
			sample);
	d->table.stride = sample;
	return true;
}

/* Documents must have ends: an index or eos. A manifest's shards are checked when they are read. */
static bool check_documents(const struct opening *o)
{
	const struct dataset *d = o->dataset;
	char field[sizeof(o->fault->field)];

	if (!o->stream->documents || d->has_eos || d->unindexed == d->table.shards || d->listed)
		return true;
	snprintf(field, sizeof(field), "streams.%s.documents", o->stream->name);
	return config_refuse(o->fault, o->config->path, o->stream->documents_line, field,
		"the ends of documents in dataset %s are unknown: shard %s, of format %s, has no "
		"index; set eos, the token that ends a document",
		o->source->name, dataset_shard_name(d, d->unindexed), d->format->name);
}

/* Tokens must be below the stream's vocab. As unsigned, a negative i32 is above INT32_MAX. */
static void limit_tokens(const struct opening *o)
{
	struct dataset *d = o->dataset;
	uint64_t none = UINT64_C(1) << 8 * d->token_bytes;
	uint64_t limit = o->stream->has_vocab ? o->stream->vocab : none;

	if (d->is_signed && limit > (uint64_t)INT32_MAX + 1)
		limit = (uint64_t)INT32_MAX + 1;
	d->limit = limit < none ? limit : 0;
}

bool dataset_open(const struct opening *o)
{
	if (o->saved && !store_is_url(o->source->path))
		return dataset_from_saved(o);
	if (!opening_shards(o) || !add_up(o) || !check_samples(o) || !check_documents(o))
		return false;
	limit_tokens(o);
	dataset_doubt_names(o->dataset);
	if (!sample_dataset(o))
		return false;
	table_number(&o->dataset->table);
	return check_windows(o) && check_part(o);
}
