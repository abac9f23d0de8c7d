/* The inputs of `tokctl pack`. */
#include "client/ctl/offline/shards.h"
#include "daemon/catalog/parallel_for.h"
#include "daemon/shard/format.h"

#define XXH_INLINE_ALL
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

/* ---- one source ---- */

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
static bool join(struct pack_in *in, struct fault *fault)
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

bool pack_in_add(struct pack_in *in, char *const *path, int n, struct fault *fault)
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
	return fine && join(in, fault);
}

void pack_in_end(struct pack_in *in)
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

bool pack_boundary(struct pack_reader *r, uint64_t token, uint64_t *boundary, struct fault *fault)
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
