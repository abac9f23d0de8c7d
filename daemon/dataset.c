/*
 * Three passes over a dataset: list the files, describe each, number the windows. What is kept is four arrays
 * and the names; see the sizes in dataset.h. Faults are the config's: each names the line that asked for what
 * is not there.
 */
#include "dataset.h"

#include "crew.h"
#include "shard/list.h"
#include "shard/memo.h"

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

enum { /* users are told what frames cost that are as large as both */
	LARGE_FRAME_BYTES = 1 << 20,
	LARGE_FRAME_WINDOWS = 16,
	BOUNDS_OPEN = 500, /* and of more lists of bounds than this */
};

/* One dataset on its way from the config to memory, with what an error needs. */
struct opening {
	const struct config *config;
	const struct config_stream *stream;
	const struct config_dataset *source;
	struct dataset *dataset;
	char *why;
	size_t why_bytes;
};

__attribute__((format(printf, 4, 5))) static bool refuse(
	const struct opening *o, int line, const char *field, const char *text, ...)
{
	size_t index = (size_t)(o->source - o->stream->dataset);
	int n = snprintf(o->why, o->why_bytes, "%s:%d: streams.%s.datasets[%zu].%s: ", o->config->path, line,
		o->stream->name, index, field);
	va_list args;

	va_start(args, text);
	if (n >= 0 && (size_t)n < o->why_bytes)
		vsnprintf(o->why + n, o->why_bytes - (size_t)n, text, args);
	va_end(args);
	return false;
}

static bool refuse_memory(const struct opening *o)
{
	return refuse(o, o->source->line, "path", "out of memory");
}

/* ---- from files to shards ---- */

static bool list_files(const struct opening *o, struct shard_list *list)
{
	char path[PATH_MAX], why[PATH_MAX + 256];

	if (!config_path(o->config, o->source->path, path, sizeof(path)))
		return refuse(o, o->source->path_line, "path", "%s", strerror(ENAMETOOLONG));
	if (!shard_list_read(list, path, why, sizeof(why)))
		return refuse(o, o->source->path_line, "path",
			"%s; must be a file, a directory or a glob that can be read", why);
	if (list->count > 0)
		return true;
	shard_list_free(list);
	return refuse(o, o->source->path_line, "path", "%s: no file there; must be at least one shard", path);
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
			return refuse(o, o->source->label_mask_line, "label_mask",
				"%s lies in it and is among the shards; must be a directory that path does "
				"not reach",
				path);
	}
	return true;
}

/* What the stream wants said of its windows, and where that is looked for. */
static bool prepare_marks(const struct opening *o)
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

	if (asprintf(&d->label_mask, "%s%s%s", below ? o->config->directory : "", below ? "/" : "", mask) <
		0) {
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
	return ((d->table.first_window && d->identity) || refuse_memory(o)) && prepare_marks(o);
}

static uint64_t mtime_ns(const struct stat *st)
{
	return (uint64_t)st->st_mtim.tv_sec * 1000000000 + (uint64_t)st->st_mtim.tv_nsec;
}

static struct dataset_identity identify(const struct stat *st)
{
	return (struct dataset_identity){
		.inode = st->st_ino, .mtime_ns = mtime_ns(st), .bytes = (uint64_t)st->st_size};
}

