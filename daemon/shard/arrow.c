/*
 * Arrow IPC files and streams. IBM's fms-fsdp writes files with a flat column of integers, and a
 * document per record batch. Hugging Face's datasets writes streams with a column of lists, and a
 * document per list. Either way the tokens of a batch are contiguous.
 *
 * A stream is messages: the schema, then the batches and dictionaries. A file is a stream after a
 * magic, then a footer, of which only the number of batches is read. A message has metadata (a
 * flatbuffer) and a body. The metadata of a batch are its number of rows, and where in its body
 * each column's buffers are. Other columns are only counted, to find ours. Metadata is of version
 * 5, which Arrow writes since 1.0.
 */
#include "daemon/shard/flatbuffer.h"
#include "daemon/shard/format.h"
#include "daemon/shard/map.h"
#include "proto/phrases.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
	uint32_t name_bytes;
	unsigned of; /* its type */
	bool dictionary;
	bool fits; /* it holds integers or lists of them; otherwise the next three are not set */
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
	bool closed;		  /* the end marker was found */
	uint64_t at, end;	  /* of the messages that are still to be read */
	uint32_t batches;	  /* that were read */
	uint8_t *metadata;	  /* of the message */
	struct fb fb;		  /* the same */
	char what[120];		  /* "Arrow batch 17, column 'tokens'" */
	struct column column;	  /* with the tokens */
	uint32_t fields, buffers; /* of all columns */
};

/* A range of the file. */
struct range {
	uint64_t at, bytes;
};

struct batch {
	struct range body;
	uint64_t rows, items;	/* items: of lists */
	struct range buffer[4]; /* of our column and its items */
	struct range *values;	/* the last of them */
	bool nulls;		/* some lists are null */
	uint64_t first, tokens; /* first: item */
};

