#include "daemon/shard/shard.h"

#include "daemon/shard/ahead.h"
#include "daemon/shard/bounds.h"
#include "daemon/shard/bytes_open.h"
#include "daemon/shard/convert.h"
#include "daemon/shard/foreign.h"
#include "daemon/shard/mask.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	CHUNK_BYTES = 32 * 1024, /* stored tokens that are read and converted at a time */
	ROWS_AT_ONCE = 64,	 /* short runs of tokens that are read at a time */
	GAP_MOST = 1024,	 /* bytes between two runs that are cheaper to read than to skip */
	LARGE_FRAME = 32 << 20,	 /* warn about the memory of larger frames */
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

/* Of i32 tokens, the reader checks that none is negative. */
static bool stored_as_served(const struct shard_facts *facts)
{
	return facts->token_bytes == shard_type_bytes(facts->type) &&
	       (facts->type == SHARD_U16 || facts->type == SHARD_U32 || facts->type == SHARD_I32);
}

/* Fills the facts that do not depend on the format: compression and served width. */
static void finish(const struct bytes *b, const struct shard_hint *hint, struct shard_facts *facts)
{
	if (facts->token_bytes == 0)
		facts->token_bytes = shard_served(facts->type, hint);
	facts->sample_tokens = shard_sample(facts, hint);
	facts->frame_bytes = b->frame_bytes;
	facts->plain = facts->plain && b->plain && stored_as_served(facts);
	if (facts->tokens == 0 && !facts->note[0])
		snprintf(facts->note, sizeof(facts->note), "has no tokens");
	if (facts->frame_bytes >= LARGE_FRAME && !facts->note[0])
		snprintf(facts->note, sizeof(facts->note),
			"the largest of its %" PRIu64 " zstd frames decodes to %" PRIu64
			" MiB, which every window in it needs; compress it in frames of 256 KiB",
			b->frames, facts->frame_bytes >> 20);
}

/* Whether the tokens are within the file, for every format. */
static bool within(const struct bytes *b, const struct shard_facts *facts, struct fault *fault)
{
	uint64_t width = shard_type_bytes(facts->type);

	if (!facts->plain ||
		(facts->data_at <= b->size && facts->tokens <= (b->size - facts->data_at) / width))
		return true;
	return fault_set(fault, FAULT_DATA, "",
		"its header claims %" PRIu64 " tokens of %s from byte %" PRIu64
		" on; the file has only %" PRIu64 " bytes",
		facts->tokens, shard_type_name(facts->type), facts->data_at, b->size);
}

/* Rows that `tokctl pack --fit` made are samples, whether their list is asked for or not. */
static bool describe_rows(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, struct fault *fault)
{
	uint64_t row;

	if (hint->listed) {
		facts->sample_tokens = hint->listed->sample_tokens;
		return true;
	}
	if (!bounds_rows(b, facts->tokens, &row, &facts->padding, fault))
		return false;
	if (row > 0)
		facts->sample_tokens = row;
	if (facts->padding > 0 && !hint->loss_mask)
		snprintf(facts->note, sizeof(facts->note),
			"%.3f %% of it is padding, which is trained on; set loss_mask: true",
			100.0 * (double)facts->padding / (double)facts->tokens);
	return true;
}

/* The side files that the hint asks for. */
static bool describe_annotations(const struct shard_format *format, const struct bytes *b,
	const struct shard_hint *hint, struct shard_facts *facts, struct fault *fault)
{
	bool asked = hint->documents || hint->loss_mask;
	struct mask *mask = NULL;

	if (asked && !format->indexed &&
		!bounds_side_id(hint->objects, b->path, &facts->bounds, fault))
		return false;
	if (!format->indexed && !describe_rows(b, hint, facts, fault) && asked)
		return false;
	if (hint->loss_mask && !mask_open(format, b, hint, facts->tokens, &mask, fault))
		return false;
	facts->mask = mask ? mask_id(mask) : 0;
	mask_close(mask);
	return true;
}

