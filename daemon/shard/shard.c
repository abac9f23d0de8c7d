/*
 * The table of formats; what is the same in all of them: to recognise, to gather, to convert; and
 * what to say of a file that is none of them.
 *
 * A ninth format is one file (recognise() and describe(); open(), close(), extent() and document()
 * if its tokens do not lie in a row or it knows its documents) and one line in `formats`, above
 * flat, with its name in the list at the end of shard.h. Compression, companions, widths, config,
 * inspect and pack follow.
 */
#include "daemon/shard/shard.h"

#include "daemon/shard/bounds.h"
#include "daemon/shard/mask.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the order in which they are asked: flat files have no annotations, so they come last. */
static const struct shard_format *const formats[] = {
	&shard_megatron,
	&shard_npy,
	&shard_llmc,
	&shard_arrow,
	&shard_datatrove,
	&shard_mds,
	&shard_flat,
};

enum {
	FORMATS = sizeof(formats) / sizeof(formats[0]),
	CHUNK_BYTES = 32 * 1024, /* of stored tokens that are read and converted at a time */
	ROWS_AT_ONCE = 64,	 /* of them, where they lie in short rows, */
	GAP_MOST = 1024,	 /* as far apart as costs no more to read than to ask twice */
	TEXT_LEAST = 32,	 /* bytes that tell text from a few tokens */
	LARGE_FRAME = 32 << 20,	 /* from here on users are told what a frame costs */
};

const struct shard_format *shard_format(const char *name)
{
	for (int i = 0; i < FORMATS; i++)
		if (strcmp(formats[i]->name, name) == 0)
			return formats[i];
	return NULL;
}

const char *shard_format_names(void)
{
	static _Thread_local char names[16 * FORMATS];
	size_t n = 0;

	for (int i = 0; i < FORMATS && n < sizeof(names); i++)
		n += (size_t)snprintf(
			names + n, sizeof(names) - n, "%s%s", i ? ", " : "", formats[i]->name);
	return names;
}

/* ---- types ---- */

static const struct {
	const char *name;
	uint32_t bytes;
	bool sign;
} types[] = {
	[SHARD_U8] = {"u8", 1, false},
	[SHARD_I8] = {"i8", 1, true},
	[SHARD_U16] = {"u16", 2, false},
	[SHARD_I16] = {"i16", 2, true},
	[SHARD_U32] = {"u32", 4, false},
	[SHARD_I32] = {"i32", 4, true},
	[SHARD_U64] = {"u64", 8, false},
	[SHARD_I64] = {"i64", 8, true},
};

const char *shard_type_name(enum shard_type type)
{
	return types[type].name;
}

bool shard_type(const char *name, enum shard_type *type)
{
	for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (strcmp(name, types[i].name) == 0) {
			*type = (enum shard_type)i;
			return true;
		}
	return false;
}

uint32_t shard_type_bytes(enum shard_type type)
{
	return types[type].bytes;
}

uint32_t shard_served(enum shard_type type, const struct shard_hint *hint)
{
	if (types[type].bytes == 8)
		return hint->has_type && hint->type == SHARD_U16 ? 2 : 4;
	return types[type].bytes == 4 ? 4 : 2;
}

uint64_t shard_sample(const struct shard_facts *facts, const struct shard_hint *hint)
{
	return facts->row_tokens && facts->row_tokens == hint->window_tokens ? facts->row_tokens
									     : facts->sample_tokens;
}

/* ---- files that are no shards ---- */

/*
 * Known by their annotations, so that nobody trains on a header read as tokens. Of a mark's bytes
 * few enough files of tokens can begin so that nobody will meet one; `format: flat` still reads it.
 */
static const struct {
	const char *bytes;
	size_t n;
	const char *kind;
} annotations[] = {
	{"MMIDIDX\0\0", 9, "a Megatron index"},
	{"PK\3\4", 4, "a zip archive (.npz, or torch.save)"},
	{"\xfd"
	 "7zXZ\0",
		6, "xz-compressed"},
	{"PAR1", 4, "a Parquet file"},
	{"\x04\"M\x18", 4, "lz4-compressed"},
	{"\x28\xb5\x2f\xfd", 4, "zstd-compressed twice"},
	{"GGUF", 4, "a GGUF file"},
	{"SQLite format 3\0", 16, "an SQLite database"},
	{"version https://", 16,
		"a pointer of Git LFS, whose file was not fetched (`git lfs pull`)"},
	{"\x89HDF\r\n\x1a\n", 8, "an HDF5 file"},
};

