/*
 * Mosaic's MDS: u32 n, u32 offsets[n + 1], a JSON config, then n samples. A sample is a u32 length
 * for each column of variable size, then the values of all columns. A value is raw, or begins with
 * its type and shape.
 *
 * Samples are rows, as in npy.c: if all of a dataset have the length of a window, each is one;
 * otherwise they are documents, which are joined. An empty sample is a document without tokens.
 *
 * Where the lengths tell how many tokens a sample has, as with what llm-foundry writes, only the
 * first sample of a large shard is looked at.
 */
#include "daemon/shard/json.h"
#include "daemon/shard/map.h"
#include "daemon/shard/mds_index.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	COLUMNS_MOST = 256,
	DIMENSIONS_MOST = 63,
	SHAPE_MOST = 2 + 8 * DIMENSIONS_MOST, /* bytes of a type and a shape */
	CONFIG_MOST = 1 << 20,
	SMALL = 1 << 20, /* bytes; all samples of smaller shards are looked at */
	SOME = 1024,	 /* bytes of a sample, usually enough for its lengths and shape */
	SHOWN = 48,
};

/* Where the tokens are in a sample. */
struct layout {
	unsigned columns;
	unsigned column;	     /* index of the one with the tokens */
	uint32_t size[COLUMNS_MOST]; /* of each column; 0: variable, stored in each sample */
	unsigned variable;	     /* number of variable columns */
	uint64_t fixed;		     /* total bytes of the others */
	char name[SHOWN];	     /* of the column, printable */

	bool has_type; /* otherwise the value begins with its type */
	bool raw;      /* otherwise the shape comes next */
	enum shard_type type;
};

/* A shard that is being read. */
struct mds {
	const struct bytes *b;
	struct fault *fault;
	uint32_t samples;
	uint8_t *front; /* the first bytes: up to the first sample, and some of that */
	uint64_t front_bytes;
	struct layout layout;
};

struct sample {
	uint32_t number;
	uint64_t begin, end;   /* in the file */
	uint64_t value, bytes; /* of our column */
	uint64_t at, tokens;
	enum shard_type type;
};

#define refuse(m, ...) fault_set((m)->fault, FAULT_DATA, "", __VA_ARGS__)

/* ---- columns ---- */

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

/*
 * Whether a column of this encoding holds tokens: `bytes`, `ndarray`, `ndarray:TYPE`, or
 * `ndarray:TYPE:SHAPE`, whose values are raw, too. Fills the members of @l that depend on it.
 */
static bool encoding(const char *text, const struct shard_hint *hint, struct layout *l)
{
	static const char array[] = "ndarray:";
	size_t n = sizeof(array) - 1;

	l->has_type = l->raw = strcmp(text, "bytes") == 0;
	l->type = hint->has_type ? hint->type : SHARD_I64;
	if (l->raw || strcmp(text, "ndarray") == 0)
		return true;
	if (strncmp(text, array, n) != 0)
		return false;
	text += n;
	l->has_type = true;
	l->raw = strchr(text, ':');
	for (int i = 0; i < TYPES; i++)
		if (strlen(types[i].name) == strcspn(text, ":") &&
			strncmp(types[i].name, text, strlen(types[i].name)) == 0) {
			l->type = types[i].type;
			return true;
		}
	return false;
}

/* The config's three arrays, of @n columns each. */
struct columns {
	const json_t *names, *encodings, *sizes;
	size_t n;
};

static const char *text_of(const json_t *array, size_t i)
{
	return json_string_value(json_array_get(array, i));
}

