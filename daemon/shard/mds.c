/*
 * Mosaic's MDS: u32 n, u32 offsets[n + 1], a JSON config, then n samples. The config names the
 * columns, how each is encoded and how long it is, where that is always the same. A sample is a u32
 * length for each of the other columns, then all columns' values, one after the other. One column
 * holds the tokens: raw, or after a few bytes that give their type and shape.
 *
 * Each sample is a training sequence: a window is a sample, and all samples must be of one length.
 * Where they are, their offsets are arithmetic and nothing is kept of them.
 *
 * index.json, in the directory or the one above, lists the shards. What it says is held against the
 * files and the other way round, so that a lost or a stray file is not found out by a training that
 * went differently. Of its `hashes` only xxh64 is looked at: of a compressed shard when that is
 * about to be decoded whole, and of a small one; no other is read whole, and sha1 would cost more
 * than the decoding.
 */
#include "daemon/shard/json.h"
#include "daemon/shard/memo.h"
#include "daemon/shard/reread.h"
#include "daemon/shard/shard.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum {
	CONFIG_MOST = 1 << 20,
	COLUMNS_MOST = 256,
	DIMENSIONS_MOST = 63,
	LEAD_BYTES = SHARD_LEAD_MOST, /* of a sample are read at once: the lengths and the shape,
					 mostly */
	TABLE_AT_ONCE = 16 * 1024,
	SPREAD = 16,	 /* samples that are looked at to describe a shard of odd offsets */
	SMALL = 1 << 20, /* shards of which every sample is looked at when they are opened, */
	TINY = 1 << 16,	 /* and those that are held against their xxh64 when they are described */
	SHOWN = 48,
};

#define INDEX_MOST (UINT64_C(256) << 20) /* bytes of an index.json: half a million shards */

/* What Mosaic's writer can compress with and nothing here reads. */
static const char *const packed[] = {".mds.br", ".mds.bz2", ".mds.gz", ".mds.snappy"};

static bool ends_in(const char *path, const char *ending)
{
	size_t n = strlen(path), m = strlen(ending);

	return n >= m && strcmp(path + n - m, ending) == 0;
}

static bool mds_recognise(const struct bytes *b)
{
	for (unsigned i = 0; i < sizeof(packed) / sizeof(packed[0]); i++)
		if (ends_in(b->path, packed[i]))
			return true;
	return bytes_ending(b->path, ".mds");
}

/* ---- columns ---- */

/* Where the tokens are in a sample. */
struct layout {
	unsigned columns;
	unsigned column;	     /* the one with the tokens */
	uint32_t size[COLUMNS_MOST]; /* of each column; 0: each sample says it */
	unsigned variable;	     /* how many do */
	uint64_t fixed;		     /* bytes of those that do not */
	char name[SHOWN];	     /* of the column, to be shown */

	enum shard_type type;
	bool has_type;	/* else the first byte of the value is the type */
	bool has_shape; /* else the value begins with its shape; raw values have one, too: */
	uint64_t count; /* the tokens that the shape makes; 0: as many as there are bytes for */
};

static const struct {
	const char *name;
	enum shard_type type;
	uint8_t code; /* in a value of encoding `ndarray` */
} types[] = {
	{"uint8", SHARD_U8, 8},
	{"int8", SHARD_I8, 9},
	{"uint16", SHARD_U16, 16},
	{"int16", SHARD_I16, 17},
	{"uint32", SHARD_U32, 32},
	{"int32", SHARD_I32, 33},
	{"uint64", SHARD_U64, 64},
	{"int64", SHARD_I64, 65},
};

enum { TYPES = sizeof(types) / sizeof(types[0]) };

/* How likely a column is the one with the tokens. */
enum rank { NO_TOKENS, A_NUMBER, RAW_BYTES, AN_ARRAY };

/* The type that @name, @n characters, is; false: none. */
static bool type_named(const char *name, size_t n, enum shard_type *type)
{
	for (int i = 0; i < TYPES; i++)
		if (strlen(types[i].name) == n && memcmp(types[i].name, name, n) == 0) {
			*type = types[i].type;
			return true;
		}
	return false;
}

/* "2,1024": the product. */
static bool take_shape(const char *text, uint64_t *count)
{
	*count = 1;
	do {
		char *end;

		if (*text < '1' || *text > '9')
			return false;
		errno = 0;
		if (__builtin_mul_overflow(*count, strtoull(text, &end, 10), count) || errno != 0 ||
			*count > UINT32_MAX)
			return false;
		text = end;
	} while (*text++ == ',');
	return text[-1] == 0;
}

/* What an encoding says of tokens. */
static enum rank encoding(const char *text, const struct shard_hint *hint, struct layout *l)
{
	static const char array[] = "ndarray";
	size_t n = sizeof(array) - 1;

	l->has_type = l->has_shape = true;
	l->count = 0;
	if (strcmp(text, "bytes") == 0) {
		l->type = hint->has_type ? hint->type : SHARD_I64;
		return RAW_BYTES;
	}
	if (strncmp(text, array, n) != 0 || (text[n] && text[n] != ':')) {
		l->count = 1;
		l->type = SHARD_I64;
		return strcmp(text, "int") == 0 || type_named(text, strlen(text), &l->type)
			       ? A_NUMBER
			       : NO_TOKENS;
	}
	l->has_type = text[n] == ':';
	l->has_shape = false;
	if (!l->has_type)
		return AN_ARRAY;
	const char *type = text + n + 1, *shape = strchr(type, ':');

	if (!type_named(type, shape ? (size_t)(shape - type) : strlen(type), &l->type))
		return NO_TOKENS;
	l->has_shape = shape;
	return !shape || take_shape(shape + 1, &l->count) ? AN_ARRAY : NO_TOKENS;
}

/* Element @i of array @key. */
static json_t *item(const json_t *config, const char *key, size_t i)
{
	return json_array_get(json_object_get(config, key), i);
}

static const char *text_item(const json_t *config, const char *key, size_t i)
{
	return json_string_value(item(config, key, i));
}

/* The three arrays: of one length and of the right types, names ascending, as the writer sorts
 * them. */
