/*
 * tokctl pack: converts shards of any readable format to shards of one format, cut as requested.
 */
#include "client/ctl/offline/offline.h"
#include "client/ctl/offline/shards.h"
#include "daemon/catalog/parallel_for.h"
#include "daemon/config/url_text.h"
#include "daemon/shard/format.h"
#include "proto/phrases.h"

#define XXH_INLINE_ALL
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum {
	LEVEL_MOST = 19,
	FRAME_LEAST = 1 << 10,
	FRAME_MOST = 64 << 20, /* each thread here, and each reader later, keeps some in memory */
	SHARDS_MOST = 1000 * 1000,
	MEMORY_BYTES = 1 << 30, /* of pieces that threads read and write at once */
};

static const struct {
	const char *name;   /* for --format */
	const char *file;   /* an OUT that ends so is one file */
	const char *ending; /* of the files in a directory */
} formats[PACK_FORMATS] = {
	[PACK_FLAT] = {"flat", ".bin", ".bin"},
	[PACK_ZSTD] = {"zstd", ".zst", ".bin.zst"},
	[PACK_MEGATRON] = {"megatron", ".bin", ".bin"},
};

struct pack {
	struct emit emit;
	struct pack_in in;
	struct pack_how how;
	const char *out;
	bool single; /* it is a file */
	uint64_t shards;
	uint64_t *cut;		    /* shard i has tokens [cut[i], cut[i + 1]) of the inputs */
	uint64_t largest;	    /* tokens of a shard, whose documents --fit has in memory */
	struct pack_result *result; /* [shards] no bytes: it is not there yet */
	struct pack_result sum;	    /* of the shards that were printed */
	struct ctl_progress progress;
};

/* ---- the inputs: one source ---- */

/* Puts the source's path before the fault's text. Always false. */
static bool fail(const struct pack_source *s, struct fault *fault)
{
	char path[PATH_MAX + 1];

	ctl_place_path(s->place, s->shard, path);
	return ctl_input_fault(path, fault);
}

/* A hash of what differs if the open file or a side file was replaced. The store compares an
 * object's ETag with each answer. */
static uint64_t identify(const struct pack_reader *r)
{
	const struct shard_facts *f = &r->shard->facts;
	uint64_t facts[] = {f->tokens, f->type, f->index, f->bounds, 0};
	struct stat st;

	if (r->fd >= 0 && fstat(r->fd, &st) == 0)
		facts[4] = bytes_id(&st);
	return XXH64(facts, sizeof(facts), 0);
}

static void close_source(struct pack_reader *r)
{
	if (!r->source)
		return;
	ctl_input_close(r->shard, r->fd);
	r->source = NULL;
}

/* Opens a source. @token_bytes: least width of its tokens, or 0. @fault names it. */
static bool open_source(struct pack_reader *r, const struct pack_source *s, uint32_t token_bytes,
	struct fault *fault)
{
	struct ctl_input input = ctl_input_at(s->place, &r->in->input);
	char file[PATH_MAX + 1];

	input.hint.token_bytes = token_bytes;
	ctl_place_file(s->place, s->shard, file);
	/* An object without an ETag could be replaced between two reads. */
	*r = (struct pack_reader){.in = r->in, .how = r->how, .source = s, .fd = -1};
	if (!s->place->remote ||
		ctl_place_etag_ok(ctl_place_object(s->place, s->shard).etag, fault))
		r->shard = ctl_input_open(&input, file, &r->fd, fault);
	if (r->shard)
		return true;
	close_source(r);
	return fail(s, fault);
}

/* ---- all sources ---- */

static void find_traits(const struct pack_reader *r, struct pack_source *s)
{
	const struct ctl_input input = ctl_input_at(s->place, &r->in->input);
	const struct shard *shard = r->shard;
	const struct shard_facts *f = &shard->facts;
	char file[PATH_MAX + 1];

	ctl_place_file(s->place, s->shard, file);
	bool listed = side_id(SIDE_BOUNDS, shard->format, &input.hint, file) != 0;

	s->has[PACK_UNINDEXED] = f->documents == SHARD_UNKNOWN;
	s->has[PACK_DOCUMENTS] =
		!input.hint.documents && (listed || (!s->has[PACK_UNINDEXED] && f->documents > 1));
	s->has[PACK_OUTSIDE] = shard->map.outside > 0;
	s->has[PACK_PADDING] = f->padding > 0;
	s->has[PACK_MASK] = side_id(SIDE_MASK, shard->format, &input.hint, file) != 0;
}

