/* The inputs of `tokctl pack`. */
#include "client/ctl/common/error.h"
#include "client/ctl/offline/pack.h"
#include "daemon/catalog/parallel_for.h"
#include "daemon/shard/bounds.h"
#include "daemon/shard/cache.h"
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

/* Size and time, or size and ETag: they differ if a source was replaced. An object without an ETag
 * could be replaced between two reads. */
static bool find_version(
	const struct pack_source *s, int fd, uint64_t version[3], struct fault *fault)
{
	const struct objects *objects = &s->place->listing.objects;
	struct object object = {.etag = NULL};
	struct stat st;

	if (!s->place->remote) {
		if (fstat(fd, &st) != 0)
			return fault_errno(fault, errno, "", "%s: %s", s->path, strerror(errno));
		version[0] = (uint64_t)st.st_size;
		version[1] = (uint64_t)st.st_mtim.tv_sec;
		version[2] = (uint64_t)st.st_mtim.tv_nsec;
		return true;
	}
	if (!objects->find(objects->context, s->path, &object))
		return fault_errno(fault, ENOENT, "", "%s: %s", s->path, strerror(ENOENT));
	if (!ctl_listing_etag_ok(object.etag, fault))
		return fault_prefix(fault, "%s: ", s->path);
	version[0] = object.size;
	version[1] = XXH64(object.etag, strlen(object.etag), 0);
	version[2] = 0;
	return true;
}

static bool find_identity(const struct pack_source *s, const struct shard *shard, int fd,
	uint64_t *identity, struct fault *fault)
{
	const struct shard_facts *f = &shard->facts;
	uint64_t facts[] = {0, 0, 0, f->tokens, f->token_bytes, f->index, f->bounds};

	if (!find_version(s, fd, facts, fault))
		return false;
	*identity = XXH64(facts, sizeof(facts), 0);
	return true;
}

/* NULL: @fault, which names the path. */
static struct shard *open_source(const struct pack_in *in, const struct pack_source *s, int *fd,
	uint64_t *identity, struct fault *fault)
{
	const struct ctl_input input = ctl_place_input(s->place, &in->input);
	struct shard *shard;

	if (s->place->remote && !find_version(s, -1, (uint64_t[3]){0}, fault))
		return NULL;
	shard = ctl_input_open(&input, s->path, fd, fault);
	if (!shard)
		ctl_input_fault(s->path, fault);
	else if (find_identity(s, shard, *fd, identity, fault))
		return shard;
	shard_close(shard);
	if (*fd >= 0)
		close(*fd);
	return NULL;
}

/* ---- listing ---- */

/* A source that was opened once. */
struct found {
	struct pack_source source;
	uint32_t token_bytes;
	bool loses[PACK_LOSSES];
};

static void find_losses(const struct pack_in *in, const struct shard *shard, struct found *found)
{
	const struct pack_source *s = &found->source;
	const struct ctl_input input = ctl_place_input(s->place, &in->input);
	struct fault fault;
	uint32_t id;
	bool listed = !shard->format->document &&
		      (!bounds_side_id(input.hint.objects, s->path, &id, &fault) || id != 0);

	found->loses[PACK_DOCUMENTS] =
		!input.hint.documents &&
		(listed || (shard->facts.documents != SHARD_UNKNOWN && shard->facts.documents > 1));
	found->loses[PACK_OUTSIDE] = shard->bounds && bounds_outside(shard->bounds) > 0;
	found->loses[PACK_PADDING] = shard->facts.padding > 0;
	found->loses[PACK_MASK] = mask_side_id(shard->format, &input.hint, s->path) != 0;
}

/* Takes @found: its path is freed with @in. */
static bool keep_source(struct pack_in *in, const struct found *found, struct fault *fault)
{
	struct pack_source *s;

	if (!ctl_grow((void **)&in->source, in->sources, sizeof(*s))) {
		free(found->source.path);
		return fault_memory(fault);
	}
	for (unsigned i = 0; i < PACK_LOSSES; i++)
		if (found->loses[i] && in->loss[i].sources++ == 0)
			in->loss[i].first = in->sources;
	in->unindexed += found->source.unindexed;
	s = &in->source[in->sources++];
	*s = found->source;
	s->begin = in->tokens;
	in->digest = XXH64(
		&s->identity, sizeof(s->identity), XXH64(s->path, strlen(s->path), in->digest));
	if (found->token_bytes > in->token_bytes)
		in->token_bytes = found->token_bytes;
	return !__builtin_add_overflow(in->tokens, s->tokens, &in->tokens) ||
	       fault_set(fault, FAULT_DATA, "",
		       "%s: the inputs up to here have more than 2^64 tokens", s->path);
}

