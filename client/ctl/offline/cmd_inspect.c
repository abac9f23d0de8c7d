/*
 * tokctl inspect: prints what shards contain. tokctl manifest: also writes a line of each, as
 * daemon/catalog/manifest.c says. Each shard is found in the config, read, which any thread may do,
 * and reported in the order of the names; errors are counted in inspect.faults. The facts that a
 * file does not state (dtype, format) are taken from the options, then from the config's dataset
 * that lists it, then from the defaults.
 */
#include "client/ctl/offline/offline.h"
#include "client/ctl/offline/shards.h"
#include "daemon/catalog/parallel_for.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* A dataset of the config, to find how a file is configured. */
struct listed {
	const struct config_stream *stream;
	const struct config_dataset *dataset;
	struct dataset shards; /* its list; the rest only if there is a manifest */
	struct dataset first; /* a list of the first shard that was seen, and its facts; or empty */
	char *root;	      /* with links resolved, to compare with paths */
	bool judged, joined;  /* its samples are joined; known once it is judged */
};

enum {
	SAMPLED_MOST = 64, /* shards of a place */
	AT_ONCE = 512,	   /* shards that are read before they are reported */
	PROBLEMS = 4,	   /* of a shard; further ones are dropped */
};

/* A shard. */
struct inspected {
	uint64_t i;		 /* in the place */
	char path[PATH_MAX + 1]; /* as the user would write it */

	/* how it is read */
	struct listed *listed; /* NULL: in no dataset of the config */
	int64_t number;	       /* in the dataset; -1: not known */
	struct ctl_input input;

	/* what was read */
	const struct shard_format *format; /* NULL: it cannot be opened: @fault */
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

/* The command, and what was seen so far. It is not freed: the process ends. */
struct inspect {
	struct emit emit;
	struct ctl_input input;
	struct listed *listed; /* all datasets of the config */
	unsigned lists;
	bool deep, faults, makes; /* a manifest is made, */
	FILE *manifest;		  /* which is written here once the shards are listed; or NULL */

	/* the path that is read */
	struct ctl_place place;
	const struct dataset *from; /* that the shards must agree with; NULL: their dataset's */
	struct dataset first;	    /* as of a listed one, of shards in no dataset */
	struct inspected shard[AT_ONCE]; /* that are read at once; the first is number @at */
	uint64_t at;
};

/* The options of both commands. */
#define INSPECT_INPUT                                                                              \
	{OPTION_TEXT("config", "FILE",                                                             \
		 "config whose datasets say how to read their shards; also counts windows"),       \
		.letter = 'c'},                                                                    \
		{CTL_INPUT_FORMAT_OPTION}, {CTL_INPUT_DTYPE_OPTION},                               \
	{                                                                                          \
		CTL_INPUT_COLUMN_OPTION                                                            \
	}

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
	bool read = f->format, listed = read && f->listed;
	const char *column = facts->column[0] ? facts->column : NULL;

	in->faults |= f->problems > 0;
	emit_text(e, "path", "path", f->path);
	emit_text(e, "format", "format", read ? f->format->name : NULL);
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

/* Reports what is wrong with a path, or with @name below it. */
__attribute__((format(printf, 4, 5))) static void report(
	struct inspect *in, const char *path, const char *name, const char *format, ...)
{
	struct inspected f = {.format = NULL};
	char text[sizeof(f.problem[0])];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	snprintf(f.path, sizeof(f.path), "%s%s%s", path, name ? "/" : "", name ? name : "");
	problem(&f, "%s", ctl_input_text(f.path, text));
	print(in, &f);
}

/* ---- the datasets of the config ---- */

/* What follows the dataset's root in @path, or NULL. */
static const char *name_below(const struct listed *l, const char *path)
{
	size_t n = strlen(l->root) - bytes_ends_in(l->root, "/");

	return strncmp(path, l->root, n) == 0 && path[n] == '/' ? path + n + 1 : NULL;
}

/* The dataset that contains the file @path, and its number there in *@shard (-1: not known). Of
 * several, the first with a label_mask, otherwise the first. NULL: none. */
static struct listed *find_listed(const struct inspect *in, const char *path, int64_t *shard)
{
	struct listed *found = NULL;

