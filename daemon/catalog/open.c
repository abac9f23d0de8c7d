/*
 * Opens a dataset. Its shards are those that its manifest lists, or the files at its path, which
 * are all opened once. Then their facts are compared with what the stream wants, and the windows
 * are numbered. A fault names the line of the config that caused it.
 */
#include "daemon/catalog/opening.h"

#include "daemon/catalog/parallel_for.h"
#include "daemon/shard/format.h"

#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool dataset_refuse(const struct dataset *d, struct fault *fault, int line, const char *key,
	const char *text, ...)
{
	char field[sizeof(fault->field)], what[sizeof(fault->text)];
	va_list args;

	snprintf(field, sizeof(field), "streams.%s.datasets[%td].%s", d->stream->name,
		d->config - d->stream->dataset, key);
	va_start(args, text);
	vsnprintf(what, sizeof(what), text, args);
	va_end(args);
	return config_refuse(fault, d->file->path, line, field, "%s", what);
}

/* ---- from a manifest ---- */

/* Starts the hint, and checks `format:`. */
static bool begin(struct dataset *d, struct fault *fault)
{
	const struct config_dataset *source = d->config;

	d->hint = (struct shard_hint){
		.type = source->token_bytes == 4 ? SHARD_U32 : SHARD_U16,
		.has_type = source->has_dtype,
		.window_tokens = d->stream->seq_len + d->stream->extra,
		.budget_bytes = config_frames_budget(d->file),
		.documents = d->stream->documents,
		.loss_mask = d->stream->loss_mask,
	};
	return shard_format(source->format) || strcmp(source->format, "auto") == 0 ||
	       REFUSE(d, fault, format,
		       "'%.40s' is unknown; must be auto or one of: " SHARD_FORMATS,
		       source->format);
}

bool dataset_manifest(struct dataset *d, struct fault *fault)
{
	const struct config_dataset *source = d->config;
	struct fault cause;

	if (!begin(d, fault))
		return false;
	d->manifest = dataset_manifest_id(d);
	if (manifest_read(d, source->manifest, source->path, NULL, NULL, &cause))
		return true;
	if (cause.index == FAULT_NO_INDEX)
		return REFUSE(d, fault, manifest, "%s; must be a file written by `tokctl manifest`",
			cause.text);
	*fault = cause;
	return false;
}

/* ---- files at a path ---- */

static bool list_files(struct dataset *d, struct fault *fault)
{
	const char *path = d->config->path;
	struct fault cause;

	if (!begin(d, fault))
		return false;
	if (!shard_list_read(&d->list, path, &cause))
		return REFUSE(d, fault, path, "%s%s", cause.text,
			cause.error ? "; must be a readable file, a directory or a pattern" : "");
	return d->list.count > 0 ||
	       REFUSE(d, fault, path, "%s: no shards found; must have at least one", path);
}

/* Reports a fault of shard @s. Keeps its code and errno if a system call failed. */
static bool refuse_shard(
	const struct dataset *d, uint64_t s, const struct fault *cause, struct fault *fault)
{
	char path[PATH_MAX + 1];

	shard_list_path(&d->list, s, path, sizeof(path));
	REFUSE(d, fault, path, "%s: %s%s", path, cause->text,
		cause->error ? "; must be readable" : "");
	if (cause->error) {
		fault->code = cause->code;
		fault->error = cause->error;
	}
	return false;
}

static bool describe(const struct parallel *p, struct fault *fault)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* over datasets */
	struct dataset *d = p->context;
	char path[PATH_MAX + 1];
	struct fault cause;

	if (p->i == 0 && d->format) /* it was described before the others */
		return true;
	shard_list_path(&d->list, p->i, path, sizeof(path));
	struct shard *shard =
		shard_open(shard_format(d->config->format), path, -1, &d->hint, false, &cause);

	pthread_mutex_lock(&lock);
	bool fine = shard && dataset_keep_file(d, p->i, shard, &cause);

	if (!fine)
		refuse_shard(d, p->i, &cause, fault);
	pthread_mutex_unlock(&lock);
	shard_close(shard);
	return fine;
}

