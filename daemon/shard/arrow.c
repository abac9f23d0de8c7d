/*
 * Arrow IPC files and streams. IBM's fms-fsdp writes files with a flat column of integers, and a
 * document per record batch. Hugging Face's datasets writes streams with a column of lists, and a
 * document per list. Either way the tokens of a batch are contiguous.
 *
 * A file has a footer (a flatbuffer) with the schema and the offset of each batch. A stream begins
 * with its schema, and its batches follow one another. Each batch begins with its own metadata
 * (another flatbuffer): its number of rows, and where in its body each column's buffers are. Other
 * columns are only counted, to find ours. Metadata is of version 5, which Arrow writes since 1.0.
 */
#include "daemon/shard/flatbuffer.h"
#include "daemon/shard/format.h"
#include "daemon/shard/map.h"
#include "proto/phrases.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char magic[] = "ARROW1";

enum {
	MAGIC_BYTES = sizeof(magic) - 1,
	BEGIN_BYTES = 8, /* the magic, padded */
	END_BYTES = 4 + MAGIC_BYTES,
	PREFIX_BYTES = 8, /* of a message: CONTINUED and the length of its metadata */
	BLOCK_BYTES = 24, /* of a batch's entry in the footer */
	BATCH_LEAST = 96, /* less than any batch's metadata */
	NODE_BYTES = 16,
	BUFFER_BYTES = 16,
	METADATA_MOST = 256 << 20,
	FIELDS_MOST = 65536, /* nested ones included: a forged schema may repeat a field */
	DEPTH_MOST = 64,
	LISTS_AT_ONCE = 1024, /* a multiple of 8 */
};

#define CONTINUED UINT32_MAX /* the first word of a message */

/* Numbers of the fields that are read, and values of enumerations. */
enum { FOOTER_VERSION, FOOTER_SCHEMA, FOOTER_DICTIONARIES, FOOTER_BATCHES };
enum { MESSAGE_VERSION, MESSAGE_HEADER_TYPE, MESSAGE_HEADER, MESSAGE_BODY };
enum { SCHEMA_ENDIANNESS, SCHEMA_FIELDS };
enum { FIELD_NAME, FIELD_TYPE_TYPE = 2, FIELD_TYPE, FIELD_DICTIONARY, FIELD_CHILDREN };
enum { BATCH_LENGTH, BATCH_NODES, BATCH_BUFFERS, BATCH_COMPRESSION };
enum { INT_BITS, INT_SIGNED, LIST_SIZE = 0 };
enum { HEADER_SCHEMA = 1, HEADER_DICTIONARY, HEADER_BATCH, VERSION_5 = 4 };

/* Hugging Face's list of a dataset's splits, which are directories next to it. */
static const char SPLITS[] = "/dataset_dict.json";

/* How a column holds its tokens. A list is a document. */
enum kind {
	FLAT,	    /* a row is a token */
	LIST,	    /* with offsets of 4 bytes */
	LARGE_LIST, /* with offsets of 8 bytes */
	FIXED_LIST, /* all lists have list_size tokens */
};

struct column {
	char name[64]; /* printable */
	enum kind kind;
	uint64_t list_size;
	enum shard_type type;	  /* of the tokens */
	uint32_t fields, buffers; /* of the columns before it, flattened as in a batch */
};

/* An open file or stream. */
struct arrow {
	const struct bytes *b;
	struct fault *fault;
	bool stream;
	bool closed;	   /* the end marker of a stream was found */
	bool dictionaries; /* other columns have some, which may follow the batches of a file */
	uint64_t at, end;  /* ends of the batches that were read, and of all: at the footer */
	uint8_t *head;	   /* the footer, or the message with the schema */
	struct fb_vector batches; /* of a file */
	uint32_t next;		  /* number of the next batch */
	uint8_t *metadata;	  /* of the current batch */
	char what[40];		  /* "Arrow batch 17" */
	struct column column;
	uint32_t fields, buffers; /* of all columns */
};

/* A range of the file. */
struct range {
	uint64_t at, bytes;
};

struct batch {
	struct range body;
	uint64_t rows, items;	/* items: of lists */
	struct range buffer[4]; /* of our column and its items; the last are the values */
	unsigned buffers;
	bool nulls;		/* some lists are null */
	uint64_t first, tokens; /* first: item */
};

#define refuse(a, ...) fault_set((a)->fault, FAULT_DATA, "", __VA_ARGS__)

/* ---- the schema ---- */

enum { UNKNOWN = UINT8_MAX /* another number in each batch, or a newer type */ };