struct finding {
	struct pack_in *in;
	const struct ctl_place *place;
	struct ctl_progress progress;
};

/* Opens a source, and closes it again. */
static bool find_source(const struct parallel *p, struct fault *fault)
{
	struct finding *finding = p->context;
	struct pack_in *in = finding->in;
	struct found found = {.source.place = finding->place};
	struct pack_source *s = &found.source;
	char path[PATH_MAX + 1];
	struct shard *shard;
	bool fine;
	int fd;

	ctl_place_path(finding->place, p->i, path);
	s->path = strdup(path);
	if (!s->path)
		return fault_memory(fault);
	shard = open_source(in, s, &fd, &s->identity, fault);
	if (!shard) {
		free(s->path);
		return false;
	}
	s->tokens = shard->facts.tokens;
	s->unindexed = shard->facts.documents == SHARD_UNKNOWN;
	found.token_bytes = shard->facts.token_bytes;
	find_losses(in, shard, &found);
	shard_close(shard);
	if (fd >= 0)
		close(fd);
	if (finding->place->remote)
		ctl_progress_add(&finding->progress, 1);
	if (!parallel_turn(p)) {
		free(s->path);
		return true;
	}
	fine = keep_source(in, &found, fault);
	if (fine)
		parallel_pass(p);
	return fine;
}

bool pack_in_add(struct pack_in *in, char *const *path, int n, struct fault *fault)
{
	in->place = calloc((size_t)n, sizeof(*in->place));
	if (!in->place)
		return fault_memory(fault);
	for (int i = 0; i < n; i++) {
		struct ctl_place *place = &in->place[i];
		struct finding f = {.in = in, .place = place};

		if (!ctl_place_open(place, in->stores, path[i], NULL, NULL, fault))
			/* it may name a key next to a URL */
			return place->remote && strncmp(fault->text, path[i],
							strcspn(path[i], ":") + 1) == 0
				       ? false
				       : fault_prefix(fault, "%s: ", path[i]);
		in->places++;
		if (place->remote)
			ctl_progress_count(&f.progress, path[i], "shards", place->shards);

		uint64_t good = parallel_for(
			place->shards, ctl_place_threads(place), find_source, &f, fault);

		if (place->remote)
			ctl_progress_end(&f.progress);
		if (good < place->shards)
			return false;
	}
	return true;
}

