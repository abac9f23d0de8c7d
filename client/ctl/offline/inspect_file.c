/*
 * The facts that a file does not state (dtype, format) are taken from the options, then from the
 * config's dataset that lists it, then from the defaults.
 */
#include "client/ctl/common/error.h"
#include "client/ctl/offline/inspect.h"
#include "daemon/catalog/parallel_for.h"
#include "daemon/shard/bounds.h"
#include "daemon/shard/sample.h"
#include "proto/phrases.h"
#include "proto/table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SAMPLED_MOST = 64 };

/* ---- the report ---- */

__attribute__((format(printf, 2, 3))) static void problem(
	struct inspected *f, const char *format, ...)
{
	va_list args;

	if (f->problems == INSPECT_PROBLEMS)
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
		input->hint.type = (enum shard_type)from->types[i];
		input->hint.has_type = input->format == &shard_flat;
	}
}

/* How to read the file: by the options, then by the dataset that lists it. */
static struct ctl_input input_of(const struct inspect *in, const struct inspected *f)
{
	struct ctl_input input = ctl_place_input(&in->place, &in->input);
	const struct listed *listed = f->listed;

	if (in->from)
		use_manifest(in->from, f->name, &input);
	if (listed && !input.format)
		input.format = shard_format(listed->dataset->format);
	if (listed && !input.hint.has_type)
		input.hint.type = !listed->dataset->has_dtype && listed->manifest.types
					  ? (enum shard_type)listed->manifest.types[0]
				  : listed->dataset->token_bytes == 4 ? SHARD_U32
								      : SHARD_U16;
	input.hint.has_type |= listed && listed->dataset->has_dtype;
	if (listed && !input.hint.column)
		input.hint.column = listed->dataset->column;
	if (listed)
		input.hint.window_tokens = listed->stream->seq_len + listed->stream->extra;
	if (in->config && !listed)
		ctl_note("%s: in no dataset of %s; read as %s", f->path, in->config->path,
			shard_type_name(input.hint.type));
	return input;
}

/*
 * Sets the hint's label_mask, and f->by to the name of the shard in its dataset. The shard must be
 * opened by that name, because its mask has the same one. False: a name is too long.
 */
static bool find_mask(const struct inspect *in, struct inspected *f)
{
	const struct listed *listed = f->listed;

	if (!config_path(in->config, listed->dataset->label_mask, f->mask, PATH_MAX))
		return false;
	if (f->object < 0 && !shard_list_path(&listed->list, (uint64_t)f->number, f->by, PATH_MAX))
		return false;
	for (size_t n = strlen(f->mask); n > 1 && f->mask[n - 1] == '/'; n--)
		f->mask[n - 1] = 0;
	f->input.hint.label_mask = f->mask;
	f->input.name = f->object < 0 ? shard_list_name(&listed->list, (uint64_t)f->number)
				      : f->by + strlen(listed->root) + 1;
	return true;
}

/* @name in the list's directory, whose links are resolved. NULL: that failed. */
static char *resolve(const char *name, const struct shard_list *list)
{
	char *root = realpath(list->root, NULL), *whole = NULL;

	if (root && asprintf(&whole, "%s/%s", strcmp(root, "/") == 0 ? "" : root, name) < 0)
		whole = NULL;
	free(root);
	return whole;
}

