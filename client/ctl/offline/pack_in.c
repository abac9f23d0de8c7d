/* The inputs of `tokctl pack`. */
#include "client/ctl/offline/shards.h"
#include "daemon/catalog/parallel_for.h"
#include "daemon/shard/bounds.h"
#include "daemon/shard/mask.h"
#include "daemon/shard/tokens.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- one source ---- */

void pack_source_path(const struct pack_source *s, char path[PATH_MAX + 1])
{
	ctl_place_path(s->place, s->shard, path);
}

/* Puts the source's path before the fault's text. Always false. */
static bool fail(const struct pack_source *s, struct fault *fault)
{
	char path[PATH_MAX + 1];

	pack_source_path(s, path);
	return ctl_input_fault(path, fault);
}

/* A hash of what differs if a source or a side file was replaced. An object without an ETag could
 * be replaced between two reads. */
static bool find_identity(const struct pack_source *s, const struct shard *shard, int fd,
	uint64_t *identity, struct fault *fault)
{
	const struct shard_facts *f = &shard->facts;
	uint64_t facts[] = {f->tokens, f->type, f->index, f->bounds, 0, 0, 0};
	struct stat st;

	if (s->place->remote) {
		struct object object = ctl_place_object(s->place, s->shard);

		facts[4] = object.size;
		facts[5] = XXH64(object.etag, strlen(object.etag), 0);
	} else if (fstat(fd, &st) == 0) {
		facts[4] = (uint64_t)st.st_size;
		facts[5] = (uint64_t)st.st_mtim.tv_sec;
		facts[6] = (uint64_t)st.st_mtim.tv_nsec;
	} else {
		return fault_errno(fault, errno, "", "%s", strerror(errno));
	}
	*identity = XXH64(facts, sizeof(facts), 0);
	return true;
}

/* Opens the source. @token_bytes: least width of its tokens, or 0. NULL: @fault, which names it. */
static struct shard *open_source(const struct pack_in *in, const struct pack_source *s,
	uint32_t token_bytes, int *fd, uint64_t *identity, struct fault *fault)
{
	struct ctl_input input = ctl_input_at(s->place, &in->input);
	struct shard *shard = NULL;
	char file[PATH_MAX + 1];

	*fd = -1;
	input.hint.token_bytes = token_bytes;
	ctl_place_file(s->place, s->shard, file);
	if (!s->place->remote ||
		ctl_place_etag_ok(ctl_place_object(s->place, s->shard).etag, fault))
		shard = ctl_input_open(&input, file, fd, fault);
	if (shard && find_identity(s, shard, *fd, identity, fault))
		return shard;
	fail(s, fault);
	shard_close(shard);
	if (*fd >= 0)
		close(*fd);
	return NULL;
}

/* ---- all sources ---- */

static void find_losses(const struct pack_in *in, const struct shard *shard, struct pack_source *s)
{
	const struct ctl_input input = ctl_input_at(s->place, &in->input);
	char file[PATH_MAX + 1];
	struct fault fault;
	uint32_t id;

	ctl_place_file(s->place, s->shard, file);
	bool listed = !shard->format->indexed &&
		      (!bounds_side_id(input.hint.objects, file, &id, &fault) || id != 0);

	s->loses[PACK_DOCUMENTS] =
		!input.hint.documents &&
		(listed || (shard->facts.documents != SHARD_UNKNOWN && shard->facts.documents > 1));
	s->loses[PACK_OUTSIDE] = shard->bounds && bounds_outside(shard->bounds) > 0;
	s->loses[PACK_PADDING] = shard->facts.padding > 0;
	s->loses[PACK_MASK] = mask_side_id(shard->format, &input.hint, file) != 0;
}

struct finding {
	const struct pack_in *in;
	const struct ctl_place *place;
	struct pack_source *source; /* of the place */
	struct ctl_progress progress;
};

/* Opens a source, and closes it again. */
static bool find_source(const struct parallel *p, struct fault *fault)
{
	struct finding *f = p->context;
	struct pack_source *s = &f->source[p->i];
	int fd;

	*s = (struct pack_source){.place = f->place, .shard = p->i};
	struct shard *shard = open_source(f->in, s, 0, &fd, &s->identity, fault);

	if (!shard)
		return false;
	s->tokens = shard->facts.tokens;
	s->token_bytes = shard->facts.token_bytes;
	s->unindexed = shard->facts.documents == SHARD_UNKNOWN;
	find_losses(f->in, shard, s);
	shard_close(shard);
	if (fd >= 0)
		close(fd);
	ctl_progress_add(&f->progress, 1);
	return true;
}

/* Finds the sources of a place, after those before it. */
static bool find_sources(struct pack_in *in, const struct ctl_place *place, struct fault *fault)
{
	size_t n = in->sources + place->shards;
	struct pack_source *more = realloc(in->source, n * sizeof(*more));

	if (!more)
		return fault_memory(fault);
	in->source = more;
	struct finding f = {.in = in, .place = place, .source = more + in->sources};

	ctl_progress_begin(&f.progress, place->path, "shards", place->shards);
	bool fine = parallel_for(place->shards, ctl_place_threads(place), find_source, &f, fault) ==
		    place->shards;

	ctl_progress_end(&f.progress);
	in->sources = n;
	return fine;
}