/* All shards of a dataset are of one format and width: a window is found by arithmetic alone. */
static bool agree(const struct opening *o, const struct shard_format *format, const struct shard_facts *shard,
	const char *path)
{
	struct dataset *d = o->dataset;

	if (!d->format) {
		d->format = format;
		d->token_bytes = shard->token_bytes;
		d->sample_tokens = shard->sample_tokens;
		d->data_at = shard->data_at;
		d->plain = true;
		d->masks = shard->mask;
		d->bounds = shard->bounds;
	}
	if (d->format != format)
		return refuse(o, o->source->path_line, "path",
			"%s: is %s, the first shard, %s, is %s; must be one format", path, format->name,
			dataset_shard_name(d, 0), d->format->name);
	if (d->token_bytes != shard->token_bytes)
		return refuse(o, o->source->path_line, "path",
			"%s: has tokens of %" PRIu32 " bytes, the first shard, %s, of %" PRIu32
			"; must be one width",
			path, shard->token_bytes, dataset_shard_name(d, 0), d->token_bytes);
	if (d->sample_tokens != shard->sample_tokens)
		return refuse(o, o->source->path_line, "path",
			"%s: has samples of %" PRIu64 " tokens (0: none), the first shard, %s, of %" PRIu64
			"; must be alike",
			path, shard->sample_tokens, dataset_shard_name(d, 0), d->sample_tokens);
	if (o->stream->loss_mask && (d->masks != shard->mask || d->bounds != shard->bounds))
		return refuse(o, o->source->path_line, "path",
			"%s: has %s %s beside it, the first shard, %s, has %s; all or none must", path,
			d->masks != shard->mask ? (shard->mask ? "a" : "no") : (shard->bounds ? "a" : "no"),
			d->masks != shard->mask ? "loss mask" : "list of document bounds",
			dataset_shard_name(d, 0),
			(d->masks != shard->mask ? d->masks : d->bounds) ? "one" : "none");
	return true;
}

static bool is_indexed(const struct shard_facts *facts)
{
	return facts->documents != SHARD_UNKNOWN || facts->bounds || facts->sample_tokens > 0;
}

static void keep_indexed(const struct dataset *d, uint64_t s, const struct shard_facts *facts)
{
	if (d->indexed)
		d->indexed[s] = is_indexed(facts) ? DATASET_INDEXED : DATASET_UNINDEXED;
}

/* What one shard adds to what is known of all of them. Called by several threads. */
static void gather(struct dataset *d, uint64_t s, const struct shard_facts *shard)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

	d->data_at_of[s] = (uint32_t)shard->data_at;
	keep_indexed(d, s, shard);
	pthread_mutex_lock(&lock);
	d->marked |= (d->hint.documents && is_indexed(shard)) ||
		     (d->hint.loss_mask && (shard->mask || shard->bounds));
	if (!is_indexed(shard) && s < d->unindexed)
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

static bool describe_open(
	const struct opening *o, const struct shard_format *format, uint64_t s, int fd, const char *path)
{
	struct dataset *d = o->dataset;
	struct shard_facts shard;
	struct stat st;
	char why[512];

	if (fstat(fd, &st) != 0)
		return refuse(
			o, o->source->path_line, "path", "%s: %s; must be readable", path, strerror(errno));
	format = shard_describe(format, path, fd, &d->hint, &shard, why, sizeof(why));
	if (!format)
		return refuse(o, o->source->path_line, "path", "%s: %s", path, why);
	if (!agree(o, format, &shard, path))
		return false;
	gather(d, s, &shard);
	d->table.tokens[s] = shard.tokens;
	d->identity[s] = identify(&st);
	return true;
}