	for (unsigned i = 0; i < in->lists && !(found && found->dataset->label_mask); i++) {
		struct listed *l = &in->listed[i];
		const char *name = name_below(l, path);
		int64_t number = name ? shard_list_find(&l->shards.list, name) : -1;

		/* Without a manifest a store has no list: all below the root. */
		if (!name || (number < 0 && l->shards.list.count > 0) ||
			(found && !l->dataset->label_mask))
			continue;
		found = l;
		*shard = number;
	}
	return found;
}

/* Lists the files of a dataset. */
static bool list_dataset(const struct inspect *in, struct listed *l, struct fault *fault)
{
	const struct config_dataset *dataset = l->dataset;
	const struct config *config = in->input.config;
	bool url = url_text_is(dataset->path);

	/* A manifest that is to be written may be the dataset's. */
	if (dataset->manifest && !in->makes) {
		l->shards = (struct dataset){.file = config,
			.stream = l->stream,
			.config = dataset,
			.finder.stores = in->input.stores};
		if (!dataset_manifest(&l->shards, fault))
			return false;
	} else if (url) { /* without its slash, as other roots */
		l->shards.list.root = strndup(dataset->path, strlen(dataset->path) - 1);
	} else if (!shard_list_read(&l->shards.list, dataset->path, fault)) {
		return fault_prefix(fault, "%s:%d: path: ", config->path, dataset->path_line);
	}
	const char *root = l->shards.list.root;

	l->root = !root ? NULL : url ? strdup(root) : realpath(root, NULL);
	return l->root || fault_errno(fault, errno, "", "%s: %s", dataset->path, strerror(errno));
}

static bool list_datasets(struct inspect *in, struct fault *fault)
{
	const struct config *config = in->input.config;

	in->input.hint.budget_bytes = config_frames_budget(config);
	for (uint32_t i = 0; i < config->streams; i++)
		for (uint32_t d = 0; d < config->stream[i].datasets; d++) {
			if (!ctl_grow((void **)&in->listed, in->lists, sizeof(*in->listed)))
				return fault_memory(fault);
			struct listed *l = &in->listed[in->lists++];

			*l = (struct listed){.stream = &config->stream[i],
				.dataset = &config->stream[i].dataset[d]};
			if (!list_dataset(in, l, fault))
				return false;
		}
	return true;
}

/* Takes what the options do not say from the dataset that lists the file. */
static void use_listed(const struct listed *l, struct ctl_input *input)
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
	input->hint.label_mask = dataset->label_mask;
	input->hint.root_bytes = strlen(l->root) + !bytes_ends_in(l->root, "/");
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

/* ---- reading ---- */

/* Reads all tokens. */
static void scan(struct inspect *in, struct inspected *f, const struct shard *shard)
{
	const struct config_stream *stream = f->listed ? f->listed->stream : NULL;
	struct fault fault;

	f->scan = (struct ctl_scan){.vocab = stream && stream->has_vocab ? stream->vocab : 0,
		.digests = in->manifest || (f->listed && f->listed->shards.entry),
		.masks = f->has_mask,
		.progress = true};
	f->scanned = ctl_scan(&f->scan, shard, &fault);
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
static void check_looks(const struct inspect *in, struct inspected *f, const struct shard *shard)
{
	/* A sample is 64 KiB. Like the daemon at start, it looks only at some of a million shards.
	 * Shards of a manifest were sampled when it was written. */
	if (in->from || (!in->deep && f->i >= SAMPLED_MOST))
		return;
	struct sample *s = sample_read(shard, &(struct fault){0}); /* NULL: a scan says why */

	if (s && s->kind > SAMPLE_DOUBT && !f->input.hint.has_type)
		problem(f, "%s", s->text);
	else if (s && s->kind != SAMPLE_FINE)
		snprintf(f->facts.note, sizeof(f->facts.note), "%.*s", (int)strcspn(s->text, ";"),
			s->text);
	free(s);
}

static void read_open(struct inspect *in, struct inspected *f, const struct shard *shard)
{
	f->format = shard->format;
	f->facts = shard->facts;
	f->size = shard->bytes->stored;
	f->has_mask = shard->mask || shard->map.outside > 0;
	/* An empty file among others is a shard without windows. A single one without a header was
	 * probably never written. */
	if (in->place.set.list.count == 1 && f->facts.tokens == 0 && f->format == &shard_flat)
		problem(f, "its size is 0 bytes%s; write it again",
			shard->bytes->plain ? "" : " after decoding");
	check_looks(in, f, shard);
	if (in->deep)
		scan(in, f, shard);
}

/* Reads a shard. Any thread. */
static bool read_shard(const struct parallel *p, struct fault *fault)
{
	struct inspect *in = p->context;
	struct inspected *f = &in->shard[p->i];
	uint64_t i = in->at + p->i;
	const char *name = shard_list_name(&in->place.set.list, i);
	char file[PATH_MAX + 1]; /* to open */

	(void)fault;
	*f = (struct inspected){.i = i};
	ctl_place_path(&in->place, i, f->path);
	shard_list_path(&in->place.set.list, i, file, sizeof(file));
	f->listed = find_listed(in, file, &f->number);
	f->input = ctl_input_at(&in->place, &in->input);
	if (in->from)
		use_manifest(in->from, name, &f->input);
	if (f->listed)
		use_listed(f->listed, &f->input);
	struct shard *shard =
		shard_open(f->input.format, file, -1, &f->input.hint, true, &f->fault);

	if (shard)
		read_open(in, f, shard);
	shard_close(shard);
	if (!in->deep)
		ctl_progress_add(1);
	return true;
}

/* ---- what a stream would serve ---- */

/* Whether the samples of a dataset, in a format that mixes rows, are joined, because those of one
 * of its shards are not windows. False also if the daemon would refuse its stream. */
static bool is_joined(const struct inspect *in, struct listed *l)
{
	struct fault fault;

	if (l->judged)
		return l->joined;
	struct catalog *catalog =
		catalog_open(in->input.config, in->input.stores, l->stream->name, NULL, &fault);

	for (uint32_t d = 0; catalog && d < catalog->datasets; d++)
		if (catalog->dataset[d].config == l->dataset)
			l->joined = catalog->dataset[d].sample_tokens == 0;
	catalog_free(catalog);
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

	if (*sample > 0 && f->format->mixes_rows && is_joined(in, f->listed)) {
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

/* A dataset's shards have one format and one width. */
static void compare_with_first(struct inspect *in, struct inspected *f)
{
	struct dataset *first = f->listed ? &f->listed->first : &in->first;
	const char *name = shard_list_name(&in->place.set.list, f->i);
	struct fault fault;

	if ((first->list.count == 0 && !(shard_list_add(&first->list, name, &fault) &&
					       dataset_resize(first, 1, &fault))) ||
		!dataset_keep(first, 0, f->format, &f->facts, &fault))
		problem(f, "%s", fault.text);
}

/* Compares with the shard's line of a manifest, if there is one; the digest only if both have one.
 */
static void compare_with_line(const struct inspect *in, struct inspected *f)
{
	const struct dataset *m = in->from ? in->from : f->listed ? &f->listed->shards : NULL;
	int64_t i = in->from ? shard_list_find(&m->list, shard_list_name(&in->place.set.list, f->i))
			     : f->number;
	struct fault fault;

	if (!m || !m->entry || i < 0)
		return;
	const struct entry *line = &m->entry[i];

	if (!dataset_agrees(m, (uint64_t)i, f->format, &f->facts, f->size, &fault))
		problem(f, "%s", fault.text);
	else if (f->scanned && f->problems == 0 && line->digest && f->scan.digest != line->digest)
		problem(f,
			"digest is %016" PRIx64 " in the manifest and %016" PRIx64
			" in the %s; restore the shard, or write the manifest anew",
			line->digest, f->scan.digest, in->place.set.bucket ? "store" : "file");
}

/* ---- a manifest's line ---- */

/* Writes the line of shard @i of in->place, after adding the members that depend on where the shard
 * is. @line NULL: out of memory. False: @fault. */
static bool put_line(struct inspect *in, uint64_t i, json_t *line, struct fault *fault)
{
	json_t *sides = ctl_place_sides(&in->place, i, fault);
	bool fine = sides && (line || fault_memory(fault));

	if (in->place.set.bucket)
		json_object_set_new(
			line, "etag", json_string(dataset_object(&in->place.set, i).etag));
	if (json_object_size(sides) > 0)
		json_object_set(line, "side", sides);
	json_decref(sides);
	if (!fine || !ctl_place_pinned(&in->place, i, fault))
		return false;
	fine = json_dumpf(line, in->manifest, JSON_COMPACT | JSON_PRESERVE_ORDER) == 0;
	fputc('\n', in->manifest);
	return fine || ferror(in->manifest) || fault_memory(fault);
}

static json_t *optional(uint64_t n, bool present)
{
	return present ? json_integer((json_int_t)n) : NULL;
}

/* Writes the manifest's line of a shard. False: @fault. */
static bool manifest_add(struct inspect *in, const struct inspected *f, struct fault *fault)
{
	const struct shard_facts *facts = &f->facts;
	json_t *name = json_string(shard_list_name(&in->place.set.list, f->i));
	char digest[24];

	if (!name)
		return fault_set(fault, FAULT_ARGUMENT, "path",
			"its name is not UTF-8, so a manifest cannot list it; rename it");
	snprintf(digest, sizeof(digest), "%016" PRIx64, f->scan.digest);
	json_t *line = json_pack("{so,ss,ss,sI,sI,ss*,ss*,so*,so*,so*,so*}", "path", name, "format",
		f->format->name, "dtype", shard_type_name(facts->type), "tokens",
		(json_int_t)facts->tokens, "size", (json_int_t)f->size, "digest",
		f->scanned ? digest : NULL, "column", facts->column[0] ? facts->column : NULL,
		"sample_tokens",
		optional(facts->sample_tokens, facts->sample_tokens && !facts->row_tokens),
		"row_tokens", optional(facts->row_tokens, facts->row_tokens), "frame_bytes",
		optional(facts->frame_bytes, facts->frame_bytes), "data_at",
		optional(facts->data_at, facts->plain));
	bool fine = put_line(in, f->i, line, fault);

	json_decref(line);
	return fine;
}

/* In order. */
static void end_shard(struct inspect *in, struct inspected *f)
{
	struct fault fault;

	if (in->input.config && !f->listed)
		ctl_note("%s: in no dataset of %s; read as %s", f->path, in->input.config->path,
			shard_type_name(f->input.hint.type));
	if (!f->format) {
		problem(f, "%s", ctl_input_text(f->path, f->fault.text));
		print(in, f);
		return;
	}
	if (f->listed)
		count_windows(in, f);
	compare_with_first(in, f);
	compare_with_line(in, f);
	if (in->manifest && f->problems == 0 && !manifest_add(in, f, &fault))
		problem(f, "%s", fault.text);
	print(in, f);
}

/* ---- the shards of a path ---- */

/* Reads and reports all shards of in->place, and closes it. */
static void inspect_place(struct inspect *in)
{
	const struct ctl_place *p = &in->place;
	uint64_t shards = p->set.list.count, n = 0;
	unsigned threads = p->set.bucket || in->deep ? ctl_place_threads(p) : PARALLEL_READS;
	struct fault fault;

	dataset_close(&in->first);
	ctl_progress_begin(p->path, in->deep ? "tokens" : "shards", in->deep ? 0 : shards);
	for (in->at = 0; in->at < shards && !in->emit.error; in->at += n) {
		n = shards - in->at < AT_ONCE ? shards - in->at : AT_ONCE;
		parallel_for(n, threads, read_shard, in, &fault);
		for (uint64_t i = 0; i < n; i++)
			end_shard(in, &in->shard[i]);
	}
	ctl_progress_end();
	dataset_close(&in->place.set);
}

/* ---- paths ---- */

/* The label_mask in a store of the dataset that @path is in, or NULL. */
static const char *masks_of(const struct inspect *in, const char *path)
{
	for (unsigned i = 0; i < in->lists; i++) {
		const char *masks = in->listed[i].dataset->label_mask;

		if (masks && url_text_is(masks) && name_below(&in->listed[i], path))
			return masks;
	}
	return NULL;
}

/* Opens in->place; @names as ctl_place_open(). False after a report. */
static bool inspect_open(struct inspect *in, const char *path, const struct shard_list *names)
{
	struct fault fault;

	if (ctl_place_open(&in->place, in->input.stores, path, names, masks_of(in, path), &fault))
		return true;
	report(in, path, NULL, "%s", fault.text);
	return false;
}

/* ---- the command line ---- */

/* As ctl_input_begin(), and lists the config's datasets. inspect_end() is needed either way, and
 * returns the command's exit status. */
static int inspect_begin(struct inspect *in, const struct ctl_arguments *a, int *n)
{
	int status = ctl_input_begin(&in->input, a, n);
	struct fault fault;

	in->emit.json = ctl_given(a, "json");
	in->deep = ctl_given(a, "deep");
	in->input.hint.documents = in->input.hint.loss_mask = true;
	if (status == CTL_OK && in->input.config && !list_datasets(in, &fault))
		status = ctl_fail("%s", fault.text);
	return status;
}

static int inspect_end(struct inspect *in, int status)
{
	if (status == CTL_OK)
		status = emit_end(&in->emit, in->faults ? CTL_FAILED : CTL_OK);
	store_close(in->input.stores);
	return status;
}

static const struct ctl_option inspect_options[] = {
	INSPECT_INPUT,
	{OPTION_FLAG("deep", "read all tokens: find the largest, compare with vocab and manifest")},
	{CTL_JSON_OPTION},
};

static int inspect(const struct ctl_arguments *a)
{
	static struct inspect in;
	int n = a->arguments, status = inspect_begin(&in, a, &n);

	for (int i = 0; status == CTL_OK && i < n; i++)
		if (inspect_open(&in, a->argument[i], NULL))
			inspect_place(&in);
	return inspect_end(&in, status);
}

const struct ctl_command ctl_inspect = {
	.name = "inspect",
	.head = "Shards:",
	.arguments = "PATH...",
	.help = "print what shards contain and what is wrong with them",
	.run = inspect,
	OPTIONS_ARE(inspect_options),
};

/* ---- manifest --from: lines are copied, joined with the objects that were uploaded ---- */

/* Adds the names of the last shard of @m, and of its side files, to @names. */
static bool add_names(void *names, const struct dataset *m, json_t *line, struct fault *fault)
{
	bool fine = shard_list_add(names, shard_list_name(&m->list, m->list.count - 1), fault);
	const char *name;
	json_t *value;

	json_object_foreach(json_object_get(line, "side"), name, value)
	{
		fine = fine && shard_list_add(names, name, fault);
	}
	return fine;
}

/* Finds the object of the last shard of @m, and copies the line for it. */
static bool join_line(void *context, const struct dataset *m, json_t *line, struct fault *fault)
{
	struct inspect *in = context;
	uint64_t number = m->list.count, size = m->entry[number - 1].bytes;
	const char *root = in->place.set.list.root, *name = shard_list_name(&m->list, number - 1);
	int64_t found = shard_list_find(&in->place.set.list, name);
	const struct entry *entry = in->place.set.entry;

	if (found < 0)
		report(in, root, name,
			"is in line %" PRIu64 " of the manifest, but not in the store; upload it",
			number);
	else if (entry[found].bytes != size)
		report(in, root, name,
			"has %" PRIu64 " bytes, but %" PRIu64 " in line %" PRIu64
			" of the manifest; upload it again, or write that manifest anew",
			entry[found].bytes, size, number);
	if (in->faults || in->deep)
		return true;
	json_object_del(line, "etag");
	json_object_del(line, "side");
	return put_line(in, (uint64_t)found, line, fault);
}

/* Reports objects that have no line, and with --deep the first line without a digest. */
static void check_join(struct inspect *in, const char *path)
{
	const struct dataset *from = in->from;

	for (uint64_t i = 0; i < in->place.set.list.count; i++) {
		const char *name = shard_list_name(&in->place.set.list, i);

		if (shard_list_find(&from->list, name) < 0)
			report(in, in->place.set.list.root, name,
				"is in the store, but not in %.300s; delete it, or write that "
				"manifest anew with it",
				path);
	}
	for (uint64_t i = 0; in->deep && i < from->list.count; i++)
		if (from->table.tokens[i] && !from->entry[i].digest) {
			report(in, path, NULL,
				"line %" PRIu64 " has no digest to compare with; write it anew "
				"with --deep",
				i + 1);
			break;
		}
}

/* Writes the manifest of the objects at @url from that at @path. */
static void join(struct inspect *in, const char *path, const char *url)
{
	static struct dataset named = {.hint.type = SHARD_U16}, from = {.hint.type = SHARD_U16};
	const struct listed *listed = find_listed(in, url, &(int64_t){0});
	static struct shard_list names;
	bool unlisted = strncmp(url, "https://", 8) == 0, fine = true;
	struct fault fault;

	/* Rows of a file are compared as the config reads them. */
	if (in->deep && listed)
		from.hint.window_tokens = listed->stream->seq_len + listed->stream->extra;
	if (unlisted)
		fine = manifest_read(&named, path, "/", add_names, &names, &fault);
	shard_list_sort(&names);
	if (fine && inspect_open(in, url, unlisted ? &names : NULL)) {
		in->from = &from;
		fine = manifest_read(&from, path, "/", join_line, in, &fault);
		if (fine)
			check_join(in, path);
		if (fine && in->deep && !in->faults) /* makes the lines anew */
			inspect_place(in);
	}
	if (!fine)
		report(in, path, NULL, "%s", fault.text);
}

static const struct ctl_option manifest_options[] = {
	INSPECT_INPUT,
	{OPTION_FLAG("deep",
		"read all tokens of shards in a store, for their digests; those of files are "
		"always read")},
	{CTL_JSON_OPTION},
	{OPTION_TEXT("from", "FILE",
		"read no shard: take all but sizes and ETags from this manifest, made before the "
		"shards were uploaded; with --deep, read all, and compare their digests with it")},
};

static int manifest(const struct ctl_arguments *a)
{
	const char *path = a->argument[0], *to = a->argument[1], *from = ctl_text(a, "from");
	bool remote = url_text_is(path);
	static struct inspect in;
	struct ctl_file file;
	int status, shards = !from;

	if (url_text_is(to))
		return ctl_usage(a->command,
			"FILE %s: is a URL, but only files are written; write it to a file, and "
			"copy that with `aws s3 cp` or s5cmd",
			to);
	if (from && !(remote && bytes_ends_in(path, "/")))
		return ctl_usage(a->command, "--from needs a URL that ends in '/'");
	in.makes = true;
	status = inspect_begin(&in, a, &shards);
	if (status != CTL_OK)
		return inspect_end(&in, status);
	in.deep |= !remote; /* for the digests: files have no ETag */
	/* The shards are listed before FILE is written, which may be in their directory. */
	bool opened = !from && inspect_open(&in, path, NULL);

	if (!ctl_file_begin(&file, to))
		return inspect_end(&in, CTL_FAILED);
	in.manifest = file.to;
	if (from)
		join(&in, from, path);
	else if (opened)
		inspect_place(&in);
	status = inspect_end(&in, CTL_OK); /* if the report fails, the manifest may lack shards */
	if (status != CTL_OK)
		ctl_fail("%s: not written because of the problems above", to);
	return ctl_file_end(&file, status == CTL_OK) || status != CTL_OK ? status : CTL_FAILED;
}

const struct ctl_command ctl_manifest = {
	.name = "manifest",
	.arguments = "PATH FILE",
	.help = "write a manifest, with which a daemon opens no shard at its start",
	.run = manifest,
	OPTIONS_ARE(manifest_options),
};
