#include "daemon/shard/shard.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	CHUNK_BYTES = 32 * 1024, /* stored tokens that are read and converted at a time */
	LARGE_FRAME = 32 << 20,	 /* warn about the memory of larger frames */
	HEADER_MOST = 256,	 /* bytes of a sample's shape: 63 dimensions of 4 bytes */
};

uint32_t shard_served(enum shard_type type, const struct shard_hint *hint)
{
	uint32_t bytes = shard_type_bytes(type) < 4 ? 2 : 4;

	if (shard_type_bytes(type) == 8 && hint->has_type && hint->type == SHARD_U16)
		bytes = 2;
	return bytes < hint->token_bytes ? hint->token_bytes : bytes;
}

uint64_t shard_sample(const struct shard_facts *facts, const struct shard_hint *hint)
{
	return facts->row_tokens && facts->row_tokens == hint->window_tokens ? facts->row_tokens
									     : facts->sample_tokens;
}

bool shard_as_served(enum shard_type type, uint32_t token_bytes)
{
	return token_bytes == shard_type_bytes(type) &&
	       (type == SHARD_U16 || type == SHARD_U32 || type == SHARD_I32);
}

/* Fills the facts that do not depend on the format: compression and served width. */
static void finish(const struct bytes *b, const struct shard_hint *hint, struct shard_facts *facts)
{
	uint64_t row = facts->row_tokens;

	facts->token_bytes = shard_served(facts->type, hint);
	facts->sample_tokens = shard_sample(facts, hint);
	facts->frame_bytes = b->frame_bytes;
	assert(!facts->plain ||
		facts->data_at + facts->tokens * shard_type_bytes(facts->type) <= b->size);
	facts->plain = facts->plain && b->plain && shard_as_served(facts->type, facts->token_bytes);
	if (facts->tokens == 0 && !facts->note[0])
		snprintf(facts->note, sizeof(facts->note), "has no tokens");
	if (row > 1 && row < facts->tokens && hint->window_tokens > 0 && !facts->sample_tokens &&
		!facts->note[0])
		snprintf(facts->note, sizeof(facts->note),
			"all its rows have %" PRIu64
			" tokens, and are joined; to make each a window, set seq_len: %" PRIu64
			" and extra: 0",
			row, row);
	if (facts->frame_bytes >= LARGE_FRAME && !facts->note[0])
		snprintf(facts->note, sizeof(facts->note),
			"the largest of its zstd frames decodes to %" PRIu64
			" MiB, which every window in it needs; compress it in frames of 256 KiB",
			facts->frame_bytes >> 20);
}

/* ---- opening ---- */

/* The index was read: what it says about where tokens are. */
static bool take_map(struct shard *shard, struct fault *fault)
{
	struct shard_facts *facts = &shard->facts;
	struct map *map = &shard->map;

	if (!map_done(map))
		return fault_memory(fault);
	facts->tokens = map->tokens;
	facts->plain = !map->scattered;
	facts->data_at = map->scattered ? 0 : map->data_at;
	return !shard->index || bytes_settled(shard->index, fault);
}

/* Reads the first bytes, for all formats, so that none takes an error for "not mine". */
static bool read_head(struct bytes *b, uint8_t head[BYTES_HEAD], struct fault *fault)
{
	b->head = memset(head, 0, BYTES_HEAD);
	return bytes_begin(b, head, b->size < BYTES_HEAD ? b->size : BYTES_HEAD, fault);
}

/* Fills @shard, whose format may be NULL, and which has the file as it is stored: reads header,
 * index and list of document bounds; all of them if @whole. */
static bool load(
	struct shard *shard, const struct shard_hint *hint, bool whole, struct fault *fault)
{
	struct bytes *b = shard->bytes;
	struct shard_facts *facts = &shard->facts;
	uint8_t head[BYTES_HEAD];
	char path[PATH_MAX];

	if (!read_head(b, head, fault))
		return false;
	if (zstd_recognise(b)) {
		b = shard->bytes = zstd_open(b, hint->frames, hint->budget_bytes, fault);
		if (!b || !read_head(b, head, fault))
			return false;
	}
	/* Sparse files may be as large as any number. */
	if (!bytes_check(fault, (int64_t)b->size, 0, INT64_MAX >> 3, "its size"))
		return false;
	const struct shard_format *format = shard_recognise(b, shard->format, hint->type, fault);

	if (!format || !side_open(SIDE_INDEX, format, b, hint, path, &shard->index, fault))
		return false;
	const struct shard_scan s = {b, shard->index, hint, facts, &shard->map, fault};