/* Protocol 4 frames what follows and says how long that is; 2 and 3 are known by their ends alone.
 */
static bool is_pickle(const struct bytes *b, const uint8_t *head, size_t n)
{
	int error;
	char why[256];
	uint8_t last;

	if (n < 12 || head[0] != 0x80 || head[1] < 2 || head[1] > 5)
		return false;
	if (head[1] >= 4)
		return head[2] == 0x95 && bytes_u64(head + 3) <= b->size - 11;
	return bytes_read(b, b->size - 1, &last, 1, &error, why, sizeof(why)) && last == '.' &&
	       strchr("}](cX)K", head[2]) && head[2];
}

/* Its mark is three bytes; the header's other fields have few values, too. */
static bool is_gzip(const uint8_t *head, size_t n)
{
	return n >= 10 && memcmp(head, "\x1f\x8b\x08", 3) == 0 && (head[3] & 0xe0) == 0 &&
	       (head[8] == 0 || head[8] == 2 || head[8] == 4) && (head[9] <= 13 || head[9] == 255);
}

/* Tokens that are printable from the first byte to the last: text, or as good as none. */
static bool is_text(const uint8_t *head, size_t n)
{
	size_t i = 0;

	while (i < n && ((head[i] >= ' ' && head[i] <= '~') || strchr("\t\r\n", head[i])) &&
		head[i])
		i++;
	return n >= TEXT_LEAST && i == n;
}

static const char *foreign(const struct bytes *b)
{
	uint8_t head[512];
	size_t n = bytes_head(b, head, sizeof(head));

	for (size_t i = 0; i < sizeof(annotations) / sizeof(annotations[0]); i++)
		if (n >= annotations[i].n &&
			memcmp(head, annotations[i].bytes, annotations[i].n) == 0)
			return annotations[i].kind;
	if (is_gzip(head, n))
		return "gzip-compressed";
	if (n >= 10 && memcmp(head, "BZh", 3) == 0 && memcmp(head + 4, "1AY&SY", 6) == 0)
		return "bzip2-compressed";
	if (n > 10 && head[8] == '{' && head[9] == '"' && bytes_u64(head) <= b->size - 8)
		return "a safetensors file";
	if (n > 262 && memcmp(head + 257, "ustar", 5) == 0)
		return "a tar archive";
	return is_pickle(b, head, n) ? "a Python pickle" : is_text(head, n) ? "text" : NULL;
}

const struct shard_companion *shard_companion(const char *path, unsigned *next)
{
	unsigned at = 0;

	for (int i = 0; i < FORMATS; i++)
		for (const struct shard_companion *c = formats[i]->companions; c && c->ending;
			c++) {
			size_t n = strlen(path), m = strlen(c->ending);

			if (at++ < *next)
				continue;
			*next = at;
			/* "/index.json" is also the whole of a relative path. */
			bool whole = c->ending[0] == '/' && strcmp(path, c->ending + 1) == 0;

			if ((whole || (n > m && strcmp(path + n - m, c->ending) == 0)) &&
				(!c->holds || strstr(path, c->holds)))
				return c;
		}
	return NULL;
}

/* ---- which, and what is in it ---- */

static const struct shard_format *recognise(const struct bytes *b, char *why, size_t why_bytes)
{
	unsigned next = 0;
	const char *kind;

	for (int i = 0; i < FORMATS; i++) {
		if (formats[i] == &shard_flat) {
			kind = foreign(b);
			if (kind) {
				bytes_why(why, why_bytes,
					"is %s, which is no shard of tokens; move it away, or say "
					"`format: "
					"flat` if "
					"it is plain tokens",
					kind);
				return NULL;
			}
		}
		if (formats[i]->recognise(b))
			return formats[i];
	}
	const struct shard_companion *companion = shard_companion(b->path, &next);

	if (companion)
		bytes_why(why, why_bytes, "is %s, no shard: name the shard that it belongs to (%s)",
			companion->kind, companion->shard);
	else
		bytes_why(why, why_bytes,
			"is of no known format (%s; flat ones have names that end in .bin or "
			".npy); move it "
			"away, or "
			"say `format: flat` if it is plain tokens",
			shard_format_names());
	return NULL;
}