/*
 * A format that could not read the first bytes reports "not mine". Report the read error instead.
 */
static void tell_unread(const struct fault *unread, struct fault *fault)
{
	if (fault->code == FAULT_DATA && unread->code != FAULT_NONE)
		*fault = *unread;
}

/*
 * A file that no format recognises is flat, so every format must have been able to read its first
 * bytes.
 */
static const struct shard_format *recognise(const struct bytes *b, struct fault *fault)
{
	const struct shard_format *format = shard_recognise(b, fault);

	if (!format || (b->unread->error == 0 && b->unread->code != FAULT_CHANGED &&
			       b->unread->code != FAULT_PERMISSION))
		return format;
	*fault = *b->unread;
	return NULL;
}

/*
 * Content comes before names and keys: foreign files are refused under all of them. Not again for
 * objects that `tokctl inspect` listed.
 */
static bool check_content(const struct shard_format *format, const struct bytes *b,
	const struct shard_hint *hint, struct fault *fault)
{
	const char *kind = hint->listed	 ? NULL
			   : !format	 ? foreign_kind(b)
			   : format->raw ? foreign_to_plain(b, hint->type)
					 : NULL;

	return !kind || foreign_refuse(kind, fault);
}

/* Opens the index next to a shard, if its format has one; *@index is NULL if there is none. */
static bool open_index(const struct shard_format *format, const struct bytes *b,
	struct bytes **index, struct fault *fault)
{
	char path[PATH_MAX];

	*index = NULL;
	if (!format->index || !bytes_side_path(b->path, format->index->shard, format->index->side,
				      path, sizeof(path)))
		return true;
	if (!bytes_open_side(b, path, index, fault))
		return false;
	if (*index)
		(*index)->path = NULL; /* it is here only */
	return true;
}

/* An object that `tokctl inspect` listed is not read before it is opened. */
static bool describe_listed(const struct shard_format *format, const struct bytes *index,
	const struct shard_facts *listed, struct shard_facts *facts)
{
	facts->type = listed->type;
	facts->tokens = listed->tokens;
	facts->data_at = listed->data_at;
	facts->sample_tokens = listed->sample_tokens;
	facts->plain = listed->plain || !format->indexed;
	if (format->indexed && (index || !format->index) && !listed->sample_tokens)
		facts->documents = 0; /* they are counted when it is opened */
	return true;
}

static bool describe(const struct shard_format *format, const struct bytes *b,
	const struct shard_hint *hint, struct shard_facts *facts, struct fault *fault)
{
	const struct shard_facts *listed = hint->listed;
	struct bytes *index;

	*facts = (struct shard_facts){.documents = SHARD_UNKNOWN, .plain = true};
	if (!open_index(format, b, &index, fault))
		return false;
	facts->index = index ? index->id : 0;
	bool fine = listed && (listed->plain || format->indexed)
			    ? describe_listed(format, index, listed, facts)
			    : format->scan(b, index, hint, facts, NULL, fault);

	bytes_close(index);
	return fine;
}

struct bytes *shard_source(
	const char *path, int fd, const struct shard_hint *hint, struct fault *fault)
{
	const struct shard_facts *listed = hint->listed;

	if (listed && (listed->plain || listed->frame_bytes == 0))
		return bytes_open_raw(fd, path, hint->objects, fault);
	return bytes_open(fd, path, hint->objects, hint->frames, hint->budget_bytes, fault);
}

const struct shard_format *shard_describe_bytes(const struct shard_format *format, struct bytes *b,
	const struct shard_hint *hint, struct shard_facts *facts, struct fault *fault)
{
	struct fault unread = {.code = FAULT_NONE};

	b->unread = &unread;
	if (!check_content(NULL, b, hint, fault))
		format = NULL;
	else if (!format)
		format = recognise(b, fault);
	if (format) {
		if (!check_content(format, b, hint, fault) || !bytes_check(b, fault) ||
			!describe(format, b, hint, facts, fault) || !within(b, facts, fault) ||
			!describe_annotations(format, b, hint, facts, fault))
			format = NULL;
		else
			finish(b, hint, facts);
	}
	if (!format)
		tell_unread(&unread, fault);
	b->unread = NULL;
	return format;
}

