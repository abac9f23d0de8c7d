/*
 * Opens a dataset. Its shards are those that its manifest lists, or the files at its path, which
 * are all opened once. Then their facts are compared with what the stream wants, and the windows
 * are numbered. A fault names the line of the config that caused it.
 */
#include "daemon/catalog/opening.h"

#include "daemon/catalog/parallel_for.h"
#include "daemon/shard/format.h"
#include "proto/phrases.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Keys that are reported, and where they are. Others are where the dataset is. */
static const struct {
	const char *key;
	size_t line;
} keys[] = {
	{"path", offsetof(struct config_dataset, path_line)},
	{"manifest", offsetof(struct config_dataset, manifest_line)},
	{"format", offsetof(struct config_dataset, format_line)},
	{"label_mask", offsetof(struct config_dataset, label_mask_line)},
	{"slide", offsetof(struct config_dataset, slide_line)},
	{"part", offsetof(struct config_dataset, part_line)},
};

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

/* Reports a fault of the shard @path. Keeps its code and errno if a system call failed. */
static bool refuse_shard(const struct opening *o, const char *path, const struct fault *cause)
{
	opening_refuse(o, "path", "%s: %s", path, cause->text);
	if (cause->error) {
		o->fault->code = cause->code;
		o->fault->error = cause->error;
	}
	return false;
}

/* ---- keys of the config ---- */

/* The hint for describing shards, without annotations. */
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

/* Looks up the dataset's `format`; *@format is NULL for auto. False: o->fault. */
static bool find_format(const struct opening *o, const struct shard_format **format)
{
	char names[SHARD_NAMES_BYTES];

	*format = shard_format(o->source->format);
	return *format || strcmp(o->source->format, "auto") == 0 ||
	       opening_refuse(o, "format", "'%.40s' is unknown; must be auto or one of: %s",
		       o->source->format, shard_format_names(names, sizeof(names)));
}

/* Writes the absolute path, or the URL, of the value of @key. False: o->fault. */
static bool absolute(
	const struct opening *o, const char *key, const char *written, char path[PATH_MAX])
{
	return config_path(o->config, written, path, PATH_MAX) ||
	       opening_refuse(o, key, "%s", strerror(ENAMETOOLONG));
}

/* ---- from a manifest ---- */

static bool open_manifest(const struct opening *o)
{
	const struct config_dataset *source = o->source;
	struct stat st;
	char path[PATH_MAX], root[PATH_MAX];
	const struct shard_format *format;
	struct shard_hint hint = hint_of(o);
	struct fault fault;

	if (!find_format(o, &format) || !absolute(o, "manifest", source->manifest, path) ||
		!absolute(o, "path", source->path, root))
		return false;
	/* The directory need not exist until shards are read. A path with wildcards is a pattern
	 * only if there is no such file. */
	if (!store_is_url(root) && (stat(root, &st) == 0 ? !S_ISDIR(st.st_mode)
							 : strpbrk(source->path, "*?[") != NULL))
		return opening_refuse(o, "path",
			"%.80s: is not a directory; with a manifest, must be the directory that "
			"the paths in %s are relative to",
			source->path, path);
	if (stat(path, &st) == 0)
		o->dataset->manifest = dataset_identify(&st);
	if (manifest_read(o->dataset, path, root, o->stores, format, &hint, NULL, NULL, &fault))
		return true;
	if (fault.index == FAULT_NO_INDEX)
		return opening_refuse(o, "manifest",
			"%s; must be a file written by `tokctl manifest`", fault.text);
	*o->fault = fault;
	return false;
}

bool dataset_manifest(const struct config *config, struct stores *stores,
	const struct config_stream *stream, const struct config_dataset *source,
	struct dataset *dataset, struct fault *fault)
{
	return open_manifest(
		&(struct opening){config, stream, source, stores, dataset, fault, NULL});
}

/* ---- files at a path ---- */

static bool list_files(const struct opening *o)
{
	struct shard_list *list = &o->dataset->list;
	struct fault fault;
	char path[PATH_MAX];

	if (!absolute(o, "path", o->source->path, path))
		return false;
	if (!shard_list_read(list, path, &fault))
		return opening_refuse(o, "path", "%s%s", fault.text,
			fault.error ? "; must be a readable file, a directory or a pattern" : "");
	return list->count > 0 ||
	       opening_refuse(o, "path", "%s: no shards found; must have at least one", path);
}

/* Shared by all threads. */
struct describing {
	const struct opening *opening;
	const struct shard_format *format; /* of the config; NULL: any */
	pthread_mutex_t lock;		   /* over *opening->dataset */
};