/* Opens a source for its facts, and closes it again. */
static bool find_source(const struct parallel *p, struct fault *fault)
{
	struct pack_in *in = p->context;
	struct pack_source *s = &in->source[p->i];
	struct pack_reader r = {.in = in};

	if (!open_source(&r, s, 0, fault))
		return false;
	s->tokens = r.shard->facts.tokens;
	s->token_bytes = r.shard->facts.token_bytes;
	s->identity = identify(&r);
	find_traits(&r, s);
	close_source(&r);
	ctl_progress_add(&in->progress, 1);
	return true;
}

/* Lists the sources at @path. */
static bool add_place(struct pack_in *in, const char *path, struct fault *fault)
{
	struct ctl_place *place = &in->place[in->places];

	if (!ctl_place_open(place, in->input.stores, path, NULL, NULL, fault))
		return ctl_input_fault(path, fault);
	in->places++;
	if (ctl_place_threads(place) > in->threads)
		in->threads = ctl_place_threads(place);
	struct pack_source *more =
		realloc(in->source, (in->sources + place->shards) * sizeof(*more));

	if (!more)
		return fault_memory(fault);
	in->source = more;
	for (uint64_t i = 0; i < place->shards; i++)
		more[in->sources++] = (struct pack_source){.place = place, .shard = i};
	return true;
}

/* Puts the sources one after another. */
static bool put_in_row(struct pack_in *in, struct fault *fault)
{
	for (size_t i = 0; i < in->sources; i++) {
		struct pack_source *s = &in->source[i];

		for (unsigned t = 0; t < PACK_TRAITS; t++)
			if (s->has[t] && in->has[t].sources++ == 0)
				in->has[t].first = s;
		if (s->token_bytes > in->token_bytes)
			in->token_bytes = s->token_bytes;
		s->begin = in->tokens;
		if (__builtin_add_overflow(in->tokens, s->tokens, &in->tokens)) {
			fault_set(fault, FAULT_DATA, "",
				"the inputs up to here have more than 2^64 tokens");
			return fail(s, fault);
		}
	}
	return true;
}

/* Lists the shards of the @n paths, and opens each once for its facts. Call pack_in_end() either
 * way. */
static bool pack_in_add(struct pack_in *in, char *const *path, int n, struct fault *fault)
{
	in->place = calloc((size_t)n, sizeof(*in->place));
	if (!in->place)
		return fault_memory(fault);
	for (int i = 0; i < n; i++)
		if (!add_place(in, path[i], fault))
			return false;
	ctl_progress_begin(&in->progress, "looking at inputs", "shards", in->sources);
	bool fine = parallel_for(in->sources, in->threads, find_source, in, fault) == in->sources;

	ctl_progress_end(&in->progress);
	return fine && put_in_row(in, fault);
}

static void pack_in_end(struct pack_in *in)
{
	free(in->source);
	for (unsigned i = 0; i < in->places; i++)
		ctl_place_close(&in->place[i]);
	free(in->place);
}

/* ---- reading ---- */

/* The source that contains @token (< in->tokens). */
static const struct pack_source *source_at(const struct pack_in *in, uint64_t token)
{
	size_t lo = 0, hi = in->sources;

	while (hi - lo > 1) {
		size_t mid = lo + (hi - lo) / 2;

		if (in->source[mid].begin <= token)
			lo = mid;
		else
			hi = mid;
	}
	return &in->source[lo];
}

static bool is_same(const struct pack_reader *r, struct fault *fault)
{
	if (identify(r) == r->source->identity)
		return true;
	fault_set(fault, FAULT_CHANGED, "",
		"the file or a side file has changed since packing began (size or time)");
	return fail(r->source, fault);
}

