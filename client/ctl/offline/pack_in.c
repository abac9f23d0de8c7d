/*
 * Shards are opened when they are read, and closed at their end: there may be more than a process
 * can have open.
 */
#include "client/ctl/offline/pack_in.h"

#include "client/ctl/common/progress.h"
#include "client/ctl/offline/stores.h"
#include "daemon/catalog/parallel_for.h"
#include "daemon/config/url_text.h"
#include "daemon/shard/bounds.h"
#include "daemon/shard/mask.h"

#define XXH_INLINE_ALL
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- listing ---- */

/* A source that was opened once. */
struct found {
	struct pack_source source;
	uint32_t token_bytes;
	bool loses[PACK_LOSSES];
};

static void find_losses(const struct pack_in *in, struct found *found)
{
	const struct pack_source *s = &found->source;
	const struct ctl_input input = pack_source_input(&in->input, s->place);
	const struct shard *shard = s->shard;
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

/* Opens the source, and closes it again. Any thread. */
static bool find_source(const struct pack_in *in, const struct pack_place *place, const char *path,
	struct found *found, struct fault *fault)
{
	struct pack_source *s = &found->source;

	*found = (struct found){.source = {.path = strdup(path), .place = place, .fd = -1}};
	if (!s->path)
		return fault_memory(fault);
	if (!pack_source_open(s, &in->input, &s->identity, fault)) {
		free(s->path);
		s->path = NULL;
		return false;
	}
	s->tokens = s->shard->facts.tokens;
	found->token_bytes = s->shard->facts.token_bytes;
	s->unindexed = s->shard->facts.documents == SHARD_UNKNOWN;
	find_losses(in, found);
	pack_source_close(s);
	return true;
}

/* Takes @found: its path is freed with @in. */
static bool keep_source(struct pack_in *in, const struct found *found, struct fault *fault)
{
	struct pack_source *s;

	if (in->sources == in->room) {
		uint64_t room = in->room ? 2 * in->room : 64;
		struct pack_source *source = realloc(in->source, room * sizeof(*source));

		if (!source) {
			free(found->source.path);
			return fault_memory(fault);
		}
		in->source = source;
		in->room = room;
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

static bool add_files(struct pack_in *in, const char *path, struct fault *fault)
{
	char name[PATH_MAX + 1];
	struct shard_list list;
	struct found found;
	bool fine = true;
	size_t prefix;

	if (!ctl_input_list(&list, path, &prefix, fault))
		return fault_prefix(fault, "%s: ", path);
	for (uint64_t f = 0; fine && f < list.count; f++) {
		ctl_input_name(&list, f, path, prefix, name, sizeof(name));
		fine = find_source(in, NULL, name, &found, fault) && keep_source(in, &found, fault);
	}
	shard_list_free(&list);
	return fine;
}

/* ---- listing a store ---- */

/* Threads open the shards of a URL. */
struct finding {
	struct pack_in *in;
	const struct pack_place *place;
	struct found *found; /* [files] */
	struct ctl_progress progress;
};

static bool find_each(const struct parallel *p, struct fault *fault)
{
	struct finding *f = p->context;
	const struct ctl_listing *l = &f->place->listing;
	char path[PATH_MAX];

	if (!shard_list_path(&l->list, l->file + p->i, path, sizeof(path)))
		return fault_errno(fault, ENAMETOOLONG, "", "%s: %s",
			shard_list_name(&l->list, l->file + p->i), strerror(ENAMETOOLONG));
	if (!find_source(f->in, f->place, path, &f->found[p->i], fault))
		return false;
	ctl_progress_add(&f->progress, 1);
	return true;
}

static bool add_objects(struct pack_in *in, const char *url, struct fault *fault)
{
	struct pack_place *place = pack_place_open(in->stores, url, fault);

	if (!place) /* it may name a key next to @url */
		return strncmp(fault->text, url, strcspn(url, ":") + 1) == 0
			       ? false
			       : fault_prefix(fault, "%s: ", url);
	in->place[in->places++] = place;

	uint64_t n = place->listing.files;
	struct finding f = {.in = in, .place = place, .found = calloc(n, sizeof(*f.found))};
	bool fine;

	if (!f.found)
		return fault_memory(fault);
	ctl_progress_count(&f.progress, url, "shards", n);
	fine = parallel_for(n, CTL_GETS, find_each, &f, fault) == n;
	ctl_progress_end(&f.progress);
	for (uint64_t i = 0; i < n; i++)
		if (fine)
			fine = keep_source(in, &f.found[i], fault);
		else
			free(f.found[i].source.path);
	free(f.found);
	return fine;
}

/* ---- all inputs ---- */

void pack_in_begin(struct pack_in *in)
{
	pthread_mutex_init(&in->lock, NULL);
	pthread_cond_init(&in->opened, NULL);
}

bool pack_in_add(struct pack_in *in, char *const *path, int n, struct fault *fault)
{
	bool fine = true;

	in->place = calloc((size_t)n + 1, sizeof(*in->place));
	if (!in->place)
		return fault_memory(fault);
	for (int i = 0; fine && i < n; i++)
		fine = (url_text_is(path[i]) ? add_objects : add_files)(in, path[i], fault);
	return fine;
}

void pack_in_end(struct pack_in *in)
{
	for (uint64_t i = 0; i < in->sources; i++) {
		pack_source_close(&in->source[i]);
		free(in->source[i].path);
	}
	free(in->source);
	for (unsigned i = 0; i < in->places; i++)
		pack_place_close(in->place[i]);
	free(in->place);
	pthread_cond_destroy(&in->opened);
	pthread_mutex_destroy(&in->lock);
}

/* ---- reading ---- */

/* The source that contains @token (< in->tokens). */
static uint64_t source_at(const struct pack_in *in, uint64_t token)
{
	uint64_t lo = 0, hi = in->sources;

	while (hi - lo > 1) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (in->source[mid].begin <= token)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

static bool open_again(const struct pack_in *in, struct pack_source *s, struct fault *fault)
{
	uint64_t identity;

	if (!pack_source_open(s, &in->input, &identity, fault))
		return false;
	if (identity == s->identity)
		return true;
	pack_source_close(s);
	return fault_set(fault, FAULT_CHANGED, "",
		"%s: the file or a side file has changed since packing began (size or time)",
		s->path);
}

/* Other sources can be read while one is opened: a store may take its time. */
static const struct shard *acquire(struct pack_in *in, uint64_t i, struct fault *fault)
{
	struct pack_source *s = &in->source[i];

	pthread_mutex_lock(&in->lock);
	while (s->opening)
		pthread_cond_wait(&in->opened, &in->lock);
	if (!s->shard) {
		s->opening = true;
		pthread_mutex_unlock(&in->lock);
		open_again(in, s, fault);
		pthread_mutex_lock(&in->lock);
		s->opening = false;
		pthread_cond_broadcast(&in->opened);
	}
	s->users += s->shard != NULL;
	const struct shard *shard = s->shard;

	pthread_mutex_unlock(&in->lock);
	return shard;
}

/* The last user closes a source that was read to its end; others stay open for the next piece. */
static void release(struct pack_in *in, uint64_t i, bool ended)
{
	struct pack_source *s = &in->source[i];

	pthread_mutex_lock(&in->lock);
	s->ended |= ended;
	if (--s->users == 0 && s->ended)
		pack_source_close(s);
	pthread_mutex_unlock(&in->lock);
}

bool pack_in_same(struct pack_in *in, uint64_t begin, uint64_t end, struct fault *fault)
{
	for (uint64_t i = source_at(in, begin); i < in->sources && in->source[i].begin < end; i++) {
		struct pack_source *s = &in->source[i];

		assert(s->users == 0);
		pack_source_close(s);
		if (s->place) /* the store compares the ETag with each answer */
			continue;
		if (!open_again(in, s, fault))
			return false;
		pack_source_close(s);
	}
	return true;
}

static uint64_t value_at(const void *tokens, uint64_t i, uint32_t token_bytes)
{
	return token_bytes == 2 ? ((const uint16_t *)tokens)[i] : ((const uint32_t *)tokens)[i];
}

/* Converts @n tokens to another width. Returns the index of the first token above @most, or @n. */
static uint64_t convert(const void *from, uint32_t from_bytes, uint64_t n, void *to,
	uint32_t to_bytes, uint64_t most)
{
	const uint16_t *narrow = from;
	const uint32_t *wide = from;
	uint32_t largest = 0;

	if (from_bytes == 2 && to_bytes == 2) {
		memcpy(to, from, 2 * n);
		return n;
	}
	if (from_bytes == 2) {
		for (uint64_t i = 0; i < n; i++)
			((uint32_t *)to)[i] = narrow[i];
		return n;
	}
	for (uint64_t i = 0; i < n; i++)
		largest = wide[i] > largest ? wide[i] : largest;
	if (largest > most) {
		for (uint64_t i = 0;; i++)
			if (wide[i] > most)
				return i;
	}
	if (to_bytes == 4)
		memcpy(to, from, 4 * n);
	else
		for (uint64_t i = 0; i < n; i++)
			((uint16_t *)to)[i] = (uint16_t)wide[i];
	return n;
}

/* Reads @n tokens of source @i, from its token @token on. */
static bool read_part(struct pack_in *in, uint64_t i, uint64_t token, uint64_t n, void *to,
	uint32_t token_bytes, uint64_t most, void *scratch, struct fault *fault)
{
	const struct shard *shard = acquire(in, i, fault);
	const char *path = in->source[i].path;

	if (!shard)
		return false;
	uint32_t width = shard->facts.token_bytes;
	bool direct =
		width == token_bytes && (width == 2 ? most >= UINT16_MAX : most >= UINT32_MAX);
	bool fine = shard_read(shard, token, n, direct ? to : scratch, fault);

	if (!fine)
		ctl_input_fault(path, fault);
	if (fine && !direct) {
		uint64_t bad = convert(scratch, width, n, to, token_bytes, most);

		if (bad < n)
			fine = fault_set(fault, FAULT_DATA, "",
				"%s: token %" PRIu64 " is %" PRIu64 "; must be at most %" PRIu64
				" for %s",
				path, token + bad, value_at(scratch, bad, width), most,
				token_bytes == 2 ? "--dtype u16; give --dtype u32"
						 : "--format megatron (31 bits)");
	}
	release(in, i, token + n == in->source[i].tokens);
	return fine;
}

bool pack_in_read(struct pack_in *in, uint64_t token, uint64_t n, void *to, uint32_t token_bytes,
	uint64_t most, void *scratch, struct fault *fault)
{
	char *out = to;

	for (uint64_t i = n ? source_at(in, token) : 0; n > 0; i++) {
		const struct pack_source *s = &in->source[i];
		uint64_t at = token - s->begin, some = n < s->tokens - at ? n : s->tokens - at;

		if (some == 0)
			continue;
		if (!read_part(in, i, at, some, out, token_bytes, most, scratch, fault))
			return false;
		out += some * token_bytes;
		token += some;
		n -= some;
	}
	return true;
}

/* ---- documents ---- */

enum { AT_ONCE = 4096 };

/* Boundaries in (token, token + n) of a source, each minus @token plus @lead. */
static int64_t indexed_documents(const struct shard *shard, uint64_t token, uint64_t n,
	uint32_t lead, uint32_t *at, const char *path, struct fault *fault)
{
	uint64_t from = token, end = token + n;
	int64_t count = 0, got;

	do {
		got = shard_documents(shard, from, end - from, at + count, AT_ONCE, fault);
		if (got < 0) {
			ctl_input_fault(path, fault);
			return -1;
		}
		uint64_t base = from - token;

		for (int64_t k = 0; k < got; k++)
			at[count + k] += (uint32_t)(lead + base);
		count += got;
		if (got > 0)
			from = token + at[count - 1] - lead;
	} while (got == AT_ONCE);
	return count;
}

static int64_t eos_documents(const struct pack_in *in, const void *tokens, uint64_t n,
	uint32_t lead, uint32_t token_bytes, uint32_t *at)
{
	int64_t count = 0;

	if (!in->has_eos)
		return 0;
	for (uint64_t i = 0; i + 1 < n; i++) /* the caller checks the last token */
		if (value_at(tokens, lead + i, token_bytes) == in->eos)
			at[count++] = (uint32_t)(lead + i + 1);
	return count;
}

/* Does a document end right before @token of the source? @last: the token before it. */
static bool ends_before(const struct pack_in *in, const struct shard *shard, uint64_t token,
	uint64_t last, const char *path, bool *ends, struct fault *fault)
{
	*ends = token == shard->facts.tokens;
	if (*ends)
		return true;
	if (shard->facts.documents == SHARD_UNKNOWN) {
		*ends = in->has_eos && last == in->eos;
		return true;
	}
	uint64_t next = shard_boundary(shard, token - 1, fault);

	*ends = next == token;
	return next > 0 || ctl_input_fault(path, fault);
}

int64_t pack_in_documents(struct pack_in *in, uint64_t token, uint64_t n, const void *tokens,
	uint32_t token_bytes, uint32_t *at, struct fault *fault)
{
	int64_t count = 0;
	uint32_t lead = 0;

	for (uint64_t i = n ? source_at(in, token) : 0; n > 0; i++) {
		const struct pack_source *s = &in->source[i];
		uint64_t from = token - s->begin,
			 some = n < s->tokens - from ? n : s->tokens - from;

		if (some == 0)
			continue;
		const struct shard *shard = acquire(in, i, fault);

		if (!shard)
			return -1;
		bool known = shard->facts.documents != SHARD_UNKNOWN, ends;
		int64_t got =
			known ? indexed_documents(
					shard, from, some, lead, at + count, s->path, fault)
			      : eos_documents(in, tokens, some, lead, token_bytes, at + count);
		bool fine = got >= 0 && ends_before(in, shard, from + some,
						value_at(tokens, lead + some - 1, token_bytes),
						s->path, &ends, fault);

		release(in, i, from + some == s->tokens);
		if (!fine)
			return -1;
		count += got;
		lead += (uint32_t)some;
		if (ends)
			at[count++] = lead;
		token += some;
		n -= some;
	}
	return count;
}

/* Sets *@after to the token after the first eos from @token of a source on, or to its end. */
static bool after_eos(const struct pack_in *in, const struct shard *shard, uint64_t token,
	const char *path, uint64_t *after, struct fault *fault)
{
	uint32_t width = shard->facts.token_bytes, tokens[4096];
	uint64_t end = shard->facts.tokens;

	for (*after = end; in->has_eos && token < end;) {
		uint64_t n = end - token < 4096 ? end - token : 4096;

		if (!shard_read(shard, token, n, tokens, fault))
			return ctl_input_fault(path, fault);
		for (uint64_t i = 0; i < n; i++)
			if (value_at(tokens, i, width) == in->eos) {
				*after = token + i + 1;
				return true;
			}
		token += n;
	}
	return true;
}

bool pack_in_boundary(struct pack_in *in, uint64_t token, uint64_t *boundary, struct fault *fault)
{
	*boundary = token;
	if (token >= in->tokens)
		return true;
	uint64_t i = source_at(in, token), at = token - in->source[i].begin;
	const char *path = in->source[i].path;
	bool fine;

	if (at == 0)
		return true;
	const struct shard *shard = acquire(in, i, fault);

	if (!shard)
		return false;
	if (shard->facts.documents != SHARD_UNKNOWN) {
		at = shard_boundary(shard, at - 1, fault);
		fine = at > 0 || ctl_input_fault(path, fault);
	} else {
		fine = after_eos(in, shard, at - 1, path, &at, fault);
	}
	release(in, i, true);
	*boundary = in->source[i].begin + at;
	return fine;
}
