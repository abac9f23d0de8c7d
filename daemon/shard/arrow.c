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
#include "proto/phrases.h"

#include <inttypes.h>
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

/* ---- flatbuffers ---- */

/*
 * A flatbuffer may be damaged or forged: each offset is compared with its size before it is
 * followed. Nothing needs to be aligned. Fields are given by their numbers in the table's schema.
 * An absent field is 0, or empty. After a failure, which fills @fault, all fields are absent.
 */
struct fb {
	const uint8_t *data;
	uint64_t size;
	const char *what; /* "Arrow schema" */
	struct fault *fault;
	bool failed;
};

struct fb_table {
	uint64_t at, vtable; /* offsets; 0: it is absent */
	uint16_t vtable_bytes;
};

struct fb_vector {
	const uint8_t *item; /* the first one */
	uint32_t count;
	uint64_t at; /* its offset */
};

static bool fb_has(struct fb *fb, uint64_t at, uint64_t n)
{
	if (!fb->failed && (at > fb->size || n > fb->size - at)) {
		fb->failed = true;
		fault_data(fb->fault,
			"%s: its metadata points to byte %" PRIu64 ", outside its %" PRIu64
			" bytes",
			fb->what, at, fb->size);
	}
	return !fb->failed;
}

/* Follows the offset that is stored at @at, relative to its own position. */
static uint64_t fb_follow(struct fb *fb, uint64_t at)
{
	uint64_t to = fb_has(fb, at, 4) ? at + bytes_u32(fb->data + at) : 0;

	return fb_has(fb, to, 4) ? to : 0;
}

/* The table whose offset is stored at @at. */
static struct fb_table fb_table_at(struct fb *fb, uint64_t at)
{
	struct fb_table table = {.at = fb_follow(fb, at)};

	if (fb->failed)
		return (struct fb_table){0};
	/* An offset below 0 wraps around to one that is too large. */
	table.vtable = table.at - (uint64_t)(int64_t)(int32_t)bytes_u32(fb->data + table.at);
	if (fb_has(fb, table.vtable, 4))
		table.vtable_bytes = bytes_u16(fb->data + table.vtable);
	return fb_has(fb, table.vtable, table.vtable_bytes) ? table : (struct fb_table){0};
}

/* The offset of field @id, of @n bytes; 0: it is absent. */
static uint64_t fb_field(struct fb *fb, const struct fb_table *table, unsigned id, uint32_t n)
{
	unsigned slot = 4 + 2 * id;
	uint16_t offset =
		slot + 2 > table->vtable_bytes ? 0 : bytes_u16(fb->data + table->vtable + slot);

	return offset > 0 && fb_has(fb, table->at + offset, n) ? table->at + offset : 0;
}

/* A signed integer of @n bytes: 1, 2, 4 or 8. */
static int64_t fb_integer(struct fb *fb, const struct fb_table *table, unsigned id, uint32_t n)
{
	uint64_t at = fb_field(fb, table, id, n);
	const uint8_t *p = fb->data + at;

	return at == 0	? 0
	       : n == 8 ? (int64_t)bytes_u64(p)
	       : n == 4 ? (int32_t)bytes_u32(p)
	       : n == 2 ? (int16_t)bytes_u16(p)
			: (int8_t)*p;
}

static struct fb_table fb_table(struct fb *fb, const struct fb_table *table, unsigned id)
{
	uint64_t at = fb_field(fb, table, id, 4);

	return at > 0 ? fb_table_at(fb, at) : (struct fb_table){0};
}

/* A vector of items of @item bytes; strings have items of 1 byte, vectors of tables of 4. */
static struct fb_vector fb_vector(
	struct fb *fb, const struct fb_table *table, unsigned id, uint32_t item)
{
	uint64_t at = fb_field(fb, table, id, 4), to = at > 0 ? fb_follow(fb, at) : 0;
	uint32_t count = to > 0 ? bytes_u32(fb->data + to) : 0;