/* By a column's type: the number of its buffers in a batch, without those of its children. */
static const struct {
	const char *name;
	uint8_t buffers;
} types[] = {[1] = {"null", 0},
	{"int", 2},
	{"float", 2},
	{"binary", 3},
	{"string", 3},
	{"bool", 2},
	{"decimal", 2},
	{"date", 2},
	{"time", 2},
	{"timestamp", 2},
	{"interval", 2},
	{"list", 2},
	{"struct", 1},
	{"union", UNKNOWN},
	{"fixed-size binary", 2},
	{"fixed-size list", 1},
	{"map", 2},
	{"duration", 2},
	{"large binary", 3},
	{"large string", 3},
	{"large list", 2},
	{"run-end encoded", UNKNOWN},
	{"binary view", UNKNOWN},
	{"string view", UNKNOWN},
	{"list view", UNKNOWN},
	{"large list view", UNKNOWN}};

enum { TYPES = sizeof(types) / sizeof(types[0]) };
enum { TYPE_INT = 2, TYPE_STRING = 5, TYPE_LIST = 12, TYPE_FIXED_LIST = 16 };
enum { TYPE_LARGE_STRING = 20, TYPE_LARGE_LIST = 21, TYPE_STRING_VIEW = 24 };

/* A column of the schema, or a child of one. */
struct field {
	struct fb_table table;
	char name[64]; /* printable, perhaps truncated */
	uint32_t name_bytes;
	unsigned type;
	bool dictionary;
	struct fb_vector children;
};

static bool read_field(
	const struct fb *fb, const struct fb_vector *fields, uint32_t i, struct field *f)
{
	struct fb_table dictionary;
	struct fb_vector name;
	int64_t type;

	if (!fb_item(fb, fields, i, "a column", &f->table) ||
		!fb_vector(fb, &f->table, FIELD_NAME, 1, "a column's name", &name) ||
		!fb_integer(fb, &f->table, FIELD_TYPE_TYPE, 1, "a column's type_type", &type) ||
		!fb_table(fb, &f->table, FIELD_DICTIONARY, "a column's dictionary", &dictionary) ||
		!fb_vector(fb, &f->table, FIELD_CHILDREN, 4, "a column's children", &f->children))
		return false;
	bytes_shown(name.item, name.count, f->name, sizeof(f->name));
	f->name_bytes = name.count;
	f->dictionary = dictionary.at > 0;
	f->type = (uint8_t)type;
	return (f->type < TYPES && types[f->type].name) ||
	       fb_refuse(fb, "%s: type of column '%s' is %u, which is not known", fb->what, f->name,
		       f->type);
}

/* *@fits: whether the column holds integers, of *@type. */
static bool int_type(const struct fb *fb, const struct field *f, bool *fits, enum shard_type *type)
{
	struct fb_table body;
	int64_t bits = 0, is_signed = 0;

	*fits = f->type == TYPE_INT && !f->dictionary;
	if (!*fits)
		return true;
	if (!fb_table(fb, &f->table, FIELD_TYPE, "a column's type", &body) ||
		(body.at && (!fb_integer(fb, &body, INT_BITS, 4, "an int's bitWidth", &bits) ||
				    !fb_integer(fb, &body, INT_SIGNED, 1, "an int's is_signed",
					    &is_signed))))
		return false;
	if (bits != 8 && bits != 16 && bits != 32 && bits != 64)
		return fb_refuse(fb,
			"%s: bitWidth of an int is %" PRId64 "; must be 8, 16, 32 or 64", fb->what,
			bits);
	*type = (enum shard_type)(2 * __builtin_ctz((unsigned)bits / 8) + (is_signed != 0));
	return true;
}

/* *@fits: whether the column holds integers, or lists of them. *@c describes it then. */
static bool token_type(const struct fb *fb, const struct field *f, bool *fits, struct column *c)
{
	struct fb_table body;
	struct field child;
	int64_t size = 0;

	*fits = false;
	c->kind = f->type == TYPE_LIST	       ? LIST
		  : f->type == TYPE_LARGE_LIST ? LARGE_LIST
		  : f->type == TYPE_FIXED_LIST ? FIXED_LIST
					       : FLAT;
	if (c->kind == FLAT)
		return int_type(fb, f, fits, &c->type);
	if (f->dictionary || f->children.count != 1)
		return true;
	if (!fb_table(fb, &f->table, FIELD_TYPE, "a column's type", &body) ||
		(c->kind == FIXED_LIST && body.at &&
			!fb_integer(fb, &body, LIST_SIZE, 4, "a list's listSize", &size)))
		return false;
	c->list_size = (uint64_t)size;
	if (c->kind == FIXED_LIST && size <= 0)
		return fb_refuse(fb,
			"%s: listSize of a fixed-size list is %" PRId64 "; must be 1 or more",
			fb->what, size);
	return read_field(fb, &f->children, 0, &child) && int_type(fb, &child, fits, &c->type);
}

