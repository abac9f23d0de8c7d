/*
 * Three passes over a dataset: list the files, describe each, number the windows. What is kept is
 * four arrays and the names; see the sizes in dataset.h. Faults are the config's: each names the
 * line that asked for what is not there.
 */
#include "daemon/catalog/parallel_for.h"
#include "daemon/catalog/dataset_private.h"
#include "daemon/catalog/sample.h"
#include "daemon/shard/list.h"
#include "daemon/shard/memo.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool dataset_refuse(const struct opening *o, int line, const char *field, const char *text, ...)
{
	size_t index = (size_t)(o->source - o->stream->dataset);
	int n = snprintf(o->why, o->why_bytes,
		"%s:%d: streams.%s.datasets[%zu].%s: ", o->config->path, line, o->stream->name,
		index, field);
	va_list args;

	va_start(args, text);
	if (n >= 0 && (size_t)n < o->why_bytes)
		vsnprintf(o->why + n, o->why_bytes - (size_t)n, text, args);
	va_end(args);
	return false;
}

static bool refuse_memory(const struct opening *o)
{
	return dataset_refuse(o, o->source->line, "path", "out of memory");
}

/* ---- from files to shards ---- */

static bool list_files(const struct opening *o, struct shard_list *list)
{
	char path[PATH_MAX], why[PATH_MAX + 256];

	if (!config_path(o->config, o->source->path, path, sizeof(path)))
		return dataset_refuse(
			o, o->source->path_line, "path", "%s", strerror(ENAMETOOLONG));
	if (!shard_list_read(list, path, why, sizeof(why)))
		return dataset_refuse(o, o->source->path_line, "path",
			"%s; must be a file, a directory or a glob that can be read", why);
	if (list->count > 0)
		return true;
	shard_list_free(list);
	return dataset_refuse(o, o->source->path_line, "path",
		"%s: no file there; must be at least one shard", path);
}

/* Masks among the shards would be served as tokens. */
static bool check_label_mask(const struct opening *o)
{
	const struct dataset *d = o->dataset;
	char path[PATH_MAX + 1];
	size_t n = strlen(d->label_mask);

	for (uint64_t s = 0; s < d->table.shards; s++) {
		dataset_shard_path(d, s, path, sizeof(path));
		if (strncmp(path, d->label_mask, n) == 0 && path[n] == '/')
			return dataset_refuse(o, o->source->label_mask_line, "label_mask",
				"%s lies in it and is among the shards; must be a directory that "
				"path does "
				"not reach",
				path);
	}
	return true;
}

/* What the stream wants said of its windows, and where that is looked for. */
static bool prepare_annotations(const struct opening *o)
{
	struct dataset *d = o->dataset;
	const char *mask = o->source->label_mask;
	size_t root = strlen(d->root);

	d->has_eos = o->stream->has_eos;
	d->eos = (uint32_t)o->stream->eos;
	d->unindexed = d->table.shards;
	d->hint.documents = o->stream->documents;
	d->hint.loss_mask = o->stream->loss_mask;
	d->indexed = d->hint.documents ? calloc(d->table.shards, sizeof(*d->indexed)) : NULL;
	if (d->hint.documents && !d->indexed)
		return refuse_memory(o);
	if (!mask)
		return true;
	bool below = mask[0] != '/';

	if (asprintf(&d->label_mask, "%s%s%s", below ? o->config->directory : "", below ? "/" : "",
		    mask) < 0) {
		d->label_mask = NULL;
		return refuse_memory(o);
	}
	for (size_t n = strlen(d->label_mask); n > 1 && d->label_mask[n - 1] == '/'; n--)
		d->label_mask[n - 1] = 0;
	d->hint.label_mask = d->label_mask;
	d->hint.root_bytes = root + (root > 0 && d->root[root - 1] != '/');
	return check_label_mask(o);
}

