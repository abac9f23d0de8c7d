/*
 * tokctl inspect: prints what shards contain. The facts that a file does not state (dtype, format)
 * are taken from the options, then from the config's dataset that lists it, then from the defaults.
 */
#include "client/ctl/offline/offline.h"
#include "client/ctl/offline/shards.h"
#include "daemon/catalog/dataset.h"
#include "daemon/catalog/parallel_for.h"
#include "daemon/config/url_text.h"
#include "daemon/shard/format.h"
#include "daemon/shard/shard.h"
#include "proto/phrases.h"
#include "proto/table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
	SAMPLED_MOST = 64, /* shards of a place */
	PROBLEMS = 4,	   /* of a shard; further ones are dropped */
};

/* A shard. */
struct inspected {
	uint64_t i;		 /* in the place */
	char path[PATH_MAX + 1]; /* as the user would write it */
	char file[PATH_MAX + 1]; /* to open */

	/* how it is read */
	struct listed *listed; /* NULL: in no dataset of the config */
	int64_t number;	       /* in the dataset; -1: not known */
	struct ctl_input input;

	/* what was read */
	struct shard *shard; /* NULL: @fault */
	int fd;
	uint64_t size;
	struct fault fault;
	struct shard_facts facts;
	bool has_mask; /* there is a loss mask, or a list of bounds that leaves tokens out */
	bool scanned;
	struct ctl_scan scan;
	uint64_t windows, unserved; /* of the stream; unserved: tokens in no window */
	unsigned problems;
	char problem[PROBLEMS][PATH_MAX + 512];
};

/* ---- the report ---- */

__attribute__((format(printf, 2, 3))) static void problem(
	struct inspected *f, const char *format, ...)
{
	va_list args;

	if (f->problems == PROBLEMS)
		return;
	char *text = f->problem[f->problems++];

	va_start(args, format);
	vsnprintf(text, sizeof(f->problem[0]), format, args);
	va_end(args);
	fault_line(text);
}

/* A fact of some shards only: other objects of JSON do not have it. */
static void put_fact(struct emit *e, const char *key, uint64_t n, bool present)
{
	emit_optional(e, present ? key : NULL, key, n, present);
}

static void print(struct inspect *in, const struct inspected *f)
{
	struct emit *e = &in->emit;
	const struct shard_facts *facts = &f->facts;
	bool read = f->shard, listed = read && f->listed;
	const char *column = facts->column[0] ? facts->column : NULL;

	in->faults |= f->problems > 0;
	emit_text(e, "path", "path", f->path);
	emit_text(e, "format", "format", read ? f->shard->format->name : NULL);
	emit_text(e, "dtype", "dtype", read ? shard_type_name(facts->type) : NULL);
	emit_optional(e, "tokens", "tokens", facts->tokens, read);
	emit_optional(e, "documents", "documents", facts->documents,
		read && facts->documents != SHARD_UNKNOWN);
	emit_text(e, column ? "column" : NULL, "column", column);
	put_fact(e, "sample_tokens", facts->sample_tokens, facts->sample_tokens > 0);
	put_fact(e, "padding", facts->padding, facts->padding > 0);
	put_fact(e, "windows", f->windows, listed);
	put_fact(e, "unserved", f->unserved, listed);
	put_fact(e, "max_token", f->scan.most, f->scanned && facts->tokens > 0);
	put_fact(e, "masked", f->scan.masked, f->scanned && f->has_mask);
	emit_open(e, "notes", '[');
	if (facts->note[0]) {
		emit_text(e, "", NULL, facts->note);
		emit_more(e, "  (%s)", facts->note);
	}
	emit_close(e, ']');
	emit_open(e, "problems", '[');
	for (unsigned i = 0; i < f->problems; i++) {
		emit_text(e, "", NULL, f->problem[i]);
		emit_more(e, "%s%s", i ? "; " : "  ", f->problem[i]);
	}
	emit_close(e, ']');
	emit_row(e);
}

