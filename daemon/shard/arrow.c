/*
 * Arrow IPC files as IBM's fms-fsdp writes them: a column of integers, a record batch a document.
 * The file ends in a footer (a flatbuffer) that has the schema and where each batch lies; each
 * batch begins with its own metadata (another) that says how many rows it has and where in its body
 * each column's buffers lie. So the number of tokens is known when the metadata of all batches has
 * been read: a small read a batch.
 */
#include "daemon/shard/flatbuffer.h"
#include "daemon/shard/pieces.h"
#include "daemon/shard/shard.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static const char magic[] = "ARROW1";

enum {
	MAGIC_BYTES = sizeof(magic) - 1,
	BEGIN_BYTES = 8, /* the magic, padded */
	END_BYTES = 4 + MAGIC_BYTES,
	CONTINUED = -1, /* what messages begin with since Arrow 0.15 */
	BLOCK_BYTES = 24,
	NODE_BYTES = 16,
	BUFFER_BYTES = 16,
	BATCH_LEAST = 96, /* no batch's metadata is so short */
	FIELDS_MOST =
		65536, /* nested ones counted: a forged schema may name one field many times */
	DEPTH_MOST = 64,
	NAME_MOST = 1024,
	RECORD_BATCH = 3,
	VERSION_4 = 3, /* of the format; that of Arrow 0.8 to 0.17 */
	VERSION_5 = 4,
};

/* What is read of the schema's tables, by their fields' numbers. */
enum { FOOTER_VERSION, FOOTER_SCHEMA, FOOTER_DICTIONARIES, FOOTER_BATCHES };
enum { SCHEMA_ENDIANNESS, SCHEMA_FIELDS };
enum { FIELD_NAME, FIELD_TYPE_TYPE = 2, FIELD_TYPE, FIELD_DICTIONARY, FIELD_CHILDREN };
enum { INT_BITS, INT_SIGNED };
enum { UNION_MODE };
enum { MESSAGE_VERSION, MESSAGE_HEADER_TYPE, MESSAGE_HEADER, MESSAGE_BODY };
enum { BATCH_LENGTH, BATCH_NODES, BATCH_BUFFERS, BATCH_COMPRESSION, BATCH_VARIADIC };
enum { COMPRESSION_CODEC };

enum { TYPE_NULL = 1, TYPE_INT = 2, TYPE_UNION = 14, TYPE_RUNS = 22 };

/* How many buffers a column of each type has in a batch, before those of its children. */
static const struct {
	const char *name;
	uint8_t buffers;
	bool views; /* and as many more as the batch says */
} types[] = {
	[TYPE_NULL] = {"null", 0, false},
	[TYPE_INT] = {"int", 2, false},
	[3] = {"float", 2, false},
	[4] = {"binary", 3, false},
	[5] = {"string", 3, false},
	[6] = {"bool", 2, false},
	[7] = {"decimal", 2, false},
	[8] = {"date", 2, false},
	[9] = {"time", 2, false},
	[10] = {"timestamp", 2, false},
	[11] = {"interval", 2, false},
	[12] = {"list", 2, false},
	[13] = {"struct", 1, false},
	[TYPE_UNION] = {"union", 1, false},
	[15] = {"fixed-size binary", 2, false},
	[16] = {"fixed-size list", 1, false},
	[17] = {"map", 2, false},
	[18] = {"duration", 2, false},
	[19] = {"large binary", 3, false},
	[20] = {"large string", 3, false},
	[21] = {"large list", 2, false},
	[TYPE_RUNS] = {"run-end encoded", 0, false},
	[23] = {"binary view", 2, true},
	[24] = {"string view", 2, true},
	[25] = {"list view", 3, false},
	[26] = {"large list view", 3, false},
};

enum { TYPES = sizeof(types) / sizeof(types[0]) };

/* Of the schema's columns, flattened as batches have them: how many of each there are. */
struct layout {
	uint32_t fields; /* nodes, that is */
	uint32_t buffers;
	uint32_t views; /* columns that have a variadic number of buffers */
	uint32_t bare;	/* unions and run-end encoded ones: version 4 has validity for them too */
};