static bool describe(const struct opening *o, const struct shard_format *format, uint64_t s)
{
	char path[PATH_MAX + 1];

	dataset_shard_path(o->dataset, s, path, sizeof(path));
	/* O_NONBLOCK: a FIFO must be refused, not waited for. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return refuse(
			o, o->source->path_line, "path", "%s: %s; must be readable", path, strerror(errno));
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
	uint64_t fault = crew_each(d->table.shards - 1, describe_quietly, &all);

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
		d->digest = order_digest_add(d->digest, dataset_shard_name(d, s), d->table.tokens[s]);
		if (__builtin_add_overflow(total, d->table.tokens[s], &total))
			return refuse(o, o->source->path_line, "path",
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
	return refuse(o, o->source->path_line, "path",
		"no shard holds a window: the largest, %s, has %" PRIu64 " tokens, a window is %" PRIu64
		" (seq_len %" PRIu64 " + extra %" PRIu64
		"); must have a longer shard, a smaller seq_len or weight 0",
		dataset_shard_name(o->dataset, largest), t->tokens[largest], t->window_tokens,
		o->stream->seq_len, o->stream->extra);
}

/* What shards share, an index of their directory, is read once, and serves again when they are opened. */
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
	uint64_t sample = d->sample_tokens, extra = o->stream->extra < sample ? o->stream->extra : 0;

	if (sample == 0)
		return true;
	if (sample != d->table.window_tokens)
		return refuse(o, o->source->path_line, "path",
			"its samples have %" PRIu64 " tokens, a window is %" PRIu64 " (seq_len %" PRIu64
			" + extra %" PRIu64 "); must be alike: seq_len %" PRIu64 " with extra %" PRIu64,
			sample, d->table.window_tokens, o->stream->seq_len, o->stream->extra, sample - extra,
			extra);
	if (o->source->slide)
		return refuse(o, o->source->slide_line, "slide",
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
		"%s:%d: streams.%s.documents: nothing says where a document ends in dataset %s: %s, a shard "
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
	       refuse(o, o->source->format_line, "format", "'%.40s' is unknown; must be auto or one of: %s",
		       o->source->format, shard_format_names());
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
		return refuse(o, o->source->manifest_line, "manifest", "%s", strerror(ENAMETOOLONG));
	/* It may be away, where nobody reads; a name that is there is taken as it stands. */
	if (!config_path(o->config, o->source->path, root, sizeof(root)) ||
		(stat(root, &st) == 0 ? !S_ISDIR(st.st_mode) : strpbrk(o->source->path, "*?[") != NULL))
		return refuse(o, o->source->path_line, "path",
			"%.80s: must be the directory that the names in %s start at", o->source->path, path);
	if (manifest_read(m, path, root, format, &hint, why, sizeof(why)))
		return true;
	if (strncmp(why + strlen(path), ": ", 2) == 0) /* of the whole file */
		return refuse(o, o->source->manifest_line, "manifest",
			"%s; must be a file that `tokctl inspect --manifest` wrote", why);
	snprintf(o->why, o->why_bytes, "%s", why);
	return false;
}

/*
 * A manifest knows nothing of what lies beside shards. Whether one has an index of its documents shows when
 * it is read (marks.h); whether they have masks the first one tells for all.
 */
static bool presume_marks(const struct opening *o)
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
	bool fine = fd >= 0 && shard_describe(d->format, path, fd, &d->hint, &facts, why, sizeof(why));

	if (fd < 0)
		bytes_why(why, sizeof(why), "%s; must be readable", strerror(errno));
	else
		close(fd);
	if (!fine)
		return refuse(o, o->source->path_line, "path", "%s: %s", path, why);
	d->masks = facts.mask;
	d->bounds = facts.bounds;
	return true;
}

/* No shard is looked at before it is read: whether one is plain, and where its tokens begin, shows then. */
static bool take_manifest(const struct opening *o)
{
	struct dataset *d = o->dataset;
	struct manifest m;

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
	return fine && presume_marks(o);
}

bool dataset_manifest(const struct config *config, const struct config_stream *stream,
	const struct config_dataset *source, struct manifest *manifest, char *why, size_t why_bytes)
{
	struct opening o = {config, stream, source, NULL, why, why_bytes};

	return read_manifest(&o, manifest);
}

static bool open_dataset(const struct opening *o)
{
	if (!(o->source->manifest ? take_manifest(o) : look_at_shards(o)) || !add_up(o) ||
		!check_samples(o) || !check_documents(o))
		return false;
	table_number(&o->dataset->table);
	return check_windows(o);
}

/* ---- streams ---- */

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

/* The line that a cursor's complaint is about, by its field: "dataset NAME: …", "schedule[N]: …". */
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
	const struct stream *stream, const struct cursor_why *fault, char *why, size_t why_bytes)
{
	snprintf(why, why_bytes, "%s:%d: streams.%s: %s: %s", stream->file,
		line_of(stream->config, fault->field), stream->config->name, fault->field, fault->text);
	return false;
}