static bool check_columns(const json_t *config, const char *where, char *why, size_t why_bytes)
{
	static const char *const keys[] = {"column_names", "column_encodings", "column_sizes"};
	size_t n = json_array_size(json_object_get(config, keys[0]));
	char shown[SHOWN];

	for (int k = 0; k < 3; k++) {
		const json_t *array = json_object_get(config, keys[k]);

		if (!json_is_array(array))
			return bytes_why(why, why_bytes, "%s%s is %s; must be an array", where,
				keys[k], json_kind(array));
		if (json_array_size(array) != n || n == 0 || n > COLUMNS_MOST)
			return bytes_why(why, why_bytes,
				"%s%s has %zu entries, column_names %zu; must be one number, 1 to "
				"%d",
				where, keys[k], json_array_size(array), n, COLUMNS_MOST);
	}
	for (size_t i = 0; i < n; i++) {
		const json_t *size = item(config, keys[2], i);

		for (int k = 0; k < 2; k++)
			if (!text_item(config, keys[k], i))
				return bytes_why(why, why_bytes,
					"%s%s[%zu] is %s; must be a string", where, keys[k], i,
					json_kind(item(config, keys[k], i)));
		if (!json_is_null(size) && !json_is_integer(size))
			return bytes_why(why, why_bytes,
				"%s%s[%zu] is %s; must be null or a whole number", where, keys[2],
				i, json_kind(size));
		if (json_integer_value(size) < 0 || json_integer_value(size) > UINT32_MAX)
			return bytes_why(why, why_bytes,
				"%s%s[%zu] is %" JSON_INTEGER_FORMAT "; must be null or 0 to %u",
				where, keys[2], i, json_integer_value(size), UINT32_MAX);
		if (i > 0 && strcmp(text_item(config, keys[0], i),
				     text_item(config, keys[0], i - 1)) <= 0)
			return bytes_why(why, why_bytes,
				"%s%s[%zu] is '%s'; must come after the one before it: names are "
				"sorted, "
				"each is there once",
				where, keys[0], i,
				json_shown(text_item(config, keys[0], i), shown, sizeof(shown)));
	}
	return true;
}

/* "ids: ndarray:int32, text: str (12 bytes)": what a shard and an index must agree on. NULL: out of
 * memory.
 */
static char *columns_text(const json_t *config)
{
	size_t n = json_array_size(json_object_get(config, "column_names")), bytes;
	char *text = NULL;
	FILE *out = open_memstream(&text, &bytes);

	for (size_t i = 0; out && i < n; i++) {
		json_int_t size = json_integer_value(item(config, "column_sizes", i));

		fprintf(out, "%s%s: %s", i ? ", " : "", text_item(config, "column_names", i),
			text_item(config, "column_encodings", i));
		if (size > 0)
			fprintf(out, " (%" JSON_INTEGER_FORMAT " bytes)", size);
	}
	if (out && fclose(out) != 0) {
		free(text);
		text = NULL;
	}
	return text;
}

static bool refuse_column(
	const json_t *config, const char *what, const char *name, char *why, size_t why_bytes)
{
	char *all = columns_text(config), shown[160], shown_name[SHOWN];

	bytes_why(why, why_bytes, "%s%s; say which column holds tokens (`column:`); it has %s",
		what, json_shown(name, shown_name, sizeof(shown_name)),
		all ? json_shown(all, shown, sizeof(shown)) : "?");
	free(all);
	return false;
}

/* Which column: the config's, else one called as llm-foundry calls it, else the only likely one. */
static bool choose(const json_t *config, const struct shard_hint *hint, unsigned *column, char *why,
	size_t why_bytes)
{
	const char *const names[] = {hint->column, "tokens", "input_ids"};
	unsigned n = (unsigned)json_array_size(json_object_get(config, "column_names")), same = 0;
	enum rank best = NO_TOKENS;

	for (int k = hint->column ? 0 : 1; k < (hint->column ? 1 : 3); k++)
		for (*column = 0; *column < n; ++*column)
			if (strcmp(text_item(config, "column_names", *column), names[k]) == 0)
				return true;
	if (hint->column)
		return refuse_column(config, "there is no column ", hint->column, why, why_bytes);
	for (unsigned i = 0; i < n; i++) {
		struct layout l;
		enum rank rank = encoding(text_item(config, "column_encodings", i), hint, &l);

		if (rank == A_NUMBER && n > 1) /* beside others it is an id or a label */
			rank = NO_TOKENS;
		same = rank > best ? 1 : same + (rank == best);
		if (rank > best)
			*column = i;
		best = rank > best ? rank : best;
	}
	if (best == NO_TOKENS)
		return refuse_column(config, "no column holds tokens", "", why, why_bytes);
	return same == 1 ||
	       refuse_column(config, "several columns may hold tokens", "", why, why_bytes);
}

static bool lay_out(const json_t *config, const struct shard_hint *hint, struct layout *l,
	char *why, size_t why_bytes)
{
	char shown[SHOWN];

	*l = (struct layout){0};
	if (!choose(config, hint, &l->column, why, why_bytes))
		return false;
	const char *text = text_item(config, "column_encodings", l->column);

	json_shown(text_item(config, "column_names", l->column), l->name, sizeof(l->name));
	if (encoding(text, hint, l) == NO_TOKENS)
		return bytes_why(why, why_bytes,
			"column `%s` is encoded as `%s`, %s; must be ndarray, ndarray:DTYPE or "
			"ndarray:DTYPE:SHAPE with a whole-number type, bytes, or a whole number",
			l->name, json_shown(text, shown, sizeof(shown)),
			strcmp(text, "pkl") == 0 ? "which is a pickle" : "which is no tokens");
	l->columns = (unsigned)json_array_size(json_object_get(config, "column_names"));
	for (unsigned i = 0; i < l->columns; i++) {
		l->size[i] = (uint32_t)json_integer_value(item(config, "column_sizes", i));
		l->variable += l->size[i] == 0;
		l->fixed += l->size[i];
	}
	return true;
}

/* ---- a shard's own header ---- */

struct front {
	uint32_t samples;
	uint32_t first, second, end; /* offsets 0, 1 and samples */
	struct layout layout;
	char *columns; /* as text; to be freed */
	bool has_hash; /* of the compressed file, by an index.json */
	uint64_t hash;
};

static bool read_offsets(const struct bytes *b, struct front *f, char *why, size_t why_bytes)
{
	uint8_t head[12], last[4];
	int error;

	if (b->size < sizeof(head))
		return bytes_why(why, why_bytes,
			"its size is %" PRIu64 " bytes; a shard of one sample has at least %zu",
			b->size, sizeof(head));
	if (!bytes_read(b, 0, head, sizeof(head), &error, why, why_bytes))
		return false;
	f->samples = bytes_u32(head);
	uint64_t table = 4 + 4 * ((uint64_t)f->samples + 1);

	if (f->samples == 0)
		return bytes_why(why, why_bytes,
			"number of samples is 0: there is no token in it; remove it");
	if (table > b->size)
		return bytes_why(why, why_bytes,
			"number of samples is %" PRIu32 ", whose offsets end at byte %" PRIu64
			"; it is %" PRIu64 " bytes long",
			f->samples, table, b->size);
	f->first = bytes_u32(head + 4);
	f->second = bytes_u32(head + 8);
	if (!bytes_read(b, table - 4, last, sizeof(last), &error, why, why_bytes))
		return false;
	f->end = bytes_u32(last);
	if (f->end != b->size)
		return bytes_why(why, why_bytes,
			"the last sample ends at byte %" PRIu32 " (offset %" PRIu32
			"); it is %" PRIu64 " bytes long",
			f->end, f->samples, b->size);
	if (f->first < table || f->first > f->end)
		return bytes_why(why, why_bytes,
			"offset 0 is %" PRIu32 "; must be %" PRIu64
			", where the offsets end, to %" PRIu32,
			f->first, table, f->end);
	if (f->second < f->first || f->second > f->end)
		return bytes_why(why, why_bytes,
			"offset 1 is %" PRIu32 "; must be %" PRIu32 " to %" PRIu32, f->second,
			f->first, f->end);
	return true;
}