/* An open file: its footer, and the column that holds the tokens. */
struct arrow {
	const struct bytes *b;
	struct fb footer, message;
	uint64_t end; /* of the batches: where the footer begins */
	struct fb_vector batches;
	struct layout before, all; /* before: of the columns ahead of the one with the tokens */
	enum shard_type type;
	char name[64]; /* of the column, as far as it can be shown */
	char *why;
	size_t why_bytes;
	uint64_t at;	   /* how far the batches have been walked through */
	bool dictionaries; /* of other columns: they may lie behind the batches */
	bool version_4;	   /* the batch walked to */
	char batch[40];	   /* "Arrow batch 17" */
};

struct shard_index {
	struct pieces pieces;
	uint32_t width;
};

static bool arrow_recognise(const struct bytes *b)
{
	uint8_t head[MAGIC_BYTES];

	return (bytes_head(b, head, sizeof(head)) == sizeof(head) &&
		       memcmp(head, magic, sizeof(head)) == 0) ||
	       bytes_ending(b->path, ".arrow") || bytes_ending(b->path, ".feather");
}

#define refuse(a, ...) bytes_why((a)->why, (a)->why_bytes, __VA_ARGS__)

/* ---- schema ---- */

/* @to: as far as it fits, and a 0. *@length: of the whole. */
static bool read_name(
	struct arrow *a, const struct fb_table *field, char *to, size_t to_bytes, uint32_t *length)
{
	struct fb_vector name;
	const uint8_t *p;

	if (!fb_vector(&a->footer, field, FIELD_NAME, 1, "a column's name", &name))
		return false;
	uint32_t n = name.count < to_bytes ? name.count : (uint32_t)to_bytes - 1;

	*length = name.count;
	if (n > 0) {
		if (!fb_bytes(&a->footer, name.at, n, "a column's name", &p))
			return false;
		memcpy(to, p, n);
	}
	to[n] = 0;
	return true;
}

/* For people: nothing that breaks a line. */
static const char *shown(char *name)
{
	for (char *c = name; *c; c++)
		*c = *c < ' ' || *c > '~' ? '?' : *c;
	return name;
}

static bool field_type(struct arrow *a, const struct fb_table *field, unsigned *type)
{
	int64_t value;

	if (!fb_integer(&a->footer, field, FIELD_TYPE_TYPE, 1, "a column's type_type", &value))
		return false;
	*type = (uint8_t)value;
	if (*type < TYPES && types[*type].name)
		return true;
	read_name(a, field, a->name, sizeof(a->name), &(uint32_t){0});
	return refuse(a, "Arrow footer: type of column '%s' is %u; must be 1 to %d", a->name, *type,
		TYPES - 1);
}

/* Integers of any width are served; *@fits says whether the column is of such, flat and not
 * encoded. */
static bool token_type(
	struct arrow *a, const struct fb_table *field, bool *fits, enum shard_type *to)
{
	static const struct {
		int64_t bits;
		enum shard_type type[2];
	} widths[] = {
		{8, {SHARD_U8, SHARD_I8}},
		{16, {SHARD_U16, SHARD_I16}},
		{32, {SHARD_U32, SHARD_I32}},
		{64, {SHARD_U64, SHARD_I64}},
	};
	struct fb_table dictionary, integer;
	int64_t bits, sign;
	unsigned type;

	*fits = false;
	if (!field_type(a, field, &type) || !fb_table(&a->footer, field, FIELD_DICTIONARY,
						    "a column's dictionary", &dictionary))
		return false;
	if (type != TYPE_INT || dictionary.at)
		return true;
	if (!fb_table(&a->footer, field, FIELD_TYPE, "a column's type", &integer))
		return false;
	if (!integer.at)
		return refuse(
			a, "Arrow footer: a column's type is absent; an int must say its bitWidth");
	if (!fb_integer(&a->footer, &integer, INT_BITS, 4, "an int's bitWidth", &bits) ||
		!fb_integer(&a->footer, &integer, INT_SIGNED, 1, "an int's is_signed", &sign))
		return false;
	for (unsigned i = 0; i < sizeof(widths) / sizeof(widths[0]) && !*fits; i++)
		if (widths[i].bits == bits) {
			*fits = true;
			*to = widths[i].type[sign != 0];
		}
	return *fits ||
	       refuse(a, "Arrow footer: bitWidth of an int is %" PRId64 "; must be 8, 16, 32 or 64",
		       bits);
}

static bool add_buffers(
	struct arrow *a, const struct fb_table *field, unsigned type, struct layout *l)
{
	struct fb_table body;
	int64_t mode = 0;