/* Checks the arrays: equal lengths, the right types, and names that ascend, as they are written. */
static bool read_columns(struct mds *m, const json_t *config, struct columns *c)
{
	*c = (struct columns){json_object_get(config, "column_names"),
		json_object_get(config, "column_encodings"),
		json_object_get(config, "column_sizes"), 0};
	c->n = json_array_size(c->names);
	if (c->n == 0 || c->n > COLUMNS_MOST || json_array_size(c->encodings) != c->n ||
		json_array_size(c->sizes) != c->n)
		return refuse(m,
			"column_names has %zu entries, column_encodings %zu, column_sizes %zu; "
			"must be arrays of the same length, 1 to %d",
			c->n, json_array_size(c->encodings), json_array_size(c->sizes),
			COLUMNS_MOST);
	for (size_t i = 0; i < c->n; i++) {
		const json_t *size = json_array_get(c->sizes, i);

		if (!text_of(c->names, i) || !text_of(c->encodings, i) ||
			(!json_is_null(size) && !json_is_integer(size)) ||
			json_integer_value(size) < 0 || json_integer_value(size) > UINT32_MAX ||
			(i > 0 && strcmp(text_of(c->names, i), text_of(c->names, i - 1)) <= 0))
			return refuse(m,
				"column %zu: must have a name after the previous one, an encoding, "
				"and as size null or 0 to %u",
				i, UINT32_MAX);
	}
	return true;
}

static bool refuse_column(struct mds *m, const struct columns *c, const char *what)
{
	char all[160] = "", name[SHOWN], encoded[SHOWN];
	size_t n = 0;

	for (size_t i = 0; i < c->n && n < sizeof(all); i++)
		n += (size_t)snprintf(all + n, sizeof(all) - n, "%s%s: %s", i ? ", " : "",
			json_shown(text_of(c->names, i), name, sizeof(name)),
			json_shown(text_of(c->encodings, i), encoded, sizeof(encoded)));
	return refuse(m, "%s; set `column` to the one with the tokens, of: %s", what, all);
}

/* Chooses the config's column; otherwise one with llm-foundry's names; otherwise the only one. */
static bool choose(struct mds *m, const struct columns *c, const struct shard_hint *hint)
{
	const char *const names[] = {
		hint->column ? hint->column : "tokens", hint->column ? hint->column : "input_ids"};
	char what[SHOWN + 20], shown[SHOWN];

	for (unsigned i = 0; i < 2 * c->n; i++) {
		m->layout.column = i % c->n;
		if (strcmp(text_of(c->names, i % c->n), names[i / c->n]) == 0)
			return true;
	}
	snprintf(what, sizeof(what), "has no column %s",
		hint->column ? json_shown(hint->column, shown, sizeof(shown))
			     : "tokens or input_ids");
	m->layout.column = 0;
	return (!hint->column && c->n == 1) || refuse_column(m, c, what);
}

static bool lay_out(struct mds *m, const struct columns *c, const struct shard_hint *hint)
{
	struct layout *l = &m->layout;
	char what[2 * SHOWN + 40], shown[SHOWN];

	if (!choose(m, c, hint))
		return false;
	const char *text = text_of(c->encodings, l->column);

	json_shown(text_of(c->names, l->column), l->name, sizeof(l->name));
	snprintf(what, sizeof(what), "column `%s` is encoded as `%s`", l->name,
		json_shown(text, shown, sizeof(shown)));
	if (!encoding(text, hint, l))
		return refuse(m,
			"%s; must be bytes, or ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE with "
			"an integer type",
			what);
	l->columns = (unsigned)c->n;
	for (unsigned i = 0; i < l->columns; i++) {
		l->size[i] = (uint32_t)json_integer_value(json_array_get(c->sizes, i));
		l->variable += l->size[i] == 0;
		l->fixed += l->size[i];
	}
	return true;
}

/* ---- the front ---- */

static uint32_t offset(const struct mds *m, uint64_t i)
{
	return bytes_u32(m->front + 4 + 4 * i);
}

/* Offsets ascend, up to the end of the file. */
static bool check_offsets(struct mds *m)
{
	uint64_t size = m->b->size;
	uint32_t last = offset(m, 0);

	if (offset(m, m->samples) != size)
		return refuse(m,
			"the last sample ends at byte %" PRIu32 " (offset %" PRIu32
			"); the file has %" PRIu64 " bytes",
			offset(m, m->samples), m->samples, size);
	for (uint64_t i = 1; i <= m->samples; last = offset(m, i++))
		if (offset(m, i) < last || offset(m, i) > size)
			return refuse(m,
				"offset %" PRIu64 " is %" PRIu32 "; must be %" PRIu32 " to %" PRIu64
				": offsets ascend and end with the file",
				i, offset(m, i), last, size);
	return true;
}