static struct shard_hint hint_of(const struct opening *o)
{
	return (struct shard_hint){
		.type = o->source->token_bytes == 4 ? SHARD_U32 : SHARD_U16,
		.has_type = o->source->has_dtype,
		.column = o->source->column,
		.window_tokens = o->stream->seq_len + o->stream->extra,
		.budget_bytes = dataset_frames_budget(o->config),
	};
}

/* What every dataset has of its shards, and the names that @list gives up. */
static bool allocate(const struct opening *o, struct shard_list *list)
{
	struct dataset *d = o->dataset;
	uint64_t count = list->count;

	assert(count > 0);
	d->root = list->root;
	d->paths = list->paths;
	d->path_at = list->at;
	*list = (struct shard_list){0};
	d->hint = hint_of(o);
	d->table.shards = count;
	d->table.window_tokens = d->hint.window_tokens;
	d->table.stride = o->stream->stride;
	d->table.first_window = calloc(count + 1, sizeof(*d->table.first_window));
	d->identity = calloc(count, sizeof(*d->identity));
	d->beside = calloc(count, sizeof(*d->beside));
	return ((d->table.first_window && d->identity && d->beside) || refuse_memory(o)) &&
	       prepare_annotations(o);
}

/*
 * What no format knows is read as flat tokens. Among shards of a format, it is most likely one of
 * them whose index is lost, or whose header is damaged.
 */
static bool refuse_mixed(const struct opening *o, const struct shard_format *format,
	const char *path, const char *first)
{
	const struct shard_format *of_first = o->dataset->format;
	bool is_flat = format == &shard_flat;

	if (!is_flat && of_first != &shard_flat)
		return dataset_refuse(o, o->source->path_line, "path",
			"%s: is %s, the first shard, %s, is %s; must be one format", path,
			format->name, first, of_first->name);
	return dataset_refuse(o, o->source->path_line, "path",
		"%s: its format is not known, and another shard, %s, is %s: its index is lost or "
		"its header "
		"is "
		"damaged; restore that, or, if it is plain tokens, put it into a dataset of its "
		"own with "
		"format: flat",
		is_flat ? path : first, is_flat ? first : path,
		is_flat ? of_first->name : format->name);
}

/* All shards of a dataset are of one format and width: a window is found by arithmetic alone. */
static bool agree(const struct opening *o, const struct shard_format *format,
	const struct shard_facts *shard, const char *path)
{
	struct dataset *d = o->dataset;
	bool mask = shard->mask != 0, bounds = shard->bounds != 0;

	if (!d->format) {
		d->format = format;
		d->token_bytes = shard->token_bytes;
		d->sample_tokens = shard->sample_tokens;
		d->data_at = shard->data_at;
		d->plain = true;
		d->masks = mask;
		d->bounds = bounds;
	}
	if (d->format != format)
		return refuse_mixed(o, format, path, dataset_shard_name(d, 0));
	if (d->token_bytes != shard->token_bytes)
		return dataset_refuse(o, o->source->path_line, "path",
			"%s: has tokens of %" PRIu32 " bytes, the first shard, %s, of %" PRIu32
			"; must be one width",
			path, shard->token_bytes, dataset_shard_name(d, 0), d->token_bytes);
	if (d->sample_tokens != shard->sample_tokens)
		return dataset_refuse(o, o->source->path_line, "path",
			"%s: has samples of %" PRIu64
			" tokens (0: none), the first shard, %s, of %" PRIu64 "; must be alike",
			path, shard->sample_tokens, dataset_shard_name(d, 0), d->sample_tokens);
	if (o->stream->loss_mask && (d->masks != mask || d->bounds != bounds))
		return dataset_refuse(o, o->source->path_line, "path",
			"%s: has %s %s beside it, the first shard, %s, has %s; all or none must",
			path, (d->masks != mask ? mask : bounds) ? "a" : "no",
			d->masks != mask ? "loss mask" : "list of document bounds",
			dataset_shard_name(d, 0),
			(d->masks != mask ? d->masks : d->bounds) ? "one" : "none");
	return true;
}