	l->buffers += types[type].buffers;
	l->views += types[type].views;
	l->bare += type == TYPE_UNION || type == TYPE_RUNS;
	if (type != TYPE_UNION)
		return true;
	if (!fb_table(&a->footer, field, FIELD_TYPE, "a column's type", &body) ||
		(body.at && !fb_integer(&a->footer, &body, UNION_MODE, 2, "a union's mode", &mode)))
		return false;
	l->buffers += mode == 1; /* offsets, if it is dense */
	return true;
}

static bool add_field(
	struct arrow *a, const struct fb_table *field, unsigned depth, struct layout *l)
{
	struct fb_table dictionary, child;
	struct fb_vector children;
	unsigned type;

	if (depth > DEPTH_MOST || l->fields == FIELDS_MOST)
		return refuse(a, "Arrow footer: its schema has more than %d %s",
			depth > DEPTH_MOST ? DEPTH_MOST : FIELDS_MOST,
			depth > DEPTH_MOST ? "levels" : "columns, nested ones counted");
	l->fields++;
	if (!field_type(a, field, &type) || !fb_table(&a->footer, field, FIELD_DICTIONARY,
						    "a column's dictionary", &dictionary))
		return false;
	if (dictionary.at) { /* what a batch has are indices, whatever the type of the values */
		l->buffers += types[TYPE_INT].buffers;
		return true;
	}
	if (!add_buffers(a, field, type, l) ||
		!fb_vector(&a->footer, field, FIELD_CHILDREN, 4, "a column's children", &children))
		return false;
	for (uint32_t i = 0; i < children.count; i++)
		if (!fb_item(&a->footer, &children, i, "a column's child", &child) ||
			!add_field(a, &child, depth + 1, l))
			return false;
	return true;
}

/* ---- which column ---- */

/* What may be the one, of all that have been looked at. */
struct choice {
	const char *wanted; /* or NULL */
	uint32_t named[3];  /* how many are called: wanted; tokens; input_ids */
	uint32_t at[3];
	uint32_t fitting, fitting_at;
	char names[120]; /* of all, as far as they fit */
};

static void list_name(struct choice *c, const char *name)
{
	size_t n = strlen(c->names), left = sizeof(c->names) - n;

	if (left > 4 && (size_t)snprintf(c->names + n, left, "%s%s", n ? ", " : "", name) >= left)
		memcpy(c->names + sizeof(c->names) - 4, "…", 4);
}

static bool look_at(struct arrow *a, const struct fb_vector *fields, uint32_t i, struct choice *c)
{
	const char *const names[] = {c->wanted, "tokens", "input_ids"};
	char name[NAME_MOST];
	struct fb_table field;
	enum shard_type type;
	uint32_t length;
	bool fits;

	if (!fb_item(&a->footer, fields, i, "a column", &field) ||
		!read_name(a, &field, name, sizeof(name), &length) ||
		!token_type(a, &field, &fits, &type))
		return false;
	for (unsigned k = 0; k < 3; k++)
		if (names[k] && strlen(names[k]) == length && length < sizeof(name) &&
			memcmp(names[k], name, length) == 0) {
			c->named[k]++;
			c->at[k] = i;
		}
	c->fitting += fits;
	if (fits)
		c->fitting_at = i;
	list_name(c, shown(name));
	return true;
}

static bool choose(struct arrow *a, const struct fb_vector *fields, const struct shard_hint *hint,
	uint32_t *column)
{
	struct choice c = {.wanted = hint->column};
	unsigned k;

	if (fields->count > FIELDS_MOST)
		return refuse(a,
			"Arrow footer: its schema has %" PRIu32 " columns; must be at most %d",
			fields->count, FIELDS_MOST);
	for (uint32_t i = 0; i < fields->count; i++)
		if (!look_at(a, fields, i, &c))
			return false;
	for (k = hint->column ? 0 : 1; k < (hint->column ? 1 : 3) && c.named[k] == 0; k++)
		;
	if (k < (hint->column ? 1 : 3)) {
		*column = c.at[k];
		return c.named[k] == 1 ||
		       refuse(a,
			       "Arrow footer: %" PRIu32 " columns are called '%.64s'; must be one",
			       c.named[k],
			       k == 0	? hint->column
			       : k == 1 ? "tokens"
					: "input_ids");
	}
	if (hint->column)
		return refuse(a, "Arrow footer: no column is called '%.64s'; its columns are: %s",
			hint->column, c.names);
	*column = c.fitting_at;
	return c.fitting == 1 ||
	       refuse(a,
		       "Arrow footer: no column is called tokens or input_ids, and %" PRIu32
		       " are of integers; say which holds the tokens with `column:`; its columns "
		       "are: %s",
		       c.fitting, c.names);
}