/* Counts the fields and buffers of a column and all its children. */
static bool count_field(struct arrow *a, const struct fb *fb, const struct field *f, unsigned depth)
{
	struct field child;

	if (depth > DEPTH_MOST || a->fields == FIELDS_MOST)
		return refuse(a, "%s: its schema has more than %d %s", fb->what,
			depth > DEPTH_MOST ? DEPTH_MOST : FIELDS_MOST,
			depth > DEPTH_MOST ? "levels" : "columns, nested ones included");
	if (types[f->type].buffers == UNKNOWN && !f->dictionary)
		return refuse(a,
			"%s: column '%s' is of type %s, next to which no tokens can be read; "
			"write the file without it",
			fb->what, f->name, types[f->type].name);
	a->fields++;
	/* Of a dictionary, batches hold indices, for every type of values. */
	a->buffers += types[f->dictionary ? TYPE_INT : f->type].buffers;
	for (uint32_t i = 0; i < f->children.count && !f->dictionary; i++)
		if (!read_field(fb, &f->children, i, &child) ||
			!count_field(a, fb, &child, depth + 1))
			return false;
	return true;
}

/* The candidates for the column of tokens. */
struct choice {
	const char *name[3]; /* the config's, or NULL; tokens; input_ids */
	uint32_t named[3];   /* number of columns with that name */
	uint32_t at[3];
	bool flat[3];	 /* the one with the name has one number a row */
	bool fits, text; /* the last column holds integers; a column holds text */
	char names[120]; /* of all columns, as many as fit */
};

static bool add_choice(const struct fb *fb, const struct field *f, uint32_t i, struct choice *c)
{
	size_t n = strlen(c->names), left = sizeof(c->names) - n;
	char shown[sizeof(f->name)];
	struct column column;

	if (!token_type(fb, f, &c->fits, &column))
		return false;
	for (unsigned k = 0; k < 3; k++) {
		const char *name = c->name[k] ? c->name[k] : "";

		/* Names are compared as they are printed. */
		if (!*name || strlen(name) != f->name_bytes ||
			strcmp(bytes_shown(name, strlen(name), shown, sizeof(shown)), f->name) != 0)
			continue;
		c->named[k]++;
		c->at[k] = i;
		c->flat[k] = c->fits && column.kind == FLAT;
	}
	c->text |= f->type == TYPE_STRING || f->type == TYPE_LARGE_STRING ||
		   f->type == TYPE_STRING_VIEW;
	if (left > 4 &&
		(size_t)snprintf(c->names + n, left, "%s%s", n ? ", " : "", f->name) >= left)
		memcpy(c->names + sizeof(c->names) - 4, "…", 4);
	return true;
}

/* The config's column; otherwise tokens or input_ids; otherwise the only one. */
static bool choose(struct arrow *a, const struct fb *fb, const struct choice *c, uint32_t columns,
	uint32_t *column)
{
	unsigned k = c->name[0] ? 0 : 1, end = c->name[0] ? 1 : 3;

	while (k < end && c->named[k] == 0)
		k++;
	*column = k < end ? c->at[k] : 0;
	if (k < end && c->named[k] != 1)
		return refuse(a, "%s: %" PRIu32 " columns are called '%.64s'; must be exactly one",
			fb->what, c->named[k], c->name[k]);
	if (k < end)
		return k == 0 || !c->flat[k] || !c->text ||
		       refuse(a,
			       "%s: column '%s' has one number a row, next to text, as a count "
			       "has; if it does hold tokens, set `column: %s`; columns: %s",
			       fb->what, c->name[k], c->name[k], c->names);
	return (!c->name[0] && columns == 1 && c->fits) ||
	       refuse(a,
		       "%s: no column is called '%.64s'; set `column` to the one with the tokens, "
		       "of: %s",
		       fb->what, c->name[0] ? c->name[0] : "tokens' or 'input_ids", c->names);
}

/* Chooses the column, and counts the others. */
static bool read_schema(struct arrow *a, const struct fb *fb, const struct fb_table *schema,
	const struct shard_hint *hint)
{
	struct choice c = {.name = {hint->column, "tokens", "input_ids"}};
	struct fb_vector fields;
	int64_t endianness;
	struct field f;
	uint32_t column;
	bool fits;

	if (!schema->at)
		return refuse(a, "%s: schema is absent; must be present", fb->what);
	if (!fb_integer(fb, schema, SCHEMA_ENDIANNESS, 2, "endianness", &endianness) ||
		!fb_vector(fb, schema, SCHEMA_FIELDS, 4, "fields", &fields))
		return false;
	if (endianness != 0)
		return refuse(a, "%s: endianness is %" PRId64 "; must be 0, little", fb->what,
			endianness);
	for (uint32_t i = 0; i < fields.count && i < FIELDS_MOST; i++)
		if (!read_field(fb, &fields, i, &f) || !add_choice(fb, &f, i, &c))
			return false;
	if (!choose(a, fb, &c, fields.count, &column))
		return false;
	for (uint32_t i = 0; i < fields.count; i++) {
		if (!read_field(fb, &fields, i, &f))
			return false;
		if (i == column) {
			a->column.fields = a->fields;
			a->column.buffers = a->buffers;
			memcpy(a->column.name, f.name, sizeof(f.name));
			if (!token_type(fb, &f, &fits, &a->column))
				return false;
			if (!fits)
				return refuse(a,
					"%s: column '%s' is of type %s%s; tokens must be a column "
					"of integers, or of lists of integers",
					fb->what, f.name, types[f.type].name,
					f.dictionary ? ", dictionary-encoded" : "");
		}
		if (!count_field(a, fb, &f, 1))
			return false;
	}
	return true;
}