void inspect_unread(struct inspect *in, const char *path, const char *text)
{
	struct inspected *f = calloc(1, sizeof(*f));

	in->faults = true;
	if (!f) {
		ctl_fail("%s: %s", path, PHRASE_MEMORY);
		return;
	}
	snprintf(f->path, sizeof(f->path), "%s", path);
	problem(f, "%s", ctl_input_text(path, text));
	print(in, f);
	free(f);
}

/* ---- the datasets of the config ---- */

/* Is @path below the dataset's root? Sets *@name to the rest. */
static bool is_below(const struct listed *l, const char *path, const char **name)
{
	size_t n = strlen(l->root);

	n -= l->root[n - 1] == '/';
	*name = path + n + 1;
	return strncmp(path, l->root, n) == 0 && path[n] == '/';
}

struct listed *inspect_listed(const struct inspect *in, const char *path, int64_t *shard)
{
	struct listed *found = NULL;
	const char *name;

	for (unsigned i = 0; i < in->lists; i++) {
		struct listed *l = &in->listed[i];
		bool below = is_below(l, path, &name);
		int64_t number = below ? shard_list_find(&l->shards.list, name) : -1;

		if ((number < 0 && !(below && l->unlisted)) || (found && !l->dataset->label_mask))
			continue;
		found = l;
		*shard = number;
		if (l->dataset->label_mask)
			break;
	}
	return found;
}

/* Sets l->mask to the dataset's directory of masks, without a slash at its end. */
static bool find_mask(struct inspect *in, struct listed *l)
{
	char path[PATH_MAX];

	if (!l->dataset->label_mask)
		return true;
	if (!config_path(in->input.config, l->dataset->label_mask, path, sizeof(path)))
		return ctl_error("%s: %s", l->dataset->label_mask, strerror(ENAMETOOLONG));
	for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
		path[n - 1] = 0;
	l->mask = strdup(path);
	return l->mask || ctl_error(PHRASE_MEMORY);
}

static bool list_dataset(struct inspect *in, const struct config_stream *stream,
	const struct config_dataset *dataset)
{
	struct listed *l = &in->listed[in->lists++];
	const struct config *config = in->input.config;
	bool url = url_text_is(dataset->path);
	char *root, path[PATH_MAX];
	struct fault fault;

	l->stream = stream;
	l->dataset = dataset;
	if (dataset->manifest && !in->manifest) { /* otherwise it may be the one to be written */
		if (!dataset_manifest(
			    config, in->input.stores, stream, dataset, &l->shards, &fault))
			return ctl_error("%s", fault.text);
	} else if (url) { /* without its slash, as other roots */
		l->shards.list.root = strndup(dataset->path, strlen(dataset->path) - 1);
		l->unlisted = true;
	} else if (!config_path(config, dataset->path, path, sizeof(path))) {
		return ctl_error("%s:%d: path: %s", config->path, dataset->path_line,
			strerror(ENAMETOOLONG));
	} else if (!shard_list_read(&l->shards.list, path, &fault)) {
		return ctl_error("%s:%d: path: %s", config->path, dataset->path_line, fault.text);
	}
	root = l->shards.list.root;
	l->root = !root ? NULL : url ? strdup(root) : realpath(root, NULL);
	return l->root ? find_mask(in, l) : ctl_error("%s: %s", dataset->path, strerror(errno));
}

/* Lists the files of all datasets. False after an error. */
static bool list_datasets(struct inspect *in)
{
	const struct config *config = in->input.config;
	size_t datasets = 0;

	in->input.hint.budget_bytes = dataset_frames_budget(config);
	for (uint32_t i = 0; i < config->streams; i++)
		datasets += config->stream[i].datasets;
	in->listed = calloc(datasets + 1, sizeof(*in->listed));
	if (!in->listed)
		return ctl_error(PHRASE_MEMORY);
	for (uint32_t i = 0; i < config->streams; i++)
		for (uint32_t d = 0; d < config->stream[i].datasets; d++)
			if (!list_dataset(in, &config->stream[i], &config->stream[i].dataset[d]))
				return false;
	return true;
}