/* What the format cannot know of: what its bytes come from, and what is served. */
static void finish(const struct bytes *b, const struct shard_hint *hint, struct shard_facts *facts)
{
	bool type =
		facts->type == SHARD_U16 || facts->type == SHARD_U32 || facts->type == SHARD_I32;

	if (facts->token_bytes == 0)
		facts->token_bytes = shard_served(facts->type, hint);
	facts->sample_tokens = shard_sample(facts, hint);
	facts->frame_bytes = b->frame_bytes;
	facts->plain =
		facts->plain && b->plain && type && facts->token_bytes == types[facts->type].bytes;
	if (facts->tokens == 0 && !facts->note[0])
		snprintf(facts->note, sizeof(facts->note), "has no tokens");
	if (facts->frame_bytes >= LARGE_FRAME && !facts->note[0])
		snprintf(facts->note, sizeof(facts->note),
			"its largest of %" PRIu64 " zstd frames decodes to %" PRIu64
			" MiB, all of it for any window in it; compress in frames of 256 KiB",
			b->frames, facts->frame_bytes >> 20);
}

/* The tokens must lie in the source, whatever the format thinks of it. */
static bool within(
	const struct bytes *b, const struct shard_facts *facts, char *why, size_t why_bytes)
{
	uint64_t width = types[facts->type].bytes;

	if (!facts->plain ||
		(facts->data_at <= b->size && facts->tokens <= (b->size - facts->data_at) / width))
		return true;
	return bytes_why(why, why_bytes,
		"says it has %" PRIu64 " tokens of %s from byte %" PRIu64 " on; it is %" PRIu64
		" bytes long",
		facts->tokens, types[facts->type].name, facts->data_at, b->size);
}

/* What lies beside it, for whoever asks. */
static bool describe_annotations(const struct shard_format *format, const char *path,
	const struct shard_hint *hint, struct shard_facts *facts, char *why, size_t why_bytes)
{
	struct mask *mask = NULL;

	if ((hint->documents || hint->loss_mask) && !format->document)
		facts->bounds = bounds_beside(path);
	if (hint->loss_mask && !mask_open(format, path, hint, facts->tokens, &mask, why, why_bytes))
		return false;
	facts->mask = mask ? mask_id(mask) : 0;
	mask_close(mask);
	return true;
}

const struct shard_format *shard_describe(const struct shard_format *format, const char *path,
	int fd, const struct shard_hint *hint, struct shard_facts *facts, char *why,
	size_t why_bytes)
{
	struct bytes *b = bytes_open(fd, path, hint->frames, hint->budget_bytes, why, why_bytes);

	if (!b)
		return NULL;
	if (!format)
		format = recognise(b, why, why_bytes);
	if (format) {
		*facts = (struct shard_facts){.documents = SHARD_UNKNOWN, .plain = !format->extent};
		if (!bytes_check(b, why, why_bytes) ||
			!format->describe(b, hint, facts, why, why_bytes) ||
			!within(b, facts, why, why_bytes) ||
			!describe_annotations(format, path, hint, facts, why, why_bytes))
			format = NULL;
		else
			finish(b, hint, facts);
	}
	bytes_close(b);
	return format;
}

/* ---- open shards ---- */

static bool open_annotations(struct shard *shard, const char *path, const struct shard_hint *hint,
	char *why, size_t why_bytes)
{
	struct shard_facts *facts = &shard->facts;

	if (facts->bounds) {
		if (!bounds_open(path, facts->tokens, &shard->bounds, why, why_bytes))
			return false;
		if (!shard->bounds || bounds_id(shard->bounds) != facts->bounds)
			return bytes_why(why, why_bytes,
				"the list of its documents' bounds was changed while the shard was "
				"opened");
		facts->documents = bounds_documents(shard->bounds);
	}
	if (!facts->mask)
		return true;
	if (!mask_open(shard->format, path, hint, facts->tokens, &shard->mask, why, why_bytes))
		return false;
	return (shard->mask && mask_id(shard->mask) == facts->mask) ||
	       bytes_why(why, why_bytes, "its loss mask was changed while the shard was opened");
}