const struct shard_format *shard_describe(const struct shard_format *format, const char *path,
	int fd, const struct shard_hint *hint, struct shard_facts *facts, struct fault *fault)
{
	struct bytes *b = shard_source(path, fd, hint, fault);

	format = b ? shard_describe_bytes(format, b, hint, facts, fault) : NULL;
	bytes_close(b);
	return format;
}

/* ---- open shards ---- */

static bool open_annotations(
	struct shard *shard, const struct shard_hint *hint, struct fault *fault)
{
	const struct bytes *b = shard->bytes;

	struct shard_facts *facts = &shard->facts;

	if (facts->bounds) {
		if (!bounds_open(b, facts->tokens, &shard->bounds, fault))
			return false;
		if (!shard->bounds || bounds_id(shard->bounds) != facts->bounds)
			return fault_set(fault, FAULT_DATA, "",
				"its list of document bounds " PHRASE_CHANGED_OPENING);
		facts->documents = bounds_documents(shard->bounds);
		if (facts->padding > 0 && bounds_outside(shard->bounds) != facts->padding)
			return fault_set(fault, FAULT_DATA, "",
				"its list of document bounds says %" PRIu64
				" tokens of padding, but %" PRIu64 " are outside documents",
				facts->padding, bounds_outside(shard->bounds));
	}
	if (!facts->mask)
		return true;
	if (!mask_open(shard->format, b, hint, facts->tokens, &shard->mask, fault))
		return false;
	return (shard->mask && mask_id(shard->mask) == facts->mask) ||
	       fault_set(fault, FAULT_DATA, "", "its loss mask " PHRASE_CHANGED_OPENING);
}

/* Reads the format's index, or what its shards have instead. */
static bool open_map(struct shard *shard, const struct shard_hint *hint, struct fault *fault)
{
	const struct shard_format *format = shard->format;
	struct shard_facts *facts = &shard->facts, now = {.documents = SHARD_UNKNOWN};
	struct map *map = &shard->map;

	map->joins = !hint->documents;
	if (!format->indexed)
		return true;
	if (!open_index(format, shard->bytes, &shard->index, fault) ||
		!format->scan(shard->bytes, shard->index, hint, &now, map, fault))
		return false;
	if (!map_done(map))
		return fault_memory(fault);
	if (now.tokens != facts->tokens || now.type != facts->type ||
		(shard->index ? shard->index->id : 0) != facts->index || map->tokens != now.tokens)
		return fault_set(fault, FAULT_DATA, "",
			"%s" PHRASE_CHANGED_OPENING ": it has %" PRIu64
			" tokens of %s, and had %" PRIu64 " of %s",
			format->index ? "its index " : "", now.tokens, shard_type_name(now.type),
			facts->tokens, shard_type_name(facts->type));
	facts->documents = now.documents;
	facts->plain = !map->scattered;
	facts->data_at = map->scattered ? 0 : map->data_at;
	facts->index_bytes = map_bytes(map);
	return !shard->index || bytes_settled(shard->index, fault);
}

struct shard *shard_open_bytes(const struct shard_format *format, struct bytes *b,
	const struct shard_hint *hint, const struct shard_facts *facts, struct fault *fault)
{
	struct shard *shard = calloc(1, sizeof(*shard));
	struct fault unread = {.code = FAULT_NONE};

	if (!shard) {
		bytes_close(b);
		fault_memory(fault);
		return NULL;
	}
	shard->format = format;
	shard->facts = *facts;
	shard->bytes = b;
	b->unread = &unread;
	if (!open_map(shard, hint, fault)) {
		tell_unread(&unread, fault);
		goto fail;
	}
	if (!within(b, &shard->facts, fault) || !open_annotations(shard, hint, fault))
		goto fail;
	finish(b, hint, &shard->facts);
	shard->facts.index_bytes += sizeof(*shard) + b->index_bytes;
	if (shard->bounds)
		shard->facts.index_bytes += bounds_bytes(shard->bounds);
	if (shard->mask)
		shard->facts.index_bytes += mask_bytes(shard->mask);
	b->path = NULL; /* both were borrowed */
	b->unread = NULL;
	ahead_end(b->ahead);
	return shard;
fail:
	shard_close(shard);
	return NULL;
}