static bool check_two(const json_t *object, const char *where, char *why, size_t why_bytes)
{
	const json_t *version = json_object_get(object, "version");

	if (!json_is_integer(version))
		return bytes_why(
			why, why_bytes, "%sversion is %s; must be 2", where, json_kind(version));
	return json_integer_value(version) == 2 ||
	       bytes_why(why, why_bytes, "%sversion is %" JSON_INTEGER_FORMAT "; must be 2", where,
		       json_integer_value(version));
}

static bool check_version(const json_t *config, const char *where, char *why, size_t why_bytes)
{
	char shown[SHOWN];

	if (!check_two(config, where, why, why_bytes))
		return false;
	const char *format = json_string_in(config, where, "format", why, why_bytes);

	return format && (strcmp(format, "mds") == 0 ||
				 bytes_why(why, why_bytes, "%sformat is '%s'; must be mds", where,
					 json_shown(format, shown, sizeof(shown))));
}

static bool parse_config(const char *text, size_t n, const struct shard_hint *hint, struct front *f,
	char *why, size_t why_bytes)
{
	char inner[256];
	json_t *config = json_object_of(text, n, inner, sizeof(inner));

	if (!config)
		return bytes_why(why, why_bytes, "config: %s", inner);
	bool fine = check_version(config, "config: ", why, why_bytes) &&
		    check_columns(config, "config: ", why, why_bytes) &&
		    lay_out(config, hint, &f->layout, why, why_bytes);

	f->columns = fine ? columns_text(config) : NULL;
	json_decref(config);
	return fine && (f->columns || bytes_why(why, why_bytes, "%s", strerror(ENOMEM)));
}

static bool read_front(const struct bytes *b, const struct shard_hint *hint, struct front *f,
	char *why, size_t why_bytes)
{
	int error;

	f->columns = NULL;
	f->has_hash = false;
	if (!read_offsets(b, f, why, why_bytes))
		return false;
	uint64_t from = 4 + 4 * ((uint64_t)f->samples + 1), n = f->first - from;

	if (n > CONFIG_MOST)
		return bytes_why(why, why_bytes,
			"config is %" PRIu64 " bytes long (offset 0 is %" PRIu32
			"); must be at most %d",
			n, f->first, CONFIG_MOST);
	char *text = malloc(n + 1);

	if (!text)
		return bytes_why(why, why_bytes, "%s", strerror(ENOMEM));
	bool fine = bytes_read(b, from, text, n, &error, why, why_bytes) &&
		    parse_config(text, n, hint, f, why, why_bytes);

	free(text);
	return fine;
}

/* ---- samples ---- */

/* A sample's tokens, and what of it is at hand. */
struct sample {
	uint32_t number;
	uint64_t begin, end; /* in the file */
	uint64_t tokens_at, tokens;
	enum shard_type type;
	size_t lead;
	uint8_t bytes[LEAD_BYTES];
};

/* Bytes [at, at + n) of it, where they are at hand or, n ≤ @to's size, read. NULL: @why. */
static const uint8_t *part(const struct bytes *b, const struct sample *s, uint64_t at, size_t n,
	uint8_t *to, char *why, size_t why_bytes)
{
	int error;

	if (at + n <= s->begin + s->lead)
		return s->bytes + (at - s->begin);
	return bytes_read(b, at, to, n, &error, why, why_bytes) ? to : NULL;
}

/* Where the column is: the lengths must make up the sample. */
static bool find_column(const struct bytes *b, const struct layout *l, struct sample *s,
	uint64_t *size, char *why, size_t why_bytes)
{
	uint8_t lengths[4 * COLUMNS_MOST];
	uint64_t bytes = s->end - s->begin, head = 4 * (uint64_t)l->variable, sum = head + l->fixed;
	const uint8_t *length = lengths;

	if (head <= bytes)
		length = part(b, s, s->begin, head, lengths, why, why_bytes);
	if (!length)
		return false;
	s->tokens_at = s->begin + head;
	for (unsigned i = 0; head <= bytes && i < l->columns; i++) {
		uint64_t column = l->size[i] ? l->size[i] : bytes_u32(length);

		sum += l->size[i] ? 0 : column;
		length += l->size[i] ? 0 : 4;
		s->tokens_at += i < l->column ? column : 0;
		*size = i == l->column ? column : *size;
	}
	return sum == bytes ||
	       bytes_why(why, why_bytes,
		       "sample %" PRIu32 ": its lengths and columns make up %" PRIu64
		       " bytes; its offsets leave it %" PRIu64,
		       s->number, sum, bytes);
}

static bool take_type(const uint8_t *value, struct sample *s, char *why, size_t why_bytes)
{
	for (int i = 0; i < TYPES; i++)
		if (types[i].code == *value) {
			s->type = types[i].type;
			return true;
		}
	return bytes_why(why, why_bytes,
		"sample %" PRIu32 ": type is %u%s; must be 8, 9, 16, 17, 32, 33, 64 or 65",
		s->number, *value,
		*value == 18 || *value == 34 || *value == 66 ? ", which is a fraction" : "");
}

/* The type and the shape that a value of @size bytes begins with; *@n: how long they are. */
static bool take_array(const struct bytes *b, const struct layout *l, struct sample *s,
	uint64_t size, size_t *n, uint64_t *count, char *why, size_t why_bytes)
{
	uint8_t more[2 + 8 * DIMENSIONS_MOST];
	size_t head = (size_t)!l->has_type + 1;

	if (size < head)
		return bytes_why(why, why_bytes,
			"sample %" PRIu32 ": column `%s` is %" PRIu64
			" bytes long; its shape alone takes %zu",
			s->number, l->name, size, head);
	const uint8_t *value = part(b, s, s->tokens_at, head, more, why, why_bytes);

	if (!value || (!l->has_type && !take_type(value, s, why, why_bytes)))
		return false;
	unsigned dimensions = value[head - 1] >> 2, width = 1u << (value[head - 1] & 3);

	*n = head + (size_t)dimensions * width;
	if (dimensions == 0 || *n > size)
		return bytes_why(why, why_bytes,
			"sample %" PRIu32
			": shape has %u dimensions of %u bytes; must have 1 to %d, and "
			"column `%s` is %" PRIu64 " bytes long",
			s->number, dimensions, width, DIMENSIONS_MOST, l->name, size);
	value = part(b, s, s->tokens_at, *n, more, why, why_bytes);
	if (!value)
		return false;
	*count = 1;
	for (const uint8_t *at = value + head; at < value + *n; at += width) {
		uint64_t dimension = width == 1	  ? at[0]
				     : width == 2 ? bytes_u16(at)
				     : width == 4 ? bytes_u32(at)
						  : bytes_u64(at);

		if (__builtin_mul_overflow(*count, dimension, count))
			return bytes_why(why, why_bytes,
				"sample %" PRIu32
				": shape makes over 2^64 tokens; column `%s` is %" PRIu64
				" bytes long",
				s->number, l->name, size);
	}
	return true;
}