/* What one shard adds to what is known of all of them. Called by several threads. */
static void gather(struct dataset *d, uint64_t s, const struct shard_facts *shard)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

	d->data_at_of[s] = (uint32_t)shard->data_at;
	dataset_keep_annotations(d, s, shard);
	pthread_mutex_lock(&lock);
	d->marked |= (d->hint.documents && dataset_is_indexed(shard)) ||
		     (d->hint.loss_mask && (shard->mask || shard->bounds));
	if (!dataset_is_indexed(shard) && s < d->unindexed)
		d->unindexed = s;
	d->plain = d->plain && shard->plain && shard->data_at <= UINT32_MAX;
	d->is_signed |= shard->type == SHARD_I32;
	if (shard->frame_bytes > d->frame_bytes)
		d->frame_bytes = shard->frame_bytes;
	if (shard->note[0] && (!d->note[0] || s < d->note_shard)) {
		memcpy(d->note, shard->note, sizeof(d->note));
		d->note_shard = s;
	}
	pthread_mutex_unlock(&lock);
}

static bool describe_open(const struct opening *o, const struct shard_format *format, uint64_t s,
	int fd, const char *path)
{
	struct dataset *d = o->dataset;
	struct shard_facts shard;
	struct stat st;
	char why[512];

	if (fstat(fd, &st) != 0)
		return dataset_refuse(o, o->source->path_line, "path", "%s: %s; must be readable",
			path, strerror(errno));
	format = shard_describe(format, path, fd, &d->hint, &shard, why, sizeof(why));
	if (!format)
		return dataset_refuse(o, o->source->path_line, "path", "%s: %s", path, why);
	if (!agree(o, format, &shard, path))
		return false;
	gather(d, s, &shard);
	d->table.tokens[s] = shard.tokens;
	d->identity[s] = dataset_identify(&st);
	return true;
}

static bool describe(const struct opening *o, const struct shard_format *format, uint64_t s)
{
	char path[PATH_MAX + 1];

	dataset_shard_path(o->dataset, s, path, sizeof(path));
	/* O_NONBLOCK: a FIFO must be refused, not waited for. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return dataset_refuse(o, o->source->path_line, "path", "%s: %s; must be readable",
			path, bytes_open_fault(errno));
	bool fine = describe_open(o, format, s, fd, path);

	close(fd);
	return fine;
}

/* What a crew shares: nobody listens to why. */
struct describing {
	const struct opening *opening;
	const struct shard_format *format;
};

static bool describe_quietly(void *context, uint64_t s)
{
	const struct describing *all = context;
	struct opening quiet = *all->opening;

	quiet.why = NULL;
	quiet.why_bytes = 0;
	return describe(&quiet, all->format, s + 1);
}

/* Only headers of different lengths are worth a word a shard. */
static void keep_data_at(struct dataset *d)
{
	bool differ = false;

	for (uint64_t s = 0; d->plain && !differ && s < d->table.shards; s++)
		differ = d->data_at_of[s] != d->data_at;
	if (differ)
		return;
	free(d->data_at_of);
	d->data_at_of = NULL;
}

static bool describe_shards(const struct opening *o, const struct shard_format *format)
{
	struct dataset *d = o->dataset;
	struct describing all = {o, format};

	/* The first says what the others must be like. A fault is looked at again, to be told. */
	if (!describe(o, format, 0))
		return false;
	uint64_t fault = parallel_for(d->table.shards - 1, describe_quietly, &all);

	for (uint64_t s = fault + 1; s < d->table.shards; s++)
		if (!describe(o, format, s))
			return false;
	keep_data_at(d);
	return true;
}

static bool add_up(const struct opening *o)
{
	struct dataset *d = o->dataset;
	uint64_t total = 0;

	d->digest = order_digest_begin(d->table.shards);
	for (uint64_t s = 0; s < d->table.shards; s++) {
		d->digest =
			order_digest_add(d->digest, dataset_shard_name(d, s), d->table.tokens[s]);
		if (__builtin_add_overflow(total, d->table.tokens[s], &total))
			return dataset_refuse(o, o->source->path_line, "path",
				"more than 2^64 tokens in all; must be fewer");
	}
	return true;
}

/* ---- what the stream asks of it ---- */

/* Is it given weight, at the beginning or by the schedule? */
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

	if (t->windows > 0 || o->stream->epochs || !has_weight(o->stream, o->source))
		return true;
	for (uint64_t s = 1; s < t->shards; s++)
		if (t->tokens[s] > t->tokens[largest])
			largest = s;
	return dataset_refuse(o, o->source->path_line, "path",
		"no shard holds a window: the largest, %s, has %" PRIu64
		" tokens, a window is %" PRIu64 " (seq_len %" PRIu64 " + extra %" PRIu64
		"); must have a longer shard, a smaller seq_len or weight 0",
		dataset_shard_name(o->dataset, largest), t->tokens[largest], t->window_tokens,
		o->stream->seq_len, o->stream->extra);
}