struct shard *shard_open(const struct shard_format *format, const char *path, int fd,
	const struct shard_hint *hint, const struct shard_facts *facts, struct fault *fault)
{
	struct bytes *b = shard_source(path, fd, hint, fault);

	return b ? shard_open_bytes(format, b, hint, facts, fault) : NULL;
}

void shard_close(struct shard *shard)
{
	if (!shard)
		return;
	map_free(&shard->map);
	bytes_close(shard->index);
	bounds_close(shard->bounds);
	mask_close(shard->mask);
	bytes_close(shard->bytes);
	free(shard);
}

unsigned shard_sides(const struct shard *shard, struct shard_side *side)
{
	const struct bytes *index = shard->index,
			   *mask = shard->mask ? mask_file(shard->mask) : NULL;
	unsigned n = 0;

	if (index && index->fd >= 0)
		side[n++] = (struct shard_side){index->fd, index->id, "its index: "};
	if (mask && mask->fd >= 0)
		side[n++] = (struct shard_side){mask->fd, mask->id, "its loss mask: "};
	return n;
}

/* ---- reading ---- */

/* Reports the first of the @n tokens from @token on that does not fit the served width. */
static bool refuse_token(const struct shard *shard, const char *from, uint64_t token, uint64_t n,
	struct fault *fault)
{
	const struct shard_facts *facts = &shard->facts;
	uint64_t most = facts->token_bytes == 2 ? UINT16_MAX : UINT32_MAX, value = 0;

	token += convert_first_unfit(facts->type, facts->token_bytes, from, n, &value);
	if (shard_type_signed(facts->type) && (int64_t)value < 0)
		return fault_set(fault, FAULT_TOKEN, "",
			"token %" PRIu64 " is %" PRId64 "; must be 0 to %" PRIu64
			"; tokenize the shard again",
			token, (int64_t)value, most);
	return fault_set(fault, FAULT_TOKEN, "",
		"token %" PRIu64 " is %" PRIu64 "; must be 0 to %" PRIu64 "%s", token, value, most,
		most == UINT16_MAX ? ", or set dtype: u32" : "");
}

/* A call of shard_read() or shard_try(). */
struct reading {
	const struct shard *shard;
	struct shard_place place; /* of the first token, as far as it is known */
	bool wait;		  /* false: fail, without filling @fault, if it would block */
	struct fault *fault;
};

static bool get(const struct reading *r, uint64_t byte, void *to, size_t n)
{
	const struct bytes *b = r->shard->bytes;

	return r->wait ? bytes_read(b, byte, to, n, r->fault) : bytes_try(b, byte, to, n);
}

/* Contiguous tokens from @byte on. */
struct row {
	uint64_t token, tokens, byte;
};

/* Finds the row that begins with @token, at most @most tokens of it. */
static void row_at(const struct reading *r, uint64_t token, uint64_t most, struct row *row)
{
	const struct shard *shard = r->shard;
	const struct shard_facts *facts = &shard->facts;

	*row = (struct row){token, most, facts->data_at + token * shard_type_bytes(facts->type)};
	if (!shard->map.scattered)
		return;
	uint64_t tokens = r->place.tokens;

	if (tokens > 0 && token == r->place.token)
		row->byte = r->place.byte;
	else
		tokens = map_extent(&shard->map, token, most, &row->byte);
	row->tokens = tokens < most ? tokens : most;
}

/* Whether tokens are served without conversion or checks. */
static bool as_is(const struct shard_facts *facts)
{
	return shard_type_bytes(facts->type) == facts->token_bytes &&
	       !shard_type_signed(facts->type);
}