static const struct cursor_why no_memory = {.field = "memory", .text = "out of memory"};

static bool begin(struct stream *stream, char *why, size_t why_bytes)
{
	const struct config_stream *source = stream->config;
	struct cursor_source *sources = calloc(source->datasets, sizeof(*sources));
	struct cursor_step *steps = calloc(source->steps + 1, sizeof(*steps));
	struct cursor_why fault = no_memory;
	struct cursor identity;

	stream_identity(source, &identity);
	for (uint32_t i = 0; sources && i < source->datasets; i++)
		dataset_source(&stream->dataset[i], &sources[i]);
	for (uint32_t i = 0; steps && i < source->steps; i++) {
		const struct config_step *s = &source->step[i];

		steps[i] = (struct cursor_step){s->from, s->to, s->steps, s->weights};
	}
	bool done = sources && steps &&
		    cursor_begin(&stream->begin, &identity, sources, source->datasets, steps, source->steps,
			    &fault);

	free(sources);
	free(steps);
	return done || refuse_stream(stream, &fault, why, why_bytes);
}

void dataset_source(const struct dataset *dataset, struct cursor_source *source)
{
	const struct config_dataset *config = dataset->config;

	*source = (struct cursor_source){
		.name = config->name,
		.weight = config->weight,
		.windows = dataset->table.windows,
		.digest = dataset->digest,
		.block = config->block,
		.group = config->group,
		.shuffle = config->shuffle,
		.slide = config->slide,
		.max_epochs = config->max_epochs,
	};
}