bool pack_read_end(struct pack_reader *r, struct fault *fault)
{
	bool same = !r->source || !fault || is_same(r, fault);

	close_source(r);
	return same;
}

static bool use(struct pack_reader *r, const struct pack_source *s, struct fault *fault)
{
	return r->source == s ||
	       (pack_read_end(r, fault) && open_source(r, s, sizeof(uint32_t), fault) &&
		       is_same(r, fault));
}

/* Reads tokens [token, token + n) of the open source. */
static bool read_tokens(
	struct pack_reader *r, uint64_t token, uint64_t n, uint32_t *to, struct fault *fault)
{
	const struct pack_how *how = r->how;
	uint32_t most = how->token_bytes == 2	       ? UINT16_MAX
			: how->format == PACK_MEGATRON ? INT32_MAX
						       : UINT32_MAX;

	if (!shard_read(r->shard, token, n, to, fault))
		return fail(r->source, fault);

	uint64_t good = tokens_first_above(to, n, sizeof(*to), most);

	if (good == n)
		return true;
	fault_set(fault, FAULT_DATA, "",
		"token %" PRIu64 " is %" PRIu32 "; must be at most %" PRIu32 " for %s",
		token + good, to[good], most,
		how->token_bytes == 2 ? "--dtype u16; give --dtype u32"
				      : "--format megatron (31 bits)");
	return fail(r->source, fault);
}

/* Adds the ends of documents in (token, token + n] of the open source, relative to @token and plus
 * @lead. @tokens: those of the range. */
static void read_ends(struct pack_reader *r, uint64_t token, uint64_t n, const uint32_t *tokens,
	uint32_t lead, uint32_t *at, uint64_t *count)
{
	const struct pack_in *in = r->in;
	bool ends = token + n == r->source->tokens;
	uint64_t before = *count;

	if (r->source->has[PACK_UNINDEXED]) {
		for (uint64_t i = 0; in->has_eos && i + ends < n; i++)
			if (tokens[i] == in->eos)
				at[(*count)++] = lead + (uint32_t)i + 1;
	} else {
		/* up to and with a boundary at the end of the range */
		*count += shard_documents(r->shard, token, n + !ends, at + before, (uint32_t)n);
		for (; before < *count; before++)
			at[before] += lead;
	}
	if (ends)
		at[(*count)++] = lead + (uint32_t)n;
}

bool pack_read(struct pack_reader *r, uint64_t token, uint64_t n, uint32_t *to, uint32_t *at,
	uint64_t *count, struct fault *fault)
{
	const struct pack_source *s = source_at(r->in, token);
	char *narrow = (char *)to;
	uint64_t done = 0;

	*count = 0;
	for (; done < n; s++) {
		uint64_t from = token + done - s->begin, left = s->tokens - from;
		uint64_t some = n - done < left ? n - done : left;

		if (some == 0)
			continue;
		if (!use(r, s, fault) || !read_tokens(r, from, some, to + done, fault))
			return false;
		if (at)
			read_ends(r, from, some, to + done, (uint32_t)done, at, count);
		done += some;
	}
	for (uint64_t i = 0; r->how->token_bytes == 2 && i < n; i++)
		memcpy(narrow + 2 * i, &(uint16_t){(uint16_t)to[i]}, 2);
	return true;
}

/* Sets *@boundary to the first token from @token on with which a document begins, or to the end of
 * the row. */
static bool pack_boundary(
	struct pack_reader *r, uint64_t token, uint64_t *boundary, struct fault *fault)
{
	uint64_t tokens = r->in->tokens, from = token - 1, n, count = 0;
	uint32_t read[4096], at[4096];

	*boundary = token;
	if (token == 0 || token == tokens)
		return true;
	const struct pack_source *s = source_at(r->in, from);

	if (!s->has[PACK_UNINDEXED]) {
		if (!use(r, s, fault))
			return false;
		*boundary = s->begin + shard_boundary(r->shard, from - s->begin);
		return true;
	}
	for (; count == 0; from += n) { /* the end of the last source is one */
		n = tokens - from < 4096 ? tokens - from : 4096;
		if (!pack_read(r, from, n, read, at, &count, fault))
			return false;
		if (count > 0)
			*boundary = from + at[0];
	}
	return true;
}