	shard->format = format;
	shard->map = (struct map){.joins = !whole || !hint->documents, .counts = !whole};
	*facts = (struct shard_facts){.documents = SHARD_UNKNOWN, .plain = true};
	facts->index = shard->index ? shard->index->id : 0;
	if (!format->scan(&s) || !(format->indexed ? take_map(shard, fault) : bounds_scan(&s)) ||
		(hint->loss_mask && !mask_open(format, &s, &shard->mask)))
		return false;
	finish(b, hint, facts);
	return true;
}

struct shard *shard_open(const struct shard_format *format, const char *path, int fd,
	const struct shard_hint *hint, bool whole, struct fault *fault)
{
	struct shard *shard = calloc(1, sizeof(*shard));

	if (!shard) {
		fault_memory(fault);
		return NULL;
	}
	shard->format = format;
	shard->bytes = bytes_open(fd, path, hint->objects, fault);
	if (!shard->bytes || !load(shard, hint, whole, fault)) {
		shard_close(shard);
		return NULL;
	}
	shard->facts.index_bytes =
		sizeof(*shard) + shard->bytes->index_bytes + map_bytes(&shard->map);
	bytes_opened(shard->bytes);
	bytes_opened(shard->index);
	bytes_opened(shard->mask);
	return shard;
}

void shard_close(struct shard *shard)
{
	if (!shard)
		return;
	map_free(&shard->map);
	bytes_close(shard->index);
	bytes_close(shard->mask);
	bytes_close(shard->bytes);
	free(shard);
}

/* ---- reading ---- */

/* Reports the first of the tokens from @token on that does not fit the served width. */
static bool refuse_token(
	const struct shard_facts *facts, const char *from, uint64_t token, struct fault *fault)
{
	uint64_t most = facts->token_bytes == 2 ? UINT16_MAX : UINT32_MAX, value = 0;
	uint32_t width = shard_type_bytes(facts->type), unused = 64 - 8 * width, served;

	for (; convert_tokens(facts->type, facts->token_bytes, from, 1, &served); from += width)
		token++;
	memcpy(&value, from, width);
	bool negative = shard_type_signed(facts->type) && value >> (8 * width - 1);

	return fault_set(fault, FAULT_TOKEN, "",
		"token %" PRIu64 " is %s%" PRIu64 "; must be 0 to %" PRIu64 "%s", token,
		negative ? "-" : "", negative ? -value << unused >> unused : value, most,
		negative	     ? "; tokenize the shard again"
		: most == UINT16_MAX ? ", or set dtype: u32"
				     : "");
}

/* As map_extent(). */
static uint64_t extent(const struct shard *shard, struct map_span *from, uint64_t token, uint64_t n,
	uint64_t *byte)
{
	const struct shard_facts *facts = &shard->facts;

	if (shard->map.scattered)
		return map_extent(&shard->map, from, token, n, byte);
	*byte = facts->data_at + token * shard_type_bytes(facts->type);
	return n;
}

/*
 * Sets the header that must be before the span with @token, unless it was compared. Where it cannot
 * state another type, tokens that a header of 63 dimensions would not reach are where they seem to
 * be, whatever it is.
 */
static void find_header(const struct shard *shard, const struct map_span *span, uint64_t token,
	bool compared, struct shard_place *place)
{
	uint64_t after = (token - span->begin) * shard_type_bytes(shard->facts.type);
	unsigned least = after < HEADER_MOST ? 1 : compared ? 3 : 2;

	place->header_bytes = shard->map.presumed < least
				      ? 0
				      : mds_header(shard->map.presumed, shard->facts.type,
						span->end - span->begin, place->header);
}

static bool refuse_header(const struct shard *shard, const struct map_span *span,
	const struct shard_place *place, struct fault *fault)
{
	return fault_data(fault,
		"the header of the sample at byte %" PRIu64
		" must be that of one dimension and %" PRIu64
		" tokens of %s, as its size and sample 0 tell: it is damaged, or samples have "
		"other dimensions or types; write the shard again, all samples alike",
		span->at - place->header_bytes, span->end - span->begin,
		shard_type_name(shard->facts.type));
}

/* If the tokens are scattered closely, reads also what is between them. @fault: NULL: it must not
 * wait, and does not say what is wrong. */