static bool open_stream(struct stream *stream, const struct config_stream *source,
	const struct config *config, char *why, size_t why_bytes)
{
	stream->config = source;
	stream->file = config->path;
	stream->dataset = calloc(source->datasets, sizeof(*stream->dataset));
	if (!stream->dataset) {
		snprintf(why, why_bytes, "%s:%d: streams.%s: out of memory", config->path, source->line,
			source->name);
		return false;
	}
	for (uint32_t i = 0; i < source->datasets; i++) {
		struct dataset *d = &stream->dataset[i];
		struct opening o = {config, source, &source->dataset[i], d, why, why_bytes};

		d->config = &source->dataset[i];
		if (!open_dataset(&o))
			return false;
		if (i == 0)
			stream->token_bytes = d->token_bytes;
		if (d->token_bytes != stream->token_bytes)
			return refuse(&o, d->config->line, "dtype",
				"u%" PRIu32 " tokens, but those of dataset %s are u%" PRIu32
				"; a stream must have one width",
				8 * d->token_bytes, source->dataset[0].name, 8 * stream->token_bytes);
	}
	if (source->documents && source->has_eos && stream->token_bytes == 2 && source->eos > UINT16_MAX) {
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
			!open_stream(&catalog->stream[i], &config->stream[i], config, why, why_bytes))
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

static void dataset_free(struct dataset *dataset)
{
	free(dataset->table.tokens);
	free(dataset->table.first_window);
	free(dataset->identity);
	free(dataset->plain_at);
	free(dataset->indexed);
	free(dataset->sizes);
	free(dataset->types);
	free(dataset->data_at_of);
	free(dataset->label_mask);
	free(dataset->root);
	free(dataset->paths);
	free(dataset->path_at);
	memo_free(dataset->hint.memo);
}

void catalog_free(struct catalog *catalog)
{
	if (!catalog)
		return;
	for (uint32_t i = 0; catalog->stream && i < catalog->config->streams; i++) {
		struct stream *stream = &catalog->stream[i];

		for (uint32_t d = 0; stream->dataset && d < stream->config->datasets; d++)
			dataset_free(&stream->dataset[d]);
		free(stream->dataset);
		cursor_free(&stream->begin);
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

/* ---- shards by number and by name ---- */

const char *dataset_shard_name(const struct dataset *dataset, uint64_t shard)
{
	assert(shard < dataset->table.shards);
	return dataset->paths + dataset->path_at[shard];
}

/* A dataset keeps a list's parts as its own. */
static struct shard_list list_of(const struct dataset *d)
{
	return (struct shard_list){
		.root = d->root, .paths = d->paths, .at = d->path_at, .count = d->table.shards};
}

void dataset_shard_path(const struct dataset *dataset, uint64_t shard, char *path, size_t path_bytes)
{
	struct shard_list list = list_of(dataset);

	assert(shard < list.count);
	if (!shard_list_path(&list, shard, path, path_bytes) && path_bytes > 0)
		path[0] = 0; /* open() then says ENOENT; a path cut short might be another file */
}

int64_t dataset_find_shard(const struct dataset *dataset, const char *name)
{
	struct shard_list list = list_of(dataset);

	return shard_list_find(&list, name);
}

bool dataset_same_shard(
	const struct dataset *dataset, uint64_t shard, const struct stat *st, char *why, size_t why_bytes)
{
	const struct dataset_identity *listed = &dataset->identity[shard];
	const struct {
		const char *what;
		uint64_t was, is;
	} facts[] = {
		{"size", listed->bytes, (uint64_t)st->st_size},
		{"inode", listed->inode, st->st_ino},
		{"mtime (ns)", listed->mtime_ns, mtime_ns(st)},
	};

	assert(shard < dataset->table.shards);
	if (dataset->sizes && listed->inode == 0)
		return true;
	for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
		if (facts[i].was == facts[i].is)
			continue;
		snprintf(why, why_bytes,
			"%s was %" PRIu64 " when the shard was listed and is %" PRIu64 " now", facts[i].what,
			facts[i].was, facts[i].is);
		return false;
	}
	return true;
}

/* A mask or an index that is gone since would go unnoticed: there are shards without. */
static bool same_marks(
	const struct dataset *d, uint64_t shard, const struct shard_facts *facts, char *why, size_t why_bytes)
{
	enum dataset_indexed indexed = d->indexed ? d->indexed[shard] : DATASET_UNKNOWN;
	const struct {
		const char *what;
		bool asked, was, is;
	} marks[] = {
		{"loss mask", d->hint.loss_mask, d->masks, facts->mask},
		{"list of document bounds", d->hint.loss_mask, d->bounds, facts->bounds},
		{"index of documents", indexed != DATASET_UNKNOWN, indexed == DATASET_INDEXED,
			is_indexed(facts)},
	};

	for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
		if (marks[i].asked && marks[i].was != marks[i].is)
			return bytes_why(why, why_bytes, "had %s %s when it was listed and has %s now",
				marks[i].was ? "its" : "no", marks[i].what, marks[i].is ? "one" : "none");
	return true;
}

/* What was listed was kept as a number alone. */
static bool as_listed(const struct dataset *dataset, uint64_t shard, const struct shard_facts *facts,
	char *why, size_t why_bytes)
{
	uint64_t tokens = dataset->table.tokens[shard];

	return (facts->tokens == tokens && facts->token_bytes == dataset->token_bytes) ||
	       bytes_why(why, why_bytes,
		       "had %" PRIu64 " tokens when the shard was listed and has %" PRIu64 " now", tokens,
		       facts->tokens);
}

static bool as_in_manifest(const struct dataset *d, uint64_t shard, const struct shard_format *format,
	const struct shard_facts *facts, const struct stat *st, char *why, size_t why_bytes)
{
	const struct manifest_shard listed = {d->format, (enum shard_type)d->types[shard],
		d->table.tokens[shard], d->sizes[shard], d->sample_tokens, d->frame_bytes};
	const struct manifest_shard found = {format, facts->type, facts->tokens, (uint64_t)st->st_size,
		facts->sample_tokens, facts->frame_bytes};

	size_t n;

	if (manifest_same(&listed, &found, why, why_bytes))
		return true;
	n = strlen(why);
	if (strncmp(why, "dtype ", 6) == 0 && d->hint.has_type && found.type == d->hint.type)
		snprintf(why + n, why_bytes - n, ", as `dtype` of the config has it");
	return false;
}

/* A manifest's shard is recognised anew, if the config does not say what it is: flat files may be anything.
 */
static bool describe_listed(const struct dataset *d, uint64_t shard, const char *path, int fd,
	const struct shard_hint *hint, struct shard_facts *facts, char *why, size_t why_bytes)
{
	const struct shard_format *format = d->sizes ? shard_format(d->config->format) : d->format;
	struct stat st;

	if (fstat(fd, &st) != 0)
		return bytes_why(why, why_bytes, "%s", strerror(errno));
	if (d->sizes && d->sizes[shard] != (uint64_t)st.st_size) /* what is in it matters no more */
		return as_in_manifest(d, shard, d->format, facts, &st, why, why_bytes);
	format = shard_describe(format, path, fd, hint, facts, why, why_bytes);
	if (!format)
		return false;
	if (!d->sizes)
		return as_listed(d, shard, facts, why, why_bytes);
	return as_in_manifest(d, shard, format, facts, &st, why, why_bytes);
}

/* A manifest's shard is as listed: from now on it is this file, and nobody needs to look into it again. */
static void remember(const struct dataset *d, uint64_t shard, int fd, const struct shard_facts *facts)
{
	struct stat st;

	if (!d->sizes || fstat(fd, &st) != 0)
		return;
	d->identity[shard] = identify(&st);
	keep_indexed(d, shard, facts);
	if (facts->plain && facts->data_at < UINT32_MAX)
		d->plain_at[shard] = (uint32_t)facts->data_at + 1;
}

/* Formats take a header that cannot be read for one that is not there. Leaves errno as dataset_open_shard()
 * says. */
static void tell_error(char *why, size_t why_bytes)
{
	static const int errors[] = {EIO, ESTALE, ETIMEDOUT, ENOMEM, EMFILE, ENFILE};
	int error = 0;

	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		error = errno == errors[i] ? errno : error;
	if (error && !strstr(why, strerror(error)))
		snprintf(why, why_bytes, "%s while it was opened", strerror(error));
	errno = error;
}

struct shard *dataset_open_shard(const struct dataset *dataset, uint64_t shard, const char *path, int fd,
	struct frames *frames, char *why, size_t why_bytes)
{
	struct shard_hint hint = dataset->hint;
	struct shard_facts facts = {0};
	struct shard *opened = NULL;

	hint.frames = frames;
	errno = 0;
	if (describe_listed(dataset, shard, path, fd, &hint, &facts, why, why_bytes) &&
		same_marks(dataset, shard, &facts, why, why_bytes))
		opened = shard_open(dataset->format, path, fd, &hint, &facts, why, why_bytes);
	if (opened)
		remember(dataset, shard, fd, &opened->facts);
	else
		tell_error(why, why_bytes);
	return opened;
}

/* ---- what users should know ---- */

uint64_t dataset_frames_budget(const struct config *config)
{
	return config->memory_bytes / 4;
}

/* A frame is decoded whole for whatever is wanted of it; windows of a block share it, others do not. */
static bool costly_frames(const struct dataset *d, char *text, size_t text_bytes)
{
	uint64_t window = d->table.window_tokens * d->token_bytes;

	if (d->config->shuffle != ORDER_GLOBAL || d->frame_bytes < LARGE_FRAME_BYTES ||
		d->frame_bytes / LARGE_FRAME_WINDOWS < window)
		return false;
	snprintf(text, text_bytes,
		"shuffle: global takes windows from anywhere, and its largest zstd frame decodes to %" PRIu64
		" KiB: for each window of %" PRIu64 " bytes up to %" PRIu64
		" times as much is decoded; write shuffle: block, or compress in frames of 256 KiB",
		d->frame_bytes >> 10, window, d->frame_bytes / window);
	return true;
}

/* A list of bounds is unpacked whole whenever its shard is opened, and so many shards are open at a time. */
static bool costly_bounds(const struct dataset *d, char *text, size_t text_bytes)
{
	if (!d->bounds || d->config->shuffle != ORDER_GLOBAL || d->table.shards <= BOUNDS_OPEN)
		return false;
	snprintf(text, text_bytes,
		"shuffle: global takes windows from any of its %" PRIu64
		" shards, and of their lists of document bounds (.csv.gz) some %d are kept at a time: most "
		"windows have a whole list unpacked; write shuffle: block",
		d->table.shards, BOUNDS_OPEN);
	return true;
}

static bool manifest_note(const struct dataset *d, char *text, size_t text_bytes)
{
	struct stat st;

	if (!d->sizes)
		return false;
	if (stat(d->root, &st) != 0)
		snprintf(text, text_bytes,
			"its shards are as %.200s says, below %.200s, which cannot be read now: %s",
			d->config->manifest, d->root, strerror(errno));
	else
		snprintf(text, text_bytes,
			"its shards are as %.200s says; none was looked at, each is compared when it is read "
			"first",
			d->config->manifest);
	return true;
}

bool dataset_note(const struct dataset *dataset, unsigned i, char *text, size_t text_bytes)
{
	if (i == 0 && dataset->note[0])
		snprintf(text, text_bytes, "shard %s (the first with something to say): %s",
			dataset_shard_name(dataset, dataset->note_shard), dataset->note);
	return i == 0	? dataset->note[0] != 0
	       : i == 1 ? (costly_frames(dataset, text, text_bytes) ||
				  costly_bounds(dataset, text, text_bytes))
			: i == 2 && manifest_note(dataset, text, text_bytes);
}

void stream_map(const struct stream *stream, const struct cursor *cursor, const struct dataset **out)
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
	uint32_t shift; /* 1: the first step is not the schedule's but what the config begins with */
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

		p->step[i + p->shift] = (struct cursor_step){
			s->from, s->to, s->steps, p->weights + (size_t)(i + p->shift) * cursor->datasets};
	}
	for (uint32_t d = 0; d < cursor->datasets; d++)
		p->max_epochs[d] = cursor->dataset[d].max_epochs;
	return true;
}