/* ---- messages ---- */

/* Reads metadata into *@to, which is freed with the file. */
static bool load(struct arrow *a, uint64_t at, uint64_t n, uint8_t **to, struct fb *fb)
{
	if (n > METADATA_MOST)
		return refuse(a, "%s: is %" PRIu64 " bytes long; must be at most %d", fb->what, n,
			METADATA_MOST);
	free(*to);
	*to = malloc(n);
	if (!*to)
		return fault_memory(a->fault);
	fb->data = *to;
	fb->size = n;
	return bytes_read(a->b, at, *to, n, a->fault);
}

static bool check_version(const struct fb *fb, const struct fb_table *table)
{
	int64_t version;

	return fb_integer(fb, table, MESSAGE_VERSION, 2, "version", &version) &&
	       (version == VERSION_5 ||
		       fb_refuse(fb,
			       "%s: version is %" PRId64
			       "; must be %d (V5), as Arrow writes since 1.0: write it again",
			       fb->what, version, VERSION_5));
}

/*
 * Reads the message at a->at, and moves there past its body. *@type: of its header; 0: the end of a
 * stream.
 */
static bool read_message(struct arrow *a, struct fb *fb, uint8_t **metadata, int64_t *type,
	struct fb_table *header, struct range *body)
{
	uint64_t left = a->end - a->at;
	struct fb_table message;
	uint8_t prefix[PREFIX_BYTES];
	int64_t bytes;

	*type = 0;
	if (left == 0)
		return true;
	if (left < PREFIX_BYTES)
		return refuse(a,
			"%s: only %" PRIu64 " bytes are left at byte %" PRIu64 ": it is truncated",
			fb->what, left, a->at);
	if (!bytes_read(a->b, a->at, prefix, PREFIX_BYTES, a->fault))
		return false;
	int32_t length = (int32_t)bytes_u32(prefix + 4);

	if (bytes_u32(prefix) != CONTINUED)
		return refuse(a,
			"%s: begins with 0x%08" PRIx32 " at byte %" PRIu64
			"; must be 0xffffffff: it is damaged, or of a version before Arrow 1.0",
			fb->what, bytes_u32(prefix), a->at);
	left -= PREFIX_BYTES;
	if (length == 0 && a->stream) {
		a->closed = true;
		return left == 0 || refuse(a,
					    "Arrow stream: %" PRIu64
					    " bytes follow its end marker at byte %" PRIu64
					    ", which belong to no batch",
					    left, a->at);
	}
	if (length <= 0 || (uint64_t)length > left || length % 8 != 0)
		return refuse(a,
			"%s: its metadata's length is %" PRId32
			"; must be a multiple of 8, 8 to %" PRIu64 ": it is truncated or damaged",
			fb->what, length, left);
	left -= (uint64_t)length;
	if (!load(a, a->at + PREFIX_BYTES, (uint64_t)length, metadata, fb) ||
		!fb_root(fb, 0, &message) || !check_version(fb, &message) ||
		!fb_integer(fb, &message, MESSAGE_HEADER_TYPE, 1, "header_type", type) ||
		!fb_table(fb, &message, MESSAGE_HEADER, "header", header) ||
		!fb_integer(fb, &message, MESSAGE_BODY, 8, "bodyLength", &bytes))
		return false;
	if (bytes < 0 || (uint64_t)bytes > left || bytes % 8 != 0)
		return refuse(a,
			"%s: bodyLength is %" PRId64 "; must be a multiple of 8, 0 to %" PRIu64
			": it is truncated or damaged",
			fb->what, bytes, left);
	*body = (struct range){a->at + PREFIX_BYTES + (uint64_t)length, (uint64_t)bytes};
	a->at = body->at + body->bytes;
	return true;
}