static bool convert(const struct reading *r, const struct row *row, const char *from, void *to)
{
	const struct shard *shard = r->shard;
	const struct shard_facts *facts = &shard->facts;

	if (as_is(facts)) {
		memcpy(to, from, row->tokens * facts->token_bytes);
		return true;
	}
	if (convert_tokens(facts->type, facts->token_bytes, from, row->tokens, to))
		return true;
	return refuse_token(shard, from, row->token, row->tokens, r->fault);
}

/*
 * Reads @row and the rows shortly after it in the file with one read. Returns the number of tokens
 * that were read; 0: r->fault.
 */
static uint64_t read_rows(const struct reading *r, struct row *row, uint64_t n, char *to)
{
	const struct shard_facts *facts = &r->shard->facts;
	char chunk[CHUNK_BYTES];
	struct row rows[ROWS_AT_ONCE];
	uint32_t width = shard_type_bytes(facts->type), count = 0;
	uint64_t from = row->byte, end, done = 0;

	do {
		uint64_t most = (CHUNK_BYTES - (row->byte - from)) / width;

		row->tokens = row->tokens < most ? row->tokens : most;
		end = row->byte + row->tokens * width;
		done += row->tokens;
		rows[count++] = *row;
		if (done == n || row->tokens == most || count == ROWS_AT_ONCE)
			break;
		row_at(r, row->token + row->tokens, n - done, row);
	} while (row->byte >= end && row->byte - end <= GAP_MOST &&
		 row->byte + width <= from + CHUNK_BYTES);
	if (!get(r, from, chunk, end - from))
		return 0;
	for (uint32_t i = 0; i < count; i++) {
		if (!convert(r, &rows[i], chunk + (rows[i].byte - from), to))
			return 0;
		to += rows[i].tokens * facts->token_bytes;
	}
	return done;
}

static bool read_tokens(const struct reading *r, uint64_t token, uint64_t n, char *to)
{
	const struct shard_facts *facts = &r->shard->facts;

	while (n > 0) {
		struct row row;
		uint64_t done;

		row_at(r, token, n, &row);
		done = row.tokens;
		if (as_is(facts) && row.tokens == n) {
			if (!get(r, row.byte, to, n * facts->token_bytes))
				return false;
		} else {
			done = read_rows(r, &row, n, to);
			if (done == 0)
				return false;
		}
		token += done;
		to += done * facts->token_bytes;
		n -= done;
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
	const struct reading r = {shard, {.tokens = 0}, true, fault};

	if (!within_shard(shard, token, n))
		return fault_set(fault, FAULT_ARGUMENT, "",
			"tokens %" PRIu64 " to %" PRIu64 " were requested; it has %" PRIu64, token,
			token + n, shard->facts.tokens);
	return read_tokens(&r, token, n, to);
}

struct shard_place shard_find(const struct shard *shard, uint64_t token, uint64_t n)
{
	struct shard_place place = {.token = token};

	if (shard->map.scattered && token < shard->facts.tokens)
		place.tokens = map_extent(&shard->map, token, n, &place.byte);
	return place;
}

bool shard_as_is(const struct shard *shard, const struct shard_place *place, uint64_t n)
{
	return place->tokens >= n && shard->bytes->plain && stored_as_served(&shard->facts);
}

bool shard_try(const struct shard *shard, struct shard_place place, uint64_t n, void *to)
{
	struct fault fault;
	const struct reading r = {shard, place, false, &fault};

	return within_shard(shard, place.token, n) && read_tokens(&r, place.token, n, to);
}

uint64_t shard_boundary(const struct shard *shard, uint64_t token)
{
	return shard->bounds	      ? bounds_next(shard->bounds, token)
	       : shard->map.spans > 0 ? map_find(&shard->map, token).end
				      : shard->facts.tokens;
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
	else if (!mask_read(shard->mask, token, n, to, fault))
		return false;
	if (shard->bounds)
		bounds_mask(shard->bounds, token, n, to);
	return true;
}