/* ---- the plan ---- */

static bool refuse(
	const struct pack_source *s, const char *field, const char *text, struct fault *fault)
{
	char path[PATH_MAX + 1];

	ctl_place_path(s->place, s->shard, path);
	return fault_set(fault, FAULT_ARGUMENT, field, "%s: %s", path, text);
}

/* Whether shards are cut between documents. */
static bool keeps_documents(const struct pack_how *how)
{
	return how->format == PACK_MEGATRON || how->row_tokens;
}

static bool refuse_empty(const struct pack *p, uint64_t i, bool by_source, struct fault *fault)
{
	if (by_source)
		return refuse(&p->in.source[i], "",
			"contains no tokens; leave it out, or give --shards", fault);
	return fault_set(fault, FAULT_ARGUMENT, "",
		"--shards %" PRIu64 ": shard %" PRIu64
		" would be empty: there are too few %s (%" PRIu64 " tokens in all)",
		p->shards, i, keeps_documents(&p->how) ? "documents" : "tokens", p->in.tokens);
}

/* One shard for each source, or shards of equal size, cut at the next end of a document if they
 * keep documents. */
static bool cut(struct pack *p, bool by_source, struct fault *fault)
{
	struct pack_reader reader = {.in = &p->in, .how = &p->how};
	bool fine = true;

	for (uint64_t i = 0; fine && i < p->shards; i++) {
		const struct pack_source *s = &p->in.source[i];
		uint64_t *at = &p->cut[i + 1], tokens = p->in.tokens;

		*at = by_source ? s->begin + s->tokens
				: (uint64_t)((unsigned __int128)tokens * (i + 1) / p->shards);
		if (!by_source && keeps_documents(&p->how))
			fine = pack_boundary(&reader, *at, at, fault);
		if (fine && *at == p->cut[i])
			fine = refuse_empty(p, i, by_source, fault);
		if (fine && *at - p->cut[i] > p->largest)
			p->largest = *at - p->cut[i];
	}
	fine = pack_read_end(&reader, fine ? fault : NULL) && fine;
	if (fine && p->how.row_tokens && p->largest > PACK_FIT_MOST)
		fine = fault_set(fault, FAULT_ARGUMENT, "",
			"a shard would be packed from %" PRIu64
			" tokens, more than --fit keeps in memory (%d); %s",
			p->largest, PACK_FIT_MOST,
			p->single ? "give a directory"
				  : "give more --shards, and --eos if documents are long");
	return fine;
}

/* Documents to pack must have bounds, and no padding among them. */
static bool check_documents(const struct pack *p, struct fault *fault)
{
	const struct pack_in *in = &p->in;

	if (in->has[PACK_UNINDEXED].sources > 0 && !in->has_eos)
		return refuse(in->has[PACK_UNINDEXED].first, "eos",
			"has no document bounds; give --eos ID, the token that ends a document",
			fault);
	return in->has[PACK_PADDING].sources == 0 ||
	       refuse(in->has[PACK_PADDING].first, "",
		       "is packed in rows already; give the shards that it was packed from", fault);
}

static bool plan(struct pack *p, struct fault *fault)
{
	bool fit = p->how.row_tokens, by_source = !fit && p->shards == 0 && !p->single;

	if (p->in.tokens == 0)
		return fault_set(fault, FAULT_ARGUMENT, "", "the inputs contain no tokens");
	if (fit && !check_documents(p, fault))
		return false;
	if (p->how.token_bytes == 0)
		p->how.token_bytes = p->in.token_bytes;
	if (by_source)
		p->shards = p->in.sources;
	else if (fit && p->shards == 0 && !p->single)
		p->shards = (p->in.tokens + PACK_FIT_TOKENS - 1) / PACK_FIT_TOKENS;
	else if (p->shards == 0)
		p->shards = 1;
	p->cut = calloc(p->shards + 1, sizeof(*p->cut));
	if (!p->cut)
		return fault_memory(fault);
	return cut(p, by_source, fault);
}