static bool refuse_type(struct arrow *a, const struct fb_table *field)
{
	struct fb_table dictionary;
	unsigned type;

	if (!field_type(a, field, &type) || !fb_table(&a->footer, field, FIELD_DICTIONARY,
						    "a column's dictionary", &dictionary))
		return false;
	return refuse(a,
		"Arrow footer: column '%s' is of type %s%s; tokens must be a flat column of "
		"integers, a "
		"record batch "
		"a document",
		a->name, types[type].name, dictionary.at ? ", dictionary-encoded" : "");
}

static bool read_schema(struct arrow *a, const struct fb_table *root, const struct shard_hint *hint)
{
	struct fb_table schema, field;
	struct fb_vector fields;
	int64_t endianness;
	uint32_t column, length;
	bool fits;

	if (!fb_table(&a->footer, root, FOOTER_SCHEMA, "schema", &schema))
		return false;
	if (!schema.at)
		return refuse(a, "Arrow footer: schema is absent; every file must have one");
	if (!fb_integer(&a->footer, &schema, SCHEMA_ENDIANNESS, 2, "endianness", &endianness) ||
		!fb_vector(&a->footer, &schema, SCHEMA_FIELDS, 4, "fields", &fields))
		return false;
	if (endianness != 0)
		return refuse(a, "Arrow footer: endianness is %" PRId64 "%s; must be 0, little",
			endianness, endianness == 1 ? ", big" : "");
	if (!choose(a, &fields, hint, &column))
		return false;
	for (uint32_t i = 0; i < fields.count; i++) {
		if (!fb_item(&a->footer, &fields, i, "a column", &field))
			return false;
		if (i == column) {
			a->before = a->all;
			if (!token_type(a, &field, &fits, &a->type) ||
				!read_name(a, &field, a->name, sizeof(a->name), &length))
				return false;
			shown(a->name);
			if (!fits)
				return refuse_type(a, &field);
		}
		if (!add_field(a, &field, 1, &a->all))
			return false;
	}
	return true;
}

/* ---- file ---- */

/* What the first bytes are, if not a file's. */
static const char *other_kind(const uint8_t *head, size_t n)
{
	if (n >= 4 && bytes_u32(head) == UINT32_MAX)
		return "an Arrow IPC stream (as Hugging Face's datasets keep), no file: write it "
		       "again with "
		       "pyarrow.ipc.new_file";
	if (n >= 4 && memcmp(head, "FEA1", 4) == 0)
		return "a Feather file of version 1: write it again with pyarrow.ipc.new_file";
	return "no Arrow IPC file, or a damaged one";
}

static bool find_footer(struct arrow *a)
{
	const struct bytes *b = a->b;
	uint8_t head[BEGIN_BYTES], end[END_BYTES];
	size_t n = bytes_head(b, head, sizeof(head));
	char text[BEGIN_BYTES + 1];
	int error;

	if (n < MAGIC_BYTES || memcmp(head, magic, MAGIC_BYTES) != 0)
		return refuse(a, "magic at its begin is not ARROW1 but '%s': it is %s",
			bytes_shown(head, n, text, sizeof(text)), other_kind(head, n));
	if (b->size < BEGIN_BYTES + END_BYTES)
		return refuse(a,
			"its size is %" PRIu64
			" bytes; an Arrow IPC file has at least %d: it is cut short",
			b->size, BEGIN_BYTES + END_BYTES);
	if (!bytes_read(b, b->size - END_BYTES, end, END_BYTES, &error, a->why, a->why_bytes))
		return false;
	if (memcmp(end + 4, magic, MAGIC_BYTES) != 0)
		return refuse(a,
			"magic at its end is not ARROW1 but '%s': it is cut short, or its writer "
			"was not "
			"closed",
			bytes_shown(end + 4, MAGIC_BYTES, text, sizeof(text)));
	int32_t length = (int32_t)bytes_u32(end);
	uint64_t most = b->size - BEGIN_BYTES - END_BYTES;

	if (length <= 0 || (uint64_t)length > most)
		return refuse(a, "Arrow footer length is %" PRId32 "; must be 1 to %" PRIu64,
			length, most);
	a->end = b->size - END_BYTES - (uint64_t)length;
	fb_init(&a->footer, b, a->end, (uint64_t)length, "Arrow footer", a->why, a->why_bytes);
	return true;
}