/* ---- how a shard is read ---- */

/* Takes what a flat shard does not say from the manifest that it is compared with. */
static void use_manifest(const struct dataset *from, const char *name, struct ctl_input *input)
{
	int64_t i = shard_list_find(&from->list, name);

	if (!input->format)
		input->format = from->format;
	if (i >= 0 && !input->hint.has_type) {
		input->hint.type = (enum shard_type)from->entry[i].type;
		input->hint.has_type = input->format == &shard_flat;
	}
}

/* Takes what the options do not say from the dataset that lists the file. */
static void use_dataset(const struct listed *l, struct ctl_input *input)
{
	const struct config_dataset *dataset = l->dataset;

	if (!input->format)
		input->format = shard_format(dataset->format);
	if (!input->hint.has_type)
		input->hint.type = !dataset->has_dtype && l->shards.entry
					   ? (enum shard_type)l->shards.entry[0].type
				   : dataset->token_bytes == 4 ? SHARD_U32
							       : SHARD_U16;
	input->hint.has_type |= dataset->has_dtype;
	if (!input->hint.column)
		input->hint.column = dataset->column;
	input->hint.window_tokens = l->stream->seq_len + l->stream->extra;
	input->hint.label_mask = l->mask;
	input->hint.root_bytes = strlen(l->root) + !bytes_ends_in(l->root, "/");
}

static void begin_shard(struct inspect *in, struct inspected *f, uint64_t i)
{
	f->i = i;
	f->fd = -1;
	ctl_place_path(&in->place, i, f->path);
	ctl_place_file(&in->place, i, f->file);
	f->listed = inspect_listed(in, f->file, &f->number);
	f->input = ctl_input_at(&in->place, &in->input);
	if (in->from)
		use_manifest(in->from, ctl_place_name(&in->place, i), &f->input);
	if (f->listed)
		use_dataset(f->listed, &f->input);
}

/* ---- reading ---- */

/* Reads all tokens. */
static void scan(struct inspect *in, struct inspected *f)
{
	const struct config_stream *stream = f->listed ? f->listed->stream : NULL;
	struct fault fault;

	f->scan = (struct ctl_scan){.vocab = stream && stream->has_vocab ? stream->vocab : 0,
		.digests = in->manifest || (f->listed && f->listed->shards.entry),
		.masks = f->has_mask,
		.progress = &in->progress};
	f->scanned = ctl_scan(&f->scan, f->shard, &fault);
	if (!f->scanned)
		problem(f, "%s", ctl_input_text(f->path, fault.text));
	if (f->scan.beyond != SHARD_UNKNOWN)
		problem(f,
			"token %" PRIu64 " is %" PRIu64 "; must be below the vocab of stream %s, "
			"%" PRIu64 ", or this is not a file of tokens",
			f->scan.beyond, f->scan.beyond_value, stream->name, stream->vocab);
}

/* Reports what does not look like tokens: a problem if the dtype was not given, otherwise a note.
 */
static void check_looks(struct inspect *in, struct inspected *f)
{
	/* A sample is 64 KiB. Like the daemon at start, it looks only at some of a million shards.
	 * Shards of a manifest were sampled when it was written. */
	if (in->from || (!in->deep && f->i >= SAMPLED_MOST))
		return;
	struct sample_verdict v = sample_shard(f->shard);

	if (v.kind > SAMPLE_DOUBT && !f->input.hint.has_type)
		problem(f, "%s", v.text);
	else if (v.kind != SAMPLE_FINE)
		snprintf(f->facts.note, sizeof(f->facts.note), "%.*s", (int)strcspn(v.text, ";"),
			v.text);
}