/* Rejects an OUT inside one of the inputs: a second run would pack its own output. */
static bool is_outside(const struct pack *p, struct fault *fault)
{
	char *path = strdup(p->out), *parent = path ? realpath(dirname(path), NULL) : NULL;
	bool fine = parent || pack_fail(fault, p->out, errno);
	struct stat st;

	for (unsigned i = 0; fine && i < p->in.places; i++) {
		const struct ctl_place *in = &p->in.place[i];
		size_t n = strlen(in->list.root);
		bool file = stat(in->path, &st) == 0 && !S_ISDIR(st.st_mode);

		if (!file && strncmp(in->list.root, parent, n) == 0 &&
			(parent[n] == '/' || parent[n] == 0))
			fine = fault_set(fault, FAULT_ARGUMENT, "",
				"%s: is inside the input %s; give a directory outside it", p->out,
				in->path);
	}
	free(path);
	free(parent);
	return fine;
}

/* ---- the output: a file, or a directory of them ---- */

/*
 * A shard that is there already, with the tokens that it would get, is complete: so a repeated
 * command continues an interrupted one. There is no other state.
 */

/* Writes the path of shard @i. */
static bool name_shard(const struct pack *p, uint64_t i, char path[PATH_MAX], struct fault *fault)
{
	int n = p->single ? snprintf(path, PATH_MAX, "%s", p->out)
			  : snprintf(path, PATH_MAX, "%s%sshard-%05" PRIu64 "%s", p->out,
				    bytes_ends_in(p->out, "/") ? "" : "/", i,
				    formats[p->how.format].ending);

	return (n >= 0 && n < PATH_MAX) || pack_fail(fault, p->out, ENAMETOOLONG);
}

/* Is @name that of a shard to be written, or of its side file, complete or not? */
static bool is_planned(const struct pack *p, const char *name)
{
	char path[PATH_MAX], side[PATH_MAX];
	struct fault fault;
	uint64_t i;

	if (strncmp(name, PACK_PART, strlen(PACK_PART)) == 0)
		name += strlen(PACK_PART);
	return sscanf(name, "shard-%" SCNu64, &i) == 1 && i < p->shards &&
	       name_shard(p, i, path, &fault) &&
	       (strcmp(bytes_name(path), name) == 0 ||
		       (pack_side_path(&p->how, path, side) &&
			       strcmp(bytes_name(side), name) == 0));
}

/* Creates the directory, or looks at what is in it. */
static bool open_output(const struct pack *p, struct fault *fault)
{
	bool fine = true;

	if (p->single)
		return true;
	DIR *directory = mkdir(p->out, 0777) == 0 || errno == EEXIST ? opendir(p->out) : NULL;

	if (!directory)
		return pack_fail(fault, p->out, errno);
	for (struct dirent *e; fine && (e = readdir(directory));)
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
			!is_planned(p, e->d_name))
			fine = fault_set(fault, FAULT_ARGUMENT, "",
				"%s: is not empty: %s is none of the files that would be written; "
				"give another directory",
				p->out, e->d_name);
	closedir(directory);
	return fine;
}

/* ---- packing ---- */

static const char *dtype(const struct pack *p)
{
	return p->how.token_bytes == 2 ? "u16" : "u32";
}

/* Prints the sums of --fit, and the lines of a config that serve its rows. */
static void print_rows(struct pack *p)
{
	const struct pack_result *sum = &p->sum;
	uint64_t row = p->how.row_tokens, tokens = p->in.tokens + sum->padding;
	json_t *name = json_string(p->out);
	char *quoted = json_dumps(name, JSON_ENCODE_ANY);

	emit_table(&p->emit);
	emit_line(&p->emit,
		"%" PRIu64 " rows of %" PRIu64 " tokens, %.3f %% padding; cut: %" PRIu64
		" of %" PRIu64 " documents, all longer than a row (by plain concatenation: %" PRIu64
		")",
		tokens / row, row, 100.0 * (double)sum->padding / (double)tokens, sum->cut,
		sum->documents, sum->split);
	emit_line(&p->emit, "    seq_len: %" PRIu64, row - 1);
	emit_line(&p->emit, "    extra: 1");
	emit_line(&p->emit, "    stride: %" PRIu64, row);
	emit_line(&p->emit, "    documents: true");
	emit_line(&p->emit, "    loss_mask: true");
	emit_line(&p->emit, "    datasets:");
	emit_line(&p->emit, "      - {name: packed, path: %s, dtype: %s}", quoted ? quoted : p->out,
		dtype(p));
	free(quoted);
	json_decref(name);
}