/* pyarrow's footers say V5 whatever its batches say, so these need not agree. */
static bool check_version(struct arrow *a, const char *what, int64_t version)
{
	return version == VERSION_4 || version == VERSION_5 ||
	       refuse(a, "%s: version is %" PRId64 "; must be %d or %d (V4 or V5)", what, version,
		       VERSION_4, VERSION_5);
}

static bool arrow_begin(struct arrow *a, const struct bytes *b, const struct shard_hint *hint,
	char *why, size_t why_bytes)
{
	struct fb_table root;
	int64_t version;

	a->b = b;
	a->why = why;
	a->why_bytes = why_bytes;
	a->at = BEGIN_BYTES;
	a->before = a->all = (struct layout){0};
	if (!find_footer(a) || !fb_root(&a->footer, 0, &root) ||
		!fb_integer(&a->footer, &root, FOOTER_VERSION, 2, "version", &version))
		return false;
	if (!check_version(a, "Arrow footer", version))
		return false;
	struct fb_vector dictionaries;

	if (!fb_vector(&a->footer, &root, FOOTER_DICTIONARIES, BLOCK_BYTES, "dictionaries",
		    &dictionaries))
		return false;
	a->dictionaries = dictionaries.count > 0;
	return read_schema(a, &root, hint) && fb_vector(&a->footer, &root, FOOTER_BATCHES,
						      BLOCK_BYTES, "recordBatches", &a->batches);
}

/* ---- batches ---- */

struct block {
	uint64_t begin, metadata, body; /* bytes: where it begins; how many of each */
};

/* Batches lie one after another, as every writer writes them, so none is counted twice. */
static bool read_block(struct arrow *a, uint32_t i, struct block *block)
{
	const uint8_t *p;

	if (!fb_bytes(&a->footer, a->batches.at + (uint64_t)i * BLOCK_BYTES, BLOCK_BYTES,
		    "recordBatches", &p))
		return false;
	int64_t begin = (int64_t)bytes_u64(p), body = (int64_t)bytes_u64(p + 16);
	int32_t metadata = (int32_t)bytes_u32(p + 8);

	if (begin < 0 || (uint64_t)begin < a->at || (uint64_t)begin >= a->end || begin % 8 != 0)
		return refuse(a,
			"Arrow footer: offset of batch %" PRIu32 " is %" PRId64
			"; must be a multiple of 8, %" PRIu64
			" (where the one before ends) or more, and below %" PRIu64 " (the footer)",
			i, begin, a->at, a->end);
	uint64_t most = a->end - (uint64_t)begin;

	if (metadata <= 8 || (uint64_t)metadata > most || metadata % 8 != 0)
		return refuse(a,
			"Arrow footer: metaDataLength of batch %" PRIu32 " is %" PRId32
			"; must be a multiple of 8, more than 8 and at most %" PRIu64
			" (up to the footer)",
			i, metadata, most);
	most -= (uint64_t)metadata;
	if (body < 0 || (uint64_t)body > most || body % 8 != 0)
		return refuse(a,
			"Arrow footer: bodyLength of batch %" PRIu32 " is %" PRId64
			"; must be a multiple of 8, 0 to %" PRIu64 " (up to the footer)",
			i, body, most);
	*block = (struct block){(uint64_t)begin, (uint64_t)metadata, (uint64_t)body};
	a->at = block->begin + block->metadata + block->body;
	return true;
}