/* What shards share, an index of their directory, is read once, and serves again when they are
 * opened. */
static bool describe_with_memo(const struct opening *o, const struct shard_format *format)
{
	struct dataset *d = o->dataset;

	d->table.tokens = calloc(d->table.shards, sizeof(*d->table.tokens));
	d->data_at_of = calloc(d->table.shards, sizeof(*d->data_at_of));
	if (!d->table.tokens || !d->data_at_of)
		return refuse_memory(o);
	d->hint.memo = memo_new(d->root);
	if (!d->hint.memo)
		return refuse_memory(o);
	return describe_shards(o, format);
}

/* Samples were cut by whoever wrote them: a window is one of them. */
static bool check_samples(const struct opening *o)
{
	struct dataset *d = o->dataset;
	uint64_t sample = d->sample_tokens,
		 extra = o->stream->extra < sample ? o->stream->extra : 0;

	if (sample == 0)
		return true;
	if (sample != d->table.window_tokens)
		return dataset_refuse(o, o->source->path_line, "path",
			"its samples have %" PRIu64 " tokens, a window is %" PRIu64
			" (seq_len %" PRIu64 " + extra %" PRIu64
			"); must be alike: seq_len %" PRIu64 " with extra %" PRIu64,
			sample, d->table.window_tokens, o->stream->seq_len, o->stream->extra,
			sample - extra, extra);
	if (o->source->slide)
		return dataset_refuse(o, o->source->slide_line, "slide",
			"its windows are samples of %" PRIu64
			" tokens and cannot be cut elsewhere; must be false",
			sample);
	d->table.stride = sample;
	return true;
}

/* Something must say where documents end; of what a manifest lists, when it is read. */
static bool check_documents(const struct opening *o)
{
	const struct dataset *d = o->dataset;

	if (!o->stream->documents || d->has_eos || d->unindexed == d->table.shards || d->sizes)
		return true;
	snprintf(o->why, o->why_bytes,
		"%s:%d: streams.%s.documents: nothing says where a document ends in dataset %s: "
		"%s, a shard "
		"of "
		"format %s, has no index; must have eos, the token that ends one, beside it",
		o->config->path, o->stream->documents_line, o->stream->name, o->source->name,
		dataset_shard_name(d, d->unindexed), d->format->name);
	return false;
}

/* *@format: NULL for auto. */
static bool find_format(const struct opening *o, const struct shard_format **format)
{
	*format = shard_format(o->source->format);
	return *format || strcmp(o->source->format, "auto") == 0 ||
	       dataset_refuse(o, o->source->format_line, "format",
		       "'%.40s' is unknown; must be auto or one of: %s", o->source->format,
		       shard_format_names());
}

static bool look_at_shards(const struct opening *o)
{
	const struct shard_format *format;
	struct shard_list list = {0};

	return find_format(o, &format) && list_files(o, &list) && allocate(o, &list) &&
	       describe_with_memo(o, format);
}

/* ---- from a manifest to shards ---- */