/* Looks into sample @number, [begin, end) of the file: where its tokens are, how many and of what
 * type. */
static bool look(const struct bytes *b, const struct layout *l, struct sample *s, uint32_t number,
	uint64_t begin, uint64_t end, char *why, size_t why_bytes)
{
	uint64_t size = 0, count = l->count;
	size_t n = 0;
	int error;

	s->number = number;
	s->begin = begin;
	s->end = end;
	s->type = l->type;
	s->lead = end - begin < LEAD_BYTES ? (size_t)(end - begin) : LEAD_BYTES;
	if (!bytes_read(b, begin, s->bytes, s->lead, &error, why, why_bytes) ||
		!find_column(b, l, s, &size, why, why_bytes) ||
		(!l->has_shape && !take_array(b, l, s, size, &n, &count, why, why_bytes)))
		return false;
	uint64_t width = shard_type_bytes(s->type), bytes;

	s->tokens_at += n;
	if (l->has_shape && l->count == 0) {
		count = size / width;
		if (size % width != 0)
			return bytes_why(why, why_bytes,
				"sample %" PRIu32 ": column `%s` is %" PRIu64
				" bytes long, no multiple of %" PRIu64
				", the size of a token: it is cut short, or `dtype` is wrong",
				number, l->name, size, width);
	}
	if (__builtin_mul_overflow(count, width, &bytes) || bytes != size - n)
		return bytes_why(why, why_bytes,
			"sample %" PRIu32 ": shape makes %" PRIu64 " tokens of %" PRIu64
			" bytes; column `%s` has %" PRIu64 " bytes for them",
			number, count, width, l->name, size - n);
	s->tokens = count;
	return count > 0 ||
	       bytes_why(why, why_bytes, "sample %" PRIu32 ": column `%s` has no tokens", number,
		       l->name);
}

/* All samples are like the first. */
static bool alike(
	const struct sample *s, uint64_t tokens, enum shard_type type, char *why, size_t why_bytes)
{
	if (s->type != type)
		return bytes_why(why, why_bytes,
			"sample %" PRIu32 " has tokens of %s, sample 0 of %s; must be one type",
			s->number, shard_type_name(s->type), shard_type_name(type));
	return s->tokens == tokens ||
	       bytes_why(why, why_bytes,
		       "sample %" PRIu32 " has %" PRIu64 " tokens, sample 0 has %" PRIu64
		       "; all must have the same number: a window is a sample",
		       s->number, s->tokens, tokens);
}

/* ---- all samples ---- */

struct shard_index {
	const struct bytes *b;
	struct layout layout;
	uint32_t samples;
	uint64_t sample_tokens;
	enum shard_type type;
	uint64_t first, stride; /* sample i begins at first + i·stride */
	uint32_t *offsets;	/* [samples + 1]; NULL: by arithmetic */
	bool even;		/* each has its tokens as far from its begin: */
	uint64_t tokens_from;
	uint32_t lead_bytes;	  /* > 0: where they are is what check() looks at */
	uint8_t lead[LEAD_BYTES]; /* of the first sample, and so of most */
};

static void bounds(const struct shard_index *x, uint32_t i, uint64_t *begin, uint64_t *end)
{
	*begin = x->offsets ? x->offsets[i] : x->first + i * x->stride;
	*end = x->offsets ? x->offsets[i + 1] : *begin + x->stride;
}

/* Reads the offsets, a few at a time: they must ascend, and are kept only if they are not
 * arithmetic. */
static bool read_table(struct shard_index *x, char *why, size_t why_bytes)
{
	uint64_t count = (uint64_t)x->samples + 1;
	uint8_t some[TABLE_AT_ONCE];
	uint32_t last = (uint32_t)x->first;
	int error;

	for (uint64_t i = 0; i < count; i++) {
		uint64_t in = i % (sizeof(some) / 4), left = count - i;

		if (in == 0 && !bytes_read(x->b, 4 + 4 * i, some,
				       4 * left < sizeof(some) ? 4 * left : sizeof(some), &error,
				       why, why_bytes))
			return false;
		uint32_t offset = bytes_u32(some + 4 * in);

		if (offset < last || offset > x->b->size)
			return bytes_why(why, why_bytes,
				"offset %" PRIu64 " is %" PRIu32 "; must be %" PRIu32 " to %" PRIu64
				": offsets ascend and end with the file",
				i, offset, last, x->b->size);
		if (!x->offsets && offset != x->first + i * x->stride) {
			x->offsets = malloc(count * sizeof(*x->offsets));
			if (!x->offsets)
				return bytes_why(why, why_bytes, "%s", strerror(ENOMEM));
			for (uint64_t j = 0; j < i; j++)
				x->offsets[j] = (uint32_t)(x->first + j * x->stride);
		}
		if (x->offsets)
			x->offsets[i] = offset;
		last = offset;
	}
	return true;
}

/* Every sample, or every @step-th. */
static bool look_at_all(struct shard_index *x, uint64_t step, char *why, size_t why_bytes)
{
	bool even = true;

	for (uint64_t i = 0; i < x->samples; i += step) {
		struct sample s;
		uint64_t begin, end;

		bounds(x, (uint32_t)i, &begin, &end);
		if (!look(x->b, &x->layout, &s, (uint32_t)i, begin, end, why, why_bytes) ||
			!alike(&s, x->sample_tokens, x->type, why, why_bytes))
			return false;
		even = even && s.tokens_at - begin == x->tokens_from;
	}
	x->even = x->even || (even && step == 1);
	return true;
}

static void mds_close(struct shard_index *x)
{
	free(x->offsets);
	free(x);
}

/* The index without what only a walk tells. */
static struct shard_index *begin(
	const struct bytes *b, const struct front *f, char *why, size_t why_bytes)
{
	struct shard_index *x = calloc(1, sizeof(*x));
	struct sample s;

	if (!x) {
		bytes_why(why, why_bytes, "%s", strerror(ENOMEM));
		return NULL;
	}
	x->b = b;
	x->layout = f->layout;
	x->samples = f->samples;
	x->first = f->first;
	x->stride = f->second - f->first;
	if (!look(b, &f->layout, &s, 0, f->first, f->second, why, why_bytes)) {
		free(x);
		return NULL;
	}
	x->sample_tokens = s.tokens;
	x->type = s.type;
	x->tokens_from = s.tokens_at - f->first;
	memcpy(x->lead, s.bytes, s.lead);
	x->even = f->layout.variable == 0 && f->layout.has_shape; /* nothing to look at */
	return x;
}