/* Prints a shard's line. Its tokens are those of the inputs, and padding. */
static void print(struct pack *p, const char *path, uint64_t tokens, const struct pack_result *r)
{
	struct emit *e = &p->emit;
	char digest[24];

	p->sum.documents += r->documents;
	p->sum.padding += r->padding;
	p->sum.cut += r->cut;
	p->sum.split += r->split;
	snprintf(digest, sizeof(digest), "%016" PRIx64, r->digest);
	emit_text(e, "path", "path", path);
	emit_text(e, "format", "format", formats[p->how.format].name);
	emit_text(e, "dtype", "dtype", dtype(p));
	emit_number(e, "tokens", "tokens", tokens);
	emit_optional(e, "documents", "documents", r->documents, keeps_documents(&p->how));
	if (p->how.row_tokens) {
		emit_number(e, "rows", "rows", tokens / p->how.row_tokens);
		emit_number(e, "padding", "padding", r->padding);
		emit_number(e, "cut", "cut", r->cut);
		emit_number(e, "cut_by_concatenation", "cut_by_concatenation", r->split);
	}
	emit_number(e, "size", "size", r->bytes);
	emit_text(e, "digest", "digest", digest);
	emit_row(e);
}

/* Reports what the inputs contain and the packed files will not, of the first that has it. */
static void report_losses(const struct pack *p)
{
	static const char *const texts[PACK_TRAITS] = {
		[PACK_DOCUMENTS] = "its document bounds are lost (eos tokens are kept); --format "
				   "megatron keeps them",
		[PACK_OUTSIDE] = "tokens outside the documents of its .csv.gz become documents of "
				 "their own",
		[PACK_PADDING] = "the padding of its rows becomes tokens like any others",
		[PACK_MASK] = "its loss mask is lost: packed formats have none; keep masks in a "
			      "directory, and name that as the dataset's label_mask",
	};

	for (unsigned t = 0; t < PACK_TRAITS; t++) {
		const struct pack_source *first = p->in.has[t].first;
		char path[PATH_MAX + 1];

		if (!texts[t] || !first)
			continue;
		ctl_place_path(first->place, first->shard, path);
		ctl_note("%s: %s", path, texts[t]);
	}
}

/* Compares shard @parallel->i, if it is there already. */
static bool compare_shard(const struct parallel *parallel, struct fault *fault)
{
	struct pack *p = parallel->context;
	const uint64_t *cut = &p->cut[parallel->i];
	char path[PATH_MAX];
	struct stat st;

	return name_shard(p, parallel->i, path, fault) &&
	       (lstat(path, &st) != 0 || pack_out(&p->in, &p->how, cut[0], cut[1], path,
						 &p->result[parallel->i], fault));
}

/* Writes shard @parallel->i, unless it is there, and reports it in order. */
static bool pack_shard(const struct parallel *parallel, struct fault *fault)
{
	struct pack *p = parallel->context;
	const uint64_t *cut = &p->cut[parallel->i];
	struct pack_result *r = &p->result[parallel->i];
	char path[PATH_MAX];

	if (!name_shard(p, parallel->i, path, fault) ||
		(r->bytes == 0 && !pack_out(&p->in, &p->how, cut[0], cut[1], path, r, fault)))
		return false;
	if (parallel_turn(parallel))
		print(p, path, cut[1] - cut[0] + r->padding, r);
	return true;
}

