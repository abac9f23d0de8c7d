/*
 * Arrow IPC files and streams. IBM's fms-fsdp writes files with a flat column of integers, and a
 * document per record batch. Hugging Face's datasets writes streams with a column of lists, and a
 * document per list. Either way the tokens of a batch are contiguous.
 *
 * A stream is messages: the schema, then the batches and dictionaries. A file is a stream between
 * a magic and a footer, whose number of batches must be that of the stream. A message has metadata
 * (a flatbuffer) and a body. The metadata of a batch are its number of rows, and where in its body
 * each column's buffers are. Other columns are only counted, to find ours. Metadata is of version
 * 5, which Arrow writes since 1.0.
 */
#include "daemon/shard/format.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char magic[] = "ARROW1";

enum {
	MAGIC_BYTES = sizeof(magic) - 1,
	BEGIN_BYTES = 8, /* the magic, padded */
	BEGIN_MOST = 64, /* the same as some writers align it */
	END_BYTES = 4 + MAGIC_BYTES,
	PREFIX_BYTES = 8, /* of a message: CONTINUED and the length of its metadata */
	BLOCK_BYTES = 24, /* of a batch's entry in the footer */
	NODE_BYTES = 16,
	BUFFER_BYTES = 16,
	METADATA_MOST = 256 << 20,
	FIELDS_MOST = 65536, /* nested ones included: a forged schema may repeat a field */
	DEPTH_MOST = 64,
};

#define CONTINUED UINT32_MAX /* the first word of a message */

/* Numbers of the fields that are read, and values of enumerations. */
enum { FOOTER_BATCHES = 3 };
enum { MESSAGE_VERSION, MESSAGE_HEADER_TYPE, MESSAGE_HEADER, MESSAGE_BODY };
enum { SCHEMA_ENDIANNESS, SCHEMA_FIELDS };
enum { FIELD_NAME, FIELD_TYPE_TYPE = 2, FIELD_TYPE, FIELD_DICTIONARY, FIELD_CHILDREN };
enum { BATCH_LENGTH, BATCH_NODES, BATCH_BUFFERS, BATCH_COMPRESSION };
enum { TYPE_NUMBER, INT_SIGNED };
enum { HEADER_SCHEMA = 1, HEADER_DICTIONARY, HEADER_BATCH, VERSION_5 = 4 };

/* A range of the metadata. */
struct vector {
	uint64_t at; /* offset of the first item */
	uint32_t count;
};

/* A list is a document; without lists, a row is a token, and a batch a document. */
struct column {
	char name[64];
	unsigned of;		  /* its type */
	bool fits;		  /* it holds integers or lists of them */
	enum shard_type type;	  /* of the tokens, if it fits */
	unsigned values;	  /* the number of the buffer with them */
	uint32_t offset_bytes;	  /* of lists with offsets; otherwise 0 */
	int64_t list_size;	  /* of lists that are all as long; otherwise 0 */
	uint32_t fields, buffers; /* of the columns before it, flattened as in a batch */
};

/* An open file or stream. */
struct arrow {
	const struct shard_scan *s;
	bool stream;
	bool closed;	   /* the end marker was found */
	uint64_t at, end;  /* of the messages that are still to be read */
	uint32_t batches;  /* that were read */
	uint8_t *metadata; /* of the message */
	uint64_t metadata_bytes;
	bool failed;	/* the metadata are damaged */
	char what[120]; /* "Arrow batch 17, column 'tokens'" */
	struct columns columns;
	struct column column;	  /* with the tokens */
	uint32_t fields, buffers; /* of all columns */
	uint64_t documents;	  /* that were read */
};

/* A message; the members after the body are those of a batch. */
struct message {
	int64_t type;	 /* of its header; 0: there is none */
	uint64_t header; /* a table */
	uint64_t body, bytes;
	struct vector nodes, buffers;
	uint64_t rows;
};