/* The XXH64 of all of a source. */
static bool hash_bytes(const struct bytes *b, uint64_t *hash, char *why, size_t why_bytes)
{
	XXH64_state_t state;
	char some[16 * 1024];
	int error;
	bool fine = true;

	XXH64_reset(&state, 0);
	for (uint64_t at = 0; fine && at < b->size; at += sizeof(some)) {
		size_t n = b->size - at < sizeof(some) ? (size_t)(b->size - at) : sizeof(some);

		fine = bytes_read(b, at, some, n, &error, why, why_bytes);
		XXH64_update(&state, some, n);
	}
	*hash = XXH64_digest(&state);
	return fine;
}

/*
 * Is that of @b what index.json says of its @data ("zip_data")? @cached: that or what is made of
 * it, to be forgotten before it is read again: a bit may have flipped on its way from the disk.
 */
static bool check_bytes(const struct bytes *b, const struct bytes *cached, const char *data,
	uint64_t hash, char *why, size_t why_bytes)
{
	uint64_t found;

	for (unsigned reading = 1; reading <= 2; reading++) {
		if (!hash_bytes(b, &found, why, why_bytes))
			return false;
		if (found == hash && reading == 2)
			reread_was_good(b->fd, 0, b->size, why);
		if (found == hash)
			return true;
		bytes_why(why, why_bytes,
			"its xxh64 is %016" PRIx64 "; its %s.hashes in index.json says %016" PRIx64
			": it is damaged",
			found, data, hash);
		if (reading == 1)
			bytes_forget(cached);
	}
	return false;
}

/* The file as it lies: whole, but it is about to be decoded anyway. */
static bool check_hash(const struct bytes *b, uint64_t hash, char *why, size_t why_bytes)
{
	struct bytes *file = bytes_open_plain(b->fd, b->path, why, why_bytes);
	bool fine = file && check_bytes(file, b, "zip_data", hash, why, why_bytes);

	bytes_close(file);
	return fine;
}

static struct shard_index *mds_open(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, char *why, size_t why_bytes)
{
	struct front f;
	struct shard_index *x = NULL;

	f.columns = NULL;
	if ((!facts->has_hash || check_hash(b, facts->hash, why, why_bytes)) &&
		read_front(b, hint, &f, why, why_bytes))
		x = begin(b, &f, why, why_bytes);
	free(f.columns);
	if (!x)
		return NULL;
	bool cheap = b->plain ? b->size <= SMALL : b->frames <= 1;

	if (x->samples * x->sample_tokens != facts->tokens || x->type != facts->type) {
		bytes_why(why, why_bytes, "it was written anew while it was opened");
	} else if (read_table(x, why, why_bytes)) {
		bool known = !x->offsets && (x->even || !cheap);

		if (known && !x->even && x->layout.column == 0 && x->layout.variable == 1 &&
			x->tokens_from <= LEAD_BYTES)
			facts->lead_bytes = x->lead_bytes = (uint32_t)x->tokens_from;
		if (known || look_at_all(x, 1, why, why_bytes)) {
			facts->looks = !x->even && x->lead_bytes == 0;
			facts->index_bytes =
				sizeof(*x) +
				(x->offsets ? ((uint64_t)x->samples + 1) * sizeof(*x->offsets) : 0);
			return x;
		}
	}
	mds_close(x);
	return NULL;
}

/* A sample that is not known to be like the first: where its tokens are. */
static bool look_at(
	const struct shard_index *x, uint32_t i, uint64_t *tokens_at, char *why, size_t why_bytes)
{
	struct sample s;
	uint64_t from, end;

	bounds(x, i, &from, &end);
	if (!look(x->b, &x->layout, &s, i, from, end, why, why_bytes) ||
		!alike(&s, x->sample_tokens, x->type, why, why_bytes))
		return false;
	*tokens_at = s.tokens_at;
	return true;
}

static uint64_t mds_extent(
	const struct shard_index *x, uint64_t token, uint64_t *byte, char *why, size_t why_bytes)
{
	uint32_t i = (uint32_t)(token / x->sample_tokens);
	uint64_t in = token % x->sample_tokens, end;

	if (x->even || (x->lead_bytes > 0 && in == 0)) {
		bounds(x, i, byte, &end);
		*byte += x->tokens_from;
	} else if (!look_at(x, i, byte, why, why_bytes)) {
		return 0;
	}
	*byte += in * shard_type_bytes(x->type);
	return x->sample_tokens - in;
}

/* The lengths and the shape are the first sample's, or are at least as good. */
static bool mds_check(const struct shard_index *x, uint64_t token, const uint8_t *lead, char *why,
	size_t why_bytes)
{
	uint32_t i = (uint32_t)(token / x->sample_tokens);
	uint64_t at, begin, end;

	if (memcmp(lead, x->lead, x->lead_bytes) == 0)
		return true;
	bounds(x, i, &begin, &end);
	return look_at(x, i, &at, why, why_bytes) &&
	       (at == begin + x->tokens_from ||
		       bytes_why(why, why_bytes,
			       "sample %" PRIu32 ": its tokens begin at byte %" PRIu64 ", %" PRIu64
			       " is expected",
			       i, at, begin + x->tokens_from));
}

/* ---- index.json ---- */

/* What it says of a shard. */
struct entry {
	char *name;    /* of the raw file, below the index's directory */
	char *zip;     /* "" or what is added to that for the compressed one: ".zstd" */
	char *columns; /* shared by neighbours that are the same */
	uint64_t number, samples, bytes, raw_hash, zip_bytes, zip_hash;
	bool owns_columns, has_raw_hash, has_hash;
};

/* An index.json. */
struct list {
	struct entry *entry; /* by name */
	uint64_t count, room;
	bool absent;
	size_t directory; /* bytes of its path up to its name */
	const char *path;
};

static void list_free(void *made)
{
	struct list *list = made;

	for (uint64_t i = 0; i < list->count; i++) {
		free(list->entry[i].name);
		free(list->entry[i].zip);
		if (list->entry[i].owns_columns)
			free(list->entry[i].columns);
	}
	free(list->entry);
	free(list);
}

/* A file's name, or a directory's and a file's: never one that leads elsewhere. */
static bool check_basename(const char *where, const char *name, char *why, size_t why_bytes)
{
	const char *slash = strchr(name, '/'), *file = slash ? slash + 1 : name;
	char shown[SHOWN];

	if (!*file || slash == name || strchr(file, '/') || name[0] == '.' || file[0] == '.' ||
		strlen(name) > NAME_MAX)
		return bytes_why(why, why_bytes,
			"%sbasename is '%s'; must be a file's name, or DIRECTORY/NAME below the "
			"index's own "
			"directory",
			where, json_shown(name, shown, sizeof(shown)));
	return true;
}

