/*
 * Shards are opened when they are read, and closed at their end: there may be more than a process
 * can have open.
 */
#include "client/ctl/offline/pack_in.h"

#include "client/ctl/offline/scan.h"
#include "daemon/shard/bounds.h"
#include "daemon/shard/mask.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- listing ---- */

/* Must be the same each time the shard is opened. */
static uint64_t identity_of(const struct shard *shard, const struct stat *st)
{
	const uint64_t facts[] = {(uint64_t)st->st_size, (uint64_t)st->st_mtim.tv_sec,
		(uint64_t)st->st_mtim.tv_nsec, shard->facts.tokens, shard->facts.token_bytes,
		shard->facts.index, shard->facts.bounds};

	return XXH64(facts, sizeof(facts), 0);
}

static void note_loss(struct pack_in *in, enum pack_loss what)
{
	if (in->loss[what].sources++ == 0)
		in->loss[what].first = in->sources;
}

static void note_losses(struct pack_in *in, const char *path, const struct shard *shard)
{
	struct fault fault;
	uint32_t id;
	bool listed = !shard->format->document && (!bounds_side_id(path, &id, &fault) || id != 0);

	if (!in->input.hint.documents &&
		(listed || (shard->facts.documents != SHARD_UNKNOWN && shard->facts.documents > 1)))
		note_loss(in, PACK_DOCUMENTS);
	if (shard->bounds && bounds_outside(shard->bounds) > 0)
		note_loss(in, PACK_OUTSIDE);
	if (mask_side_id(shard->format, path))
		note_loss(in, PACK_MASK);
}

static bool keep_source(struct pack_in *in, const char *path, const struct shard *shard,
	const struct stat *st, struct fault *fault)
{
	struct pack_source *s = &in->source[in->sources];

	*s = (struct pack_source){.path = strdup(path),
		.begin = in->tokens,
		.tokens = shard->facts.tokens,
		.identity = identity_of(shard, st),
		.fd = -1};
	if (!s->path)
		return fault_memory(fault);
	note_losses(in, path, shard);
	in->sources++;
	in->digest =
		XXH64(&s->identity, sizeof(s->identity), XXH64(path, strlen(path), in->digest));
	if (shard->facts.token_bytes > in->token_bytes)
		in->token_bytes = shard->facts.token_bytes;
	return !__builtin_add_overflow(in->tokens, s->tokens, &in->tokens) ||
	       fault_set(fault, FAULT_DATA, "",
		       "%s: the inputs up to here have more than 2^64 tokens", path);
}

static bool add_source(struct pack_in *in, const char *path, struct fault *fault)
{
	struct stat st = {0};
	int fd;

	if (in->sources == in->room) {
		uint64_t room = in->room ? 2 * in->room : 64;
		struct pack_source *source = realloc(in->source, room * sizeof(*source));

		if (!source)
			return fault_memory(fault);
		in->source = source;
		in->room = room;
	}
	struct shard *shard = ctl_input_open(&in->input, path, &fd, fault);
	bool fine = shard && fstat(fd, &st) == 0;

	if (!shard)
		fault_prefix(fault, "%s: ", path);
	else if (!fine)
		fault_errno(fault, errno, "", "%s: %s", path, strerror(errno));
	else
		fine = keep_source(in, path, shard, &st, fault);
	shard_close(shard);
	if (fd >= 0)
		close(fd);
	return fine;
}

void pack_in_begin(struct pack_in *in)
{
	pthread_mutex_init(&in->lock, NULL);
}

bool pack_in_add(struct pack_in *in, char *const *path, int n, struct fault *fault)
{
	char name[PATH_MAX + 1];
	struct shard_list list;
	bool fine = true;
	size_t prefix;

	for (int i = 0; fine && i < n; i++) {
		if (!ctl_input_list(&list, path[i], &prefix, fault))
			return fault_prefix(fault, "%s: ", path[i]);
		for (uint64_t f = 0; fine && f < list.count; f++) {
			ctl_input_name(&list, f, path[i], prefix, name, sizeof(name));
			fine = add_source(in, name, fault);
		}
		shard_list_free(&list);
	}
	return fine;
}

static void close_source(struct pack_source *s)
{
	shard_close(s->shard);
	if (s->fd >= 0)
		close(s->fd);
	s->shard = NULL;
	s->fd = -1;
	s->ended = false;
}

void pack_in_end(struct pack_in *in)
{
	for (uint64_t i = 0; i < in->sources; i++) {
		close_source(&in->source[i]);
		free(in->source[i].path);
	}
	free(in->source);
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

static const struct shard *acquire(struct pack_in *in, uint64_t i, struct fault *fault)
{
	struct pack_source *s = &in->source[i];

	pthread_mutex_lock(&in->lock);
	if (!s->shard) {
		struct stat st;

		s->shard = ctl_input_open(&in->input, s->path, &s->fd, fault);
		if (s->shard &&
			(fstat(s->fd, &st) != 0 || identity_of(s->shard, &st) != s->identity)) {
			fault_set(fault, FAULT_CHANGED, "",
				"the file or a side file has changed since packing began (size or "
				"time)");
			shard_close(s->shard);
			s->shard = NULL;
		}
		if (!s->shard) {
			fault_prefix(fault, "%s: ", s->path);
			close_source(s);
		}
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
		close_source(s);
	pthread_mutex_unlock(&in->lock);
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
		fault_prefix(fault, "%s: ", path);
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
			fault_prefix(fault, "%s: ", path);
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
	return next > 0 || fault_prefix(fault, "%s: ", path);
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
			return fault_prefix(fault, "%s: ", path);
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
		fine = at > 0 || fault_prefix(fault, "%s: ", path);
	} else {
		fine = after_eos(in, shard, at - 1, path, &at, fault);
	}
	release(in, i, true);
	*boundary = in->source[i].begin + at;
	return fine;
}