static bool describe_files(struct dataset *d, struct fault *fault)
{
	uint64_t n = d->list.count;

	/* The first shard sets the format and width that all must have. */
	return dataset_resize(d, n, fault) && describe(&(struct parallel){.context = d}, fault) &&
	       parallel_for(n, PARALLEL_READS, describe, d, fault) == n;
}

/* ---- the shards of a dataset ---- */

/* The part of the hint that depends on where the shards are. */
static bool find_sides(struct dataset *d, struct fault *fault)
{
	const char *masks = d->config->label_mask;
	size_t root = strlen(d->list.root), n = masks ? strlen(masks) : 0;
	char shard[PATH_MAX + 1];

	d->hint.column = d->config->column;
	d->hint.label_mask = masks;
	d->hint.root_bytes = root + (root > 0 && d->list.root[root - 1] != '/');
	d->hint.indexes = mds_indexes_new();
	while (n > 1 && masks[n - 1] == '/')
		n--;
	/* A mask among the shards would be served as tokens. */
	for (uint64_t s = 0; n > 0 && s < d->list.count; s++)
		if (shard_list_path(&d->list, s, shard, sizeof(shard)) &&
			strncmp(shard, masks, n) == 0 && shard[n] == '/')
			return REFUSE(d, fault, label_mask,
				"%s is in it and also in path; must be a directory outside path",
				shard);
	return d->hint.indexes || fault_memory(fault);
}

/*
 * Which side files a manifest's shards have is taken from the first one. In a store, shards have
 * annotations only if the manifest lists side files, or if they have an index themselves; of files,
 * that is found when a shard is opened.
 */
static void presume_annotations(struct dataset *d)
{
	char path[PATH_MAX + 1];

	d->marked = (d->hint.documents || d->hint.loss_mask) &&
		    (!d->bucket || json_object_size(d->sides) > 0 || d->format->indexed);
	shard_list_path(&d->list, 0, path, sizeof(path));
	d->bounds = d->marked && side_id(SIDE_BOUNDS, d->format, &d->hint, path);
	d->masks = d->marked && side_id(SIDE_MASK, d->format, &d->hint, path);
	d->indexed = (d->format->indexed && !d->format->raw) || d->sample_tokens > 0 || d->bounds ||
		     side_id(SIDE_INDEX, d->format, &d->hint, path);
}

/* Finds the dataset's shards, and their facts. */
static bool find_shards(struct dataset *d, struct fault *fault)
{
	bool manifest = d->config->manifest;
	char path[PATH_MAX + 1];

	if (!(manifest ? dataset_manifest(d, fault) : list_files(d, fault)))
		return false;
	d->table.shards = d->list.count;
	d->table.window_tokens = d->hint.window_tokens;
	d->table.stride = d->stream->stride;
	d->table.first_window = calloc(d->table.shards + 1, sizeof(*d->table.first_window));
	if (!d->table.first_window)
		return fault_memory(fault);
	if (!find_sides(d, fault) || (!manifest && !describe_files(d, fault)))
		return false;
	if (manifest)
		presume_annotations(d);
	shard_list_path(&d->list, 0, path, sizeof(path));
	if (!d->hint.loss_mask && side_id(SIDE_MASK, d->format, &d->hint, path))
		dataset_remark(d, REMARK_DOUBT,
			"its shards have loss masks, but the tokens that they mask are trained on; "
			"set loss_mask: true");
	/* If the format mixes rows and one shard has others than windows, those of all are joined.
	 */
	d->hint.joined = d->format->mixes_rows && d->sample_tokens == 0;
	if (d->odd > 0)
		dataset_remark(d, REMARK_DOUBT,
			"the samples of some shards are windows, and of some not (%.200s differs "
			"from the first); so all are joined, and windows run over their ends",
			shard_list_name(&d->list, d->odd));
	return true;
}

static bool add_up(struct dataset *d, struct fault *fault)
{
	uint64_t total = 0;

	d->digest = order_digest_begin(d->table.shards);
	for (uint64_t s = 0; s < d->table.shards; s++) {
		d->digest = order_digest_add(
			d->digest, shard_list_name(&d->list, s), d->table.tokens[s]);
		if (__builtin_add_overflow(total, d->table.tokens[s], &total))
			return REFUSE(
				d, fault, path, "more than 2^64 tokens in total; must be fewer");
	}
	/* The numbers of tokens do not tell whether samples are windows or joined. */
	if (d->hint.joined)
		d->digest = order_derive(d->digest, d->table.shards);
	if (dataset_is_part(d))
		d->digest = order_derive(d->digest, d->config->lo, d->config->hi);
	return true;
}