void pack_in_end(struct pack_in *in)
{
	for (size_t i = 0; i < in->sources; i++)
		free(in->source[i].path);
	free(in->source);
	for (unsigned i = 0; i < in->places; i++) {
		ctl_place_close(&in->place[i]);
		cache_free(in->place[i].cache);
	}
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

static bool is_same(const struct pack_source *s, uint64_t identity, struct fault *fault)
{
	return identity == s->identity ||
	       fault_set(fault, FAULT_CHANGED, "",
		       "%s: the file or a side file has changed since packing began (size or time)",
		       s->path);
}

bool pack_read_end(struct pack_reader *r, struct fault *fault)
{
	uint64_t identity;
	bool same = true;

	if (!r->source)
		return true;
	if (!r->source->place->remote) /* the store compares the ETag with each answer */
		same = find_identity(r->source, r->shard, r->fd, &identity, fault) &&
		       is_same(r->source, identity, fault);
	shard_close(r->shard);
	if (r->fd >= 0)
		close(r->fd);
	r->source = NULL;
	return same;
}

static bool use(struct pack_reader *r, const struct pack_source *s, struct fault *fault)
{
	uint64_t identity;

	if (r->source == s)
		return true;
	if (!pack_read_end(r, fault))
		return false;
	r->shard = open_source(r->in, s, &r->fd, &identity, fault);
	r->source = r->shard ? s : NULL;
	return r->shard && is_same(s, identity, fault);
}

/* Reads tokens [token, token + n) of the open source. */
static bool read_tokens(struct pack_reader *r, uint64_t token, uint64_t n, void *to,
	uint32_t token_bytes, uint64_t most, struct fault *fault)
{
	uint32_t width = r->shard->facts.token_bytes;
	bool direct =
		width == token_bytes && (width == 2 ? most >= UINT16_MAX : most >= UINT32_MAX);

	if (!direct && n > r->room) {
		free(r->scratch);
		r->scratch = malloc(n * sizeof(uint32_t));
		r->room = r->scratch ? n : 0;
		if (!r->scratch)
			return fault_memory(fault);
	}
	if (!shard_read(r->shard, token, n, direct ? to : r->scratch, fault))
		return ctl_input_fault(r->source->path, fault);

	uint64_t good = direct ? n : ctl_convert(r->scratch, width, n, to, token_bytes, most);

	return good == n ||
	       fault_set(fault, FAULT_DATA, "",
		       "%s: token %" PRIu64 " is %" PRIu32 "; must be at most %" PRIu64 " for %s",
		       r->source->path, token + good, tokens_value(r->scratch, good, width), most,
		       token_bytes == 2 ? "--dtype u16; give --dtype u32"
					: "--format megatron (31 bits)");
}

/* Adds the ends of documents in (token, token + n] of the open source, relative to @token and plus
 * @lead. @tokens: those of the range. */
static bool read_ends(struct pack_reader *r, uint64_t token, uint64_t n, const void *tokens,
	uint32_t token_bytes, uint32_t lead, uint32_t *at, uint64_t *count, struct fault *fault)
{
	const struct pack_in *in = r->in;
	bool ends = token + n == r->source->tokens;
	uint64_t before = *count;

	if (r->source->unindexed) {
		for (uint64_t i = 0; in->has_eos && i + ends < n; i++)
			if (tokens_value(tokens, i, token_bytes) == in->eos)
				at[(*count)++] = lead + (uint32_t)i + 1;
	} else {
		/* up to and with a boundary at the end of the range */
		int64_t got = shard_documents(
			r->shard, token, n + !ends, at + before, (uint32_t)n, fault);

		if (got < 0)
			return ctl_input_fault(r->source->path, fault);
		for (*count += (uint64_t)got; before < *count; before++)
			at[before] += lead;
	}
	if (ends)
		at[(*count)++] = lead + (uint32_t)n;
	return true;
}

bool pack_read(struct pack_reader *r, uint64_t token, uint64_t n, void *to, uint32_t token_bytes,
	uint64_t most, uint32_t *at, uint64_t *count, struct fault *fault)
{
	const struct pack_source *s = source_at(r->in, token);
	uint64_t done = 0;

	if (at)
		*count = 0;
	for (; done < n; s++) {
		uint64_t from = token + done - s->begin, left = s->tokens - from;
		uint64_t some = n - done < left ? n - done : left;
		void *out = (char *)to + done * token_bytes;

		if (some == 0)
			continue;
		if (!use(r, s, fault) ||
			!read_tokens(r, from, some, out, token_bytes, most, fault) ||
			(at && !read_ends(r, from, some, out, token_bytes, (uint32_t)done, at,
				       count, fault)))
			return false;
		done += some;
	}
	return true;
}

/* ---- where documents begin ---- */

/* Sets *@after to the token after the first eos from @token of the open source on, or to its end.
 */
static bool after_eos(
	const struct pack_reader *r, uint64_t token, uint64_t *after, struct fault *fault)
{
	uint32_t width = r->shard->facts.token_bytes, tokens[4096];
	uint64_t end = r->source->tokens;

	for (*after = end; r->in->has_eos && token < end;) {
		uint64_t n = end - token < 4096 ? end - token : 4096;

		if (!shard_read(r->shard, token, n, tokens, fault))
			return ctl_input_fault(r->source->path, fault);
		for (uint64_t i = 0; i < n; i++)
			if (tokens_value(tokens, i, width) == r->in->eos) {
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
	const struct pack_source *s;
	uint64_t at;
	bool fine;

	*boundary = token;
	if (token >= in->tokens)
		return true;
	s = source_at(in, token);
	at = token - s->begin;
	if (at == 0)
		return true;
	fine = use(&r, s, fault);
	if (fine && s->unindexed) {
		fine = after_eos(&r, at - 1, &at, fault);
	} else if (fine) {
		at = shard_boundary(r.shard, at - 1, fault);
		fine = at > 0 || ctl_input_fault(s->path, fault);
	}
	*boundary = s->begin + at;
	return fine ? pack_read_end(&r, fault) : (pack_read_end(&r, &(struct fault){0}), false);
}