/* The message's table. Before 0.15 messages began with their length alone. */
static bool read_message(struct arrow *a, const struct block *block, struct fb_table *to)
{
	struct fb *m = &a->message;
	const uint8_t *p;

	fb_init(m, a->b, block->begin, block->metadata, a->batch, a->why, a->why_bytes);
	if (!fb_bytes(m, 0, 8, "its length", &p))
		return false;
	uint32_t prefix = (int32_t)bytes_u32(p) == CONTINUED ? 8 : 4;
	int32_t length = (int32_t)bytes_u32(p + prefix - 4);

	if (length <= 0 || (uint32_t)length > block->metadata - prefix)
		return refuse(a,
			"%s: its metadata's length is %" PRId32 "; must be 1 to %" PRIu64
			" (metaDataLength in the footer)",
			a->batch, length, block->metadata - prefix);
	m->size = prefix + (uint32_t)length;
	return fb_root(m, prefix, to);
}

static bool check_message(struct arrow *a, const struct block *block,
	const struct fb_table *message, struct fb_table *batch)
{
	struct fb *m = &a->message;
	int64_t version, type, body;

	if (!fb_integer(m, message, MESSAGE_VERSION, 2, "version", &version) ||
		!fb_integer(m, message, MESSAGE_HEADER_TYPE, 1, "header_type", &type) ||
		!fb_integer(m, message, MESSAGE_BODY, 8, "bodyLength", &body))
		return false;
	if (!check_version(a, a->batch, version))
		return false;
	a->version_4 = version == VERSION_4;
	if (type != RECORD_BATCH)
		return refuse(a, "%s: header_type is %" PRId64 "; must be %d, a record batch",
			a->batch, type, RECORD_BATCH);
	if ((uint64_t)body != block->body)
		return refuse(a, "%s: bodyLength is %" PRId64 "; must be %" PRIu64 ", the footer's",
			a->batch, body, block->body);
	if (!fb_table(m, message, MESSAGE_HEADER, "header", batch))
		return false;
	return batch->at || refuse(a, "%s: header is absent; must be a record batch", a->batch);
}

static bool refuse_compressed(struct arrow *a, const struct fb_table *compression)
{
	int64_t codec;

	if (!fb_integer(&a->message, compression, COMPRESSION_CODEC, 1, "codec", &codec))
		return false;
	return refuse(a,
		"%s: its body is compressed (%s); must not be: write it again without, or put the "
		"whole file "
		"into "
		"seekable zstd",
		a->batch,
		codec == 0   ? "LZ4_FRAME"
		: codec == 1 ? "ZSTD"
			     : "an unknown codec");
}

/* Buffers ahead of our column's, and in all: what the layout says, and of views as many more as the
 * batch says. */
static bool count_buffers(
	struct arrow *a, const struct fb_table *batch, uint64_t *before, uint64_t *all)
{
	struct fb_vector counts;
	const uint8_t *p;

	*before = a->before.buffers + (a->version_4 ? a->before.bare : 0);
	*all = a->all.buffers + (a->version_4 ? a->all.bare : 0);
	if (!fb_vector(&a->message, batch, BATCH_VARIADIC, 8, "variadicBufferCounts", &counts))
		return false;
	if (counts.count != a->all.views)
		return refuse(a,
			"%s: variadicBufferCounts has %" PRIu32 " items; its columns need %" PRIu32,
			a->batch, counts.count, a->all.views);
	for (uint32_t i = 0; i < counts.count; i++) {
		if (!fb_bytes(&a->message, counts.at + 8 * (uint64_t)i, 8, "variadicBufferCounts",
			    &p))
			return false;
		uint64_t n = bytes_u64(p);

		if (n > INT32_MAX)
			return refuse(a,
				"%s: variadicBufferCounts item %" PRIu32 " is %" PRId64
				"; must be 0 to %d",
				a->batch, i, (int64_t)n, INT32_MAX);
		*all += n;
		*before += i < a->before.views ? n : 0;
	}
	return true;
}

/* The node of our column must say as many rows as the batch, and no nulls. */
static bool check_node(struct arrow *a, const struct fb_table *batch, int64_t rows)
{
	struct fb_vector nodes;
	const uint8_t *p;

	if (!fb_vector(&a->message, batch, BATCH_NODES, NODE_BYTES, "nodes", &nodes))
		return false;
	if (nodes.count != a->all.fields)
		return refuse(a, "%s: nodes has %" PRIu32 " items; its columns need %" PRIu32,
			a->batch, nodes.count, a->all.fields);
	if (!fb_bytes(&a->message, nodes.at + (uint64_t)a->before.fields * NODE_BYTES, NODE_BYTES,
		    "nodes", &p))
		return false;
	int64_t length = (int64_t)bytes_u64(p), nulls = (int64_t)bytes_u64(p + 8);

	if (length != rows)
		return refuse(a,
			"%s: length of column '%s' is %" PRId64 "; must be %" PRId64
			", the batch's",
			a->batch, a->name, length, rows);
	return nulls == 0 || refuse(a,
				     "%s: null_count of column '%s' is %" PRId64
				     "; must be 0: every row is a token",
				     a->batch, a->name, nulls);
}