/* Describes file @s. @path is its path afterwards. NULL: @fault, without that. */
static const struct shard_format *look(const struct describing *all, uint64_t s,
	char path[PATH_MAX + 1], struct shard_facts *facts, struct stat *st, struct fault *fault)
{
	const struct dataset *d = all->opening->dataset;
	const struct shard_format *format = NULL;
	int fd = -1;

	/* O_NONBLOCK: open() would wait for the writer of a FIFO. */
	errno = ENAMETOOLONG;
	if (shard_list_path(&d->list, s, path, PATH_MAX + 1))
		fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || fstat(fd, st) != 0)
		fault_errno(fault, errno, "", "%s; must be readable", bytes_open_fault(errno));
	else
		format = shard_describe(all->format, path, fd, &d->hint, facts, fault);
	if (fd >= 0)
		close(fd);
	return format;
}

/*
 * A file that is not a shard. Among shards it is most likely a README or the index of another
 * loader, which `format: flat` would serve as tokens, so the remedy is a pattern without it.
 */
static bool refuse_unknown(const struct opening *o, const char *path, const struct fault *cause)
{
	return opening_refuse(o, "path", "%s: %s%s", path, cause->text,
		o->dataset->list.count > 1
			? "; move it away, or set a pattern that matches only the shards"
		: shard_is_foreign(cause) ? ""
					  : "; " PHRASE_NOT_SHARD);
}

/*
 * A shard that dataset_keep() rejected. A file that no format recognises counts as flat. Among
 * shards of another format it is most likely one of them, with a lost index or a damaged header.
 */
static bool refuse_odd(const struct opening *o, const struct shard_format *format, const char *path,
	const struct fault *cause)
{
	const struct dataset *d = o->dataset;
	const char *first = dataset_shard_name(d, 0);
	bool flat = format == &shard_flat;

	if (format == d->format || (!flat && d->format != &shard_flat))
		return refuse_shard(o, path, cause);
	return opening_refuse(o, "path",
		"%s: " PHRASE_FORMAT_LOST "; restore that, or, if it contains plain tokens, put it "
		"into a dataset of its own with format: flat",
		flat ? path : first, flat ? first : path, flat ? d->format->name : format->name);
}

/* Keeps the facts of a shard. With the lock. */
static bool keep(const struct opening *o, uint64_t s, const struct shard_format *format,
	const struct shard_facts *facts, const char *path)
{
	struct dataset *d = o->dataset;
	struct fault cause;
	/* Are the starts of documents known? Samples count as documents. */
	bool indexed =
		facts->documents != SHARD_UNKNOWN || facts->bounds || facts->sample_tokens > 0;
	bool first = !d->format, has;

	if (!dataset_keep(d, s, format, facts, &cause))
		return refuse_odd(o, format, path, &cause);
	if (first) {
		snprintf(d->column, sizeof(d->column), "%s", facts->column);
		d->plain = true;
		d->masks = facts->mask;
		d->bounds = facts->bounds;
	}
	const char *odd = dataset_odd_side(d, facts, &has);

	if (odd)
		return opening_refuse(o, "path",
			"%s: has %s %s, but the first shard, %s, has %s; " PHRASE_ALL_OR_NONE, path,
			has ? "a" : "no", odd, dataset_shard_name(d, 0), has ? "none" : "one");
	d->entry[s].sides = dataset_sides(facts);
	d->marked |= (d->hint.documents && indexed) ||
		     (d->hint.loss_mask && (facts->mask || facts->bounds));
	if (!indexed && s < d->unindexed)
		d->unindexed = s;
	d->plain &= dataset_is_plain(d, s);
	d->padding += facts->padding;
	if (facts->note[0] && (!d->note[0] || s < d->note_shard)) {
		memcpy(d->note, facts->note, sizeof(d->note));
		d->note_shard = s;
	}
	return true;
}

static bool describe(struct describing *all, const struct opening *o, uint64_t s)
{
	char path[PATH_MAX + 1];
	struct shard_facts facts;
	struct fault cause;
	struct stat st;
	const struct shard_format *format = look(all, s, path, &facts, &st, &cause);

	if (!format)
		return shard_is_unknown(&cause) ? refuse_unknown(o, path, &cause)
						: refuse_shard(o, path, &cause);
	pthread_mutex_lock(&all->lock);
	bool fine = keep(o, s, format, &facts, path);

	if (fine)
		o->dataset->entry[s].file = dataset_identify(&st);
	pthread_mutex_unlock(&all->lock);
	return fine;
}

static bool describe_each(const struct parallel *p, struct fault *fault)
{
	struct describing *all = p->context;
	struct opening o = *all->opening;

	o.fault = fault;
	return describe(all, &o, p->i + 1);
}

static bool describe_files(const struct opening *o)
{
	struct describing all = {.opening = o, .lock = PTHREAD_MUTEX_INITIALIZER};
	uint64_t n = o->dataset->list.count - 1;
	struct fault fault;

	if (!dataset_resize(o->dataset, n + 1, &fault))
		return opening_refuse_memory(o);
	/* The first shard sets the format and width that all must have. */
	return find_format(o, &all.format) && describe(&all, o, 0) &&
	       parallel_for(n, parallel_reads(n), describe_each, &all, o->fault) == n;
}

/* ---- annotations of shards that a manifest lists ---- */

