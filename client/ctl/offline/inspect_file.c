/*
 * The facts that a file does not state (dtype, format) are taken from the options, then from the
 * config's dataset that lists it, then from the defaults.
 */
#include "client/ctl/offline/inspect_file.h"

#include "client/ctl/common/error.h"
#include "client/ctl/offline/scan.h"
#include "client/ctl/offline/sums.h"
#include "daemon/catalog/dataset.h"
#include "daemon/config/url_text.h"
#include "daemon/shard/bounds.h"
#include "daemon/shard/cache.h"
#include "daemon/shard/sample.h"
#include "proto/phrases.h"
#include "proto/table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SAMPLED_MOST = 64 };

static void print(struct inspect *in, const struct report *r)
{
	in->faults |= r->problems > 0;
	(in->json ? report_put_json : report_put_text)(&in->out, r);
}

void inspect_unread(struct inspect *in, const char *path, const char *text)
{
	struct report *r = calloc(1, sizeof(*r));

	in->faults = true;
	if (!r) {
		ctl_fail("%s: %s", path, PHRASE_MEMORY);
		return;
	}
	r->path = path;
	report_problem(r, "%s", ctl_input_text(path, text));
	print(in, r);
	free(r);
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
static struct ctl_input input_of(
	const struct inspect *in, const char *path, const char *name, const struct listed *listed)
{
	struct ctl_input input = in->input;

	input.hint.cache = in->cache;
	input.hint.objects = in->listing ? &in->listing->objects : NULL;
	if (in->from)
		use_manifest(in->from, name, &input);
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
	if (in->all.config && !listed)
		ctl_note("%s: in no dataset of %s; read as %s", path, in->all.config->path,
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

	if (!config_path(in->all.config, listed->dataset->label_mask, f->mask, PATH_MAX))
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

void inspect_begin(struct inspect *in, struct inspected *f, const char *path, const char *absolute,
	const char *name)
{
	f->path = f->report.path = path;
	f->name = name;
	f->fd = -1;
	f->object = in->listing ? ctl_listing_find(in->listing, name) : -1;
	f->listed = listed_find(&in->all, absolute, &f->number);
	f->input = input_of(in, path, name, f->listed);
	snprintf(f->by, sizeof(f->by), "%s", path);
	if (f->listed && f->listed->dataset->label_mask && !find_mask(in, f))
		fault_errno(&f->fault, ENAMETOOLONG, "", "%s", strerror(ENAMETOOLONG));
}

/* ---- reading ---- */

/* Counts the windows that the stream cuts from the shard, and the tokens in none of them. */
static void count_windows(struct report *r, const struct config_stream *stream)
{
	uint64_t first_window[2], tokens = r->facts.tokens;
	struct table table = {.window_tokens = stream->seq_len + stream->extra,
		.stride = stream->stride,
		.shards = 1,
		.tokens = &tokens,
		.first_window = first_window};

	if (r->facts.sample_tokens > 0) { /* each sample is a window */
		if (r->facts.sample_tokens != table.window_tokens)
			report_problem(r,
				"its samples have %" PRIu64 " tokens, but a window of stream %s "
				"has %" PRIu64 " (seq_len + extra); must be equal",
				r->facts.sample_tokens, stream->name, table.window_tokens);
		table.window_tokens = table.stride = r->facts.sample_tokens;
	}
	table_number(&table);
	r->stream = stream;
	r->windows = table.windows;
	r->unserved = table_unserved(&table);
}

/* Reads all tokens. */
static void scan(struct inspect *in, struct inspected *f)
{
	const struct shard *shard = f->shard;
	struct report *r = &f->report;
	bool has_vocab = r->stream && r->stream->has_vocab;
	struct ctl_scan scan = {.shard = shard,
		.piece_tokens = CTL_DIGEST_TOKENS,
		.threads = in->threads,
		.whole = in->listing,
		.vocab = has_vocab ? r->stream->vocab : 0,
		.digests = in->manifest || (f->listed && f->listed->manifest.types),
		.masks = r->has_mask,
		.progress = &in->progress};

	if (!in->listing)
		ctl_progress_begin(
			&in->progress, r->path, shard->facts.tokens * shard->facts.token_bytes);
	bool fine = ctl_scan(&scan);

	if (!in->listing)
		ctl_progress_end(&in->progress);
	r->scanned = true;
	r->most = scan.most;
	r->masked = scan.masked;
	f->digest = scan.digest;
	if (!fine)
		report_problem(r, "%s", PHRASE_MEMORY);
	if (scan.failures == 1)
		report_problem(r, "%s", ctl_input_text(r->path, scan.failed.text));
	else if (scan.failures > 1)
		report_problem(r, "%s (the first of %" PRIu64 " failed reads)",
			ctl_input_text(r->path, scan.failed.text), scan.failures);
	if (has_vocab && scan.beyond != SHARD_UNKNOWN)
		report_problem(r,
			"token %" PRIu64 " is %" PRIu64 "; must be below the vocab of stream %s, "
			"%" PRIu64 ", or this is not a file of tokens",
			scan.beyond, scan.beyond_value, r->stream->name, r->stream->vocab);
}

/* Reports what does not look like tokens: a problem if the dtype was not given, otherwise a note.
 */
static void check_looks(struct inspect *in, struct inspected *f)
{
	struct report *r = &f->report;

	/* A sample is 64 KiB. Like the daemon at start, it looks only at some of a million shards.
	 * Shards of a manifest were sampled when it was written. */
	if (in->from || (!in->deep && atomic_fetch_add(&in->sampled, 1) >= SAMPLED_MOST))
		return;
	struct sample_verdict v = sample_shard(f->shard);

	if (v.kind > SAMPLE_DOUBT && !f->input.hint.has_type)
		report_problem(r, "%s", v.text);
	else if (v.kind != SAMPLE_FINE)
		snprintf(r->facts.note, sizeof(r->facts.note), "%.*s", (int)strcspn(v.text, ";"),
			v.text);
}

static bool find_size(const struct inspect *in, struct inspected *f)
{
	struct stat st;

	if (f->object >= 0) {
		f->size = ctl_listing_object(in->listing, (uint64_t)f->object).size;
		return true;
	}
	if (fstat(f->fd, &st) != 0)
		return false;
	f->size = (uint64_t)st.st_size;
	return true;
}

static void read_sums(struct inspect *in, struct inspected *f)
{
	struct ctl_sums_source source = {.fd = f->fd, .size = f->size, .threads = in->threads};
	struct fault fault;

	if (f->object >= 0) {
		source.stores = in->stores;
		source.object = ctl_listing_object(in->listing, (uint64_t)f->object);
		source.progress = &in->progress;
	}
	f->sums = ctl_sums_read(&source, in->sums_piece, &fault);
	if (!f->sums)
		report_problem(&f->report, "%s", ctl_input_text(f->path, fault.text));
}

void inspect_read(struct inspect *in, struct inspected *f)
{
	struct report *r = &f->report;

	if (f->fault.code != FAULT_NONE)
		return;
	f->shard = ctl_input_open(&f->input, f->by, &f->fd, &f->fault);
	if (!f->shard)
		return;
	r->format = f->shard->format->name;
	r->facts = f->shard->facts;
	r->has_mask = f->shard->mask || (f->shard->bounds && bounds_outside(f->shard->bounds) > 0);
	if (f->listed)
		count_windows(r, f->listed->stream);
	/* An empty file among others is a shard without windows. A single one without a header was
	 * probably never written. */
	if (in->alone && r->facts.tokens == 0 && f->shard->format == &shard_flat)
		report_problem(r, "its size is 0 bytes%s; write it again",
			f->shard->bytes->plain ? "" : " after decoding");
	check_looks(in, f);
	if (in->deep)
		scan(in, f);
	if (!find_size(in, f))
		report_problem(r, "%s", strerror(errno));
	else if (in->sums_piece > 0)
		read_sums(in, f);
}

/* ---- reporting ---- */

/* In a stream with loss_mask, either all shards of a dataset have a mask or none has; likewise
 * lists of document bounds. */
static void compare_annotations(struct report *r, struct listed *l)
{
	bool mask = r->facts.mask, bounds = r->facts.bounds;

	if (!l->first) {
		l->first = strdup(r->path);
		l->mask = mask;
		l->bounds = bounds;
	}
	if (l->mask != mask)
		report_problem(r, "has %s loss mask, but %s has %s; " PHRASE_ALL_OR_NONE,
			mask ? "a" : "no", l->first ? l->first : "another", mask ? "none" : "one");
	if (l->bounds != bounds)
		report_problem(r,
			"has %s list of document bounds (.csv.gz), but %s has "
			"%s; " PHRASE_ALL_OR_NONE,
			bounds ? "a" : "no", l->first ? l->first : "another",
			bounds ? "none" : "one");
}

/* Compares with line @s of a manifest; the digest only if both have one. */
static void compare(struct inspected *f, const struct manifest *m, int64_t s)
{
	struct report *r = &f->report;
	const struct manifest_shard listed = {m->format, (enum shard_type)m->types[s], m->tokens[s],
		m->sizes[s], m->sample_tokens, m->frame_bytes};
	const struct manifest_shard found = {shard_format(r->format), r->facts.type,
		r->facts.tokens, f->size, r->facts.sample_tokens, r->facts.frame_bytes};
	struct fault fault;

	if (!manifest_same(&listed, &found, &fault))
		report_problem(r, "%s", fault.text);
	else if (r->scanned && r->problems == 0 && m->digests[s] && f->digest != m->digests[s])
		report_problem(r,
			"digest is %016" PRIx64 " in the manifest and %016" PRIx64
			" in the %s; restore the shard, or write the manifest anew",
			m->digests[s], f->digest, f->object < 0 ? "file" : "store");
}

static void add_to_manifest(struct inspect *in, struct inspected *f)
{
	struct object object = {.etag = NULL};
	struct fault fault;
	struct ctl_manifest_line line = {.name = f->name,
		.path = f->path,
		.format = f->report.format,
		.facts = &f->report.facts,
		.size = f->size,
		.has_digest = f->report.scanned,
		.digest = f->digest,
		.sums = f->sums};

	if (f->object >= 0) {
		char text[256];

		object = ctl_listing_object(in->listing, (uint64_t)f->object);
		line.etag = object.etag;
		line.listing = in->listing;
		line.shard = (uint64_t)f->object;
		if (!ctl_listing_etag_ok(object.etag, text, sizeof(text))) {
			report_problem(&f->report, "%s", text);
			return;
		}
	}
	if (!ctl_manifest_add(in->manifest, &line, &fault))
		report_problem(&f->report, "%s", fault.text);
}

/* A dataset has one format; so must the shards of a path. Reports the first shard that differs. */
static void check_format(struct inspect *in, struct report *r, const struct listed *listed,
	const struct shard_format *format, const char *name)
{
	if (!in->first_format || in->first_in != listed) {
		in->first = name;
		in->first_format = format;
		in->first_in = listed;
		in->mixed = false;
	}
	if (format == in->first_format || in->mixed)
		return;
	in->mixed = true;
	if (format == &shard_flat)
		report_problem(r,
			PHRASE_FORMAT_LOST "; restore that, or, if it contains plain tokens, put "
					   "it into a dataset of its own",
			in->first, in->first_format->name);
	else if (in->first_format == &shard_flat)
		report_problem(r,
			"is %s, but the format of another shard, %s, is unknown: its index is lost "
			"or its header is damaged; restore that, or, if it contains plain tokens, "
			"put it into a dataset of its own",
			format->name, in->first);
	else
		report_problem(r, "is %s, but the first shard, %s, is %s; " PHRASE_ONE_FORMAT,
			format->name, in->first, in->first_format->name);
}

void inspect_end(struct inspect *in, struct inspected *f)
{
	struct report *r = &f->report;

	if (f->shard) {
		check_format(in, r, f->listed, f->shard->format, f->name);
		if (f->listed && f->listed->stream->loss_mask)
			compare_annotations(r, f->listed);
		int64_t line = in->from ? shard_list_find(&in->from->list, f->name) : -1;

		if (line >= 0)
			compare(f, in->from, line);
		else if (f->listed && f->listed->manifest.types)
			compare(f, &f->listed->manifest, f->number);
		if (in->manifest && r->problems == 0)
			add_to_manifest(in, f);
	} else {
		report_problem(r, "%s", ctl_input_text(f->path, f->fault.text));
	}
	print(in, r);
	inspect_close(f);
}

void inspect_close(struct inspected *f)
{
	shard_close(f->shard);
	free(f->sums);
	if (f->fd >= 0)
		close(f->fd);
}