/* Reads the offsets, the config and some of the first sample. */
static bool read_front(struct mds *m)
{
	uint64_t size = m->b->size;
	uint8_t head[8];

	if (size < sizeof(head) + 4)
		return refuse(m,
			"its size is %" PRIu64 " bytes; a shard of one sample has at least %zu",
			size, sizeof(head) + 4);
	if (!bytes_begin(m->b, head, sizeof(head), m->fault))
		return false;
	m->samples = bytes_u32(head);
	uint64_t first = bytes_u32(head + 4), table = 4 + 4 * ((uint64_t)m->samples + 1);

	if (m->samples == 0)
		return refuse(m, "number of samples is 0: it has no tokens; remove it");
	if (table > size)
		return refuse(m,
			"number of samples is %" PRIu32 ", whose offsets end at byte %" PRIu64
			"; the file has %" PRIu64 " bytes",
			m->samples, table, size);
	if (first < table || first > size || first - table > CONFIG_MOST)
		return refuse(m,
			"offset 0 is %" PRIu64 "; must be %" PRIu64
			" (the end of the offsets) to %" PRIu64 ", with at most %d bytes of config",
			first, table, size, CONFIG_MOST);
	m->front_bytes = first + SOME < size ? first + SOME : size;
	m->front = malloc(m->front_bytes);
	if (!m->front)
		return fault_memory(m->fault);
	return bytes_begin(m->b, m->front, m->front_bytes, m->fault) && check_offsets(m);
}

static bool read_config(struct mds *m, const struct shard_hint *hint)
{
	uint64_t from = 4 + 4 * ((uint64_t)m->samples + 1);
	json_t *config =
		json_object_of((const char *)m->front + from, offset(m, 0) - from, m->fault);
	struct columns columns;
	uint64_t version;
	bool fine = config &&
		    json_number_in(config, "", "version", INT32_MAX, &version, m->fault) &&
		    (version == 2 || refuse(m, "version is %" PRIu64 "; must be 2", version)) &&
		    read_columns(m, config, &columns) && lay_out(m, &columns, hint);

	json_decref(config);
	return fine || fault_prefix(m->fault, "config: ");
}

/* ---- samples ---- */

/* Like bytes_read(), which the front spares. */
static bool get(struct mds *m, uint64_t at, void *to, size_t n)
{
	if (at + n > m->front_bytes)
		return bytes_read(m->b, at, to, n, m->fault);
	memcpy(to, m->front + at, n);
	return true;
}

/* Finds our column in a sample, whose lengths must add up to its size. */
static bool find_column(struct mds *m, struct sample *s)
{
	const struct layout *l = &m->layout;
	uint8_t lengths[4 * COLUMNS_MOST], *length = lengths;
	uint64_t bytes = s->end - s->begin, head = 4 * (uint64_t)l->variable, sum = head + l->fixed;

	s->value = s->begin + head;
	if (head <= bytes && !get(m, s->begin, lengths, head))
		return false;
	for (unsigned i = 0; head <= bytes && i < l->columns; i++) {
		uint64_t column = l->size[i] ? l->size[i] : bytes_u32(length);

		sum += l->size[i] ? 0 : column;
		length += l->size[i] ? 0 : 4;
		s->value += i < l->column ? column : 0;
		s->bytes = i == l->column ? column : s->bytes;
	}
	return sum == bytes || refuse(m,
				       "sample %" PRIu32 ": its lengths and columns take %" PRIu64
				       " bytes; its offsets span %" PRIu64,
				       s->number, sum, bytes);
}