	return count > 0 && fb_has(fb, to + 4, (uint64_t)count * item)
		       ? (struct fb_vector){fb->data + to + 4, count, to + 4}
		       : (struct fb_vector){0};
}

/* Item @i (< count) of a vector of tables. */
static struct fb_table fb_item(struct fb *fb, const struct fb_vector *vector, uint32_t i)
{
	return fb_table_at(fb, vector->at + 4 * (uint64_t)i);
}

/* ---- columns ---- */

/* How a column holds its tokens. A list is a document. */
enum kind {
	FLAT,	    /* a row is a token */
	LIST,	    /* with offsets */
	FIXED_LIST, /* all lists have list_size tokens */
};

struct column {
	char name[64]; /* printable */
	uint32_t name_bytes;
	unsigned of; /* its type */
	bool dictionary;
	bool fits; /* it holds integers or lists of them; otherwise the next three are not set */
	enum kind kind;
	uint32_t offset_bytes; /* of lists: 4 or 8 */
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
#define refuse(a, text, ...) fault_data((a)->fault, "%s: " text, (a)->what, ##__VA_ARGS__)

/* Requires that a number of the message is within a range, which is empty if @most < @least. */
static bool check(struct arrow *a, const char *what, int64_t value, uint64_t least, uint64_t most)
{
	return bytes_check(what, value, least, most, a->fault) ||
	       fault_prefix(a->fault, "%s: ", a->what);
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
	struct fb *fb = &a->fb;
	struct column *c = &f->column;

	f->table = fb_item(fb, fields, i);
	f->children = fb_vector(fb, &f->table, FIELD_CHILDREN, 4);
	const struct fb_vector name = fb_vector(fb, &f->table, FIELD_NAME, 1);

	*c = (struct column){.name_bytes = name.count,
		.of = (uint8_t)fb_integer(fb, &f->table, FIELD_TYPE_TYPE, 1),
		.dictionary = fb_table(fb, &f->table, FIELD_DICTIONARY).at > 0,
		.fields = a->fields,
		.buffers = a->buffers};
	bytes_shown(name.item, name.count, c->name, sizeof(c->name));
	return !fb->failed &&
	       ((c->of > 0 && c->of < TYPES) ||
		       refuse(a, "type of column '%s' is %u, which is not known", c->name, c->of));
}

/* Whether the field holds integers: sets *@fits, and *@type to theirs. */
static bool int_type(struct arrow *a, const struct field *f, bool *fits, enum shard_type *type)
{
	const struct fb_table body = fb_table(&a->fb, &f->table, FIELD_TYPE);

	*fits = f->column.of == TYPE_INT && !f->column.dictionary;
	if (!*fits)
		return !a->fb.failed;
	int64_t bits = fb_integer(&a->fb, &body, INT_BITS, 4),
		is_signed = fb_integer(&a->fb, &body, INT_SIGNED, 1);

	*fits = bits == 8 || bits == 16 || bits == 32 || bits == 64;
	if (*fits)
		*type = (enum shard_type)(2 * __builtin_ctz((unsigned)bits / 8) + (is_signed != 0));
	return !a->fb.failed;
}

/* Finds out whether a column holds tokens, and how. */
static bool token_type(struct arrow *a, struct field *f)
{
	const struct fb_table body = fb_table(&a->fb, &f->table, FIELD_TYPE);
	struct column *c = &f->column;
	struct field child;

	c->kind = c->of == TYPE_LIST || c->of == TYPE_LARGE_LIST ? LIST
		  : c->of == TYPE_FIXED_LIST			 ? FIXED_LIST
								 : FLAT;
	c->offset_bytes = c->of == TYPE_LIST ? 4 : 8;
	if (c->kind == FLAT)
		return int_type(a, f, &c->fits, &c->type);
	if (c->dictionary || f->children.count != 1)
		return true;
	int64_t size = c->kind == FIXED_LIST ? fb_integer(&a->fb, &body, LIST_SIZE, 4) : 1;

	c->list_size = (uint64_t)size;
	return !a->fb.failed && check(a, "a list's listSize", size, 1, INT32_MAX) &&
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

/* Names are compared as they are printed. */
static bool is_called(const struct column *c, const char *name)
{
	char shown[sizeof(c->name)];

	return strlen(name) == c->name_bytes &&
	       strcmp(bytes_shown(name, c->name_bytes, shown, sizeof(shown)), c->name) == 0;
}

/* How well a column suits, lowest first: the config's; or tokens, input_ids, the only one. */
enum { FIRST, SECOND, ONLY, NO_RANK };

static unsigned rank_of(const struct column *c, const char *wanted, bool only)
{
	if (wanted)
		return is_called(c, wanted) ? FIRST : NO_RANK;
	return is_called(c, "tokens")	   ? FIRST
	       : is_called(c, "input_ids") ? SECOND
	       : only && c->fits	   ? ONLY
					   : NO_RANK;
}

static bool check_column(
	struct arrow *a, unsigned rank, const char *wanted, bool text, const char *all)
{
	const struct column *c = &a->column;

	if (rank == NO_RANK)
		return refuse(a,
			"no column is called '%.64s'; set `column` to the one with the tokens, of: "
			"%s",
			wanted ? wanted : "tokens' or 'input_ids", all);
	if (!c->fits)
		return refuse(a,
			"column '%s' is of type %s%s; tokens must be a column of integers, or of "
			"lists of integers",
			c->name, names[c->of], c->dictionary ? ", dictionary-encoded" : "");
	return wanted || c->kind != FLAT || !text ||
	       refuse(a,
		       "column '%s' has one number a row, next to text, as a count has; if it does "
		       "hold tokens, set `column: %s`; columns: %s",
		       c->name, c->name, all);
}

/* Chooses the column, and counts the others. */
static bool read_schema(
	struct arrow *a, const struct fb_table *schema, const struct shard_hint *hint)
{
	unsigned best = NO_RANK;
	bool text = false, twice = false;
	char all[120] = "";
	const struct fb_vector fields = fb_vector(&a->fb, schema, SCHEMA_FIELDS, 4);
	int64_t endianness = fb_integer(&a->fb, schema, SCHEMA_ENDIANNESS, 2);

	if (a->fb.failed || !check(a, "endianness", endianness, 0, 0))
		return false;
	for (uint32_t i = 0; i < fields.count; i++) {
		const size_t n = strlen(all);
		struct field f;

		if (!read_field(a, &fields, i, &f) || !token_type(a, &f) || !count_field(a, &f, 1))
			return false;
		const struct column *c = &f.column;
		unsigned rank = rank_of(c, hint->column, fields.count == 1);

		twice = rank < best ? false : twice || (rank == best && rank < NO_RANK);
		if (rank < best) {
			best = rank;
			a->column = *c;
		}
		text |= c->of == TYPE_STRING || c->of == TYPE_LARGE_STRING ||
			c->of == TYPE_STRING_VIEW;
		snprintf(all + n, sizeof(all) - n, "%s%s", n ? ", " : "", c->name);
	}
	if (twice)
		return refuse(
			a, "two columns are called '%s'; must be exactly one", a->column.name);
	return check_column(a, best, hint->column, text, all);
}

/* ---- messages ---- */

/* Reads metadata, or the footer. */
static bool load(struct arrow *a, uint64_t at, uint64_t n)
{
	if (!check(a, "its metadata's length", (int64_t)n, 1, METADATA_MOST))
		return false;
	free(a->metadata);
	a->metadata = malloc(n);
	a->fb = (struct fb){a->metadata, n, a->what, a->fault, false};
	return a->metadata ? bytes_read(a->b, at, a->metadata, n, a->fault)
			   : fault_memory(a->fault);
}

/* Reads the next message. *@type: of its header; 0: there is none. */
static bool read_message(
	struct arrow *a, int64_t *type, struct fb_table *header, struct range *body)
{
	struct fb *fb = &a->fb;
	uint64_t left = a->end - a->at;
	uint8_t prefix[PREFIX_BYTES];

	*type = 0;
	if (left == 0 || (left < PREFIX_BYTES && !a->stream))
		return true; /* some writers put less than a marker before the footer */
	if (!check(a, "bytes that are left", (int64_t)left, PREFIX_BYTES, INT64_MAX) ||
		!bytes_read(a->b, a->at, prefix, PREFIX_BYTES, a->fault))
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
		!load(a, a->at, (uint64_t)length))
		return false;
	const struct fb_table message = fb_table_at(fb, 0);
	int64_t version = fb_integer(fb, &message, MESSAGE_VERSION, 2),
		bytes = fb_integer(fb, &message, MESSAGE_BODY, 8);

	*type = fb_integer(fb, &message, MESSAGE_HEADER_TYPE, 1);
	*header = fb_table(fb, &message, MESSAGE_HEADER);
	if (fb->failed)
		return false;
	if (version != VERSION_5)
		return refuse(a,
			"version is %" PRId64
			"; must be %d (V5), as Arrow writes since 1.0: write it again",
			version, VERSION_5);
	if (!check(a, "bodyLength", bytes, 0, left - (uint64_t)length))
		return false;
	*body = (struct range){a->at + (uint64_t)length, (uint64_t)bytes};
	a->at = body->at + body->bytes;
	return true;
}

/* Finds the messages of a file. *@batches: number of batches, as its footer says. */
static bool find_messages(struct arrow *a, uint32_t *batches)
{
	const struct bytes *b = a->b;
	uint8_t head[BEGIN_BYTES], end[END_BYTES];
	size_t n = bytes_head(b, head, sizeof(head));
	char text[BEGIN_BYTES + 1];

	if (n < BEGIN_BYTES || b->size < BEGIN_BYTES + END_BYTES ||
		memcmp(head, magic, MAGIC_BYTES) != 0)
		return refuse(a,
			"begins with '%s' instead of ARROW1, or has only %" PRIu64
			" bytes: it is not an Arrow IPC file, or damaged",
			bytes_shown(head, n, text, sizeof(text)), b->size);
	if (!bytes_read(b, b->size - END_BYTES, end, END_BYTES, a->fault))
		return false;
	if (memcmp(end + 4, magic, MAGIC_BYTES) != 0)
		return refuse(a,
			"ends with '%s' instead of ARROW1: it is truncated, or its writer was not "
			"closed",
			bytes_shown(end + 4, MAGIC_BYTES, text, sizeof(text)));
	int32_t length = (int32_t)bytes_u32(end);

	if (!check(a, "footer length", length, 1, b->size - BEGIN_BYTES - END_BYTES))
		return false;
	a->end = b->size - END_BYTES - (uint64_t)length;
	if (!load(a, a->end, (uint64_t)length))
		return false;
	const struct fb_table footer = fb_table_at(&a->fb, 0);

	*batches = fb_vector(&a->fb, &footer, FOOTER_BATCHES, BLOCK_BYTES).count;
	if (a->fb.failed)
		return false;
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

	*length = bytes_u64(p);
	*nulls = bytes_u64(p + 8);
	return check(a, i ? "length of its items" : "its length", (int64_t)*length, 0, INT64_MAX) &&
	       check(a, i ? "null_count of its items" : "null_count", (int64_t)*nulls, 0,
		       i == 0 && a->column.kind == LIST ? *length : 0);
}

/* Reads the lengths and buffers of our column. */
static bool read_column(struct arrow *a, const struct fb_table *batch, struct batch *to)
{
	static const unsigned counts[] = {[FLAT] = 2, [LIST] = 4, [FIXED_LIST] = 3};
	const struct column *c = &a->column;
	const struct fb_vector nodes = fb_vector(&a->fb, batch, BATCH_NODES, NODE_BYTES),
			       ranges = fb_vector(&a->fb, batch, BATCH_BUFFERS, BUFFER_BYTES);
	uint64_t rows, nulls, none;
	unsigned count = counts[c->kind];

	if (a->fb.failed || !check(a, "number of nodes", nodes.count, a->fields, a->fields) ||
		!check(a, "number of buffers", ranges.count, a->buffers, a->buffers) ||
		!read_node(a, &nodes, 0, &rows, &nulls) ||
		(c->kind != FLAT && !read_node(a, &nodes, 1, &to->items, &none)) ||
		!check(a, "its length", (int64_t)rows, to->rows, to->rows))
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

static int64_t offset_at(const struct arrow *a, const uint8_t *p)
{
	return a->column.offset_bytes == 4 ? (int32_t)bytes_u32(p) : (int64_t)bytes_u64(p);
}

/* Finds the items of the batch's lists: those between the first and the last offset. */
static bool find_lists(struct arrow *a, struct batch *to)
{
	uint32_t width = a->column.offset_bytes;
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
	const struct fb_table compression = fb_table(&a->fb, batch, BATCH_COMPRESSION);
	size_t n = strlen(a->what);

	snprintf(a->what + n, sizeof(a->what) - n, ", column '%s'", a->column.name);
	if (compression.at > 0)
		return refuse(a,
			"its body is compressed (%s), which is not supported; convert it: python "
			"-m tokend tokenize --column %s -o DIR FILE",
			fb_integer(&a->fb, &compression, 0, 1) ? "ZSTD" : "LZ4_FRAME",
			a->column.name);
	to->rows = (uint64_t)fb_integer(&a->fb, batch, BATCH_LENGTH, 8);
	if (!read_column(a, batch, to))
		return false;
	if (a->column.kind == LIST)
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
	uint64_t at = b->first, most = b->first + b->tokens, width = a->column.offset_bytes;
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

	if (a->column.kind == LIST)
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
	const char *name = bytes_name(b->path);
	int directory = (int)(name - b->path);
	char state[PATH_MAX];
	struct object object;

	if (strncmp(name, "cache-", 6) != 0)
		return true;
	snprintf(state, sizeof(state), "%.*sstate.json", directory, b->path);
	if (b->objects ? !b->objects->find(b->objects->context, state, &object)
		       : access(state, F_OK) != 0)
		return true;
	return fault_data(fault,
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
	if (!a->stream && !find_messages(a, &batches))
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
	       fault_data(a->fault,
		       "Arrow footer: recordBatches has %" PRIu32
		       " items, but the file has %" PRIu32 " batches before its end",
		       batches, a->batches);
}

static bool arrow_scan(const struct shard_scan *s)
{
	const struct bytes *b = s->b;
	struct shard_facts *facts = s->facts;
	struct arrow a = {.b = b, .fault = s->fault, .end = b->size};
	uint8_t head[4];

	if (bytes_ends_in(b->path, SPLITS))
		return fault_data(s->fault,
			"is a list of splits (train, test), which would all be served; set path: "
			"%.*s/SPLIT, with the name of one",
			(int)(strlen(b->path) + 1 - sizeof(SPLITS)), b->path);
	a.stream =
		bytes_head(b, head, sizeof(head)) == sizeof(head) && bytes_u32(head) == CONTINUED;
	bool fine = (!a.stream || check_not_cache(b, s->fault)) && scan(&a, s->hint, facts, s->map);

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
	{"/dataset_info.json", ".arrow", "Hugging Face's description", .unread = true},
	{"/state.json", ".arrow", "Hugging Face's list of files", .unread = true},
	{"counts.csv", ".arrow", "a table of counts", .unread = true},
	{0},
};

const struct shard_format shard_arrow = {
	.name = "arrow",
	.recognise = arrow_recognise,
	.scan = arrow_scan,
	.indexed = true,
	.companions = companions,
};