static bool read_footer(struct arrow *a, struct fb *fb, struct fb_table *schema)
{
	const struct bytes *b = a->b;
	uint8_t head[BEGIN_BYTES], end[END_BYTES];
	size_t n = bytes_head(b, head, sizeof(head));
	char text[BEGIN_BYTES + 1];
	struct fb_vector dictionaries;
	struct fb_table root;

	if (n < MAGIC_BYTES || memcmp(head, magic, MAGIC_BYTES) != 0)
		return refuse(a,
			"begins with '%s' instead of ARROW1: it is not an Arrow IPC file, or "
			"damaged",
			bytes_shown(head, n, text, sizeof(text)));
	if (b->size < BEGIN_BYTES + END_BYTES)
		return refuse(a,
			"its size is %" PRIu64
			" bytes; an Arrow IPC file has at least %d: the file is truncated",
			b->size, BEGIN_BYTES + END_BYTES);
	if (!bytes_read(b, b->size - END_BYTES, end, END_BYTES, a->fault))
		return false;
	if (memcmp(end + 4, magic, MAGIC_BYTES) != 0)
		return refuse(a,
			"ends with '%s' instead of ARROW1: it is truncated, or its writer was not "
			"closed",
			bytes_shown(end + 4, MAGIC_BYTES, text, sizeof(text)));
	int32_t length = (int32_t)bytes_u32(end);
	uint64_t most = b->size - BEGIN_BYTES - END_BYTES;

	if (length <= 0 || (uint64_t)length > most)
		return refuse(a, "Arrow footer length is %" PRId32 "; must be 1 to %" PRIu64,
			length, most);
	a->at = BEGIN_BYTES;
	a->end = b->size - END_BYTES - (uint64_t)length;
	if (!load(a, a->end, (uint64_t)length, &a->head, fb) || !fb_root(fb, 0, &root) ||
		!check_version(fb, &root) ||
		!fb_vector(fb, &root, FOOTER_DICTIONARIES, BLOCK_BYTES, "dictionaries",
			&dictionaries) ||
		!fb_vector(fb, &root, FOOTER_BATCHES, BLOCK_BYTES, "recordBatches", &a->batches))
		return false;
	a->dictionaries = dictionaries.count > 0;
	return fb_table(fb, &root, FOOTER_SCHEMA, "schema", schema);
}

static bool read_first_message(struct arrow *a, struct fb *fb, struct fb_table *schema)
{
	struct range body;
	int64_t type;

	a->end = a->b->size;
	return read_message(a, fb, &a->head, &type, schema, &body) &&
	       (type == HEADER_SCHEMA ||
		       refuse(a, "Arrow schema: header_type is %" PRId64 "; must be %d", type,
			       HEADER_SCHEMA));
}

/*
 * In a file, batches must follow one another, as all writers write them, so that none is counted
 * twice.
 */
static bool find_block(struct arrow *a)
{
	uint64_t begin = bytes_u64(a->batches.item + (uint64_t)(a->next - 1) * BLOCK_BYTES);

	if (begin < a->at || begin >= a->end || begin % 8 != 0)
		return refuse(a,
			"Arrow footer: offset of batch %" PRIu32 " is %" PRId64
			"; must be a multiple of 8, at least %" PRIu64
			" (the end of the previous batch) and below %" PRIu64 " (the footer)",
			a->next - 1, (int64_t)begin, a->at, a->end);
	a->at = begin;
	return true;
}

/* ---- batches ---- */

/* Requires that a buffer holds @items items of @width bytes. */
static bool check_range(struct arrow *a, const struct batch *b, const struct range *range,
	const char *what, uint64_t items, uint32_t width)
{
	uint64_t at = range->at - b->body.at;

	if (at > b->body.bytes || range->bytes > b->body.bytes - at || at % 8 != 0)
		return refuse(a,
			"%s: %s of column '%s' are %" PRId64 " bytes from byte %" PRId64
			" of the body on; must begin at a multiple of 8 and stay within its "
			"%" PRIu64 " bytes",
			a->what, what, a->column.name, (int64_t)range->bytes, (int64_t)at,
			b->body.bytes);
	return items <= range->bytes / width ||
	       refuse(a,
		       "%s: the %s of column '%s' have %" PRIu64 " bytes, which is %" PRIu64
		       " items; must be at least %" PRIu64,
		       a->what, what, a->column.name, range->bytes, range->bytes / width, items);
}

/* Node @i of our column: its length, and its number of nulls, which only lists may have. */
static bool read_node(struct arrow *a, const struct fb_vector *nodes, unsigned i, uint64_t *length,
	uint64_t *nulls)
{
	const uint8_t *p = nodes->item + ((uint64_t)a->column.fields + i) * NODE_BYTES;
	bool lists = i == 0 && (a->column.kind == LIST || a->column.kind == LARGE_LIST);

	*length = bytes_u64(p);
	*nulls = bytes_u64(p + 8);
	if (*length > INT64_MAX)
		return refuse(a, "%s: length of column '%s' is %" PRId64 "; must be 0 or more",
			a->what, a->column.name, (int64_t)*length);
	return *nulls <= (lists ? *length : 0) ||
	       refuse(a,
		       "%s: null_count of column '%s'%s is %" PRId64 "; must be 0 to %" PRIu64 "%s",
		       a->what, a->column.name, i ? "'s items" : "", (int64_t)*nulls,
		       lists ? *length : 0, lists ? "" : ": each is a token");
}