static bool read_manifest(const struct opening *o, struct manifest *m)
{
	char path[PATH_MAX], root[PATH_MAX], why[2 * PATH_MAX];
	const struct shard_format *format;
	struct shard_hint hint = hint_of(o);
	struct stat st;

	if (!find_format(o, &format))
		return false;
	if (!config_path(o->config, o->source->manifest, path, sizeof(path)))
		return dataset_refuse(
			o, o->source->manifest_line, "manifest", "%s", strerror(ENAMETOOLONG));
	/* It may be away, where nobody reads; a name that is there is taken as it stands. */
	if (!config_path(o->config, o->source->path, root, sizeof(root)) ||
		(stat(root, &st) == 0 ? !S_ISDIR(st.st_mode)
				      : strpbrk(o->source->path, "*?[") != NULL))
		return dataset_refuse(o, o->source->path_line, "path",
			"%.80s: must be the directory that the names in %s start at",
			o->source->path, path);
	if (manifest_read(m, path, root, format, &hint, why, sizeof(why)))
		return true;
	if (strncmp(why + strlen(path), ": ", 2) == 0) /* of the whole file */
		return dataset_refuse(o, o->source->manifest_line, "manifest",
			"%s; must be a file that `tokctl inspect --manifest` wrote", why);
	snprintf(o->why, o->why_bytes, "%s", why);
	return false;
}

/*
 * A manifest knows nothing of what lies beside shards. Whether one has an index of its documents
 * shows when it is read (annotations.h); whether they have masks the first one tells for all.
 */
static bool presume_annotations(const struct opening *o)
{
	struct dataset *d = o->dataset;
	struct shard_facts facts;
	char path[PATH_MAX + 1], why[512] = "";

	d->marked = d->hint.documents || d->hint.loss_mask;
	d->unindexed = 0;
	if (!d->hint.loss_mask)
		return true;
	dataset_shard_path(d, 0, path, sizeof(path));
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	bool fine =
		fd >= 0 && shard_describe(d->format, path, fd, &d->hint, &facts, why, sizeof(why));

	if (fd < 0)
		bytes_why(why, sizeof(why), "%s; must be readable", bytes_open_fault(errno));
	else
		close(fd);
	if (!fine)
		return dataset_refuse(o, o->source->path_line, "path", "%s: %s", path, why);
	d->masks = facts.mask;
	d->bounds = facts.bounds;
	return true;
}

/* No shard is looked at before it is read: whether one is plain, and where its tokens begin, shows
 * then. */
static bool take_manifest(const struct opening *o)
{
	struct dataset *d = o->dataset;
	struct manifest m = {0};

	if (!read_manifest(o, &m))
		return false;
	d->format = m.format;
	d->token_bytes = m.token_bytes;
	d->sample_tokens = m.sample_tokens;
	d->frame_bytes = m.frame_bytes;
	d->is_signed = m.is_signed;
	d->table.tokens = m.tokens;
	d->sizes = m.sizes;
	d->types = m.types;
	m.tokens = m.sizes = NULL;
	m.types = NULL;
	bool fine = allocate(o, &m.list);

	d->hint.memo = fine ? memo_new(d->root) : NULL;
	d->plain_at = fine ? calloc(d->table.shards, sizeof(*d->plain_at)) : NULL;
	fine = fine && ((d->hint.memo && d->plain_at) || refuse_memory(o));
	if (!o->source->has_dtype)
		d->hint.type = (enum shard_type)d->types[0];
	manifest_free(&m);
	return fine && presume_annotations(o);
}

bool dataset_manifest(const struct config *config, const struct config_stream *stream,
	const struct config_dataset *source, struct manifest *manifest, char *why, size_t why_bytes)
{
	struct opening o = {config, stream, source, NULL, why, why_bytes};

	return read_manifest(&o, manifest);
}

/* The stream's vocab; and what is plain and signed, as served, is above INT32_MAX where it is
 * negative. */
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
	if (!(o->source->manifest ? take_manifest(o) : look_at_shards(o)) || !add_up(o) ||
		!check_samples(o) || !check_documents(o))
		return false;
	limit_tokens(o);
	if (!sample_dataset(o))
		return false;
	table_number(&o->dataset->table);
	return check_windows(o);
}