/* The xxh64 of `hashes`, if there is one. Others are passed over. */
static bool take_hash(const json_t *data, const char *where, uint64_t *hash, bool *has_hash,
	char *why, size_t why_bytes)
{
	const json_t *hashes = json_object_get(data, "hashes"),
		     *xxh64 = json_object_get(hashes, "xxh64");
	const char *text = json_string_value(xxh64);
	char shown[SHOWN];

	if (hashes && !json_is_null(hashes) && !json_is_object(hashes))
		return bytes_why(why, why_bytes, "%shashes is %s; must be an object", where,
			json_kind(hashes));
	if (!xxh64)
		return true;
	if (!text)
		return bytes_why(why, why_bytes, "%shashes.xxh64 is %s; must be 16 hex digits",
			where, json_kind(xxh64));
	if (strlen(text) != 16 || strspn(text, "0123456789abcdefABCDEF") != 16)
		return bytes_why(why, why_bytes, "%shashes.xxh64 is '%s'; must be 16 hex digits",
			where, json_shown(text, shown, sizeof(shown)));
	*hash = strtoull(text, NULL, 16);
	*has_hash = true;
	return true;
}

/* `zip_data`: the compressed twin, if there is one. */
static bool take_zip(
	const json_t *shard, const char *where, struct entry *e, char *why, size_t why_bytes)
{
	const json_t *zip = json_object_get(shard, "zip_data");
	char inner[64], shown[SHOWN];
	size_t n = strlen(e->name);

	if (!zip || json_is_null(zip)) {
		e->zip = strdup("");
		return e->zip || bytes_why(why, why_bytes, "%s", strerror(ENOMEM));
	}
	snprintf(inner, sizeof(inner), "%szip_data.", where);
	if (!json_is_object(zip))
		return bytes_why(why, why_bytes, "%szip_data is %s; must be an object or null",
			where, json_kind(zip));
	const char *name = json_string_in(zip, inner, "basename", why, why_bytes);

	if (!name || !check_basename(inner, name, why, why_bytes) ||
		!json_number_in(zip, inner, "bytes", INT64_MAX, &e->zip_bytes, why, why_bytes))
		return false;
	if (strncmp(name, e->name, n) != 0 || name[n] != '.' || strchr(name + n, '/'))
		return bytes_why(why, why_bytes,
			"%sbasename is '%s'; must be raw_data.basename and an ending like .zstd",
			inner, json_shown(name, shown, sizeof(shown)));
	e->zip = strdup(name + n);
	if (!e->zip)
		return bytes_why(why, why_bytes, "%s", strerror(ENOMEM));
	return take_hash(zip, inner, &e->zip_hash, &e->has_hash, why, why_bytes);
}

static bool take_entry(
	const json_t *shard, const char *where, struct list *list, char *why, size_t why_bytes)
{
	struct entry *e = &list->entry[list->count];
	const json_t *raw = json_object_get(shard, "raw_data");
	char inner[64];
	const char *name;

	snprintf(inner, sizeof(inner), "%sraw_data.", where);
	if (!check_version(shard, where, why, why_bytes) ||
		!check_columns(shard, where, why, why_bytes) ||
		!json_number_in(shard, where, "samples", UINT32_MAX, &e->samples, why, why_bytes))
		return false;
	if (!json_is_object(raw))
		return bytes_why(why, why_bytes, "%sraw_data is %s; must be an object", where,
			json_kind(raw));
	name = json_string_in(raw, inner, "basename", why, why_bytes);
	if (!name || !check_basename(inner, name, why, why_bytes) ||
		!json_number_in(raw, inner, "bytes", INT64_MAX, &e->bytes, why, why_bytes) ||
		!take_hash(raw, inner, &e->raw_hash, &e->has_raw_hash, why, why_bytes))
		return false;
	e->name = strdup(name);
	e->columns = columns_text(shard);
	e->owns_columns = true;
	list->count++; /* it is freed with the list from here on */
	if (!e->name || !e->columns)
		return bytes_why(why, why_bytes, "%s", strerror(ENOMEM));
	if (e->number > 0 && strcmp(e->columns, e[-1].columns) == 0) {
		free(e->columns);
		e->columns = e[-1].columns;
		e->owns_columns = false;
	}
	return take_zip(shard, where, e, why, why_bytes);
}