static bool read_tokens(const struct shard *shard, struct map_span *span, uint64_t token,
	uint64_t n, char *to, struct fault *fault)
{
	const struct shard_facts *facts = &shard->facts;
	uint32_t width = shard_type_bytes(facts->type);
	uint64_t from = 0, have = 0, byte, end, some; /* from, have: what is in the chunk */
	bool as_is = shard_as_served(facts->type, facts->token_bytes) &&
		     (!fault || facts->type != SHARD_I32);
	uint8_t header[SHARD_HEADER_MOST];
	struct shard_place place;
	char chunk[CHUNK_BYTES];

	for (; n > 0; token += some, to += some * facts->token_bytes, n -= some) {
		some = extent(shard, span, token, n, &byte);
		find_header(shard, span, token, have > 0, &place);
		unsigned before = token == span->begin ? place.header_bytes : 0; /* to read, too */

		if (byte - before < from || byte + width > from + have) {
			struct map_span last = *span;

			if (some == n && as_is && place.header_bytes == 0)
				return bytes_read(shard->bytes, byte, to, n * width, fault);
			extent(shard, &last, token + n - 1, 1, &end);
			bool close = end >= byte && end - byte <= 2 * n * width;

			from = byte - before;
			have = close ? end + width - from : before + some * width;
			have = have < CHUNK_BYTES ? have : CHUNK_BYTES;
			if (!bytes_read(shard->bytes, from, chunk, have, fault))
				return false;
		}
		if (before == place.header_bytes)
			memcpy(header, chunk + (byte - before - from), before);
		else if (!bytes_read(shard->bytes, span->at - place.header_bytes, header,
				 place.header_bytes, fault))
			return false;
		if (memcmp(header, place.header, place.header_bytes) != 0)
			return fault && refuse_header(shard, span, &place, fault);
		uint64_t inside = (from + have - byte) / width;

		some = some < inside ? some : inside;
		const char *stored = chunk + (byte - from);

		if (as_is)
			memcpy(to, stored, some * width);
		else if (!convert_tokens(facts->type, facts->token_bytes, stored, some, to))
			return fault && refuse_token(facts, stored, token, fault);
	}
	return true;
}

static bool within_shard(const struct shard *shard, uint64_t token, uint64_t n)
{
	return token <= shard->facts.tokens && n <= shard->facts.tokens - token;
}

bool shard_read(
	const struct shard *shard, uint64_t token, uint64_t n, void *to, struct fault *fault)
{
	struct map_span span = {0};

	if (!within_shard(shard, token, n))
		return fault_set(fault, FAULT_ARGUMENT, "",
			"tokens %" PRIu64 " to %" PRIu64 " were requested; it has %" PRIu64, token,
			token + n, shard->facts.tokens);
	return read_tokens(shard, &span, token, n, to, fault);
}

bool shard_try(
	const struct shard *shard, uint64_t token, uint64_t n, void *to, struct shard_place *place)
{
	struct map_span span = {0};

	if (!within_shard(shard, token, n))
		return false;
	if (place && shard->bytes->plain &&
		shard_as_served(shard->facts.type, shard->facts.token_bytes) &&
		extent(shard, &span, token, n, &place->byte) == n) {
		find_header(shard, &span, token, false, place);
		if (place->header_bytes == 0 || token == span.begin)
			return true;
	}
	if (place)
		*place = (struct shard_place){.byte = SHARD_UNKNOWN};
	return read_tokens(shard, &span, token, n, to, NULL);
}

uint64_t shard_boundary(const struct shard *shard, uint64_t token)
{
	return shard->map.spans > 0 ? map_find(&shard->map, token).end : shard->facts.tokens;
}

uint32_t shard_documents(
	const struct shard *shard, uint64_t token, uint64_t n, uint32_t *at, uint32_t max)
{
	uint64_t end = shard->facts.tokens, boundary = token;
	uint32_t count = 0;

	if (shard->facts.documents == SHARD_UNKNOWN || token >= end)
		return 0;
	end = n < end - token ? token + n : end;
	while (count < max && boundary < end) {
		boundary = shard_boundary(shard, boundary);
		if (boundary >= end || boundary - token > UINT32_MAX)
			break;
		at[count++] = (uint32_t)(boundary - token);
	}
	return count;
}

bool shard_loss_mask(
	const struct shard *shard, uint64_t token, uint64_t n, uint8_t *to, struct fault *fault)
{
	if (!shard->mask)
		memset(to, 1, n);
	else if (!bytes_read(shard->mask, token, to, n, fault))
		return fault_prefix(fault, "its loss mask: ");
	for (uint64_t i = 0; shard->mask && i < n; i++) {
		uint8_t value = to[i]; /* clients can write to @to */

		if (value > 1)
			return fault_data(fault,
				"its loss mask: the value of token %" PRIu64
				" is %u; must be 0 or 1",
				token + i, value);
	}
	if (shard->map.outside > 0)
		map_mask(&shard->map, token, n, to);
	return true;
}