/* The same without reading, if only our column or none varies in size. */
static bool column_by_size(const struct mds *m, struct sample *s)
{
	const struct layout *l = &m->layout;
	uint64_t bytes = s->end - s->begin, other = 4 * (uint64_t)l->variable + l->fixed;

	if (l->variable > 1 || (l->variable == 1 && l->size[l->column] > 0) || bytes < other)
		return false;
	s->value = s->begin + 4 * (uint64_t)l->variable;
	for (unsigned i = 0; i < l->column; i++)
		s->value += l->size[i];
	s->bytes = l->variable ? bytes - other : l->size[l->column];
	return l->variable || bytes == other;
}

static bool take_type(struct mds *m, struct sample *s, uint8_t code)
{
	for (int i = 0; i < TYPES; i++)
		if (types[i].code == code) {
			s->type = types[i].type;
			return true;
		}
	return refuse(m, "sample %" PRIu32 ": type is %u%s; must be 8, 9, 16, 17, 32, 33, 64 or 65",
		s->number, code,
		code == 18 || code == 34 || code == 66 ? ", a floating-point type" : "");
}

/* Reads the type and the shape at the beginning of our column. *@n: their length. */
static bool take_array(struct mds *m, struct sample *s, size_t *n, uint64_t *count)
{
	const struct layout *l = &m->layout;
	size_t head = (size_t)!l->has_type + 1,
	       most = s->bytes < SHAPE_MOST ? s->bytes : SHAPE_MOST;
	uint8_t value[SHAPE_MOST];

	if (s->bytes < head)
		return refuse(m,
			"sample %" PRIu32 ": column `%s` is %" PRIu64
			" bytes long; its shape alone takes %zu",
			s->number, l->name, s->bytes, head);
	if (!get(m, s->value, value, most) || (!l->has_type && !take_type(m, s, value[0])))
		return false;
	unsigned dimensions = value[head - 1] >> 2, width = 1u << (value[head - 1] & 3);

	*n = head + (size_t)dimensions * width;
	if (dimensions == 0 || *n > s->bytes)
		return refuse(m,
			"sample %" PRIu32 ": shape has %u dimensions of %u bytes; must have 1 to "
			"%d, and column `%s` is %" PRIu64 " bytes long",
			s->number, dimensions, width, DIMENSIONS_MOST, l->name, s->bytes);
	*count = 1;
	for (const uint8_t *at = value + head; at < value + *n; at += width) {
		uint64_t dimension = 0;

		for (unsigned i = 0; i < width; i++)
			dimension |= (uint64_t)at[i] << 8 * i;
		/* No column has so many bytes, so the caller refuses it. */
		if (__builtin_mul_overflow(*count, dimension, count))
			*count = UINT64_MAX;
	}
	return true;
}

/* Finds the tokens in our column by its shape. */
static bool look(struct mds *m, struct sample *s)
{
	uint64_t count, bytes;
	size_t n = 0;

	s->type = m->layout.type;
	if (!m->layout.raw && !take_array(m, s, &n, &count))
		return false;
	uint64_t width = shard_type_bytes(s->type);

	if (m->layout.raw)
		count = s->bytes / width;
	if (__builtin_mul_overflow(count, width, &bytes) || bytes != s->bytes - n)
		return refuse(m,
			"sample %" PRIu32 ": its shape makes %" PRIu64 " tokens of %" PRIu64
			" bytes; column `%s` has %" PRIu64
			" bytes for them: it is truncated, or dtype is wrong",
			s->number, count, width, m->layout.name, s->bytes - n);
	s->at = s->value + n;
	s->tokens = count;
	return true;
}

/* The same by the size of our column: an array of one dimension, in the fewest bytes. */
static bool look_by_size(const struct mds *m, struct sample *s, enum shard_type type)
{
	uint64_t width = shard_type_bytes(type);

	for (unsigned bytes = 1; bytes <= 4 && !m->layout.raw; bytes *= 2) {
		uint64_t head = (uint64_t)!m->layout.has_type + 1 + bytes, n;

		if (s->bytes < head || (s->bytes - head) % width != 0)
			continue;
		n = (s->bytes - head) / width;
		if (n >> (8 * bytes) != 0 || (bytes > 1 && n >> (4 * bytes) == 0))
			continue;
		s->at = s->value + head;
		s->tokens = n;
		s->type = type;
		return true;
	}
	return false;
}