/* Reads the lengths and buffers of our column. */
static bool read_column(
	struct arrow *a, const struct fb *fb, const struct fb_table *batch, struct batch *to)
{
	static const unsigned counts[] = {
		[FLAT] = 2, [LIST] = 4, [LARGE_LIST] = 4, [FIXED_LIST] = 3};
	struct fb_vector nodes, buffers;
	uint64_t rows, nulls, none;

	if (!fb_vector(fb, batch, BATCH_NODES, NODE_BYTES, "nodes", &nodes) ||
		!fb_vector(fb, batch, BATCH_BUFFERS, BUFFER_BYTES, "buffers", &buffers))
		return false;
	if (nodes.count != a->fields || buffers.count != a->buffers)
		return refuse(a,
			"%s: has %" PRIu32 " nodes and %" PRIu32
			" buffers; its columns need %" PRIu32 " and %" PRIu32,
			a->what, nodes.count, buffers.count, a->fields, a->buffers);
	if (!read_node(a, &nodes, 0, &rows, &nulls) ||
		(a->column.kind != FLAT && !read_node(a, &nodes, 1, &to->items, &none)))
		return false;
	if (rows != to->rows)
		return refuse(a,
			"%s: length of column '%s' is %" PRIu64 "; must be %" PRIu64
			", as the batch's",
			a->what, a->column.name, rows, to->rows);
	if (a->column.kind == FLAT)
		to->items = rows;
	to->nulls = nulls > 0;
	to->buffers = counts[a->column.kind];
	for (unsigned i = 0; i < to->buffers; i++) {
		const uint8_t *p = buffers.item + ((uint64_t)a->column.buffers + i) * BUFFER_BYTES;

		to->buffer[i] = (struct range){to->body.at + bytes_u64(p), bytes_u64(p + 8)};
	}
	return check_range(a, to, &to->buffer[to->buffers - 1], "values", to->items,
		shard_type_bytes(a->column.type));
}

static int64_t offset_at(const struct arrow *a, const uint8_t *p)
{
	return a->column.kind == LIST ? (int32_t)bytes_u32(p) : (int64_t)bytes_u64(p);
}

/* Finds the items of the batch's lists: those between the first and the last offset. */
static bool find_lists(struct arrow *a, struct batch *to)
{
	uint32_t width = a->column.kind == LIST ? 4 : 8;
	uint64_t at = to->buffer[1].at;
	uint8_t begin[8], end[8];

	if (to->rows == 0)
		return true;
	if (!check_range(a, to, &to->buffer[1], "offsets", to->rows + 1, width))
		return false;
	if (to->nulls && to->buffer[0].bytes == 0)
		return refuse(
			a, "%s: column '%s' has nulls, but no validity", a->what, a->column.name);
	if (to->nulls &&
		!check_range(a, to, &to->buffer[0], "validity bits", (to->rows + 7) / 8, 1))
		return false;
	if (!bytes_read(a->b, at, begin, width, a->fault) ||
		!bytes_read(a->b, at + to->rows * width, end, width, a->fault))
		return false;
	int64_t from = offset_at(a, begin), until = offset_at(a, end);

	if (from < 0 || until < from || (uint64_t)until > to->items)
		return refuse(a,
			"%s: offsets of column '%s' begin with %" PRId64 " and end with %" PRId64
			"; must ascend within 0 to %" PRIu64 ", its number of items",
			a->what, a->column.name, from, until, to->items);
	to->first = (uint64_t)from;
	to->tokens = (uint64_t)(until - from);
	return true;
}

static bool read_batch(
	struct arrow *a, const struct fb *fb, const struct fb_table *batch, struct batch *to)
{
	struct fb_table compression;
	int64_t codec = 0, length;