/*
 * Whether shards have masks and lists of bounds is taken from the first one. In a store, shards
 * have annotations only if the manifest lists side files, or if they have an index themselves; of
 * files, that is found when a shard is opened.
 */
static bool presume_annotations(const struct opening *o)
{
	struct dataset *d = o->dataset;
	struct stat st;
	char path[PATH_MAX + 1];

	d->marked = (d->hint.documents || d->hint.loss_mask) &&
		    (!d->objects || json_object_size(d->sides) > 0 || d->format->indexed);
	d->unindexed = 0;
	if (!d->hint.loss_mask)
		return true;
	dataset_shard_path(d, 0, path, sizeof(path));
	if (!d->objects && stat(path, &st) != 0)
		return opening_refuse(o, "path", "%s: %s; must be readable", path, strerror(errno));
	d->bounds = side_id(SIDE_BOUNDS, d->format, &d->hint, path) != 0;
	d->masks = side_id(SIDE_MASK, d->format, &d->hint, path) != 0;
	return d->masks || !d->hint.label_mask ||
	       opening_refuse(o, "label_mask", "shard %s has no loss mask in it%s",
		       dataset_shard_name(d, 0),
		       d->objects ? " by the manifest; write that again with `tokctl manifest`"
				  : "; must have one for each shard");
}

/* ---- the shards of a dataset ---- */

/* A mask among the shards would be served as tokens. */
static bool check_label_mask(const struct opening *o)
{
	const struct shard_list *list = &o->dataset->list;
	const char *mask = o->dataset->label_mask;
	char path[PATH_MAX + 1];
	size_t n = strlen(mask);

	for (uint64_t s = 0; s < list->count; s++)
		if (shard_list_path(list, s, path, sizeof(path)) && strncmp(path, mask, n) == 0 &&
			path[n] == '/')
			return opening_refuse(o, "label_mask",
				"%s is in it and also in path; must be a directory outside path",
				path);
	return true;
}

/* Prepares the hint, also for the annotations that the stream requests. */
static bool prepare(const struct opening *o)
{
	struct dataset *d = o->dataset;
	const char *mask = o->source->label_mask;
	size_t root = strlen(d->list.root);
	char path[PATH_MAX];

	d->hint = hint_of(o);
	d->hint.documents = o->stream->documents;
	d->hint.loss_mask = o->stream->loss_mask;
	d->hint.indexes = mds_indexes_new(d->list.root);
	d->has_eos = o->stream->has_eos;
	d->eos = (uint32_t)o->stream->eos;
	d->unindexed = d->list.count;
	if (!d->hint.indexes)
		return opening_refuse_memory(o);
	if (!mask)
		return true;
	if (!absolute(o, "label_mask", mask, path))
		return false;
	d->label_mask = strdup(path);
	if (!d->label_mask)
		return opening_refuse_memory(o);
	for (size_t n = strlen(d->label_mask); n > 1 && d->label_mask[n - 1] == '/'; n--)
		d->label_mask[n - 1] = 0;
	d->hint.label_mask = d->label_mask;
	d->hint.root_bytes = root + (root > 0 && d->list.root[root - 1] != '/');
	return check_label_mask(o);
}

/* A number that is equal for equal shards: the digest, or without one the ETag. */
static uint64_t contents_of(const struct dataset *d, uint64_t s)
{
	struct object object;

	if (d->entry[s].digest || !d->objects)
		return d->entry[s].digest;
	dataset_object(d, s, &object);
	return order_name_hash(object.etag, strlen(object.etag));
}

/* Finds the dataset's shards. */
static bool find_shards(const struct opening *o)
{
	struct dataset *d = o->dataset;

	if (!(o->source->manifest ? open_manifest(o) : list_files(o)) || !prepare(o) ||
		(!d->listed && !describe_files(o)))
		return false;
	d->table.shards = d->list.count;
	d->table.first_window = calloc(d->table.shards + 1, sizeof(*d->table.first_window));
	d->table.window_tokens = d->hint.window_tokens;
	d->table.stride = o->stream->stride;
	if (d->bucket) {
		d->finder = (struct objects){
			.stores = o->stores, .find = dataset_find_object, .context = d};
		d->objects = d->hint.objects = &d->finder;
	}
	/* If the format mixes rows and one shard has others than windows, those of all are joined.
	 */
	d->hint.joined = d->format->mixes_rows && d->sample_tokens == 0;
	if (d->listed && !o->source->has_dtype)
		d->hint.type = (enum shard_type)d->entry[0].type;
	for (uint64_t s = 0; d->listed && s < d->table.shards; s++)
		d->contents = order_derive(d->contents, contents_of(d, s));
	if (!d->table.first_window)
		return opening_refuse_memory(o);
	return !d->listed || presume_annotations(o);
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
	if (!find_shards(o) || !add_up(o) || !check_samples(o))
		return false;
	limit_tokens(o);
	dataset_doubt_names(o->dataset);
	if (!sample_dataset(o))
		return false;
	table_number(&o->dataset->table);
	return check_windows(o) && check_part(o);
}