/* Windows of --fit are in memory; so are the pieces that threads read from a store. */
static unsigned count_threads(const struct pack *p)
{
	uint64_t most = p->in.threads,
		 fit = p->how.row_tokens ? PACK_FIT_MOST / p->largest
					 : MEMORY_BYTES / (p->how.frame_bytes +
								  8 * (uint64_t)CTL_DIGEST_TOKENS);

	return (unsigned)(fit < 1 ? 1 : fit < most ? fit : most);
}

static bool pack_paths(struct pack *p, char *const *path, int n, struct fault *fault)
{
	unsigned threads;
	bool fine;

	if (!pack_in_add(&p->in, path, n, fault) || !is_outside(p, fault) || !plan(p, fault) ||
		!open_output(p, fault))
		return false;
	p->result = calloc(p->shards, sizeof(*p->result));
	if (!p->result)
		return fault_memory(fault);
	threads = count_threads(p);
	report_losses(p);
	ctl_progress_begin(&p->progress, "packing", "tokens", p->in.tokens);
	p->how.progress = &p->progress;
	/* If a file of another pack is there, nothing is written. */
	fine = parallel_for(p->shards, threads, compare_shard, p, fault) == p->shards &&
	       parallel_for(p->shards, threads, pack_shard, p, fault) == p->shards;
	ctl_progress_end(&p->progress);
	if (fine && p->how.row_tokens)
		print_rows(p);
	return fine;
}

/* ---- the command line ---- */

enum {
	CONFIG,
	FORMAT,
	DTYPE,
	FIT,
	SHARDS,
	LEVEL,
	FRAME,
	EOS,
	INPUT_FORMAT,
	INPUT_DTYPE,
	INPUT_COLUMN,
	JSON,
};

static const struct ctl_option options[] = {
	[CONFIG] = {OPTION_TEXT("config", "FILE",
			    "config whose stores: say how URLs are read; only for IN with URLs"),
		.letter = 'c'},
	/* in the order of enum pack_format */
	[FORMAT] = {OPTION_CHOICE("format", "flat|zstd|megatron",
		"format to write; with --fit flat or zstd, default: flat")},
	[DTYPE] = {OPTION_CHOICE(
		"dtype", "u16|u32", "width of a token; default: that of the widest input")},
	[FIT] = {OPTION_NUMBER("fit", "TOKENS", 2, PACK_FIT_ROW,
		"pack whole documents into rows of so many tokens, seq_len + extra of the "
		"stream")},
	[SHARDS] = {OPTION_NUMBER("shards", "N", 1, SHARDS_MOST,
		"write N shards of about equal size; default: one per input file, with "
		"--fit one per 2^27 tokens")},
	[LEVEL] = {OPTION_NUMBER("level", "L", 1, LEVEL_MOST, "zstd compression level"),
		.preset = "3"},
	[FRAME] = {OPTION_NUMBER("frame", "BYTES", FRAME_LEAST, FRAME_MOST,
			   "decoded size of a zstd frame, a multiple of 4"),
		.preset = "262144"},
	[EOS] = {OPTION_NUMBER("eos", "ID", 0, UINT32_MAX,
		"token that ends a document, for inputs without document bounds")},
	[INPUT_FORMAT] = {CTL_INPUT_FORMAT_OPTION},
	[INPUT_DTYPE] = {CTL_INPUT_DTYPE_OPTION},
	[INPUT_COLUMN] = {CTL_INPUT_COLUMN_OPTION},
	[JSON] = {CTL_JSON_OPTION},
};

/* Does @text end in @ending, with something before it? */
static bool ends_in(const char *text, const char *ending)
{
	return strlen(text) > strlen(ending) && bytes_ends_in(text, ending);
}

/* Sets the target. Rejects a name that looks like another format's file: it is hardly a directory.
 */