/* refuse(a, text, …): a fault in the message that is read. */
#define refuse(a, text, ...)                                                                       \
	fault_set((a)->fault, FAULT_DATA, "", "%s: " text, (a)->what, ##__VA_ARGS__)

/* Requires that a number of the message is within a range, which is empty if @most < @least. */
static bool check(struct arrow *a, const char *what, int64_t value, uint64_t least, uint64_t most)
{
	return (value >= 0 && (uint64_t)value >= least && (uint64_t)value <= most) ||
	       refuse(a, "%s is %" PRId64 "; must be %" PRIu64 " to %" PRIu64, what, value, least,
		       most);
}

/* ---- the schema ---- */

/* By a column's type: its name, and the number of its buffers in a batch without its children's. */
static const char *const names[] = {NULL, "null", "int", "float", "binary", "string", "bool",
	"decimal", "date", "time", "timestamp", "interval", "list", "struct", "union",
	"fixed-size binary", "fixed-size list", "map", "duration", "large binary", "large string",
	"large list", "run-end encoded", "binary view", "string view", "list view",
	"large list view"};

enum { VARIES = UINT8_MAX /* another number in each batch, or a newer type */ };

static const uint8_t buffers[] = {0, 0, 2, 2, 3, 3, 2, 2, 2, 2, 2, 2, 2, 1, VARIES, 2, 1, 2, 2, 3,
	3, 2, VARIES, VARIES, VARIES, VARIES, VARIES};

enum { TYPES = sizeof(names) / sizeof(names[0]) };
enum { TYPE_INT = 2, TYPE_STRING = 5, TYPE_LIST = 12, TYPE_FIXED_LIST = 16 };
enum { TYPE_LARGE_STRING = 20, TYPE_LARGE_LIST = 21, TYPE_STRING_VIEW = 24 };

_Static_assert(sizeof(buffers) == TYPES, "one number of buffers for each type");

/* A column of the schema, or a child of one. */
struct field {
	struct fb_table table;
	struct column column;
	struct fb_vector children;
};

static bool read_field(struct arrow *a, const struct fb_vector *fields, uint32_t i, struct field *f)
{
	const struct fb *fb = &a->fb;
	struct column *c = &f->column;
	struct fb_table dictionary;
	struct fb_vector name;
	int64_t type;

	if (!fb_item(fb, fields, i, "a column", &f->table) ||
		!fb_vector(fb, &f->table, FIELD_NAME, 1, "a column's name", &name) ||
		!fb_integer(fb, &f->table, FIELD_TYPE_TYPE, 1, "a column's type_type", &type) ||
		!fb_table(fb, &f->table, FIELD_DICTIONARY, "a column's dictionary", &dictionary) ||
		!fb_vector(fb, &f->table, FIELD_CHILDREN, 4, "a column's children", &f->children))
		return false;
	*c = (struct column){.name_bytes = name.count,
		.of = (uint8_t)type,
		.dictionary = dictionary.at > 0,
		.fields = a->fields,
		.buffers = a->buffers};
	bytes_shown(name.item, name.count, c->name, sizeof(c->name));
	return (c->of > 0 && c->of < TYPES) ||
	       refuse(a, "type of column '%s' is %u, which is not known", c->name, c->of);
}

/* Whether the field holds integers: sets *@fits, and *@type to theirs. */
static bool int_type(struct arrow *a, const struct field *f, bool *fits, enum shard_type *type)
{
	const struct fb *fb = &a->fb;
	struct fb_table body;
	int64_t bits = 0, is_signed = 0;

	*fits = f->column.of == TYPE_INT && !f->column.dictionary;
	if (!*fits)
		return true;
	if (!fb_table(fb, &f->table, FIELD_TYPE, "a column's type", &body) ||
		(body.at && (!fb_integer(fb, &body, INT_BITS, 4, "an int's bitWidth", &bits) ||
				    !fb_integer(fb, &body, INT_SIGNED, 1, "an int's is_signed",
					    &is_signed))))
		return false;
	if (bits != 8 && bits != 16 && bits != 32 && bits != 64)
		return refuse(
			a, "bitWidth of an int is %" PRId64 "; must be 8, 16, 32 or 64", bits);
	*type = (enum shard_type)(2 * __builtin_ctz((unsigned)bits / 8) + (is_signed != 0));
	return true;
}

/* Finds out whether a column holds tokens, and how. */
static bool token_type(struct arrow *a, struct field *f)
{
	struct column *c = &f->column;
	struct fb_table body;
	struct field child;
	int64_t size = 0;

	c->kind = c->of == TYPE_LIST	     ? LIST
		  : c->of == TYPE_LARGE_LIST ? LARGE_LIST
		  : c->of == TYPE_FIXED_LIST ? FIXED_LIST
					     : FLAT;
	if (c->kind == FLAT)
		return int_type(a, f, &c->fits, &c->type);
	if (c->dictionary || f->children.count != 1)
		return true;
	if (!fb_table(&a->fb, &f->table, FIELD_TYPE, "a column's type", &body) ||
		(c->kind == FIXED_LIST && body.at &&
			!fb_integer(&a->fb, &body, LIST_SIZE, 4, "a list's listSize", &size)))
		return false;
	c->list_size = (uint64_t)size;
	return (c->kind != FIXED_LIST || check(a, "a list's listSize", size, 1, INT32_MAX)) &&
	       read_field(a, &f->children, 0, &child) && int_type(a, &child, &c->fits, &c->type);
}

/* Counts the fields and buffers of a column and all its children. */
static bool count_field(struct arrow *a, const struct field *f, unsigned depth)
{
	const struct column *c = &f->column;
	struct field child;

	if (depth > DEPTH_MOST || a->fields == FIELDS_MOST)
		return refuse(a, "its schema has more than %d %s",
			depth > DEPTH_MOST ? DEPTH_MOST : FIELDS_MOST,
			depth > DEPTH_MOST ? "levels" : "columns, nested ones included");
	if (buffers[c->of] == VARIES && !c->dictionary)
		return refuse(a,
			"column '%s' is of type %s, next to which no tokens can be read; write the "
			"file without it",
			c->name, names[c->of]);
	a->fields++;
	/* Of a dictionary, batches hold indices, for every type of values. */
	a->buffers += buffers[c->dictionary ? TYPE_INT : c->of];
	for (uint32_t i = 0; i < f->children.count && !c->dictionary; i++)
		if (!read_field(a, &f->children, i, &child) || !count_field(a, &child, depth + 1))
			return false;
	return true;
}

/* The columns of the schema. */
struct choice {
	const char *name[2];	 /* the config's; otherwise tokens, input_ids */
	uint32_t named[2];	 /* number of columns with that name */
	struct column column[2]; /* the last of them */
	bool text;		 /* a column holds text */
	char names[120];	 /* of all columns, as many as fit */
};

static void add_choice(struct choice *c, const struct column *column)
{
	size_t n = strlen(c->names), left = sizeof(c->names) - n;
	char shown[sizeof(column->name)];

	for (unsigned k = 0; k < 2 && c->name[k]; k++)
		/* Names are compared as they are printed. */
		if (strlen(c->name[k]) == column->name_bytes &&
			strcmp(bytes_shown(c->name[k], column->name_bytes, shown, sizeof(shown)),
				column->name) == 0) {
			c->named[k]++;
			c->column[k] = *column;
		}
	c->text |= column->of == TYPE_STRING || column->of == TYPE_LARGE_STRING ||
		   column->of == TYPE_STRING_VIEW;
	if (left > 4 &&
		(size_t)snprintf(c->names + n, left, "%s%s", n ? ", " : "", column->name) >= left)
		memcpy(c->names + sizeof(c->names) - 4, "…", 4);
}

/* The config's column; otherwise tokens or input_ids; otherwise @only, the only one. */
static bool choose(struct arrow *a, const struct choice *c, bool named, const struct column *only)
{
	unsigned k = c->named[0] == 0 && c->named[1] > 0;
	const char *name = c->name[k];

	a->column = c->named[k] > 0 ? c->column[k] : *only;
	if (c->named[k] > 1)
		return refuse(a, "%" PRIu32 " columns are called '%.64s'; must be exactly one",
			c->named[k], name);
	if (c->named[k] == 0 && (named || !only->fits))
		return refuse(a,
			"no column is called '%.64s'; set `column` to the one with the tokens, of: "
			"%s",
			named ? name : "tokens' or 'input_ids", c->names);
	if (!a->column.fits)
		return refuse(a,
			"column '%s' is of type %s%s; tokens must be a column of integers, or of "
			"lists of integers",
			a->column.name, names[a->column.of],
			a->column.dictionary ? ", dictionary-encoded" : "");
	return named || a->column.kind != FLAT || !c->text ||
	       refuse(a,
		       "column '%s' has one number a row, next to text, as a count has; if it does "
		       "hold tokens, set `column: %s`; columns: %s",
		       name, name, c->names);
}

/* Chooses the column, and counts the others. */
static bool read_schema(
	struct arrow *a, const struct fb_table *schema, const struct shard_hint *hint)
{
	struct choice c = {.name = {"tokens", "input_ids"}};
	struct column only = {.fits = false};
	struct fb_vector fields;
	int64_t endianness;

	if (hint->column) {
		c.name[0] = hint->column;
		c.name[1] = NULL;
	}
	if (!fb_integer(&a->fb, schema, SCHEMA_ENDIANNESS, 2, "endianness", &endianness) ||
		!fb_vector(&a->fb, schema, SCHEMA_FIELDS, 4, "fields", &fields))
		return false;
	if (!check(a, "endianness", endianness, 0, 0))
		return false;
	for (uint32_t i = 0; i < fields.count; i++) {
		struct field f;

		if (!read_field(a, &fields, i, &f) || !token_type(a, &f) || !count_field(a, &f, 1))
			return false;
		add_choice(&c, &f.column);
		if (fields.count == 1)
			only = f.column;
	}
	return choose(a, &c, hint->column, &only);
}

/* ---- messages ---- */

/* Reads metadata, or the footer. */
static bool load(struct arrow *a, uint64_t at, uint64_t n)
{
	if (!check(a, "its length", (int64_t)n, 1, METADATA_MOST))
		return false;
	free(a->metadata);
	a->metadata = malloc(n);
	a->fb = (struct fb){a->metadata, n, a->what, a->fault};
	return a->metadata ? bytes_read(a->b, at, a->metadata, n, a->fault)
			   : fault_memory(a->fault);
}

/* Reads the metadata of a message, whose length is @bytes. */
static bool read_metadata(
	struct arrow *a, uint64_t bytes, int64_t *type, struct fb_table *header, struct range *body)
{
	const struct fb *fb = &a->fb;
	uint64_t left = a->end - a->at - bytes;
	struct fb_table message;
	int64_t version, length;

	if (!load(a, a->at, bytes) || !fb_root(fb, 0, &message) ||
		!fb_integer(fb, &message, MESSAGE_VERSION, 2, "version", &version) ||
		!fb_integer(fb, &message, MESSAGE_HEADER_TYPE, 1, "header_type", type) ||
		!fb_table(fb, &message, MESSAGE_HEADER, "header", header) ||
		!fb_integer(fb, &message, MESSAGE_BODY, 8, "bodyLength", &length))
		return false;
	if (version != VERSION_5)
		return refuse(a,
			"version is %" PRId64
			"; must be %d (V5), as Arrow writes since 1.0: write it again",
			version, VERSION_5);
	if (!header->at)
		return refuse(a, "header is absent; must be present");
	if (!check(a, "bodyLength", length, 0, left) ||
		!check(a, "bodyLength's remainder by 8", length % 8, 0, 0))
		return false;
	*body = (struct range){a->at + bytes, (uint64_t)length};
	a->at = body->at + body->bytes;
	return true;
}

/* Reads the next message. *@type: of its header; 0: there is none. */
static bool read_message(
	struct arrow *a, int64_t *type, struct fb_table *header, struct range *body)
{
	uint64_t left = a->end - a->at;
	uint8_t prefix[PREFIX_BYTES];

	*type = 0;
	if (left == 0 || (left < PREFIX_BYTES && !a->stream))
		return true; /* some writers put less than a marker before the footer */
	if (left < PREFIX_BYTES)
		return refuse(a,
			"only %" PRIu64 " bytes are left at byte %" PRIu64 ": it is truncated",
			left, a->at);
	if (!bytes_read(a->b, a->at, prefix, PREFIX_BYTES, a->fault))
		return false;
	int32_t length = (int32_t)bytes_u32(prefix + 4);

	if (bytes_u32(prefix) != CONTINUED)
		return refuse(a,
			"begins with 0x%08" PRIx32 " at byte %" PRIu64
			"; must be 0xffffffff: it is damaged, or of a version before Arrow 1.0",
			bytes_u32(prefix), a->at);
	left -= PREFIX_BYTES;
	a->at += PREFIX_BYTES;
	if (length == 0) {
		a->closed = true;
		return left == 0 || !a->stream ||
		       refuse(a,
			       "%" PRIu64 " bytes follow its end marker at byte %" PRIu64
			       ", which belong to no batch",
			       left, a->at - PREFIX_BYTES);
	}
	if (!check(a, "its metadata's length", length, 1, left) ||
		!check(a, "its metadata's length by 8", length % 8, 0, 0))
		return false;
	return read_metadata(a, (uint64_t)length, type, header, body);
}

/* Finds the messages of a file. *@batches: number of batches, as its footer says. */
static bool read_footer(struct arrow *a, uint32_t *batches)
{
	const struct bytes *b = a->b;
	uint8_t head[BEGIN_BYTES], end[END_BYTES];
	size_t n = bytes_head(b, head, sizeof(head));
	char text[BEGIN_BYTES + 1];
	struct fb_vector blocks;
	struct fb_table root;

	if (n < MAGIC_BYTES || memcmp(head, magic, MAGIC_BYTES) != 0)
		return refuse(a,
			"begins with '%s' instead of ARROW1: it is not an Arrow IPC file, or "
			"damaged",
			bytes_shown(head, n, text, sizeof(text)));
	if (b->size < BEGIN_BYTES + END_BYTES)
		return refuse(a,
			"its size is %" PRIu64 " bytes; must be at least %d: it is truncated",
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

	if (!check(a, "footer length", length, 1, most))
		return false;
	a->end = b->size - END_BYTES - (uint64_t)length;
	if (!load(a, a->end, (uint64_t)length) || !fb_root(&a->fb, 0, &root) ||
		!fb_vector(&a->fb, &root, FOOTER_BATCHES, BLOCK_BYTES, "recordBatches", &blocks))
		return false;
	*batches = blocks.count;
	for (a->at = BEGIN_BYTES; a->at < BEGIN_MOST && a->end - a->at >= BEGIN_BYTES;
		a->at += BEGIN_BYTES) {
		if (!bytes_read(b, a->at, head, sizeof(head), a->fault))
			return false;
		if (bytes_u64(head) != 0)
			break;
	}
	return true;
}

/* ---- batches ---- */

/* Requires that a buffer holds @items items of @width bytes. */
static bool check_range(struct arrow *a, const struct batch *b, const struct range *range,
	const char *what, uint64_t items, uint32_t width)
{
	uint64_t at = range->at - b->body.at;

	if (at > b->body.bytes || range->bytes > b->body.bytes - at || at % 8 != 0 ||
		items > range->bytes / width)
		return refuse(a,
			"its %s are %" PRId64 " bytes from byte %" PRId64
			" of the body on; must be %" PRIu64
			" items of %u bytes, begin at a multiple of 8, and stay within its "
			"%" PRIu64 " bytes",
			what, (int64_t)range->bytes, (int64_t)at, items, width, b->body.bytes);
	return true;
}

/* Node @i of our column: its length, and its number of nulls, which only lists may have. */
static bool read_node(struct arrow *a, const struct fb_vector *nodes, unsigned i, uint64_t *length,
	uint64_t *nulls)
{
	const uint8_t *p = nodes->item + ((uint64_t)a->column.fields + i) * NODE_BYTES;
	bool lists = i == 0 && (a->column.kind == LIST || a->column.kind == LARGE_LIST);

	*length = bytes_u64(p);
	*nulls = bytes_u64(p + 8);
	return check(a, i ? "length of its items" : "its length", (int64_t)*length, 0, INT64_MAX) &&
	       check(a, i ? "null_count of its items" : "null_count", (int64_t)*nulls, 0,
		       lists ? *length : 0);
}

/* Reads the lengths and buffers of our column. */
static bool read_column(struct arrow *a, const struct fb_table *batch, struct batch *to)
{
	static const unsigned counts[] = {
		[FLAT] = 2, [LIST] = 4, [LARGE_LIST] = 4, [FIXED_LIST] = 3};
	const struct column *c = &a->column;
	struct fb_vector nodes, ranges;
	uint64_t rows, nulls, none;
	unsigned count = counts[c->kind];

	if (!fb_vector(&a->fb, batch, BATCH_NODES, NODE_BYTES, "nodes", &nodes) ||
		!fb_vector(&a->fb, batch, BATCH_BUFFERS, BUFFER_BYTES, "buffers", &ranges))
		return false;
	if (!check(a, "number of nodes", nodes.count, a->fields, a->fields) ||
		!check(a, "number of buffers", ranges.count, a->buffers, a->buffers))
		return false;
	if (!read_node(a, &nodes, 0, &rows, &nulls) ||
		(c->kind != FLAT && !read_node(a, &nodes, 1, &to->items, &none)))
		return false;
	if (!check(a, "its length", (int64_t)rows, to->rows, to->rows))
		return false;
	if (c->kind == FLAT)
		to->items = rows;
	to->nulls = nulls > 0;
	to->values = &to->buffer[count - 1];
	for (unsigned i = 0; i < count; i++) {
		const uint8_t *p = ranges.item + ((uint64_t)c->buffers + i) * BUFFER_BYTES;

		to->buffer[i] = (struct range){to->body.at + bytes_u64(p), bytes_u64(p + 8)};
	}
	return check_range(a, to, to->values, "values", to->items, shard_type_bytes(c->type));
}

static uint32_t offset_bytes(const struct arrow *a)
{
	return a->column.kind == LIST ? 4 : 8;
}

static int64_t offset_at(const struct arrow *a, const uint8_t *p)
{
	return a->column.kind == LIST ? (int32_t)bytes_u32(p) : (int64_t)bytes_u64(p);
}

/* Finds the items of the batch's lists: those between the first and the last offset. */
static bool find_lists(struct arrow *a, struct batch *to)
{
	uint32_t width = offset_bytes(a);
	uint64_t at = to->buffer[1].at;
	uint8_t begin[8], end[8];

	if (to->rows == 0)
		return true;
	if (!check_range(a, to, &to->buffer[1], "offsets", to->rows + 1, width))
		return false;
	if (to->nulls &&
		!check_range(a, to, &to->buffer[0], "validity bits", (to->rows + 7) / 8, 1))
		return false;
	if (!bytes_read(a->b, at, begin, width, a->fault) ||
		!bytes_read(a->b, at + to->rows * width, end, width, a->fault))
		return false;
	int64_t from = offset_at(a, begin), until = offset_at(a, end);

	if (!check(a, "first offset", from, 0, to->items) ||
		!check(a, "last offset", until, (uint64_t)from, to->items))
		return false;
	to->first = (uint64_t)from;
	to->tokens = (uint64_t)(until - from);
	return true;
}

static bool read_batch(struct arrow *a, const struct fb_table *batch, struct batch *to)
{
	struct fb_table compression;
	int64_t codec = 0, length;
	size_t n = strlen(a->what);

	snprintf(a->what + n, sizeof(a->what) - n, ", column '%s'", a->column.name);
	if (!fb_table(&a->fb, batch, BATCH_COMPRESSION, "compression", &compression) ||
		(compression.at && !fb_integer(&a->fb, &compression, 0, 1, "codec", &codec)) ||
		!fb_integer(&a->fb, batch, BATCH_LENGTH, 8, "length", &length))
		return false;
	if (compression.at)
		return refuse(a,
			"its body is compressed (%s), which is not supported; convert it: python "
			"-m tokend tokenize --column %s -o DIR FILE",
			codec == 0 ? "LZ4_FRAME" : "ZSTD", a->column.name);
	to->rows = (uint64_t)length;
	if (!read_column(a, batch, to))
		return false;
	if (a->column.kind == LIST || a->column.kind == LARGE_LIST)
		return find_lists(a, to);
	to->tokens = to->items;
	if (a->column.kind == FLAT)
		return true;
	return (!__builtin_mul_overflow(to->rows, a->column.list_size, &to->tokens) &&
		       to->tokens <= to->items) ||
	       refuse(a, "%" PRIu64 " lists of %" PRIu64 " tokens have only %" PRIu64 " items",
		       to->rows, a->column.list_size, to->items);
}

/* Reads the next batch. *@end: there is none. */
static bool next_batch(struct arrow *a, struct batch *to, bool *end)
{
	struct fb_table header;
	int64_t type;

	*to = (struct batch){.rows = 0};
	snprintf(a->what, sizeof(a->what), "Arrow batch %" PRIu32, a->batches);
	do {
		if (!read_message(a, &type, &header, &to->body))
			return false;
	} while (type == HEADER_DICTIONARY);
	*end = type == 0;
	if (*end)
		return true;
	if (type != HEADER_BATCH)
		return refuse(a, "header_type is %" PRId64 "; must be %d, a record batch", type,
			HEADER_BATCH);
	a->batches++;
	return read_batch(a, &header, to);
}

/* ---- documents ---- */

/*
 * Reads and checks all offsets of the batch, and adds a span for each list. Null lists must be
 * empty. Each offset is compared with the one before as that was read, because the file may be
 * changing.
 */
static bool add_lists(struct arrow *a, const struct batch *b, struct map *map)
{
	uint64_t at = b->first, most = b->first + b->tokens, width = offset_bytes(a);
	struct bytes_array offsets = {.b = a->b,
		.at = b->buffer[1].at + width,
		.count = b->rows,
		.width = (uint32_t)width};
	struct bytes_array valid = {
		.b = a->b, .at = b->buffer[0].at, .count = (b->rows + 7) / 8, .width = 1};
	const uint8_t *bits = NULL, *item;

	for (uint64_t i = 0; i < b->rows; i++) {
		if ((b->nulls && i % 8 == 0 && !(bits = bytes_item(&valid, i / 8, a->fault))) ||
			!(item = bytes_item(&offsets, i, a->fault)))
			return false;
		int64_t offset = offset_at(a, item);
		uint64_t until = (uint64_t)offset;

		if (offset < 0 || until < at || until > most)
			return refuse(a,
				"offset %" PRIu64 " is %" PRId64 "; must be %" PRIu64 " to %" PRIu64
				": offsets ascend",
				i + 1, offset, at, most);
		if (bits && until > at && !(*bits >> i % 8 & 1))
			return refuse(a,
				"list %" PRIu64 " is null, but has %" PRIu64
				" items; must have none",
				i, until - at);
		if (!map_add(map, b->values->at + at * map->width, until - at, false))
			return fault_memory(a->fault);
		at = until;
	}
	return at == most || refuse(a, PHRASE_CHANGED);
}

/* Adds the documents of a batch. */
static bool add_batch(struct arrow *a, const struct batch *batch, struct map *map)
{
	uint64_t each = a->column.kind == FLAT ? batch->tokens : a->column.list_size;

	if (a->column.kind == LIST || a->column.kind == LARGE_LIST)
		return add_lists(a, batch, map);
	for (uint64_t done = 0; done < batch->tokens; done += each)
		if (!map_add(map, batch->values->at + done * map->width, each, false))
			return fault_memory(a->fault);
	return true;
}

static bool scan_batches(struct arrow *a, struct shard_facts *facts, struct map *map)
{
	struct batch batch;
	bool end;

	facts->documents = 0;
	while (next_batch(a, &batch, &end)) {
		if (end)
			return true;
		facts->documents += a->column.kind == FLAT ? 1 : batch.rows;
		facts->tokens += batch.tokens;
		if (map && batch.tokens > 0 && !add_batch(a, &batch, map))
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
static bool check_not_cache(const struct bytes *b, struct fault *fault)
{
	const char *slash = strrchr(b->path, '/'), *name = slash ? slash + 1 : b->path;
	int directory = (int)(name - b->path);
	char state[PATH_MAX];
	struct object object;

	if (strncmp(name, "cache-", 6) != 0)
		return true;
	snprintf(state, sizeof(state), "%.*sstate.json", directory, b->path);
	if (b->objects ? !b->objects->find(b->objects->context, state, &object)
		       : access(state, F_OK) != 0)
		return true;
	return fault_set(fault, FAULT_DATA, "",
		"is a cached result of Hugging Face's datasets, not part of the saved dataset; "
		"remove it, or set path: %.*sdata-*.arrow",
		directory, b->path);
}

static bool scan(
	struct arrow *a, const struct shard_hint *hint, struct shard_facts *facts, struct map *map)
{
	struct fb_table schema;
	struct range body;
	uint32_t batches = 0;
	int64_t type;

	snprintf(a->what, sizeof(a->what), "Arrow file");
	if (!a->stream && !read_footer(a, &batches))
		return false;
	snprintf(a->what, sizeof(a->what), "Arrow schema");
	if (!read_message(a, &type, &schema, &body))
		return false;
	if (type != HEADER_SCHEMA)
		return refuse(a, "header_type is %" PRId64 "; must be %d", type, HEADER_SCHEMA);
	if (!read_schema(a, &schema, hint))
		return false;
	if (map)
		map->width = shard_type_bytes(a->column.type);
	if (!scan_batches(a, facts, map))
		return false;
	return a->stream || a->batches == batches ||
	       fault_set(a->fault, FAULT_DATA, "",
		       "Arrow footer: recordBatches has %" PRIu32
		       " items, but the file has %" PRIu32 " batches before its end",
		       batches, a->batches);
}

static bool arrow_scan(const struct bytes *b, const struct bytes *index,
	const struct shard_hint *hint, struct shard_facts *facts, struct map *map,
	struct fault *fault)
{
	struct arrow a = {.b = b, .fault = fault, .end = b->size};
	uint8_t head[4];

	(void)index;
	if (bytes_ends_in(b->path, SPLITS))
		return fault_set(fault, FAULT_DATA, "",
			"is a list of splits (train, test), which would all be served; set path: "
			"%.*s/SPLIT, with the name of one",
			(int)(strlen(b->path) + 1 - sizeof(SPLITS)), b->path);
	a.stream =
		bytes_head(b, head, sizeof(head)) == sizeof(head) && bytes_u32(head) == CONTINUED;
	bool fine = (!a.stream || check_not_cache(b, fault)) && scan(&a, hint, facts, map);

	free(a.metadata);
	if (!fine)
		return false;
	if (a.stream && !a.closed)
		snprintf(facts->note, sizeof(facts->note),
			"has no end marker: it may be truncated, or its writer was not closed");
	facts->plain = false;
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