/* Both put before a fault in the message that is read what it is. */
#define refuse(a, text, ...) fault_data((a)->s->fault, "%s: " text, (a)->what, ##__VA_ARGS__)
#define check(a, value, least, most, text, ...)                                                    \
	bytes_check((a)->s->fault, value, least, most, "%s: " text, (a)->what, ##__VA_ARGS__)

/* ---- metadata ---- */

/*
 * A flatbuffer may be damaged or forged: each offset is compared with its size before it is
 * followed. Nothing needs to be aligned. A table is its offset; 0: it is absent. Fields are given
 * by their numbers in the table's schema. An absent field is 0, or empty. After a failure, which
 * fills a->s->fault, all fields are absent.
 */

static bool fb_has(struct arrow *a, uint64_t at, uint64_t n)
{
	if (!a->failed && (at > a->metadata_bytes || n > a->metadata_bytes - at)) {
		a->failed = true;
		refuse(a, "its metadata points to byte %" PRIu64 ", outside its %" PRIu64 " bytes",
			at, a->metadata_bytes);
	}
	return !a->failed;
}

/* Follows the offset that is stored at @at, relative to its own position. */
static uint64_t fb_follow(struct arrow *a, uint64_t at)
{
	return fb_has(a, at, 4) ? at + bytes_u32(a->metadata + at) : 0;
}

/* The offset of field @id, of @n bytes; 0: it is absent. */
static uint64_t fb_field(struct arrow *a, uint64_t table, unsigned id, uint32_t n)
{
	uint64_t slot = 4 + 2 * id;

	if (table == 0 || !fb_has(a, table, 4))
		return 0;
	/* An offset below 0 wraps around to one that is too large. */
	uint64_t vtable = table - (uint64_t)(int64_t)(int32_t)bytes_u32(a->metadata + table);

	if (!fb_has(a, vtable, 2) || bytes_u16(a->metadata + vtable) < slot + 2 ||
		!fb_has(a, vtable, slot + 2))
		return 0;
	uint16_t offset = bytes_u16(a->metadata + vtable + slot);

	return offset > 0 && fb_has(a, table + offset, n) ? table + offset : 0;
}

/* A signed integer of @n bytes, at most 8. */
static int64_t fb_integer(struct arrow *a, uint64_t table, unsigned id, uint32_t n)
{
	uint64_t at = fb_field(a, table, id, n), value = 0;

	for (uint32_t i = 0; at > 0 && i < n; i++)
		value |= (uint64_t)a->metadata[at + i] << (64 - 8 * (n - i));
	return (int64_t)value >> (64 - 8 * n);
}

static uint64_t fb_table(struct arrow *a, uint64_t table, unsigned id)
{
	uint64_t at = fb_field(a, table, id, 4);

	return at > 0 ? fb_follow(a, at) : 0;
}

/* A vector of items of @item bytes; strings have items of 1 byte, vectors of tables of 4. */
static struct vector fb_vector(struct arrow *a, uint64_t table, unsigned id, uint32_t item)
{
	uint64_t to = fb_table(a, table, id);
	uint32_t count = to > 0 && fb_has(a, to, 4) ? bytes_u32(a->metadata + to) : 0;

	return count > 0 && fb_has(a, to + 4, (uint64_t)count * item)
		       ? (struct vector){to + 4, count}
		       : (struct vector){0};
}

/* ---- the schema ---- */

/* The types of columns, by number, and how many buffers a batch has of each, without children. Of
 * union, and of types that were added later, the number varies. Of a dictionary, batches hold
 * indices. */
static const struct {
	const char *name;
	uint8_t buffers;
} types[] = {{"dictionary", 2}, {"null", 0}, {"int", 2}, {"float", 2}, {"binary", 3}, {"string", 3},
	{"bool", 2}, {"decimal", 2}, {"date", 2}, {"time", 2}, {"timestamp", 2}, {"interval", 2},
	{"list", 2}, {"struct", 1}, {"union", 0}, {"fixed-size binary", 2}, {"fixed-size list", 1},
	{"map", 2}, {"duration", 2}, {"large binary", 3}, {"large string", 3}, {"large list", 2}};

enum { TYPES = sizeof(types) / sizeof(types[0]) };
enum { TYPE_DICTIONARY, TYPE_INT = 2, TYPE_STRING = 5, TYPE_LIST = 12, TYPE_UNION = 14 };
enum { TYPE_FIXED_LIST = 16, TYPE_LARGE_STRING = 20, TYPE_LARGE_LIST = 21 };

/* Finds out whether a column holds tokens, and how. @child: its only one, or NULL. */
static void find_tokens(
	struct arrow *a, uint64_t type, struct column *c, const struct column *child)
{
	if (c->of == TYPE_INT) {
		int64_t bits = fb_integer(a, type, TYPE_NUMBER, 4);

		c->values = 1;
		c->fits = bits == 8 || bits == 16 || bits == 32 || bits == 64;
		c->type = (enum shard_type)(2 * (__builtin_ffsll(bits) - 4) +
					    (fb_integer(a, type, INT_SIGNED, 1) != 0));
	} else if (child && child->of == TYPE_INT) {
		c->offset_bytes = c->of == TYPE_LIST ? 4 : c->of == TYPE_LARGE_LIST ? 8 : 0;
		if (c->of == TYPE_FIXED_LIST)
			c->list_size = fb_integer(a, type, TYPE_NUMBER, 4);
		c->values = c->offset_bytes ? 3 : 2;
		c->fits = child->fits && (c->offset_bytes || c->of == TYPE_FIXED_LIST);
		c->type = child->type;
	}
}

/* Reads item @i of a vector of columns, and counts the fields and buffers of it and its children.
 */
static bool read_column(
	struct arrow *a, const struct vector *columns, uint32_t i, unsigned depth, struct column *c)
{
	uint64_t table = fb_follow(a, columns->at + 4 * (uint64_t)i);
	struct vector children = fb_vector(a, table, FIELD_CHILDREN, 4);
	unsigned of = (uint8_t)fb_integer(a, table, FIELD_TYPE_TYPE, 1);
	struct vector name = fb_vector(a, table, FIELD_NAME, 1);
	struct column child;

	*c = (struct column){.of = of, .fields = a->fields, .buffers = a->buffers};
	snprintf(c->name, sizeof(c->name), "%.*s", (int)name.count,
		(const char *)a->metadata + name.at);
	if (fb_table(a, table, FIELD_DICTIONARY) > 0) {
		c->of = TYPE_DICTIONARY;
		children.count = 0;
	} else if (of == 0 || of == TYPE_UNION || of >= TYPES) {
		return !a->failed && refuse(a,
					     "column '%s' is of type %u, a union, view or run-end "
					     "encoded, next to which no tokens can be read; write "
					     "the file without it",
					     c->name, of);
	}
	if (depth > DEPTH_MOST || a->fields == FIELDS_MOST)
		return refuse(a, "its schema has more than %d levels, or %d columns in all",
			DEPTH_MOST, FIELDS_MOST);
	a->fields++;
	a->buffers += types[c->of].buffers;
	for (uint32_t k = 0; k < children.count; k++)
		if (!read_column(a, &children, k, depth + 1, &child))
			return false;
	find_tokens(a, fb_table(a, table, FIELD_TYPE), c, children.count == 1 ? &child : NULL);
	return !a->failed;
}

/* Chooses the config's column; otherwise tokens, input_ids or the only one. Counts the others. */
static bool read_schema(struct arrow *a, uint64_t schema)
{
	const char *wanted = a->columns.wanted;
	const struct column *ours = &a->column;
	bool others = false;
	char all[120] = "";
	const struct vector fields = fb_vector(a, schema, SCHEMA_FIELDS, 4);
	int64_t endianness = fb_integer(a, schema, SCHEMA_ENDIANNESS, 2);

	if (a->failed || !check(a, endianness, 0, 0, "endianness"))
		return false;
	for (uint32_t i = 0; i < fields.count; i++) {
		const size_t n = strlen(all);
		struct column c;

		if (!read_column(a, &fields, i, 1, &c))
			return false;
		if (columns_take(&a->columns, c.name))
			a->column = c;
		others |= c.of != TYPE_INT;
		snprintf(all + n, sizeof(all) - n, "%s%s", n ? ", " : "", c.name);
	}
	if (a->columns.best < 2 && (wanted || a->columns.times != 1 || !ours->fits))
		return refuse(a,
			"no column is called '%.64s'; set `column` to the one with the tokens, of: "
			"%s",
			wanted ? wanted : "tokens' or 'input_ids", all);
	if (a->columns.times > 1)
		return refuse(
			a, "two columns are called '%s'; must be exactly one", a->column.name);
	if (!ours->fits)
		return refuse(a,
			"column '%s' is of type %s; tokens must be integers or lists of integers",
			ours->name, types[ours->of].name);
	if (!wanted && ours->of == TYPE_INT && (others || a->columns.best < 2))
		return refuse(a,
			"column '%s' has one number a row, as a count or an index has; if it does "
			"hold tokens, set `column: %s`; columns: %s",
			ours->name, ours->name, all);
	return ours->of != TYPE_FIXED_LIST ||
	       check(a, ours->list_size, 1, INT32_MAX, "a list's listSize");
}

/* ---- messages ---- */

/* Reads metadata, or the footer. */
static bool load(struct arrow *a, uint64_t at, uint64_t n)
{
	if (!check(a, n, 1, METADATA_MOST, "its metadata's length"))
		return false;
	free(a->metadata);
	a->metadata = bytes_load(a->s->b, at, n, a->s->fault);
	a->metadata_bytes = n;
	a->failed = false;
	return a->metadata;
}

static bool read_message(struct arrow *a, struct message *m)
{
	uint64_t left = a->end - a->at;
	uint8_t prefix[PREFIX_BYTES];

	*m = (struct message){.type = 0};
	if (left == 0 || (left < PREFIX_BYTES && !a->stream))
		return true; /* some writers put less than a marker before the footer */
	if (!check(a, left, PREFIX_BYTES, INT64_MAX, "bytes that are left") ||
		!bytes_read(a->s->b, a->at, prefix, PREFIX_BYTES, a->s->fault))
		return false;
	int32_t length = (int32_t)bytes_u32(prefix + 4);

	if (bytes_u32(prefix) != CONTINUED)
		return refuse(a,
			"begins with 0x%08" PRIx32 " at byte %" PRIu64
			"; must be 0xffffffff: it is damaged, or from before Arrow 1.0",
			bytes_u32(prefix), a->at);
	left -= PREFIX_BYTES;
	a->at += PREFIX_BYTES;
	if (length == 0) {
		a->closed = true;
		return left < (a->stream ? 1 : BEGIN_MOST) ||
		       refuse(a, "%" PRIu64 " bytes follow its end marker", left);
	}
	if (!check(a, length, 1, left, "its metadata's length") || !load(a, a->at, length))
		return false;
	uint64_t message = fb_follow(a, 0);
	int64_t version = fb_integer(a, message, MESSAGE_VERSION, 2);

	m->type = fb_integer(a, message, MESSAGE_HEADER_TYPE, 1);
	m->header = fb_table(a, message, MESSAGE_HEADER);
	m->body = a->at + length;
	m->bytes = fb_integer(a, message, MESSAGE_BODY, 8);
	a->at = m->body + m->bytes;
	if (a->failed)
		return false;
	return check(a, version, VERSION_5, VERSION_5,
		       "version (V5, as Arrow writes since 1.0, is 4)") &&
	       check(a, m->type, HEADER_SCHEMA, HEADER_BATCH, "header_type") &&
	       check(a, m->bytes, 0, left - length, "bodyLength");
}

/* Finds the messages of a file. *@batches: number of batches, as its footer says. */
static bool find_messages(struct arrow *a, uint32_t *batches)
{
	const struct bytes *b = a->s->b;
	uint8_t end[END_BYTES] = {0};

	if (b->size >= BEGIN_BYTES + END_BYTES &&
		!bytes_read(b, b->size - END_BYTES, end, END_BYTES, a->s->fault))
		return false;
	if (memcmp(b->head, magic, MAGIC_BYTES) != 0 || memcmp(end + 4, magic, MAGIC_BYTES) != 0)
		return refuse(a,
			"does not begin and end with ARROW1: it is no Arrow IPC file, it is "
			"truncated, or its writer was not closed");
	int32_t length = (int32_t)bytes_u32(end);

	if (!check(a, length, 1, b->size - BEGIN_BYTES - END_BYTES, "footer length"))
		return false;
	a->end = b->size - END_BYTES - length;
	if (!load(a, a->end, length))
		return false;
	*batches = fb_vector(a, fb_follow(a, 0), FOOTER_BATCHES, BLOCK_BYTES).count;
	for (a->at = BEGIN_BYTES; a->at < BEGIN_MOST && a->at + BEGIN_BYTES <= a->end &&
				  bytes_u64(b->head + a->at) == 0;)
		a->at += BEGIN_BYTES;
	return !a->failed;
}

/* ---- batches ---- */

/* Reads the length of node @i of our column: 0: itself, 1: the items of its lists. */
static bool read_node(struct arrow *a, const struct message *m, unsigned i, uint64_t *length)
{
	const uint8_t *p =
		a->metadata + m->nodes.at + ((uint64_t)a->column.fields + i) * NODE_BYTES;
	const char *of = i > 0 ? " of its items" : "";

	*length = bytes_u64(p);
	return check(a, *length, 0, INT64_MAX, "length%s", of) &&
	       check(a, bytes_u64(p + 8), 0, 0, "null_count%s", of);
}

/* Finds buffer @i of our column, which must hold @items of @width bytes. *@at: its offset. */
static bool find_buffer(struct arrow *a, const struct message *m, unsigned i, const char *what,
	uint64_t items, uint32_t width, uint64_t *at)
{
	const uint8_t *p =
		a->metadata + m->buffers.at + ((uint64_t)a->column.buffers + i) * BUFFER_BYTES;
	uint64_t from = bytes_u64(p), bytes = bytes_u64(p + 8);

	*at = m->body + from;
	return (from <= m->bytes && bytes <= m->bytes - from && from % 8 == 0 &&
		       items <= bytes / width) ||
	       refuse(a,
		       "its %s are %" PRId64 " bytes at byte %" PRId64 "; must be %" PRIu64
		       " items of %u bytes, at a multiple of 8, within %" PRIu64 " bytes",
		       what, (int64_t)bytes, (int64_t)from, items, width, m->bytes);
}

/*
 * Adds a span for each of a batch's lists. Each offset is compared with the one before as that was
 * read, because the file may be changing. @items: number of tokens at @values.
 */
static bool add_lists(struct arrow *a, const struct message *m, uint64_t items, uint64_t values)
{
	uint32_t width = a->column.offset_bytes;
	struct bytes_array offsets = {.b = a->s->b, .count = m->rows + 1, .width = width};
	uint64_t last = 0, at;

	if (m->rows == 0)
		return true;
	if (!find_buffer(a, m, 1, "offsets", offsets.count, width, &offsets.at))
		return false;
	for (uint64_t i = 0; i <= m->rows; i++) {
		if (!bytes_next(&offsets, &at, a->s->fault))
			return false;
		if (width == 4)
			at = (uint64_t)(int32_t)at;
		if (!check(a, (int64_t)at, last, items, "offset %" PRIu64, i))
			return false;
		if (i > 0)
			map_add(a->s->map, values + last * a->s->map->width, at - last, false);
		last = at;
	}
	return true;
}

/* Adds the documents of a batch: its rows, or all of it. */
static bool read_batch(struct arrow *a, struct message *m)
{
	const struct column *c = &a->column;
	uint64_t compression = fb_table(a, m->header, BATCH_COMPRESSION), items, values;
	bool flat = c->of == TYPE_INT;

	m->rows = fb_integer(a, m->header, BATCH_LENGTH, 8);
	m->nodes = fb_vector(a, m->header, BATCH_NODES, NODE_BYTES);
	m->buffers = fb_vector(a, m->header, BATCH_BUFFERS, BUFFER_BYTES);
	if (compression > 0)
		return refuse(a,
			"its body is compressed (%s), which is not supported; convert it: python "
			"-m tokend tokenize --column %s -o DIR FILE",
			fb_integer(a, compression, 0, 1) ? "ZSTD" : "LZ4_FRAME", c->name);
	if (a->failed || !check(a, m->nodes.count, a->fields, a->fields, "number of nodes") ||
		!check(a, m->buffers.count, a->buffers, a->buffers, "number of buffers") ||
		!read_node(a, m, 0, &items) || !check(a, items, m->rows, m->rows, "length"))
		return false;
	if ((!flat && !read_node(a, m, 1, &items)) ||
		!find_buffer(a, m, c->values, "values", items, a->s->map->width, &values))
		return false;
	a->documents += flat ? 1 : m->rows;
	if (c->offset_bytes)
		return add_lists(a, m, items, values);
	uint64_t lists = flat ? 1 : m->rows, size = flat ? items : (uint64_t)c->list_size;

	if (size > 0 && lists > items / size)
		return refuse(a,
			"%" PRIu64 " lists of %" PRIu64 " tokens have only %" PRIu64 " items",
			lists, size, items);
	for (uint64_t i = 0; i < lists; i++)
		map_add(a->s->map, values + i * size * a->s->map->width, size, false);
	return true;
}

/* ---- the shard ---- */

static bool arrow_recognise(const struct bytes *b)
{
	return memcmp(b->head, magic, MAGIC_BYTES) == 0;
}

static bool scan(struct arrow *a)
{
	struct message m;
	uint32_t batches = 0;

	snprintf(a->what, sizeof(a->what), "Arrow file");
	if (!a->stream && !find_messages(a, &batches))
		return false;
	snprintf(a->what, sizeof(a->what), "Arrow schema");
	if (!read_message(a, &m) ||
		!check(a, m.type, HEADER_SCHEMA, HEADER_SCHEMA, "header_type") ||
		!read_schema(a, m.header))
		return false;
	a->s->map->width = shard_type_bytes(a->column.type);
	do {
		snprintf(a->what, sizeof(a->what), "Arrow batch %" PRIu32 ", column '%s'",
			a->batches, a->column.name);
		if (!read_message(a, &m))
			return false;
		if (m.type == 0 || m.type == HEADER_DICTIONARY)
			continue;
		if (!check(a, m.type, HEADER_BATCH, HEADER_BATCH, "header_type") ||
			!read_batch(a, &m))
			return false;
		a->batches++;
	} while (m.type != 0);
	return a->stream || a->batches == batches ||
	       fault_data(a->s->fault,
		       "Arrow footer: recordBatches has %" PRIu32
		       " items, but the file has %" PRIu32 " batches before its end",
		       batches, a->batches);
}

static bool arrow_scan(const struct shard_scan *s)
{
	const struct bytes *b = s->b;
	struct shard_facts *facts = s->facts;
	struct arrow a = {.s = s,
		.stream = bytes_u32(b->head) == CONTINUED,
		.end = b->size,
		.columns.wanted = s->hint->column};
	bool fine = scan(&a);

	free(a.metadata);
	if (!fine)
		return false;
	if (a.stream && !a.closed)
		snprintf(facts->note, sizeof(facts->note),
			"has no end marker: it may be truncated, or its writer was not closed");
	facts->type = a.column.type;
	facts->documents = a.documents;
	memcpy(facts->column, a.column.name, sizeof(a.column.name));
	fault_line(facts->column);
	columns_doubt(&a.columns, s);
	facts->row_tokens = (uint64_t)a.column.list_size;
	return true;
}

const struct shard_format shard_arrow = {
	.name = "arrow",
	.ending = ".arrow",
	.recognise = arrow_recognise,
	.scan = arrow_scan,
	.indexed = true,
};