static int take_target(struct pack *p, const struct ctl_command *command, const char *to)
{
	static const char *const files[] = {
		".bin", ".zst", ".zstd", ".npy", ".ds", ".idx", ".mds", ".arrow"};
	struct stat st;
	bool directory = stat(to, &st) == 0 && S_ISDIR(st.st_mode);

	p->out = to;
	p->single = !directory && (ends_in(to, formats[p->how.format].file) ||
					  (p->how.format == PACK_ZSTD && ends_in(to, ".zstd")));
	for (size_t i = 0; !directory && !p->single && i < sizeof(files) / sizeof(files[0]); i++)
		if (ends_in(to, files[i]))
			return ctl_usage(command,
				"OUT %s: a file of --format %s must end in %s; or give a directory",
				to, formats[p->how.format].name, formats[p->how.format].file);
	if (p->single && p->how.row_tokens && !bytes_ending(to, ".bin"))
		return ctl_usage(command,
			"OUT %s: with --fit it must end in .bin or .bin.zst, or be a directory",
			to);
	if (p->single && p->shards > 1)
		return ctl_usage(command, "OUT %s: is one file; --shards needs a directory", to);
	return CTL_OK;
}

/* Checks which arguments are URLs. */
static int check_urls(const struct ctl_arguments *a)
{
	const char *to = a->argument[a->arguments - 1];

	if (url_text_is(to))
		return ctl_usage(a->command,
			"OUT %s: is a URL, but only files are written; give a directory, and copy "
			"that with `aws s3 cp` or s5cmd",
			to);
	for (int i = 0; i < a->arguments; i++)
		if (ctl_place_unlisted(a->argument[i]))
			return ctl_usage(a->command,
				"%s: an HTTPS server has no listing; download the shards, and give "
				"their directory",
				a->argument[i]);
	return CTL_OK;
}

static int take(struct pack *p, const struct ctl_arguments *a)
{
	const struct ctl_command *c = a->command;
	uint64_t frame = ctl_number(a, FRAME, 0);

	p->how.row_tokens = (uint32_t)ctl_number(a, FIT, 0);
	if (!ctl_given(a, FORMAT) && !ctl_given(a, FIT))
		return ctl_usage(c, "needs --format flat|zstd|megatron, or --fit TOKENS");
	p->how.format = (enum pack_format)ctl_number(a, FORMAT, PACK_FLAT);
	if (p->how.format == PACK_MEGATRON && p->how.row_tokens)
		return ctl_usage(c, "--fit needs --format flat or zstd: megatron has no loss mask");
	if (ctl_given(a, DTYPE))
		p->how.token_bytes = ctl_number(a, DTYPE, 0) == 0 ? 2 : 4;
	if ((ctl_given(a, LEVEL) || ctl_given(a, FRAME)) && p->how.format != PACK_ZSTD)
		return ctl_usage(c, "--level and --frame need --format zstd");
	if (frame % 4 != 0)
		return ctl_usage(c, "--frame %" PRIu64 ": must be a multiple of 4", frame);
	p->shards = ctl_number(a, SHARDS, 0);
	p->how.level = (int)ctl_number(a, LEVEL, 0);
	p->how.frame_bytes = (uint32_t)frame;
	p->in.has_eos = ctl_given(a, EOS);
	p->in.eos = ctl_number(a, EOS, 0);
	return check_urls(a) == CTL_OK ? take_target(p, c, a->argument[a->arguments - 1])
				       : CTL_USAGE;
}

static int pack(const struct ctl_arguments *a)
{
	struct pack p = {.emit = {.json = ctl_given(a, JSON)}};
	int status = take(&p, a);
	struct fault fault;

	if (status == CTL_OK)
		status = ctl_input_begin(&p.in.input, a);
	if (status == CTL_OK) {
		int n = ctl_input_paths(a->argument, a->arguments - 1);

		p.in.input.hint.documents = keeps_documents(&p.how);
		bool fine = n < 0 ? fault_memory(&fault) : pack_paths(&p, a->argument, n, &fault);

		status = emit_end(&p.emit, fine ? CTL_OK : CTL_FAILED);
		if (!fine)
			ctl_fail("%s", fault.text);
	}
	pack_in_end(&p.in);
	ctl_input_end(&p.in.input);
	free(p.cut);
	free(p.result);
	return status;
}

const struct ctl_command ctl_pack = {
	.name = "pack",
	.arguments = "IN... OUT",
	.help = "convert shards of any readable format to flat, zstd or Megatron shards",
	.run = pack,
	OPTIONS_ARE(options),
};