	if (!fb_table(fb, batch, BATCH_COMPRESSION, "compression", &compression) ||
		(compression.at && !fb_integer(fb, &compression, 0, 1, "codec", &codec)) ||
		!fb_integer(fb, batch, BATCH_LENGTH, 8, "length", &length))
		return false;
	if (compression.at)
		return refuse(a,
			"%s: its body is compressed (%s), which is not supported; convert it: "
			"python -m tokend tokenize --column %s -o DIR FILE",
			a->what,
			codec == 0   ? "LZ4_FRAME"
			: codec == 1 ? "ZSTD"
				     : "an unknown codec",
			a->column.name);
	to->rows = (uint64_t)length;
	if (!read_column(a, fb, batch, to))
		return false;
	if (a->column.kind == LIST || a->column.kind == LARGE_LIST)
		return find_lists(a, to);
	to->tokens = to->items;
	return a->column.kind == FLAT ||
	       (!__builtin_mul_overflow(to->rows, a->column.list_size, &to->tokens) &&
		       to->tokens <= to->items) ||
	       refuse(a,
		       "%s: %" PRIu64 " lists of %" PRIu64
		       " tokens are in column '%s', but it has %" PRIu64 " items",
		       a->what, to->rows, a->column.list_size, a->column.name, to->items);
}

/* Reads the next batch. *@end: there is none. */
static bool next_batch(struct arrow *a, struct batch *to, bool *end)
{
	struct fb fb = {.what = a->what, .fault = a->fault};
	struct fb_table header;
	int64_t type;

	*to = (struct batch){.rows = 0};
	snprintf(a->what, sizeof(a->what), "Arrow batch %" PRIu32, a->next++);
	*end = !a->stream && a->next > a->batches.count;
	if (*end)
		return true;
	if (!a->stream && !find_block(a))
		return false;
	do {
		if (!read_message(a, &fb, &a->metadata, &type, &header, &to->body))
			return false;
		*end = type == 0 && a->stream;
	} while (type == HEADER_DICTIONARY && a->stream);
	if (*end)
		return true;
	if (type != HEADER_BATCH || !header.at)
		return refuse(a, "%s: header_type is %" PRId64 "; must be %d, a record batch",
			a->what, type, HEADER_BATCH);
	return read_batch(a, &fb, &header, to);
}

/* ---- documents ---- */

/*
 * Reads and checks all offsets of the batch, and adds a span for each list. Null lists must be
 * empty. Each offset is compared with the one before as that was read, because the file may be
 * changing.
 */
static bool add_lists(struct arrow *a, const struct batch *b, struct map *map)
{
	uint8_t offsets[8 * LISTS_AT_ONCE], valid[LISTS_AT_ONCE / 8];
	uint64_t width = a->column.kind == LIST ? 4 : 8, at = b->first, most = b->first + b->tokens;

	for (uint64_t i = 0; i < b->rows; i++) {
		uint64_t in = i % LISTS_AT_ONCE, left = b->rows - i,
			 n = left < LISTS_AT_ONCE ? left : LISTS_AT_ONCE;

		if (in == 0 && (!bytes_read(a->b, b->buffer[1].at + (i + 1) * width, offsets,
					n * width, a->fault) ||
				       (b->nulls && !bytes_read(a->b, b->buffer[0].at + i / 8,
							    valid, (n + 7) / 8, a->fault))))
			return false;
		int64_t offset = offset_at(a, offsets + in * width);
		uint64_t until = (uint64_t)offset;

		if (offset < 0 || until < at || until > most)
			return refuse(a,
				"%s: offset %" PRIu64 " of column '%s' is %" PRId64
				"; must be %" PRIu64 " to %" PRIu64 ": offsets ascend",
				a->what, i + 1, a->column.name, offset, at, most);
		if (b->nulls && until > at && !(valid[in / 8] >> in % 8 & 1))
			return refuse(a,
				"%s: list %" PRIu64 " of column '%s' is null, but has %" PRIu64
				" items; must have none",
				a->what, i, a->column.name, until - at);
		if (!map_add(map, b->buffer[3].at + at * map->width, until - at, false))
			return fault_memory(a->fault);
		at = until;
	}
	return at == most || refuse(a, "%s: " PHRASE_CHANGED, a->what);
}

/* Adds the documents of a batch. */
static bool add_batch(struct arrow *a, const struct batch *batch, struct map *map)
{
	uint64_t at = batch->buffer[batch->buffers - 1].at, each = a->column.list_size;

	if (a->column.kind == LIST || a->column.kind == LARGE_LIST)
		return add_lists(a, batch, map);
	if (a->column.kind == FLAT)
		each = batch->tokens;
	for (uint64_t done = 0; done < batch->tokens; done += each)
		if (!map_add(map, at + done * map->width, each, false))
			return fault_memory(a->fault);
	return true;
}

static bool scan_batches(struct arrow *a, struct shard_facts *facts, struct map *map)
{
	struct batch batch;
	bool end;

	facts->documents = facts->tokens = 0;
	facts->plain = false;
	for (unsigned pieces = 0; next_batch(a, &batch, &end);) {
		if (end)
			return true;
		facts->documents += a->column.kind == FLAT ? 1 : batch.rows;
		facts->tokens += batch.tokens;
		if (batch.tokens == 0)
			continue;
		pieces += pieces < 2;
		facts->plain = pieces == 1; /* contiguous if there is only one batch */
		facts->data_at = !facts->plain
					 ? 0
					 : batch.buffer[batch.buffers - 1].at +
						   batch.first * shard_type_bytes(a->column.type);
		if (map && !add_batch(a, &batch, map))
			return false;
	}
	return false;
}