/* The weight of the config's dataset @i at the plan's step @k. */
static double weight_at(const struct plan *p, const struct config_stream *config, uint32_t k, uint32_t i)
{
	return k < p->shift ? config->dataset[i].weight : config->step[k - p->shift].weights[i];
}

/* Puts what the config says of its dataset @i where the cursor has it. */
static bool plan_dataset(struct plan *p, const struct stream *stream, const struct cursor *cursor, uint32_t i,
	struct cursor_why *fault)
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
				"the schedule gives it some, and the cursor does not have it yet; add it "
				"first (tokctl cursor add)");
			return false;
		}
		if (d >= 0)
			p->weights[(size_t)k * cursor->datasets + (size_t)d] = weight;
	}
	return true;
}

/* A complaint about step N of the plan is about entry N - shift of the schedule. */
static void renumber(struct cursor_why *fault, uint32_t shift)
{
	struct cursor_why given = *fault;
	unsigned step;
	int rest = 0;

	if (sscanf(given.field, "schedule[%u]%n", &step, &rest) == 1 && rest > 0 && step >= shift)
		snprintf(fault->field, sizeof(fault->field), "schedule[%u]%s", step - shift,
			given.field + rest);
}

bool stream_schedule(const struct stream *stream, struct cursor *cursor, char *why, size_t why_bytes)
{
	struct cursor_why fault = no_memory;
	struct plan plan;
	bool done = plan_open(&plan, stream, cursor);

	for (uint32_t i = 0; done && i < stream->config->datasets; i++)
		done = plan_dataset(&plan, stream, cursor, i, &fault);
	if (done && !cursor_schedule(
			    cursor, plan.step, stream->config->steps + plan.shift, plan.max_epochs, &fault)) {
		renumber(&fault, plan.shift);
		done = false;
	}
	plan_free(&plan);
	return done || refuse_stream(stream, &fault, why, why_bytes);
}
