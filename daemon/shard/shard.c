#include "daemon/shard/shard.h"

#include "daemon/shard/bounds.h"
#include "daemon/shard/zstd.h"
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

/* ---- annotations ---- */

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

/* The list of document bounds. It is read if @shard is not NULL. */
static bool find_bounds(const struct bytes *b, const struct shard_hint *hint, struct shard *shard,
	struct shard_facts *facts, struct fault *fault)
{
	bool asked = hint->documents || hint->loss_mask;

	if (asked && !shard && !bounds_side_id(hint->objects, b->path, &facts->bounds, fault))
		return false;
	if (asked && shard) {
		if (!bounds_read(b, facts->tokens, &shard->map, &facts->documents, &facts->bounds,
			    fault))
			return false;
		facts->index_bytes += map_bytes(&shard->map);
	}
	/* A list that is not asked for need not be readable. */
	if (!describe_rows(b, hint, facts, fault) && asked)
		return false;
	if (!asked || !shard || facts->padding == 0 || shard->map.outside == facts->padding)
		return true;
	return fault_set(fault, FAULT_DATA, "",
		"its list of document bounds says %" PRIu64 " tokens of padding, but %" PRIu64
		" are outside documents",
		facts->padding, shard->map.outside);
}

static bool find_mask(const struct shard_format *format, const struct bytes *b,
	const struct shard_hint *hint, struct shard *shard, struct shard_facts *facts,
	struct fault *fault)
{
	struct mask *mask;

	if (!mask_open(format, b, hint, facts->tokens, &mask, fault))
		return false;
	facts->mask = mask ? mask->file->id : 0;
	if (mask)
		facts->index_bytes += sizeof(*mask) + sizeof(*mask->file);
	if (shard)
		shard->mask = mask;
	else
		mask_close(mask);
	return true;
}

/* ---- describing and opening ---- */

/*
 * Content comes before names and keys: foreign files are refused under all of them. Not again for
 * objects that `tokctl inspect` listed.
 */