static void read_shard(struct inspect *in, struct inspected *f)
{
	struct stat st;

	f->shard = ctl_input_open(&f->input, f->file, &f->fd, &f->fault);
	if (!f->shard)
		return;
	f->facts = f->shard->facts;
	f->has_mask = f->shard->mask || f->shard->map.outside > 0;
	/* An empty file among others is a shard without windows. A single one without a header was
	 * probably never written. */
	if (in->place.shards == 1 && f->facts.tokens == 0 && f->shard->format == &shard_flat)
		problem(f, "its size is 0 bytes%s; write it again",
			f->shard->bytes->plain ? "" : " after decoding");
	check_looks(in, f);
	if (in->deep)
		scan(in, f);
	if (in->place.remote)
		f->size = ctl_place_object(&in->place, f->i).size;
	else if (fstat(f->fd, &st) == 0)
		f->size = (uint64_t)st.st_size;
	else
		problem(f, "%s", strerror(errno));
}

/* ---- what a stream would serve ---- */

struct judged {
	const struct listed *listed;
	struct ctl_input input;
};

/* Are the samples of shard @p->i of a dataset windows? A shard that cannot be opened is reported by
 * itself. */
static bool has_windows(const struct parallel *p, struct fault *fault)
{
	const struct judged *j = p->context;
	char path[PATH_MAX + 1];
	struct shard *shard = NULL;
	int fd = -1;

	if (shard_list_path(&j->listed->shards.list, p->i, path, sizeof(path)))
		shard = ctl_input_open(&j->input, path, &fd, fault);
	bool fine = !shard || shard->facts.sample_tokens == j->input.hint.window_tokens;

	ctl_input_close(shard, fd);
	return fine;
}

/*
 * Whether the samples of a dataset in a format that mixes rows are joined, because those of one of
 * its shards are not windows. Without a manifest, all of its shards are opened.
 */
static bool is_joined(const struct inspect *in, struct listed *l)
{
	struct judged j = {l, in->input};
	uint64_t n = l->shards.list.count;
	struct fault fault;

	if (!l->judged && l->shards.entry) {
		l->joined = l->shards.sample_tokens == 0;
	} else if (!l->judged && !l->unlisted) {
		use_dataset(l, &j.input);
		j.input.hint.indexes = mds_indexes_new(l->root);
		l->joined = parallel_for(n, parallel_reads(n), has_windows, &j, &fault) < n;
		mds_indexes_free(j.input.hint.indexes);
	}
	l->judged = true;
	return l->joined;
}

/* Counts the windows that the stream cuts from the shard, and the tokens in none of them. */
static void count_windows(const struct inspect *in, struct inspected *f)
{
	const struct config_stream *stream = f->listed->stream;
	uint64_t first_window[2], tokens = f->facts.tokens, *sample = &f->facts.sample_tokens;
	struct table table = {.window_tokens = stream->seq_len + stream->extra,
		.stride = stream->stride,
		.shards = 1,
		.tokens = &tokens,
		.first_window = first_window};

	if (*sample > 0 && f->shard->format->mixes_rows && is_joined(in, f->listed)) {
		f->facts.documents = tokens / *sample;
		*sample = 0;
	}
	if (*sample > 0) { /* each sample is a window */
		if (*sample != table.window_tokens)
			problem(f,
				"its samples have %" PRIu64 " tokens, but a window of stream %s "
				"has %" PRIu64 " (seq_len + extra); must be equal",
				*sample, stream->name, table.window_tokens);
		table.window_tokens = table.stride = *sample;
	}
	table_number(&table);
	f->windows = table.windows;
	f->unserved = table_unserved(&table);
}

/* A dataset's shards have one format and one width; in a stream with loss_mask, either all have a
 * mask or none has; likewise lists of document bounds. */