struct shard *shard_open(const struct shard_format *format, const char *path, int fd,
	const struct shard_hint *hint, const struct shard_facts *facts, char *why, size_t why_bytes)
{
	struct shard *shard = calloc(1, sizeof(*shard));

	if (!shard) {
		bytes_why(why, why_bytes, "%s", strerror(ENOMEM));
		return NULL;
	}
	shard->format = format;
	shard->facts = *facts;
	shard->bytes = bytes_open(fd, path, hint->frames, hint->budget_bytes, why, why_bytes);
	if (!shard->bytes)
		goto fail;
	if (format->open) {
		shard->index = format->open(shard->bytes, hint, &shard->facts, why, why_bytes);
		if (!shard->index)
			goto fail;
	}
	shard->bytes->path = NULL; /* it was borrowed */
	if (!within(shard->bytes, &shard->facts, why, why_bytes) ||
		!open_annotations(shard, path, hint, why, why_bytes))
		goto fail;
	finish(shard->bytes, hint, &shard->facts);
	shard->facts.index_bytes += sizeof(*shard) + shard->bytes->index_bytes;
	if (shard->bounds)
		shard->facts.index_bytes += bounds_bytes(shard->bounds);
	if (shard->mask)
		shard->facts.index_bytes += mask_bytes(shard->mask);
	return shard;
fail:
	shard_close(shard);
	return NULL;
}

void shard_close(struct shard *shard)
{
	if (!shard)
		return;
	if (shard->index)
		shard->format->close(shard->index);
	bounds_close(shard->bounds);
	mask_close(shard->mask);
	bytes_close(shard->bytes);
	free(shard);
}

unsigned shard_sides(const struct shard *shard, struct shard_side *side)
{
	const struct bytes *index =
		shard->format->beside && shard->index ? shard->format->beside(shard->index) : NULL;
	const struct bytes *mask = shard->mask ? mask_file(shard->mask) : NULL;
	unsigned n = 0;

	if (index)
		side[n++] = (struct shard_side){index->fd, index->id, "its index: "};
	if (mask)
		side[n++] = (struct shard_side){mask->fd, mask->id, "its loss mask: "};
	return n;
}

/* ---- reading ---- */

/*
 * Converts @n tokens at @from (wherever that is) to the served width. False: some do not fit it.
 * The bits are gathered in the stored width and looked at once, so that the loops vectorise.
 */
