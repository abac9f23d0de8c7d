/*
 * The facts that a file does not state (dtype, format) are taken from the options, then from the
 * config's dataset that lists it, then from the defaults.
 */
#include "client/ctl/offline/shards.h"
#include "daemon/catalog/parallel_for.h"
#include "daemon/shard/shard.h"
#include "proto/phrases.h"
#include "proto/table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	SAMPLED_MOST = 64, /* shards of a place */
	PROBLEMS = 4,	   /* of a shard; further ones are dropped */
};

/* A shard. */
struct inspected {
	uint64_t i;		 /* in the place */
	char path[PATH_MAX + 1]; /* as the user would write it */
	char file[PATH_MAX + 1]; /* to open */
	const char *name;	 /* in a manifest */

	/* how it is read */
	struct listed *listed; /* NULL: in no dataset of the config */
	int64_t number;	       /* in the dataset; -1: not known */
	struct ctl_input input;
	char mask[PATH_MAX];

	/* what was read */
	struct shard *shard; /* NULL: @fault */
	int fd;
	uint64_t size, digest;
	struct fault fault;
	struct shard_facts facts;
	uint64_t windows, unserved; /* of the stream; unserved: tokens in no window */
	bool scanned;
	uint64_t most;	 /* the largest token, if scanned */
	bool has_mask;	 /* there is a loss mask, or a list of bounds that leaves tokens out */
	uint64_t masked; /* number of tokens that may not be labels, if has_mask and scanned */
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

static double percent(uint64_t part, uint64_t whole)
{
	return whole ? 100.0 * (double)part / (double)whole : 0;
}

/* What a shard contains. */
static void put_facts(struct emit *e, const struct inspected *f)
{
	const struct shard_facts *facts = &f->facts;
	bool counted = facts->documents != SHARD_UNKNOWN;

	emit_text(e, "format", "", f->shard->format->name);
	emit_text(e, "dtype", "", shard_type_name(facts->type));
	emit_cell(e, "", "%" PRIu64 " tokens", facts->tokens);
	if (counted)
		emit_cell(e, "", "%" PRIu64 " documents", facts->documents);
	else
		emit_cell(e, "", "%s", "");
	emit_text(e, NULL, "", f->path);
	emit_number(e, "tokens", NULL, facts->tokens);
	emit_optional(e, "documents", NULL, facts->documents, counted);
	if (facts->column[0]) {
		emit_text(e, "column", NULL, facts->column);
		emit_more(e, "  column %s", facts->column);
	}
	if (facts->sample_tokens > 0)
		emit_number(e, "sample_tokens", NULL, facts->sample_tokens);
	if (facts->padding > 0)
		emit_number(e, "padding", NULL, facts->padding);
	if (f->listed) {
		emit_number(e, "windows", NULL, f->windows);
		emit_number(e, "unserved", NULL, f->unserved);
		emit_more(e,
			"  %" PRIu64 " windows of stream %s, %.3f %% of the tokens never served",
			f->windows, f->listed->stream->name, percent(f->unserved, facts->tokens));
	}
	if (facts->padding > 0)
		emit_more(e, "  %.3f %% padding in rows of %" PRIu64,
			percent(facts->padding, facts->tokens), facts->sample_tokens);
	if (f->scanned && facts->tokens > 0) {
		emit_number(e, "max_token", NULL, f->most);
		emit_more(e, "  largest token %" PRIu64, f->most);
	}
	if (f->scanned && f->has_mask) {
		emit_number(e, "masked", NULL, f->masked);
		emit_more(e, "  %.3f %% masked", percent(f->masked, facts->tokens));
	}
	if (facts->note[0])
		emit_more(e, " (%s)", facts->note);
}

static void put_unread(struct emit *e, const struct inspected *f)
{
	emit_null(e, "format", NULL);
	emit_null(e, "dtype", NULL);
	emit_null(e, "tokens", NULL);
	emit_null(e, "documents", NULL);
	emit_text(e, NULL, "", "unreadable");
	emit_text(e, NULL, "", "");
	emit_cell(e, "", "%s", "");
	emit_cell(e, "", "%s", "");
	emit_text(e, NULL, "", f->path);
}

static void print(struct inspect *in, const struct inspected *f)
{
	struct emit *e = &in->emit;

	in->faults |= f->problems > 0;
	emit_text(e, "path", NULL, f->path);
	(f->shard ? put_facts : put_unread)(e, f);
	emit_open(e, "notes", '[');
	if (f->shard && f->facts.note[0])
		emit_text(e, "", NULL, f->facts.note);
	emit_close(e, ']');
	emit_open(e, "problems", '[');
	for (unsigned i = 0; i < f->problems; i++) {
		emit_text(e, "", NULL, f->problem[i]);
		emit_more(e, "%s%s", i ? "; " : ": ", f->problem[i]);
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

/* ---- finding ---- */

/* Takes what a flat shard does not say from the manifest that it is compared with. */
static void use_manifest(const struct manifest *from, const char *name, struct ctl_input *input)
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
static void use_dataset(const struct listed *listed, struct ctl_input *input)
{
	const struct config_dataset *dataset = listed->dataset;

	if (!input->format)
		input->format = shard_format(dataset->format);
	if (!input->hint.has_type)
		input->hint.type = !dataset->has_dtype && listed->manifest.entry
					   ? (enum shard_type)listed->manifest.entry[0].type
				   : dataset->token_bytes == 4 ? SHARD_U32
							       : SHARD_U16;
	input->hint.has_type |= dataset->has_dtype;
	if (!input->hint.column)
		input->hint.column = dataset->column;
	input->hint.window_tokens = listed->stream->seq_len + listed->stream->extra;
}

/* Sets the hint's label_mask, and the length of the path before the shard's name in the dataset,
 * which its mask has too. False: a name is too long. */
static bool find_mask(const struct inspect *in, struct inspected *f)
{
	const char *root = f->listed->root;

	if (!config_path(in->input.config, f->listed->dataset->label_mask, f->mask, PATH_MAX))
		return false;
	for (size_t n = strlen(f->mask); n > 1 && f->mask[n - 1] == '/'; n--)
		f->mask[n - 1] = 0;
	f->input.hint.label_mask = f->mask;
	f->input.hint.root_bytes = strlen(root) + !bytes_ends_in(root, "/");
	return true;
}

static void begin_shard(struct inspect *in, struct inspected *f, uint64_t i)
{
	f->i = i;
	f->fd = -1;
	f->name = ctl_place_name(&in->place, i);
	ctl_place_path(&in->place, i, f->path);
	ctl_place_file(&in->place, i, f->file);
	f->listed = inspect_listed(in, f->file, &f->number);
	f->input = ctl_input_at(&in->place, &in->input);
	if (in->from)
		use_manifest(in->from, f->name, &f->input);
	if (f->listed)
		use_dataset(f->listed, &f->input);
	if (f->listed && f->listed->dataset->label_mask && !find_mask(in, f))
		fault_errno(&f->fault, ENAMETOOLONG, "", "%s", strerror(ENAMETOOLONG));
}

/* ---- reading ---- */

/* Counts the windows that the stream cuts from the shard, and the tokens in none of them. */
static void count_windows(struct inspected *f, const struct config_stream *stream)
{
	uint64_t first_window[2], tokens = f->facts.tokens, sample = f->facts.sample_tokens;
	struct table table = {.window_tokens = stream->seq_len + stream->extra,
		.stride = stream->stride,
		.shards = 1,
		.tokens = &tokens,
		.first_window = first_window};

	if (sample > 0) { /* each sample is a window */
		if (sample != table.window_tokens)
			problem(f,
				"its samples have %" PRIu64 " tokens, but a window of stream %s "
				"has %" PRIu64 " (seq_len + extra); must be equal",
				sample, stream->name, table.window_tokens);
		table.window_tokens = table.stride = sample;
	}
	table_number(&table);
	f->windows = table.windows;
	f->unserved = table_unserved(&table);
}

/* Reads all tokens. */
static void scan(struct inspect *in, struct inspected *f)
{
	const struct config_stream *stream = f->listed ? f->listed->stream : NULL;
	struct ctl_scan scan = {.vocab = stream && stream->has_vocab ? stream->vocab : 0,
		.digests = in->manifest || (f->listed && f->listed->manifest.entry),
		.masks = f->has_mask,
		.progress = &in->progress};
	struct fault fault;

	f->scanned = ctl_scan(&scan, f->shard, &fault);
	if (!f->scanned)
		problem(f, "%s", ctl_input_text(f->path, fault.text));
	f->most = scan.most;
	f->masked = scan.masked;
	f->digest = scan.digest;
	if (scan.beyond != SHARD_UNKNOWN)
		problem(f,
			"token %" PRIu64 " is %" PRIu64 "; must be below the vocab of stream %s, "
			"%" PRIu64 ", or this is not a file of tokens",
			scan.beyond, scan.beyond_value, stream->name, stream->vocab);
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

	if (f->fault.code != FAULT_NONE)
		return;
	f->shard = ctl_input_open(&f->input, f->file, &f->fd, &f->fault);
	if (!f->shard)
		return;
	f->facts = f->shard->facts;
	f->has_mask = f->shard->mask || f->shard->map.outside > 0;
	if (f->listed)
		count_windows(f, f->listed->stream);
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

/* ---- comparing ---- */

/* In a stream with loss_mask, either all shards of a dataset have a mask or none has; likewise
 * lists of document bounds. */
static void compare_annotations(struct inspected *f, struct listed *l)
{
	const bool has[] = {f->facts.mask, f->facts.bounds};
	static const char *const names[] = {"loss mask", "list of document bounds (.csv.gz)"};

	if (!l->first) {
		l->first = strdup(f->path);
		memcpy(l->has, has, sizeof(has));
	}
	for (unsigned i = 0; i < 2; i++)
		if (l->has[i] != has[i])
			problem(f, "has %s %s, but %s has %s; " PHRASE_ALL_OR_NONE,
				has[i] ? "a" : "no", names[i], l->first ? l->first : "another",
				has[i] ? "none" : "one");
}

/* Compares with line @s of a manifest; the digest only if both have one. */
static void compare(
	const struct inspect *in, struct inspected *f, const struct manifest *m, int64_t s)
{
	const struct manifest_shard listed = {m->format, (enum shard_type)m->entry[s].type,
		m->tokens[s], m->entry[s].file.bytes, m->sample_tokens, m->frame_bytes};
	const struct manifest_shard found = {f->shard->format, f->facts.type, f->facts.tokens,
		f->size, f->facts.sample_tokens, f->facts.frame_bytes};
	struct fault fault;

	if (!manifest_same(&listed, &found, &fault))
		problem(f, "%s", fault.text);
	else if (f->scanned && f->problems == 0 && m->entry[s].digest &&
		 f->digest != m->entry[s].digest)
		problem(f,
			"digest is %016" PRIx64 " in the manifest and %016" PRIx64
			" in the %s; restore the shard, or write the manifest anew",
			m->entry[s].digest, f->digest, in->place.remote ? "store" : "file");
}

/* Writes the shard's line. False: @fault. */
static bool add_to_manifest(struct inspect *in, const struct inspected *f, struct fault *fault)
{
	const struct shard_facts *facts = &f->facts;
	const struct {
		const char *key;
		uint64_t value;
		bool present;
	} numbers[] = {
		{"sample_tokens", facts->sample_tokens,
			facts->sample_tokens > 0 && facts->row_tokens == 0},
		{"row_tokens", facts->row_tokens, facts->row_tokens > 0},
		{"frame_bytes", facts->frame_bytes, facts->frame_bytes > 0},
		{"data_at", facts->data_at, facts->plain},
	};
	json_t *name, *line;
	char digest[24];

	if (in->place.remote && !ctl_place_etag_ok(ctl_place_object(&in->place, f->i).etag, fault))
		return false;
	name = json_string(f->name);
	if (!name)
		return fault_set(fault, FAULT_ARGUMENT, "path",
			"its name is not UTF-8, so a manifest cannot list it; rename it");
	line = json_pack("{so,ss,ss,sI,sI}", "path", name, "format", f->shard->format->name,
		"dtype", shard_type_name(facts->type), "tokens", (json_int_t)facts->tokens, "size",
		(json_int_t)f->size);
	snprintf(digest, sizeof(digest), "%016" PRIx64, f->digest);
	if (f->scanned)
		json_object_set_new(line, "digest", json_string(digest));
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (numbers[i].present)
			json_object_set_new(
				line, numbers[i].key, json_integer((json_int_t)numbers[i].value));
	bool fine = manifest_put(in, f->i, f->shard->format, line, fault);

	json_decref(line);
	return fine;
}

/* A dataset has one format; so must the shards of a path. Reports the first shard that differs. */
static void check_format(struct inspect *in, struct inspected *f)
{
	const struct shard_format *format = f->shard->format;

	if (!in->first_format || in->first_in != f->listed) {
		in->first = f->name;
		in->first_format = format;
		in->first_in = f->listed;
		in->mixed = false;
	}
	if (format == in->first_format || in->mixed)
		return;
	in->mixed = true;
	if (format == &shard_flat)
		problem(f,
			PHRASE_FORMAT_LOST "; restore that, or, if it contains plain tokens, put "
					   "it into a dataset of its own",
			in->first, in->first_format->name);
	else if (in->first_format == &shard_flat)
		problem(f,
			"is %s, but the format of another shard, %s, is unknown: its index is lost "
			"or its header is damaged; restore that, or, if it contains plain tokens, "
			"put it into a dataset of its own",
			format->name, in->first);
	else
		problem(f, "is %s, but the first shard, %s, is %s; " PHRASE_ONE_FORMAT,
			format->name, in->first, in->first_format->name);
}

static void end_shard(struct inspect *in, struct inspected *f)
{
	struct fault fault;

	if (in->input.config && !f->listed)
		ctl_note("%s: in no dataset of %s; read as %s", f->path, in->input.config->path,
			shard_type_name(f->input.hint.type));
	if (f->shard) {
		int64_t line = in->from ? shard_list_find(&in->from->list, f->name) : -1;

		check_format(in, f);
		if (f->listed && f->listed->stream->loss_mask)
			compare_annotations(f, f->listed);
		if (line >= 0)
			compare(in, f, in->from, line);
		else if (f->listed && f->listed->manifest.entry)
			compare(in, f, &f->listed->manifest, f->number);
		if (in->manifest && f->problems == 0 && !add_to_manifest(in, f, &fault))
			problem(f, "%s", fault.text);
	} else {
		problem(f, "%s", ctl_input_text(f->path, f->fault.text));
	}
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
	shard_close(f->shard);
	if (f->fd >= 0)
		close(f->fd);
	free(f);
	fault->code = FAULT_NONE; /* the report failed, which emit_end() says */
	return fine;
}

void inspect_place(struct inspect *in)
{
	const struct ctl_place *p = &in->place;
	unsigned threads = p->remote || in->deep ? ctl_place_threads(p) : parallel_reads(p->shards);
	struct fault fault = {.code = FAULT_NONE};

	in->first_format = NULL;
	ctl_progress_begin(
		&in->progress, p->path, in->deep ? "tokens" : "shards", in->deep ? 0 : p->shards);
	if (parallel_for(p->shards, threads, inspect_shard, in, &fault) < p->shards &&
		fault.code != FAULT_NONE)
		inspect_unread(in, p->path, fault.text);
	ctl_progress_end(&in->progress);
}