/*
 * A column without nulls need not say so row by row; where it does, all its bits must be set, or
 * what is served are values that nobody wrote.
 */
static bool check_validity(
	struct arrow *a, const struct block *block, uint64_t offset, uint64_t length, uint64_t rows)
{
	uint64_t bytes = (rows + 7) / 8, body = block->begin + block->metadata;
	uint8_t bits[1024];
	int error;

	if (length == 0)
		return true;
	if (offset > block->body || length > block->body - offset || length < bytes)
		return refuse(a,
			"%s: validity of column '%s' is %" PRId64 " bytes from byte %" PRId64
			" of the body on; must be %" PRIu64 " or more and stay within its %" PRIu64
			" bytes",
			a->batch, a->name, (int64_t)length, (int64_t)offset, bytes, block->body);
	for (uint64_t at = 0, n; at < bytes; at += n) {
		n = bytes - at < sizeof(bits) ? bytes - at : sizeof(bits);
		if (!bytes_read(a->b, body + offset + at, bits, n, &error, a->why, a->why_bytes))
			return false;
		for (uint64_t row = 8 * at; row < 8 * (at + n) && row < rows; row++)
			if (!(bits[row / 8 - at] >> row % 8 & 1))
				return refuse(a,
					"%s: null_count of column '%s' is 0, but its validity says "
					"that row "
					"%" PRIu64 " is null; every row must be a token",
					a->batch, a->name, row);
	}
	return true;
}

/* *@at: where our column's values begin in the file. */
static bool find_values(struct arrow *a, const struct block *block, const struct fb_table *batch,
	uint64_t rows, uint64_t *at)
{
	uint64_t before, all;
	struct fb_vector buffers;
	const uint8_t *p;

	if (!count_buffers(a, batch, &before, &all) ||
		!fb_vector(&a->message, batch, BATCH_BUFFERS, BUFFER_BYTES, "buffers", &buffers))
		return false;
	if (buffers.count != all)
		return refuse(a, "%s: buffers has %" PRIu32 " items; its columns need %" PRIu64,
			a->batch, buffers.count, all);
	/* The first of a column of integers is validity, the second the values. */
	if (!fb_bytes(&a->message, buffers.at + before * BUFFER_BYTES, 2 * BUFFER_BYTES, "buffers",
		    &p))
		return false;
	uint64_t valid_at = bytes_u64(p), valid = bytes_u64(p + 8);
	uint64_t offset = bytes_u64(p + BUFFER_BYTES), length = bytes_u64(p + BUFFER_BYTES + 8);

	if (offset > block->body || length > block->body - offset || offset % 8 != 0)
		return refuse(a,
			"%s: values of column '%s' are %" PRId64 " bytes from byte %" PRId64
			" of the body on; must begin at a multiple of 8 and stay within its "
			"%" PRIu64 " bytes",
			a->batch, a->name, (int64_t)length, (int64_t)offset, block->body);
	if (rows > length / shard_type_bytes(a->type))
		return refuse(a,
			"%s: length is %" PRIu64 " rows; the values of column '%s' have %" PRIu64
			" bytes, which is %" PRIu64 " of %s",
			a->batch, rows, a->name, length, length / shard_type_bytes(a->type),
			shard_type_name(a->type));
	*at = block->begin + block->metadata + offset;
	return check_validity(a, block, valid_at, valid, rows);
}

/* Batches from the first to the last: each @rows tokens from byte *@at of the file on. */
static bool next_batch(struct arrow *a, uint32_t i, uint64_t *rows, uint64_t *at)
{
	struct fb_table message, batch, compression;
	struct block block;
	int64_t length;

	snprintf(a->batch, sizeof(a->batch), "Arrow batch %" PRIu32, i);
	if (!read_block(a, i, &block) || !read_message(a, &block, &message) ||
		!check_message(a, &block, &message, &batch) ||
		!fb_table(&a->message, &batch, BATCH_COMPRESSION, "compression", &compression))
		return false;
	if (compression.at)
		return refuse_compressed(a, &compression);
	if (!fb_integer(&a->message, &batch, BATCH_LENGTH, 8, "length", &length))
		return false;
	if (length < 0)
		return refuse(a, "%s: length is %" PRId64 "; must be 0 or more", a->batch, length);
	*rows = (uint64_t)length;
	return check_node(a, &batch, length) && find_values(a, &block, &batch, *rows, at);
}