static void begin_shard(struct inspect *in, struct inspected *f, uint64_t i)
{
	char *resolved;

	f->fd = -1;
	f->name = ctl_place_name(&in->place, i);
	f->object = in->place.remote ? (int64_t)(in->place.listing.file + i) : -1;
	ctl_place_path(&in->place, i, f->path);
	resolved = in->place.remote ? NULL : resolve(f->name, &in->place.list);
	f->listed = inspect_listed(in, resolved ? resolved : f->path, &f->number);
	free(resolved);
	f->input = input_of(in, f);
	snprintf(f->by, sizeof(f->by), "%s", f->path);
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
	struct ctl_scan scan = {.shard = f->shard,
		.piece_tokens = CTL_DIGEST_TOKENS,
		.threads = in->threads,
		.whole = in->place.remote,
		.vocab = stream && stream->has_vocab ? stream->vocab : 0,
		.digests = in->manifest || (f->listed && f->listed->manifest.types),
		.masks = f->has_mask,
		.progress = &in->progress};

	if (!in->place.remote)
		ctl_progress_begin(&in->progress, f->path, f->facts.tokens * f->facts.token_bytes);
	bool fine = ctl_scan(&scan);

	if (!in->place.remote)
		ctl_progress_end(&in->progress);
	f->scanned = true;
	f->most = scan.most;
	f->masked = scan.masked;
	f->digest = scan.digest;
	if (!fine)
		problem(f, "%s", PHRASE_MEMORY);
	if (scan.failures == 1)
		problem(f, "%s", ctl_input_text(f->path, scan.failed.text));
	else if (scan.failures > 1)
		problem(f, "%s (the first of %" PRIu64 " failed reads)",
			ctl_input_text(f->path, scan.failed.text), scan.failures);
	if (scan.vocab && scan.beyond != SHARD_UNKNOWN)
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
	if (in->from || (!in->deep && in->sampled++ >= SAMPLED_MOST))
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
	f->shard = ctl_input_open(&f->input, f->by, &f->fd, &f->fault);
	if (!f->shard)
		return;
	f->facts = f->shard->facts;
	f->has_mask = f->shard->mask || (f->shard->bounds && bounds_outside(f->shard->bounds) > 0);
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
	if (f->object >= 0)
		f->size = ctl_listing_object(&in->place.listing, (uint64_t)f->object).size;
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
	bool mask = f->facts.mask, bounds = f->facts.bounds;

	if (!l->first) {
		l->first = strdup(f->path);
		l->mask = mask;
		l->bounds = bounds;
	}
	if (l->mask != mask)
		problem(f, "has %s loss mask, but %s has %s; " PHRASE_ALL_OR_NONE,
			mask ? "a" : "no", l->first ? l->first : "another", mask ? "none" : "one");
	if (l->bounds != bounds)
		problem(f,
			"has %s list of document bounds (.csv.gz), but %s has "
			"%s; " PHRASE_ALL_OR_NONE,
			bounds ? "a" : "no", l->first ? l->first : "another",
			bounds ? "none" : "one");
}

/* Compares with line @s of a manifest; the digest only if both have one. */
static void compare(struct inspected *f, const struct manifest *m, int64_t s)
{
	const struct manifest_shard listed = {m->format, (enum shard_type)m->types[s], m->tokens[s],
		m->sizes[s], m->sample_tokens, m->frame_bytes};
	const struct manifest_shard found = {f->shard->format, f->facts.type, f->facts.tokens,
		f->size, f->facts.sample_tokens, f->facts.frame_bytes};
	struct fault fault;

	if (!manifest_same(&listed, &found, &fault))
		problem(f, "%s", fault.text);
	else if (f->scanned && f->problems == 0 && m->digests[s] && f->digest != m->digests[s])
		problem(f,
			"digest is %016" PRIx64 " in the manifest and %016" PRIx64
			" in the %s; restore the shard, or write the manifest anew",
			m->digests[s], f->digest, f->object < 0 ? "file" : "store");
}

static void add_to_manifest(struct inspect *in, struct inspected *f)
{
	struct ctl_manifest_line line = {.name = f->name,
		.path = f->path,
		.format = f->shard->format->name,
		.facts = &f->facts,
		.size = f->size,
		.has_digest = f->scanned,
		.digest = f->digest};
	struct fault fault;

	if (f->object >= 0) {
		line.etag = ctl_listing_object(&in->place.listing, (uint64_t)f->object).etag;
		line.listing = &in->place.listing;
		line.shard = (uint64_t)f->object;
	}
	if ((f->object >= 0 && !ctl_listing_etag_ok(line.etag, &fault)) ||
		!ctl_manifest_add(in->manifest, &line, &fault))
		problem(f, "%s", fault.text);
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
	if (f->shard) {
		int64_t line = in->from ? shard_list_find(&in->from->list, f->name) : -1;

		check_format(in, f);
		if (f->listed && f->listed->stream->loss_mask)
			compare_annotations(f, f->listed);
		if (line >= 0)
			compare(f, in->from, line);
		else if (f->listed && f->listed->manifest.types)
			compare(f, &f->listed->manifest, f->number);
		if (in->manifest && f->problems == 0)
			add_to_manifest(in, f);
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
	if (in->place.remote && !in->deep)
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
	unsigned threads = !p->remote ? 1 : p->shards < CTL_GETS ? (unsigned)p->shards : CTL_GETS;
	struct fault fault = {.code = FAULT_NONE};
	uint64_t bytes = 0;

	in->first_format = NULL;
	in->threads = p->remote ? CTL_GETS / (threads ? threads : 1) : parallel_processors();
	for (uint64_t i = 0; p->remote && in->deep && i < p->shards; i++)
		bytes += ctl_listing_object(&p->listing, p->listing.file + i).size;
	if (p->remote && in->deep)
		ctl_progress_begin(&in->progress, p->path, bytes);
	else if (p->remote)
		ctl_progress_count(&in->progress, p->path, "shards", p->shards);
	if (parallel_for(p->shards, threads, inspect_shard, in, &fault) < p->shards &&
		fault.code != FAULT_NONE)
		inspect_unread(in, p->path, fault.text);
	if (p->remote)
		ctl_progress_end(&in->progress);
}