#define CONVERT(stored, served)                                                                    \
	static bool stored##_to_##served(const void *from, uint64_t n, void *to)                   \
	{                                                                                          \
		typedef stored##_t anywhere __attribute__((aligned(1), may_alias));                \
		const anywhere *in = from;                                                         \
		served##_t *out = to;                                                              \
		stored##_t bits = 0;                                                               \
                                                                                                   \
		for (uint64_t i = 0; i < n; i++) {                                                 \
			bits = (stored##_t)(bits | in[i]);                                         \
			out[i] = (served##_t)in[i];                                                \
		}                                                                                  \
		return ((uint64_t)(int64_t)bits & ~(uint64_t)(served##_t) - 1) == 0;               \
	}

CONVERT(uint8, uint16)
CONVERT(int8, uint16)
CONVERT(uint16, uint16)
CONVERT(int16, uint16)
CONVERT(uint32, uint16)
CONVERT(int32, uint16)
CONVERT(uint64, uint16)
CONVERT(int64, uint16)
CONVERT(uint8, uint32)
CONVERT(int8, uint32)
CONVERT(uint16, uint32)
CONVERT(int16, uint32)
CONVERT(uint32, uint32)
CONVERT(int32, uint32)
CONVERT(uint64, uint32)
CONVERT(int64, uint32)

static bool (*const conversions[][2])(const void *from, uint64_t n, void *to) = {
	[SHARD_U8] = {uint8_to_uint16, uint8_to_uint32},
	[SHARD_I8] = {int8_to_uint16, int8_to_uint32},
	[SHARD_U16] = {uint16_to_uint16, uint16_to_uint32},
	[SHARD_I16] = {int16_to_uint16, int16_to_uint32},
	[SHARD_U32] = {uint32_to_uint16, uint32_to_uint32},
	[SHARD_I32] = {int32_to_uint16, int32_to_uint32},
	[SHARD_U64] = {uint64_to_uint16, uint64_to_uint32},
	[SHARD_I64] = {int64_to_uint16, int64_to_uint32},
};

/* Names the first of @n tokens, which @token is the first of, that does not fit. */
static bool refuse_token(const struct shard *shard, const char *from, uint64_t token, uint64_t n,
	char *why, size_t why_bytes)
{
	enum shard_type type = shard->facts.type;
	uint64_t most = shard->facts.token_bytes == 2 ? UINT16_MAX : UINT32_MAX, value = 0;
	uint32_t width = types[type].bytes;

	for (uint64_t i = 0; i < n; i++) {
		value = 0;
		memcpy(&value, from + i * width, width);
		if (types[type].sign) /* by way of the top bits */
			value = (uint64_t)((int64_t)(value << (64 - 8 * width)) >>
					   (64 - 8 * width));
		if (value > most) {
			token += i;
			break;
		}
	}
	if (types[type].sign && (int64_t)value < 0)
		return bytes_why(why, why_bytes,
			"token %" PRIu64 " is %" PRId64 "; must be 0 to %" PRIu64, token,
			(int64_t)value, most);
	return bytes_why(why, why_bytes,
		"token %" PRIu64 " is %" PRIu64 "; must be 0 to %" PRIu64 "%s", token, value, most,
		most == UINT16_MAX ? " (or say `dtype: u32`)" : "");
}

/* What is asked for, and how it is told that it cannot be had. */
struct reading {
	const struct shard *shard;
	struct shard_place place; /* what is known of where it begins */
	bool wait;		  /* else what is not at hand is a fault without a word */
	int *error;
	char *why;
	size_t why_bytes;
};

static bool get(const struct reading *r, uint64_t byte, void *to, size_t n)
{
	const struct bytes *b = r->shard->bytes;

	return r->wait ? bytes_read(b, byte, to, n, r->error, r->why, r->why_bytes)
		       : bytes_try(b, byte, to, n);
}

static bool fail(const struct reading *r, int error)
{
	*r->error = error;
	return false;
}

/* Tokens in a row, from @byte on, after @lead bytes that the format looks at. */
struct row {
	uint64_t token, tokens, byte;
	uint32_t lead;
};

/* The row that begins with @token, at most @most of its tokens. */
static bool row_at(const struct reading *r, uint64_t token, uint64_t most, struct row *row)
{
	const struct shard *shard = r->shard;
	const struct shard_facts *facts = &shard->facts;

	*row = (struct row){token, most, facts->data_at + token * types[facts->type].bytes, 0};
	if (!shard->format->extent || facts->plain)
		return true;
	uint64_t tokens = r->place.tokens;

	if (tokens > 0 && token == r->place.token)
		row->byte = r->place.byte;
	else
		tokens = shard->format->extent(
			shard->index, token, &row->byte, r->why, r->why_bytes);
	if (tokens == 0)
		return fail(r, EBADMSG);
	row->tokens = tokens < most ? tokens : most;
	if (facts->lead_bytes && token % facts->sample_tokens == 0)
		row->lead = facts->lead_bytes;
	return true;
}

/* Any token is served as it is stored. */
static bool as_is(const struct shard_facts *facts)
{
	return types[facts->type].bytes == facts->token_bytes && !types[facts->type].sign;
}

static bool convert(const struct reading *r, const struct row *row, const char *from, void *to)
{
	const struct shard *shard = r->shard;
	const struct shard_facts *facts = &shard->facts;
	const uint8_t *lead = (const uint8_t *)from - row->lead;

	if (row->lead > 0 &&
		!shard->format->check(shard->index, row->token, lead, r->why, r->why_bytes))
		return fail(r, EBADMSG);
	if (as_is(facts)) {
		memcpy(to, from, row->tokens * facts->token_bytes);
		return true;
	}
	if (conversions[facts->type][facts->token_bytes == 4](from, row->tokens, to))
		return true;
	refuse_token(shard, from, row->token, row->tokens, r->why, r->why_bytes);
	return fail(r, ERANGE);
}

/*
 * Reads @row, and the rows after it as far as they lie close behind it in the source, in one go.
 * Returns the tokens that have been read; 0: @r says why.
 */
static uint64_t read_rows(const struct reading *r, struct row *row, uint64_t n, char *to)
{
	const struct shard_facts *facts = &r->shard->facts;
	char chunk[CHUNK_BYTES];
	struct row rows[ROWS_AT_ONCE];
	uint32_t width = types[facts->type].bytes, count = 0;
	uint64_t from = row->byte - row->lead, end, done = 0;

	do {
		uint64_t most = (CHUNK_BYTES - (row->byte - from)) / width;

		row->tokens = row->tokens < most ? row->tokens : most;
		end = row->byte + row->tokens * width;
		done += row->tokens;
		rows[count++] = *row;
		if (done == n || row->tokens == most || count == ROWS_AT_ONCE)
			break;
		if (!row_at(r, row->token + row->tokens, n - done, row))
			return 0;
	} while (row->byte - row->lead >= end && row->byte - end <= GAP_MOST &&
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

		if (!row_at(r, token, n, &row))
			return false;
		done = row.tokens;
		if (as_is(facts) && row.lead == 0 && row.tokens == n) {
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

bool shard_read(const struct shard *shard, uint64_t token, uint64_t n, void *to, int *error,
	char *why, size_t why_bytes)
{
	const struct reading r = {shard, {.tokens = 0}, true, error, why, why_bytes};

	if (!within_shard(shard, token, n)) {
		*error = EINVAL;
		return bytes_why(why, why_bytes,
			"tokens %" PRIu64 " to %" PRIu64 " are asked for; it has %" PRIu64, token,
			token + n, shard->facts.tokens);
	}
	return read_tokens(&r, token, n, to);
}

struct shard_place shard_find(const struct shard *shard, uint64_t token)
{
	const struct shard_facts *facts = &shard->facts;
	struct shard_place place = {.token = token};
	char why[1];

	if (shard->format->extent && !facts->plain && !facts->looks && token < facts->tokens)
		place.tokens =
			shard->format->extent(shard->index, token, &place.byte, why, sizeof(why));
	return place;
}

bool shard_try(const struct shard *shard, struct shard_place place, uint64_t n, void *to)
{
	char why[1];
	int error;
	const struct reading r = {shard, place, false, &error, why, sizeof(why)};

	return !shard->facts.looks && within_shard(shard, place.token, n) &&
	       read_tokens(&r, place.token, n, to);
}

uint64_t shard_boundary(const struct shard *shard, uint64_t token, char *why, size_t why_bytes)
{
	return shard->bounds ? bounds_next(shard->bounds, token)
			     : shard->format->document(shard->index, token, why, why_bytes);
}

int64_t shard_documents(const struct shard *shard, uint64_t token, uint64_t n, uint32_t *at,
	uint32_t max, char *why, size_t why_bytes)
{
	uint64_t end = shard->facts.tokens, boundary = token;
	uint32_t count = 0;

	if (shard->facts.documents == SHARD_UNKNOWN || token >= end)
		return 0;
	end = n < end - token ? token + n : end;
	while (count < max && boundary < end) {
		uint64_t next = shard_boundary(shard, boundary, why, why_bytes);

		if (next == 0)
			return -1;
		if (next >= end)
			break;
		if (next <= boundary) /* would never end */
			return bytes_why(why, why_bytes,
				       "its document index has no boundary after token %" PRIu64,
				       boundary),
			       -1;
		boundary = next;
		if (boundary - token > UINT32_MAX)
			break;
		at[count++] = (uint32_t)(boundary - token);
	}
	return count;
}

bool shard_loss_mask(const struct shard *shard, uint64_t token, uint64_t n, uint8_t *to, int *error,
	char *why, size_t why_bytes)
{
	if (!shard->mask)
		memset(to, 1, n);
	else if (!mask_read(shard->mask, token, n, to, error, why, why_bytes))
		return false;
	if (shard->bounds)
		bounds_mask(shard->bounds, token, n, to);
	return true;
}