/* ---- the shard ---- */

static bool arrow_recognise(const struct bytes *b)
{
	uint8_t head[MAGIC_BYTES];

	return (bytes_head(b, head, sizeof(head)) == sizeof(head) &&
		       memcmp(head, magic, sizeof(head)) == 0) ||
	       bytes_ending(b->path, ".arrow") || bytes_ending(b->path, ".feather") ||
	       bytes_ends_in(b->path, SPLITS);
}

/*
 * Hugging Face's datasets writes the result of map() next to the data that it was called on. If
 * both were served, the data would be served twice.
 */
static bool check_not_cache(struct arrow *a)
{
	const char *slash = strrchr(a->b->path, '/'), *name = slash ? slash + 1 : a->b->path;
	int directory = (int)(name - a->b->path);
	char state[PATH_MAX];
	struct object object;
	bool there;

	if (strncmp(name, "cache-", 6) != 0)
		return true;
	snprintf(state, sizeof(state), "%.*sstate.json", directory, a->b->path);
	if (a->b->objects)
		there = a->b->objects->find(a->b->objects->context, state, &object);
	else
		there = access(state, F_OK) == 0;
	return !there ||
	       refuse(a,
		       "is a cached result of Hugging Face's datasets, not part of the saved "
		       "dataset; remove it, or set path: %.*sdata-*.arrow",
		       directory, a->b->path);
}

static bool scan(
	struct arrow *a, const struct shard_hint *hint, struct shard_facts *facts, struct map *map)
{
	struct fb fb = {.what = a->stream ? "Arrow schema" : "Arrow footer", .fault = a->fault};
	struct fb_table schema;

	if (!(a->stream ? read_first_message(a, &fb, &schema) : read_footer(a, &fb, &schema)) ||
		!read_schema(a, &fb, &schema, hint))
		return false;
	if (map)
		map->width = shard_type_bytes(a->column.type);
	if (!scan_batches(a, facts, map))
		return false;
	/*
	 * Between the last batch and the footer there is only an end marker. More bytes are a batch
	 * that the footer does not list.
	 */
	return a->stream || a->batches.count == 0 || a->dictionaries ||
	       a->end - a->at < BATCH_LEAST ||
	       refuse(a,
		       "Arrow footer: recordBatches has %" PRIu32
		       " items, which end at byte %" PRIu64
		       ", but the footer begins at byte %" PRIu64
		       ": the bytes between them belong to no batch",
		       a->batches.count, a->at, a->end);
}

static bool arrow_scan(const struct bytes *b, const struct bytes *index,
	const struct shard_hint *hint, struct shard_facts *facts, struct map *map,
	struct fault *fault)
{
	struct arrow a = {.b = b, .fault = fault};
	uint8_t head[4];

	(void)index;
	if (bytes_ends_in(b->path, SPLITS))
		return fault_set(fault, FAULT_DATA, "",
			"is a list of splits (train, test), which would all be served; set path: "
			"%.*s/SPLIT, with the name of one",
			(int)(strlen(b->path) + 1 - sizeof(SPLITS)), b->path);
	a.stream =
		bytes_head(b, head, sizeof(head)) == sizeof(head) && bytes_u32(head) == CONTINUED;
	bool fine = (!a.stream || check_not_cache(&a)) && scan(&a, hint, facts, map);

	free(a.head);
	free(a.metadata);
	if (!fine)
		return false;
	if (a.stream && !a.closed)
		snprintf(facts->note, sizeof(facts->note),
			"has no end marker: it may be truncated, or its writer was not closed");
	facts->type = a.column.type;
	memcpy(facts->column, a.column.name, sizeof(a.column.name));
	if (a.column.kind == FIXED_LIST)
		facts->row_tokens = a.column.list_size;
	return true;
}

/*
 * IBM's tools keep the counts of all files in meta/, next to the directories of the files. Hugging
 * Face's datasets describes the files of a directory in two of JSON.
 */
static const struct shard_companion companions[] = {
	{.ending = "/dataset_info.json",
		.shard = "*.arrow",
		.kind = "Hugging Face's description",
		.unread = true},
	{.ending = "/state.json",
		.shard = "*.arrow",
		.kind = "Hugging Face's list of files",
		.unread = true},
	{.ending = "counts.csv", .shard = "*.arrow", .kind = "a table of counts", .unread = true},
	{0},
};

const struct shard_format shard_arrow = {
	.name = "arrow",
	.recognise = arrow_recognise,
	.scan = arrow_scan,
	.indexed = true,
	.companions = companions,
};