/* @first: NULL, or the first sample, if sizes tell what a sample holds. */
static bool find(struct mds *m, struct sample *s, const struct sample *first)
{
	if (!(first && column_by_size(m, s)) && !find_column(m, s))
		return false;
	return (first && look_by_size(m, s, first->type)) || look(m, s);
}

/* ---- the shard ---- */

static bool mds_recognise(const struct bytes *b)
{
	return bytes_ending(b->path, ".mds");
}

static bool scan_samples(
	struct mds *m, const struct shard_hint *hint, struct shard_facts *facts, struct map *map)
{
	struct sample first = {0}, sized;
	bool alike = true, by_size = false;

	for (uint32_t i = 0; i < m->samples; i++) {
		struct sample s = {.number = i, .begin = offset(m, i), .end = offset(m, i + 1)};

		if (!find(m, &s, by_size ? &first : NULL))
			return false;
		if (i == 0) {
			first = sized = s;
			by_size = (m->b->size > SMALL || hint->listed) &&
				  (m->layout.raw ||
					  (look_by_size(m, &sized, s.type) && sized.at == s.at &&
						  sized.tokens == s.tokens));
			if (map)
				map->width = shard_type_bytes(s.type);
		}
		if (s.type != first.type)
			return refuse(m,
				"sample %" PRIu32
				" has tokens of %s, sample 0 of %s; all must have the same type",
				i, shard_type_name(s.type), shard_type_name(first.type));
		alike = alike && s.tokens == first.tokens;
		facts->tokens += s.tokens;
		if (map && !map_add(map, s.at, s.tokens, false))
			return fault_memory(m->fault);
	}
	facts->type = first.type;
	facts->row_tokens = alike ? first.tokens : 0;
	return true;
}

/* Whether samples are rows: windows, or not yet known to be others. */
static void judge_rows(const struct shard_hint *hint, struct shard_facts *facts, uint64_t samples)
{
	uint64_t row = hint->joined ? 0 : facts->row_tokens, window = hint->window_tokens;

	facts->row_tokens = row;
	if (row > 0 && (window == 0 || window == row)) {
		facts->sample_tokens = row;
		return;
	}
	facts->documents = samples;
	if (row > 0 && samples > 1)
		snprintf(facts->note, sizeof(facts->note),
			"all its samples have %" PRIu64
			" tokens, and are joined; to make each a window, set seq_len: %" PRIu64
			" and extra: 0",
			row, row);
}

static bool mds_scan(const struct bytes *b, const struct bytes *index,
	const struct shard_hint *hint, struct shard_facts *facts, struct map *map,
	struct fault *fault)
{
	struct mds m = {.b = b, .fault = fault};

	(void)index;
	bool fine = read_front(&m) && read_config(&m, hint) &&
		    (hint->listed || mds_check_listed(b, hint, m.samples, fault)) &&
		    scan_samples(&m, hint, facts, map);

	free(m.front);
	if (!fine)
		return false;
	snprintf(facts->column, sizeof(facts->column), "%s", m.layout.name);
	facts->plain = false;
	judge_rows(hint, facts, m.samples);
	return true;
}

/* If a shard is there both raw and compressed, the raw file is served. */
static const struct shard_companion companions[] = {
	{.ending = "/index.json", .shard = "*.mds", .kind = "a Mosaic index by its name"},
	{.ending = ".mds.zstd", .shard = ".mds", .kind = "a compressed shard", .alone = true},
	{.ending = ".mds.zst", .shard = ".mds", .kind = "a compressed shard", .alone = true},
	{0},
};

const struct shard_format shard_mds = {
	.name = "mds",
	.recognise = mds_recognise,
	.scan = mds_scan,
	.companions = companions,
	.indexed = true,
	.mixes_rows = true,
};