static void compare_with_first(struct inspect *in, struct inspected *f)
{
	static const char *const names[] = {"loss mask", "list of document bounds (.csv.gz)"};
	const bool has[] = {f->facts.mask, f->facts.bounds};
	struct first_shard *first = f->listed ? &f->listed->first : &in->first;
	struct fault fault;

	if (first->of.list.count == 0) {
		memcpy(first->has, has, sizeof(has));
		if (!shard_list_add(&first->of.list, ctl_place_name(&in->place, f->i), &fault) ||
			!dataset_resize(&first->of, 1, &fault)) {
			problem(f, "%s", fault.text);
			return;
		}
	}
	if (!dataset_keep(&first->of, 0, f->shard->format, &f->facts, &fault))
		problem(f, "%s", fault.text);
	for (unsigned i = 0; i < 2 && f->listed && f->listed->stream->loss_mask; i++)
		if (first->has[i] != has[i])
			problem(f,
				"has %s %s, but the first shard, %s, has %s; " PHRASE_ALL_OR_NONE,
				has[i] ? "a" : "no", names[i], shard_list_name(&first->of.list, 0),
				has[i] ? "none" : "one");
}

/* Compares with line @s of a manifest; the digest only if both have one. */
static void compare(
	const struct inspect *in, struct inspected *f, const struct dataset *m, int64_t s)
{
	struct fault fault;

	if (!manifest_agrees(m, (uint64_t)s, f->shard->format, &f->facts, f->size, &fault))
		problem(f, "%s", fault.text);
	else if (f->scanned && f->problems == 0 && m->entry[s].digest &&
		 f->scan.digest != m->entry[s].digest)
		problem(f,
			"digest is %016" PRIx64 " in the manifest and %016" PRIx64
			" in the %s; restore the shard, or write the manifest anew",
			m->entry[s].digest, f->scan.digest, in->place.remote ? "store" : "file");
}

/* In order. */
static void end_shard(struct inspect *in, struct inspected *f)
{
	struct listed *l = f->listed;
	int64_t line = -1;
	struct fault fault;

	if (in->input.config && !l)
		ctl_note("%s: in no dataset of %s; read as %s", f->path, in->input.config->path,
			shard_type_name(f->input.hint.type));
	if (!f->shard) {
		problem(f, "%s", ctl_input_text(f->path, f->fault.text));
		print(in, f);
		return;
	}
	if (l)
		count_windows(in, f);
	compare_with_first(in, f);
	if (in->from)
		line = shard_list_find(&in->from->list, ctl_place_name(&in->place, f->i));
	if (line >= 0)
		compare(in, f, in->from, line);
	else if (l && l->shards.entry)
		compare(in, f, &l->shards, f->number);
	if (in->manifest && f->problems == 0 &&
		!manifest_add(in, f->i, f->shard->format, &f->facts, f->size,
			f->scanned ? &f->scan.digest : NULL, &fault))
		problem(f, "%s", fault.text);
	print(in, f);
}

/* ---- the shards of a path ---- */

static bool inspect_shard(const struct parallel *p, struct fault *fault)
{
	struct inspect *in = p->context;
	struct inspected *f = calloc(1, sizeof(*f));
	bool fine = true;

	if (!f)
		return fault_memory(fault);
	begin_shard(in, f, p->i);
	read_shard(in, f);
	if (!in->deep)
		ctl_progress_add(&in->progress, 1);
	if (parallel_turn(p)) {
		end_shard(in, f);
		fine = !in->emit.failed;
		if (fine)
			parallel_pass(p);
	}
	ctl_input_close(f->shard, f->fd);
	free(f);
	fault->code = FAULT_NONE; /* the report failed, which emit_end() says */
	return fine;
}

void inspect_place(struct inspect *in)
{
	const struct ctl_place *p = &in->place;
	unsigned threads = p->remote || in->deep ? ctl_place_threads(p) : parallel_reads(p->shards);
	struct fault fault = {.code = FAULT_NONE};

	dataset_close(&in->first.of);
	ctl_progress_begin(
		&in->progress, p->path, in->deep ? "tokens" : "shards", in->deep ? 0 : p->shards);
	if (parallel_for(p->shards, threads, inspect_shard, in, &fault) < p->shards &&
		fault.code != FAULT_NONE)
		inspect_unread(in, p->path, fault.text);
	ctl_progress_end(&in->progress);
}

/* ---- paths ---- */