/* Puts the sources one after another. */
static bool join(struct pack_in *in, struct fault *fault)
{
	char path[PATH_MAX + 1];

	for (size_t i = 0; i < in->sources; i++) {
		struct pack_source *s = &in->source[i];

		for (unsigned l = 0; l < PACK_LOSSES; l++)
			if (s->loses[l] && in->loss[l].sources++ == 0)
				in->loss[l].first = i;
		in->unindexed += s->unindexed;
		pack_source_path(s, path);
		in->digest = XXH64(
			&s->identity, sizeof(s->identity), XXH64(path, strlen(path), in->digest));
		if (s->token_bytes > in->token_bytes)
			in->token_bytes = s->token_bytes;
		s->begin = in->tokens;
		if (__builtin_add_overflow(in->tokens, s->tokens, &in->tokens))
			return fault_set(fault, FAULT_DATA, "",
				"%s: the inputs up to here have more than 2^64 tokens", path);
	}
	return true;
}

bool pack_in_add(struct pack_in *in, char *const *path, int n, struct fault *fault)
{
	in->place = calloc((size_t)n, sizeof(*in->place));
	if (!in->place)
		return fault_memory(fault);
	for (int i = 0; i < n; i++) {
		struct ctl_place *place = &in->place[i];

		if (!ctl_place_open(place, in->stores, path[i], NULL, NULL, fault))
			/* it may name a key next to a URL */
			return store_is_url(path[i]) && strncmp(fault->text, path[i],
								strcspn(path[i], ":") + 1) == 0
				       ? false
				       : fault_prefix(fault, "%s: ", path[i]);
		in->places++;
		if (!find_sources(in, place, fault))
			return false;
	}
	return join(in, fault);
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

static void close_source(struct pack_reader *r)
{
	shard_close(r->shard);
	if (r->fd >= 0)
		close(r->fd);
	r->source = NULL;
}

static bool is_same(const struct pack_source *s, uint64_t identity, struct fault *fault)
{
	if (identity == s->identity)
		return true;
	fault_set(fault, FAULT_CHANGED, "",
		"the file or a side file has changed since packing began (size or time)");
	return fail(s, fault);
}

bool pack_read_end(struct pack_reader *r, struct fault *fault)
{
	const struct pack_source *s = r->source;
	uint64_t identity;
	bool same = true;

	if (!s)
		return true;
	if (!s->place->remote) /* the store compares the ETag with each answer */
		same = find_identity(s, r->shard, r->fd, &identity, fault) &&
		       is_same(s, identity, fault);
	close_source(r);
	return same;
}

static bool use(struct pack_reader *r, const struct pack_source *s, struct fault *fault)
{
	uint64_t identity;

	if (r->source == s)
		return true;
	if (!pack_read_end(r, fault))
		return false;
	r->shard = open_source(r->in, s, sizeof(uint32_t), &r->fd, &identity, fault);
	r->source = r->shard ? s : NULL;
	return r->shard && is_same(s, identity, fault);
}

/* Reads tokens [token, token + n) of the open source. */
static bool read_tokens(struct pack_reader *r, const struct pack_how *how, uint64_t token,
	uint64_t n, uint32_t *to, struct fault *fault)
{
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

	if (r->source->unindexed) {
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

bool pack_read(struct pack_reader *r, const struct pack_how *how, uint64_t token, uint64_t n,
	uint32_t *to, uint32_t *at, uint64_t *count, struct fault *fault)
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
		if (!use(r, s, fault) || !read_tokens(r, how, from, some, to + done, fault))
			return false;
		if (at)
			read_ends(r, from, some, to + done, (uint32_t)done, at, count);
		done += some;
	}
	for (uint64_t i = 0; how->token_bytes == 2 && i < n; i++)
		memcpy(narrow + 2 * i, &(uint16_t){(uint16_t)to[i]}, 2);
	return true;
}

/* ---- where documents begin ---- */

/* Sets *@after to the token after the first eos from @token of the open source on, or to its end.
 */
static bool after_eos(
	const struct pack_reader *r, uint64_t token, uint64_t *after, struct fault *fault)
{
	uint64_t end = r->source->tokens;
	uint32_t tokens[4096];

	for (*after = end; r->in->has_eos && token < end;) {
		uint64_t n = end - token < 4096 ? end - token : 4096;

		if (!shard_read(r->shard, token, n, tokens, fault))
			return fail(r->source, fault);
		for (uint64_t i = 0; i < n; i++)
			if (tokens[i] == r->in->eos) {
				*after = token + i + 1;
				return true;
			}
		token += n;
	}
	return true;
}

bool pack_in_boundary(
	const struct pack_in *in, uint64_t token, uint64_t *boundary, struct fault *fault)
{
	struct pack_reader r = {.in = in};
	const struct pack_source *s = token < in->tokens ? source_at(in, token) : NULL;
	uint64_t at = s ? token - s->begin : 0;

	*boundary = token;
	if (at == 0)
		return true;
	bool fine = use(&r, s, fault);

	if (fine && s->unindexed) {
		fine = after_eos(&r, at - 1, &at, fault);
	} else if (fine) {
		at = shard_boundary(r.shard, at - 1);
	}
	*boundary = s->begin + at;
	if (fine)
		return pack_read_end(&r, fault);
	if (r.source)
		close_source(&r);
	return false;
}