static const struct shard_format *recognise(const struct shard_format *format,
	const struct bytes *b, const struct shard_hint *hint, struct fault *fault)
{
	const char *kind = foreign_kind(b);

	if (!kind && !format)
		format = shard_recognise(b, fault);
	if (!kind && format && format->raw)
		kind = foreign_to_plain(b, hint->type);
	if (kind)
		foreign_refuse(kind, fault);
	return kind ? NULL : format;
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

/* Reads header and index; the whole index if @map is not NULL. */
static bool scan(const struct shard_format *format, const struct bytes *b,
	const struct bytes *index, const struct shard_hint *hint, struct shard_facts *facts,
	struct map *map, struct fault *fault)
{
	const struct shard_facts *listed = hint->listed;

	*facts = (struct shard_facts){.documents = SHARD_UNKNOWN, .plain = true};
	facts->index = index ? index->id : 0;
	if (listed && listed->plain && !format->indexed) { /* it is known without a read */
		facts->type = listed->type;
		facts->tokens = listed->tokens;
		facts->data_at = listed->data_at;
		return true;
	}
	if (!format->scan(b, index, hint, facts, map, fault))
		return false;
	if (!map)
		return true;
	if (!map_done(map))
		return fault_memory(fault);
	if (map->tokens != facts->tokens)
		return fault_set(fault, FAULT_DATA, "",
			"%s" PHRASE_CHANGED_OPENING ": it has %" PRIu64 " tokens, and had %" PRIu64,
			format->index ? "its index " : "", map->tokens, facts->tokens);
	facts->plain = !map->scattered;
	facts->data_at = map->scattered ? 0 : map->data_at;
	facts->index_bytes = map_bytes(map);
	return !index || bytes_settled(index, fault);
}

/* Fills @facts, and @shard unless it is NULL. Returns the format. */
static const struct shard_format *load(const struct shard_format *format, struct bytes *b,
	const struct shard_hint *hint, struct shard *shard, struct shard_facts *facts,
	struct fault *fault)
{
	struct bytes *index = NULL;
	struct map *map = NULL;

	if (!hint->listed && !(format = recognise(format, b, hint, fault)))
		return NULL;
	if (shard && format->indexed) {
		map = &shard->map;
		map->joins = !hint->documents;
	}
	bool fine = open_index(format, b, &index, fault) &&
		    scan(format, b, index, hint, facts, map, fault) && within(b, facts, fault) &&
		    (format->indexed || find_bounds(b, hint, shard, facts, fault)) &&
		    (!hint->loss_mask || find_mask(format, b, hint, shard, facts, fault));

	if (shard)
		shard->index = index;
	else
		bytes_close(index);
	if (fine)
		finish(b, hint, facts);
	return fine ? format : NULL;
}

/* The first bytes are read once for all formats, so that none takes an error for "not mine". */
static const struct shard_format *load_file(const struct shard_format *format, struct bytes *b,
	const struct shard_hint *hint, struct shard *shard, struct shard_facts *facts,
	struct fault *fault)
{
	uint8_t head[BYTES_HEAD];

	if (!hint->listed) {
		b->head_bytes = b->size < sizeof(head) ? (size_t)b->size : sizeof(head);
		if (bytes_begin(b, head, b->head_bytes, fault))
			b->head = head;
		else if (!format || fault->code != FAULT_DATA) /* its other frames may be good */
			return NULL;
	}
	format = load(format, b, hint, shard, facts, fault);
	b->head = NULL;
	b->path = NULL; /* both were borrowed */
	return format;
}

/* An object that is listed as not compressed is not read to find out. */
static struct bytes *source(
	const char *path, int fd, const struct shard_hint *hint, struct fault *fault)
{
	const struct shard_facts *listed = hint->listed;
	struct bytes *file = bytes_open(fd, path, hint->objects, fault);
	bool packed = file && (!listed || (!listed->plain && listed->frame_bytes > 0)) &&
		      zstd_recognise(file);

	return packed ? zstd_open(file, hint->frames, hint->budget_bytes, fault) : file;
}

const struct shard_format *shard_describe(const struct shard_format *format, const char *path,
	int fd, const struct shard_hint *hint, struct shard_facts *facts, struct fault *fault)
{
	struct bytes *b = source(path, fd, hint, fault);

	format = b ? load_file(format, b, hint, NULL, facts, fault) : NULL;
	bytes_close(b);
	return format;
}

struct shard *shard_open(const struct shard_format *format, const char *path, int fd,
	const struct shard_hint *hint, struct fault *fault)
{
	struct bytes *b = source(path, fd, hint, fault);
	struct shard *shard = b ? calloc(1, sizeof(*shard)) : NULL;

	if (!shard) {
		if (b)
			fault_memory(fault);
		bytes_close(b);
		return NULL;
	}
	shard->bytes = b;
	shard->format = load_file(format, b, hint, shard, &shard->facts, fault);
	if (!shard->format) {
		shard_close(shard);
		return NULL;
	}
	shard->facts.index_bytes += sizeof(*shard) + b->index_bytes;
	bytes_opened(b);
	if (shard->index)
		bytes_opened(shard->index);
	if (shard->mask)
		bytes_opened(shard->mask->file);
	return shard;
}

void shard_close(struct shard *shard)
{
	if (!shard)
		return;
	map_free(&shard->map);
	bytes_close(shard->index);
	mask_close(shard->mask);
	bytes_close(shard->bytes);
	free(shard);
}

unsigned shard_sides(const struct shard *shard, struct shard_side *side)
{
	const struct bytes *index = shard->index, *mask = shard->mask ? shard->mask->file : NULL;
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
	else if (!mask_read(shard->mask, token, n, to, fault))
		return false;
	if (shard->map.outside > 0)
		map_mask(&shard->map, token, n, to);
	return true;
}