/* ---- requirements of the stream ---- */

/* A dataset that is ever to be read needs windows. */
static bool check_windows(const struct dataset *d, struct fault *fault)
{
	const struct config_stream *stream = d->stream;
	const struct table *t = &d->table;
	bool wanted = stream->epochs || d->config->weight > 0;

	for (uint32_t i = 0; i < stream->steps; i++)
		wanted |= stream->step[i].weights[d->config - stream->dataset] > 0;
	if (t->windows > 0 || !wanted)
		return true;
	return REFUSE(d, fault, path,
		"no shard is as long as a window: all have fewer than %" PRIu64
		" tokens (seq_len %" PRIu64 " + extra %" PRIu64
		"); use longer shards, a smaller seq_len or %s",
		t->window_tokens, stream->seq_len, stream->extra,
		stream->epochs ? "no such dataset" : "weight 0");
}

/* Parts have no token in common if windows do not overlap, and always begin at the same tokens: the
 * config refuses slide. */
static bool check_part(struct dataset *d, struct fault *fault)
{
	struct order_dataset part;
	uint64_t runs = order_runs(d->table.windows);

	d->windows = d->table.windows;
	if (!dataset_is_part(d))
		return true;
	if (d->sample_tokens == 0 && d->table.stride < d->stream->seq_len)
		return REFUSE(d, fault, part,
			"stride %" PRIu64 " is below seq_len %" PRIu64
			", so that windows of two parts would have tokens in common; set stride: "
			"%" PRIu64 " or more",
			d->table.stride, d->stream->seq_len, d->stream->seq_len);
	if (!order_part(&part, d->table.windows, d->config->lo, d->config->hi))
		return REFUSE(d, fault, part,
			"has none of the %" PRIu64
			" windows of the path, which are dealt in %" PRIu64
			" runs of %d; must be a share of at least %.6f",
			d->table.windows, runs, ORDER_RUN,
			(double)((999999 + runs) / (runs ? runs : 1)) / 1e6);
	d->windows = part.windows;
	return true;
}

/* Samples were cut when they were written, so a window must be exactly one sample. */
static bool check_samples(struct dataset *d, struct fault *fault)
{
	uint64_t sample = d->sample_tokens,
		 extra = d->stream->extra < sample ? d->stream->extra : 0;

	if (sample == 0)
		return true;
	if (sample != d->table.window_tokens)
		return REFUSE(d, fault, path,
			"its samples have %" PRIu64 " tokens, but a window has %" PRIu64
			" (seq_len %" PRIu64 " + extra %" PRIu64 "); set seq_len: %" PRIu64
			" and extra: %" PRIu64,
			sample, d->table.window_tokens, d->stream->seq_len, d->stream->extra,
			sample - extra, extra);
	if (d->config->slide)
		return REFUSE(d, fault, slide,
			"its windows are samples of %" PRIu64
			" tokens, which cannot be cut elsewhere; must be false",
			sample);
	d->table.stride = sample;
	return true;
}

/* Tokens must be below the stream's vocab. As unsigned, a negative i32 is above INT32_MAX. */
static void limit_tokens(struct dataset *d)
{
	uint64_t none = UINT64_C(1) << 8 * d->token_bytes;
	uint64_t limit = d->stream->has_vocab ? d->stream->vocab : none;

	if (d->is_signed && limit > (uint64_t)INT32_MAX + 1)
		limit = (uint64_t)INT32_MAX + 1;
	d->limit = limit < none ? limit : 0;
}

bool dataset_open(struct dataset *d, FILE *saved, struct fault *fault)
{
	if (saved && !url_text_is(d->config->path))
		return dataset_load(d, saved, fault) && find_sides(d, fault);
	if (!find_shards(d, fault) || !add_up(d, fault) || !check_samples(d, fault))
		return false;
	limit_tokens(d);
	if (!sample_dataset(d, fault))
		return false;
	table_number(&d->table);
	if (!check_windows(d, fault) || !check_part(d, fault))
		return false;
	dataset_remarks(d);
	return true;
}