/* Lists the masks of the dataset that @path is in, if the config has them in a store. */
static bool list_masks(struct inspect *in, const char *path, struct fault *fault)
{
	for (unsigned i = 0; i < in->lists; i++) {
		const char *masks = in->listed[i].dataset->label_mask, *name;

		if (!masks || !url_text_is(masks) || !is_below(&in->listed[i], path, &name))
			continue;
		snprintf(in->masks_url, sizeof(in->masks_url), "%s%s", masks,
			bytes_ends_in(masks, "/") ? "" : "/");
		return ctl_place_open(
			       &in->masks, in->input.stores, in->masks_url, NULL, NULL, fault) ||
		       fault_prefix(fault, "%s: ", in->masks_url);
	}
	return true;
}

bool inspect_open(struct inspect *in, const char *path, const struct shard_list *names)
{
	struct fault fault;

	if (list_masks(in, path, &fault) &&
		ctl_place_open(&in->place, in->input.stores, path, names,
			in->masks.remote ? &in->masks : NULL, &fault))
		return true;
	inspect_unread(in, path, fault.text);
	inspect_close(in);
	return false;
}

void inspect_close(struct inspect *in)
{
	ctl_place_close(&in->place);
	ctl_place_close(&in->masks);
}

/* ---- the command line ---- */

int inspect_begin(struct inspect *in, const struct ctl_arguments *a)
{
	int status = ctl_input_begin(&in->input, a);

	in->emit.json = ctl_given(a, INSPECT_JSON);
	in->deep = ctl_given(a, INSPECT_DEEP);
	in->input.hint.documents = in->input.hint.loss_mask = true;
	if (status == CTL_OK && in->input.config && !list_datasets(in))
		status = CTL_FAILED;
	return status;
}

int inspect_end(struct inspect *in, int status)
{
	if (status == CTL_OK)
		status = emit_end(&in->emit, in->faults ? CTL_FAILED : CTL_OK);
	for (unsigned i = 0; i < in->lists; i++) {
		dataset_close(&in->listed[i].shards);
		dataset_close(&in->listed[i].first.of);
		free(in->listed[i].root);
		free(in->listed[i].mask);
	}
	free(in->listed);
	dataset_close(&in->first.of);
	ctl_input_end(&in->input);
	return status;
}

static const struct ctl_option options[] = {
	[INSPECT_CONFIG] = {INSPECT_CONFIG_OPTION},
	[INSPECT_FORMAT] = {CTL_INPUT_FORMAT_OPTION},
	[INSPECT_DTYPE] = {CTL_INPUT_DTYPE_OPTION},
	[INSPECT_COLUMN] = {CTL_INPUT_COLUMN_OPTION},
	[INSPECT_DEEP] = {OPTION_FLAG(
		"deep", "read all tokens: find the largest, compare with vocab and manifest")},
	[INSPECT_JSON] = {CTL_JSON_OPTION},
};

static int inspect_all(struct inspect *in, const struct ctl_arguments *a)
{
	int status = inspect_begin(in, a);
	int n = status == CTL_OK ? ctl_input_paths(a->argument, a->arguments) : 0;

	if (n < 0)
		return ctl_fail(PHRASE_MEMORY);
	for (int i = 0; i < n; i++)
		if (inspect_open(in, a->argument[i], NULL)) {
			inspect_place(in);
			inspect_close(in);
		}
	return status;
}

static int inspect(const struct ctl_arguments *a)
{
	struct inspect in = {.deep = false};

	for (int i = 0; i < a->arguments; i++)
		if (ctl_place_unlisted(a->argument[i]))
			return ctl_usage(a->command,
				"%s: an HTTPS server has no listing; see `tokctl manifest --from`",
				a->argument[i]);
	return inspect_end(&in, inspect_all(&in, a));
}

const struct ctl_command ctl_inspect = {
	.name = "inspect",
	.head = "Shards:",
	.arguments = "PATH...",
	.help = "print what shards contain and what is wrong with them",
	.run = inspect,
	OPTIONS_ARE(options),
};