static bool visit(void *context, uint64_t number, json_t *shard, char *why, size_t why_bytes)
{
	struct list *list = context;
	char where[32];

	snprintf(where, sizeof(where), "shards[%" PRIu64 "].", number);
	if (!json_is_object(shard))
		return bytes_why(why, why_bytes, "shards[%" PRIu64 "] is %s; must be an object",
			number, json_kind(shard));
	if (list->count == list->room) {
		uint64_t room = list->room ? 2 * list->room : 64;
		struct entry *entry = realloc(list->entry, room * sizeof(*entry));

		if (!entry)
			return bytes_why(why, why_bytes, "%s", strerror(ENOMEM));
		list->entry = entry;
		list->room = room;
	}
	list->entry[list->count] = (struct entry){.number = number};
	return take_entry(shard, where, list, why, why_bytes);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

static bool is_file(const struct list *list, const char *name, const char *ending)
{
	char path[PATH_MAX];
	struct stat st;
	int n = snprintf(
		path, sizeof(path), "%.*s%s%s", (int)list->directory, list->path, name, ending);

	return n >= 0 && (size_t)n < sizeof(path) && stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* Each shard once, and each is there, in one form or another. */
static bool check_list(const struct list *list, char *why, size_t why_bytes)
{
	char shown[SHOWN];

	for (uint64_t i = 0; i < list->count; i++) {
		const struct entry *e = &list->entry[i];

		if (i > 0 && strcmp(e->name, e[-1].name) == 0)
			return bytes_why(why, why_bytes,
				"shards[%" PRIu64 "] and shards[%" PRIu64
				"] are both '%s'; must be one",
				e[-1].number < e->number ? e[-1].number : e->number,
				e[-1].number < e->number ? e->number : e[-1].number,
				json_shown(e->name, shown, sizeof(shown)));
		if (!is_file(list, e->name, "") && !is_file(list, e->name, e->zip) &&
			!is_file(list, e->name, ".zstd") && !is_file(list, e->name, ".zst"))
			return bytes_why(why, why_bytes,
				"shards[%" PRIu64
				"] is '%s'%s%s%s, and no such file is there; add it, or "
				"write the index anew",
				e->number, json_shown(e->name, shown, sizeof(shown)),
				*e->zip ? " (or with " : "", *e->zip ? e->zip : "",
				*e->zip ? ")" : "");
	}
	return true;
}

/* @text: all of it. */
static bool parse_list(const char *text, size_t n, struct list *list, char *why, size_t why_bytes)
{
	json_t *rest = NULL;
	bool fine = json_each(text, n, "shards", visit, list, &rest, why, why_bytes) &&
		    check_two(rest, "", why, why_bytes);

	json_decref(rest);
	if (!fine)
		return false;
	if (list->count > 0)
		qsort(list->entry, list->count, sizeof(*list->entry), by_name);
	return check_list(list, why, why_bytes);
}

static bool load_list(const struct bytes *b, struct list *list, char *why, size_t why_bytes)
{
	int error;

	if (b->size > INDEX_MOST)
		return bytes_why(why, why_bytes,
			"its size is %" PRIu64 " bytes; must be at most %" PRIu64, b->size,
			INDEX_MOST);
	char *text = malloc(b->size + 1);

	if (!text)
		return bytes_why(why, why_bytes, "%s", strerror(ENOMEM));
	bool fine = bytes_read(b, 0, text, b->size, &error, why, why_bytes) &&
		    parse_list(text, b->size, list, why, why_bytes);

	free(text);
	return fine;
}

static void *list_read(const char *path, char *why, size_t why_bytes)
{
	struct list *list = calloc(1, sizeof(*list));
	char inner[224];
	int error = 0;

	if (!list) {
		bytes_why(why, why_bytes, "%s", strerror(ENOMEM));
		return NULL;
	}
	list->path = path;
	list->directory = strlen(path) - strlen("index.json");
	struct bytes *b = bytes_open_path(path, &error, why, why_bytes);

	list->absent = !b && error == ENOENT;
	bool fine = list->absent || (b && load_list(b, list, inner, sizeof(inner)) &&
					    bytes_settled(b, inner, sizeof(inner)));

	if (b && !fine)
		bytes_why(why, why_bytes, "index.json: %s", inner);
	bytes_close(b);
	list->path = NULL; /* it was borrowed */
	if (fine)
		return list;
	list_free(list);
	return NULL;
}

/* ---- a shard and the index ---- */

/* The shard's name as an index knows it: the raw file's. */
static bool raw_name(const char *path, char *to, size_t to_bytes)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

	return bytes_beside(name, ".mds", ".mds", to, to_bytes) ||
	       (size_t)snprintf(to, to_bytes, "%s", name) < to_bytes;
}

/* The compressed file itself, if it is the one that the index knows; its hash is looked at by
 * open(). */
static bool check_zip(
	const struct bytes *b, struct front *f, const struct entry *e, char *why, size_t why_bytes)
{
	struct stat st;

	if (b->plain || !*e->zip || !ends_in(b->path, e->zip))
		return true;
	if (fstat(b->fd, &st) != 0)
		return bytes_why(why, why_bytes, "%s", strerror(errno));
	if ((uint64_t)st.st_size != e->zip_bytes)
		return bytes_why(why, why_bytes,
			"it is %lld bytes long; index.json: shards[%" PRIu64
			"].zip_data.bytes is %" PRIu64,
			(long long)st.st_size, e->number, e->zip_bytes);
	f->has_hash = e->has_hash;
	f->hash = e->zip_hash;
	return true;
}

static bool check_entry(
	const struct bytes *b, struct front *f, const struct entry *e, char *why, size_t why_bytes)
{
	char here[100], there[100];

	if (e->samples != f->samples)
		return bytes_why(why, why_bytes,
			"number of samples is %" PRIu32 "; index.json: shards[%" PRIu64
			"].samples is %" PRIu64,
			f->samples, e->number, e->samples);
	if (e->bytes != b->size)
		return bytes_why(why, why_bytes,
			"%s %" PRIu64 " bytes; index.json: shards[%" PRIu64
			"].raw_data.bytes is %" PRIu64,
			b->plain ? "its size is" : "it decodes to", b->size, e->number, e->bytes);
	if (strcmp(e->columns, f->columns) != 0)
		return bytes_why(why, why_bytes,
			"its columns are %s; index.json: those of shards[%" PRIu64 "] are %s",
			json_shown(f->columns, here, sizeof(here)), e->number,
			json_shown(e->columns, there, sizeof(there)));
	/* A large one is not read whole for it. */
	if (e->has_raw_hash && b->size <= TINY &&
		!check_bytes(b, b, "raw_data", e->raw_hash, why, why_bytes))
		return false;
	return check_zip(b, f, e, why, why_bytes);
}

/* @directory/index.json against the shard, which it knows as @name. *@absent: there is none. */
static bool check_index(const struct bytes *b, struct front *f, struct memo *memo,
	const char *directory, const char *name, bool *absent, char *why, size_t why_bytes)
{
	char path[PATH_MAX];
	struct entry wanted = {.name = (char *)name};

	if (snprintf(path, sizeof(path), "%sindex.json", directory) >= (int)sizeof(path))
		return bytes_why(why, why_bytes, "%s", strerror(ENAMETOOLONG));
	const struct list *list = memo_of(memo, path, list_read, list_free, why, why_bytes);

	if (!list)
		return false;
	*absent = list->absent;
	if (list->absent)
		return true;
	const struct entry *e =
		list->count ? bsearch(&wanted, list->entry, list->count, sizeof(*e), by_name)
			    : NULL;

	return e ? check_entry(b, f, e, why, why_bytes)
		 : bytes_why(why, why_bytes,
			   "it is not among the %" PRIu64
			   " shards of %.200s; move it away, or write the "
			   "index anew",
			   list->count, path);
}

/* Is @directory, which ends in a slash, @root or below it? */
static bool is_below(const char *directory, const char *root)
{
	size_t n = strlen(root);

	while (n > 0 && root[n - 1] == '/')
		n--;
	return strncmp(directory, root, n) == 0 && directory[n] == '/';
}

/*
 * The index of its directory; and the one above where that is part of the dataset, or where there
 * is no other: it is a merged one, then.
 */
static bool check_indexes(const struct bytes *b, struct front *f, struct memo *memo,
	char *directory, const char *name, char *why, size_t why_bytes)
{
	size_t n = strlen(directory) - 1; /* without the slash */
	char merged[PATH_MAX];
	bool absent = true;

	if (!check_index(b, f, memo, directory, name, &absent, why, why_bytes))
		return false;
	while (n > 0 && directory[n - 1] != '/')
		n--;
	if (n == 0) /* it is / itself */
		return true;
	snprintf(merged, sizeof(merged), "%s%s", directory + n, name);
	directory[n] = 0;
	return (!absent && !is_below(directory, memo_root(memo))) ||
	       check_index(b, f, memo, directory, merged, &absent, why, why_bytes);
}

/* Whatever index.json there is must list the shard, and as it is. */
static bool check_listed(const struct bytes *b, const struct shard_hint *hint, struct front *f,
	char *why, size_t why_bytes)
{
	char directory[PATH_MAX + 1], name[NAME_MAX + 1];
	const char *slash = strrchr(b->path, '/');

	snprintf(directory, PATH_MAX, "%.*s", slash ? (int)(slash - b->path) : 1,
		slash ? b->path : ".");
	/* The names of the directory and of the one above are needed: none may be dots. */
	bool named =
		!directory[0] ||
		(directory[0] == '/' && !strstr(directory, "/./") && !strstr(directory, "/../") &&
			!ends_in(directory, "/.") && !ends_in(directory, "/.."));
	char *real = named ? strdup(directory) : realpath(directory, NULL);

	if (!real || !raw_name(b->path, name, sizeof(name)))
		return free(real),
		       bytes_why(why, why_bytes, "%s", strerror(real ? ENAMETOOLONG : errno));
	snprintf(directory, sizeof(directory), "%s/", strcmp(real, "/") == 0 ? "" : real);
	free(real);
	struct memo *memo = hint->memo ? hint->memo : memo_new(directory);
	bool fine = memo ? check_indexes(b, f, memo, directory, name, why, why_bytes)
			 : bytes_why(why, why_bytes, "%s", strerror(ENOMEM));

	if (!hint->memo)
		memo_free(memo);
	return fine;
}

/* ---- what is in it ---- */

static bool refuse_packed(const struct bytes *b, char *why, size_t why_bytes)
{
	for (unsigned i = 0; i < sizeof(packed) / sizeof(packed[0]); i++)
		if (ends_in(b->path, packed[i]))
			return bytes_why(why, why_bytes,
				"is compressed in a way that is not read here (%s); must be raw or "
				"zstd: "
				"unpack it, index.json may stay",
				packed[i] + 4);
	return true;
}

/*
 * Samples of several lengths are to be refused before a training starts with them. If the tokens
 * are all that can vary, the length of the whole shard shows it; else the offsets and a few samples
 * do.
 */
static bool check_spread(struct shard_index *x, const struct front *f, char *why, size_t why_bytes)
{
	bool only = x->layout.variable <= 1;

	if (only && f->end - x->first == x->samples * x->stride)
		return true;
	if (!read_table(x, why, why_bytes))
		return false;
	return (!only && look_at_all(x, x->samples / SPREAD + 1, why, why_bytes)) ||
	       look_at_all(x, 1, why, why_bytes); /* the first that differs */
}

static bool check_window(
	const struct shard_index *x, const struct shard_hint *hint, char *why, size_t why_bytes)
{
	return hint->window_tokens == 0 || hint->window_tokens == x->sample_tokens ||
	       bytes_why(why, why_bytes,
		       "its samples have %" PRIu64
		       " tokens each, and a window is a sample; seq_len + extra "
		       "is %" PRIu64 ": say `seq_len: %" PRIu64 "` and `extra: 0`",
		       x->sample_tokens, hint->window_tokens, x->sample_tokens);
}

/*
 * What describes a shard lies at its begin, so a large compressed one need not be decoded whole for
 * that: a source of those bytes, which asks the whole one for others.
 */
struct front_source {
	struct bytes bytes;
	const struct bytes *whole;
	uint8_t *data;
	uint64_t n;
};

static bool front_source_read(const struct bytes *b, uint64_t at, void *to, size_t n, int *error,
	char *why, size_t why_bytes)
{
	const struct front_source *s = (const struct front_source *)b;

	if (at + n > s->n)
		return bytes_read(s->whole, at, to, n, error, why, why_bytes);
	memcpy(to, s->data + at, n);
	return true;
}

static void front_source_forget(const struct bytes *b)
{
	bytes_forget(((const struct front_source *)b)->whole);
}

static const struct bytes_ops front_source_ops = {
	.read = front_source_read, .forget = front_source_forget};

static void front_source_make(struct front_source *s, const struct bytes *b)
{
	uint8_t head[8];

	*s = (struct front_source){.bytes = *b, .whole = b};
	s->bytes.ops = &front_source_ops;
	if (b->plain || bytes_head(b, head, sizeof(head)) < sizeof(head))
		return;
	/* To offset 0, and of the first sample what is looked at. */
	uint64_t n = (uint64_t)bytes_u32(head + 4) + LEAD_BYTES,
		 most = 4 * (uint64_t)bytes_u32(head);

	if (n > b->size || n > most + CONFIG_MOST)
		return;
	s->data = malloc(n);
	if (s->data)
		s->n = bytes_head(b, s->data, n);
}

static bool mds_describe(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, char *why, size_t why_bytes)
{
	struct front f = {.columns = NULL};
	struct front_source front = {.data = NULL};
	struct shard_index *x = NULL;
	bool fine = refuse_packed(b, why, why_bytes);

	if (fine)
		front_source_make(&front, b);
	fine = fine && read_front(&front.bytes, hint, &f, why, why_bytes) &&
	       check_listed(b, hint, &f, why, why_bytes);
	x = fine ? begin(&front.bytes, &f, why, why_bytes) : NULL;
	fine = x && check_spread(x, &f, why, why_bytes) && check_window(x, hint, why, why_bytes);
	if (fine) {
		facts->type = x->type;
		facts->sample_tokens = x->sample_tokens;
		facts->tokens =
			x->samples * x->sample_tokens; /* both lie in a file of under 4 GiB */
		facts->has_hash = f.has_hash;
		facts->hash = f.hash;
	}
	if (x)
		mds_close(x);
	free(f.columns);
	free(front.data);
	return fine;
}

/* The raw file counts where both are there; a compressed one is a shard where it is alone. */
static const struct shard_companion mds_companions[] = {
	{.ending = "/index.json", .shard = "*.mds", .kind = "a Mosaic index"},
	{.ending = "/index.json", .shard = "*.mds.br", .kind = "a Mosaic index"},
	{.ending = "/index.json", .shard = "*.mds.bz2", .kind = "a Mosaic index"},
	{.ending = "/index.json", .shard = "*.mds.gz", .kind = "a Mosaic index"},
	{.ending = "/index.json", .shard = "*.mds.snappy", .kind = "a Mosaic index"},
	{.ending = ".mds.zstd", .shard = ".mds", .kind = "a compressed shard", .alone = true},
	{.ending = ".mds.zst", .shard = ".mds", .kind = "a compressed shard", .alone = true},
	{.ending = ".mds.br", .shard = ".mds", .kind = "a compressed shard", .alone = true},
	{.ending = ".mds.bz2", .shard = ".mds", .kind = "a compressed shard", .alone = true},
	{.ending = ".mds.gz", .shard = ".mds", .kind = "a compressed shard", .alone = true},
	{.ending = ".mds.snappy", .shard = ".mds", .kind = "a compressed shard", .alone = true},
	{0},
};

const struct shard_format shard_mds = {
	.name = "mds",
	.recognise = mds_recognise,
	.describe = mds_describe,
	.companions = mds_companions,
	.open = mds_open,
	.close = mds_close,
	.extent = mds_extent,
	.check = mds_check,
};