static bool arrow_describe(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, char *why, size_t why_bytes)
{
	struct arrow a;
	uint64_t rows, at, pieces = 0;

	if (!arrow_begin(&a, b, hint, why, why_bytes))
		return false;
	for (uint32_t i = 0; i < a.batches.count; i++) {
		if (!next_batch(&a, i, &rows, &at))
			return false;
		if (rows == 0)
			continue;
		facts->plain =
			++pieces == 1; /* the whole of it is a single batch: they lie in a row */
		facts->data_at = facts->plain ? at : 0;
		facts->tokens += rows;
	}
	/* Behind the last batch there is the mark of the end, and no room for a batch that was left
	 * out. */
	if (a.batches.count > 0 && !a.dictionaries && a.end - a.at >= BATCH_LEAST)
		return refuse(&a,
			"Arrow footer: recordBatches has %" PRIu32
			" items, which end at byte %" PRIu64 "; the footer begins at %" PRIu64
			": what lies between is in no batch",
			a.batches.count, a.at, a.end);
	facts->type = a.type;
	facts->documents = a.batches.count;
	return true;
}

/* ---- open ---- */

static void arrow_close(struct shard_index *index)
{
	pieces_free(&index->pieces);
	free(index);
}

static bool load(struct shard_index *index, struct arrow *a, struct shard_facts *facts)
{
	uint64_t rows, at;

	index->width = shard_type_bytes(a->type);
	if (!pieces_new(&index->pieces, a->batches.count))
		return refuse(a, "%s", strerror(ENOMEM));
	for (uint32_t i = 0; i < a->batches.count; i++) {
		if (!next_batch(a, i, &rows, &at))
			return false;
		if (!pieces_add(&index->pieces, rows, at))
			return refuse(a, "Arrow footer: was changed while it was read");
	}
	if (!pieces_done(&index->pieces))
		return refuse(a, "%s", strerror(ENOMEM));
	uint64_t tokens = pieces_tokens(&index->pieces);

	facts->index_bytes = sizeof(*index) + pieces_bytes(&index->pieces);
	return (tokens == facts->tokens && a->type == facts->type) ||
	       refuse(a,
		       "Arrow footer: its batches have %" PRIu64
		       " tokens of %s in all; they had %" PRIu64 " of %s before: it was changed",
		       tokens, shard_type_name(a->type), facts->tokens,
		       shard_type_name(facts->type));
}

static struct shard_index *arrow_open(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, char *why, size_t why_bytes)
{
	struct shard_index *index = calloc(1, sizeof(*index));
	struct arrow a;

	if (!index)
		bytes_why(why, why_bytes, "%s", strerror(ENOMEM));
	else if (!arrow_begin(&a, b, hint, why, why_bytes) || !load(index, &a, facts)) {
		arrow_close(index);
		index = NULL;
	}
	return index;
}

static uint64_t arrow_extent(const struct shard_index *index, uint64_t token, uint64_t *byte,
	char *why, size_t why_bytes)
{
	(void)why, (void)why_bytes;
	return pieces_extent(&index->pieces, index->width, token, byte);
}

static uint64_t arrow_document(
	const struct shard_index *index, uint64_t token, char *why, size_t why_bytes)
{
	(void)why, (void)why_bytes;
	return pieces_document(&index->pieces, token);
}

/* IBM keeps counts of all its files in meta/, beside the directories that they lie in. */
static const struct shard_companion arrow_companions[] = {
	{.ending = ".csv", .holds = "counts", .shard = "../*.arrow", .kind = "a table of counts"},
	{0},
};

const struct shard_format shard_arrow = {
	.name = "arrow",
	.recognise = arrow_recognise,
	.describe = arrow_describe,
	.companions = arrow_companions,
	.open = arrow_open,
	.close = arrow_close,
	.extent = arrow_extent,
	.document = arrow_document,
};
