#include "daemon/shard/arrow_schema.h"

#include <stdio.h>

enum {
	FIELDS_MOST =
		65536, /* nested ones included: a forged schema may refer to one field many times */
	DEPTH_MOST = 64,
	NAME_MOST = 1024,
};

/* Numbers of the fields of the schema's tables that are read. */
enum { SCHEMA_ENDIANNESS, SCHEMA_FIELDS };
enum { FIELD_NAME, FIELD_TYPE_TYPE = 2, FIELD_TYPE, FIELD_DICTIONARY, FIELD_CHILDREN };
enum { INT_BITS, INT_SIGNED };
enum { UNION_MODE };

enum { LIST_SIZE };

enum {
	TYPE_NULL = 1,
	TYPE_INT = 2,
	TYPE_STRING = 5,
	TYPE_LIST = 12,
	TYPE_UNION = 14,
	TYPE_FIXED_LIST = 16,
	TYPE_LARGE_STRING = 20,
	TYPE_LARGE_LIST = 21,
	TYPE_RUNS = 22,
	TYPE_STRING_VIEW = 24,
};

/* A message about the schema, which is in the footer of a file or at the beginning of a stream. */
#define refuse(a, text, ...) arrow_refuse(a, "%s: " text, (a)->head.what, ##__VA_ARGS__)

/* The number of a column's buffers in a batch, by type, without those of its children. */
static const struct {
	const char *name;
	uint8_t buffers;
	bool views; /* and as many more as the batch states */
} types[] = {
	[TYPE_NULL] = {"null", 0, false},
	[TYPE_INT] = {"int", 2, false},
	[3] = {"float", 2, false},
	[4] = {"binary", 3, false},
	[TYPE_STRING] = {"string", 3, false},
	[6] = {"bool", 2, false},
	[7] = {"decimal", 2, false},
	[8] = {"date", 2, false},
	[9] = {"time", 2, false},
	[10] = {"timestamp", 2, false},
	[11] = {"interval", 2, false},
	[TYPE_LIST] = {"list", 2, false},
	[13] = {"struct", 1, false},
	[TYPE_UNION] = {"union", 1, false},
	[15] = {"fixed-size binary", 2, false},
	[TYPE_FIXED_LIST] = {"fixed-size list", 1, false},
	[17] = {"map", 2, false},
	[18] = {"duration", 2, false},
	[19] = {"large binary", 3, false},
	[TYPE_LARGE_STRING] = {"large string", 3, false},
	[TYPE_LARGE_LIST] = {"large list", 2, false},
	[TYPE_RUNS] = {"run-end encoded", 0, false},
	[23] = {"binary view", 2, true},
	[TYPE_STRING_VIEW] = {"string view", 2, true},
	[25] = {"list view", 3, false},
	[26] = {"large list view", 3, false},
};

enum { TYPES = sizeof(types) / sizeof(types[0]) };

/* Copies the name to @to, truncated to fit. *@length: of the whole name. */
static bool read_name(
	struct arrow *a, const struct fb_table *field, char *to, size_t to_bytes, uint32_t *length)
{
	struct fb_vector name;
	const uint8_t *p;

	if (!fb_vector(&a->head, field, FIELD_NAME, 1, "a column's name", &name))
		return false;
	uint32_t n = name.count < to_bytes ? name.count : (uint32_t)to_bytes - 1;

	*length = name.count;
	if (n > 0) {
		if (!fb_bytes(&a->head, name.at, n, "a column's name", &p))
			return false;
		memcpy(to, p, n);
	}
	to[n] = 0;
	return true;
}

/* For messages: replaces unprintable characters. */
static const char *shown(char *name)
{
	for (char *c = name; *c; c++)
		*c = *c < ' ' || *c > '~' ? '?' : *c;
	return name;
}

static bool field_type(struct arrow *a, const struct fb_table *field, unsigned *type)
{
	int64_t value;

	if (!fb_integer(&a->head, field, FIELD_TYPE_TYPE, 1, "a column's type_type", &value))
		return false;
	*type = (uint8_t)value;
	if (*type < TYPES && types[*type].name)
		return true;
	read_name(a, field, a->name, sizeof(a->name), &(uint32_t){0});
	return refuse(a, "type of column '%s' is %u; must be 1 to %d", a->name, *type, TYPES - 1);
}

/*
 * *@fits: whether the column is a flat column of integers, of any width, without a dictionary. *@to
 * is then their type.
 */
static bool flat_type(
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
	if (!field_type(a, field, &type) ||
		!fb_table(&a->head, field, FIELD_DICTIONARY, "a column's dictionary", &dictionary))
		return false;
	if (type != TYPE_INT || dictionary.at)
		return true;
	if (!fb_table(&a->head, field, FIELD_TYPE, "a column's type", &integer))
		return false;
	if (!integer.at)
		return refuse(a, "a column's type is absent; an int must have a bitWidth");
	if (!fb_integer(&a->head, &integer, INT_BITS, 4, "an int's bitWidth", &bits) ||
		!fb_integer(&a->head, &integer, INT_SIGNED, 1, "an int's is_signed", &sign))
		return false;
	for (unsigned i = 0; i < sizeof(widths) / sizeof(widths[0]) && !*fits; i++)
		if (widths[i].bits == bits) {
			*fits = true;
			*to = widths[i].type[sign != 0];
		}
	return *fits ||
	       refuse(a, "bitWidth of an int is %" PRId64 "; must be 8, 16, 32 or 64", bits);
}

/* Sets *@list to how the lists of a column of @type are stored. ARROW_FLAT: it has none. */
static bool list_kind(
	struct arrow *a, const struct fb_table *field, unsigned type, struct arrow_column *to)
{
	struct fb_table body;
	int64_t size = 0;

	to->list = type == TYPE_LIST	     ? ARROW_LIST
		   : type == TYPE_LARGE_LIST ? ARROW_LARGE_LIST
		   : type == TYPE_FIXED_LIST ? ARROW_FIXED_LIST
					     : ARROW_FLAT;
	if (to->list != ARROW_FIXED_LIST)
		return true;
	if (!fb_table(&a->head, field, FIELD_TYPE, "a column's type", &body) ||
		(body.at && !fb_integer(&a->head, &body, LIST_SIZE, 4, "a list's listSize", &size)))
		return false;
	to->list_size = (uint64_t)size;
	return size > 0 ||
	       refuse(a, "listSize of a fixed-size list is %" PRId64 "; must be 1 or more", size);
}

/* *@fits: whether the column holds integers, or lists of integers. *@to describes it then. */
static bool token_type(
	struct arrow *a, const struct fb_table *field, bool *fits, struct arrow_column *to)
{
	struct fb_table dictionary, child;
	struct fb_vector children;
	unsigned type;

	*to = (struct arrow_column){0};
	*fits = false;
	if (!field_type(a, field, &type) || !list_kind(a, field, type, to))
		return false;
	if (to->list == ARROW_FLAT)
		return flat_type(a, field, fits, &to->type);
	if (!fb_table(&a->head, field, FIELD_DICTIONARY, "a column's dictionary", &dictionary) ||
		!fb_vector(&a->head, field, FIELD_CHILDREN, 4, "a column's children", &children))
		return false;
	if (dictionary.at || children.count != 1)
		return true;
	return fb_item(&a->head, &children, 0, "a column's child", &child) &&
	       flat_type(a, &child, fits, &to->type);
}

static bool add_buffers(
	struct arrow *a, const struct fb_table *field, unsigned type, struct arrow_layout *l)
{
	struct fb_table body;
	int64_t mode = 0;

	l->buffers += types[type].buffers;
	l->views += types[type].views;
	l->bare += type == TYPE_UNION || type == TYPE_RUNS;
	if (type != TYPE_UNION)
		return true;
	if (!fb_table(&a->head, field, FIELD_TYPE, "a column's type", &body) ||
		(body.at && !fb_integer(&a->head, &body, UNION_MODE, 2, "a union's mode", &mode)))
		return false;
	l->buffers += mode == 1; /* a dense union has offsets */
	return true;
}

static bool add_field(
	struct arrow *a, const struct fb_table *field, unsigned depth, struct arrow_layout *l)
{
	struct fb_table dictionary, child;
	struct fb_vector children;
	unsigned type;

	if (depth > DEPTH_MOST || l->fields == FIELDS_MOST)
		return refuse(a, "its schema has more than %d %s",
			depth > DEPTH_MOST ? DEPTH_MOST : FIELDS_MOST,
			depth > DEPTH_MOST ? "levels" : "columns, nested ones included");
	l->fields++;
	if (!field_type(a, field, &type) ||
		!fb_table(&a->head, field, FIELD_DICTIONARY, "a column's dictionary", &dictionary))
		return false;
	if (dictionary.at) { /* batches hold indices, for every type of values */
		l->buffers += types[TYPE_INT].buffers;
		return true;
	}
	if (!add_buffers(a, field, type, l) ||
		!fb_vector(&a->head, field, FIELD_CHILDREN, 4, "a column's children", &children))
		return false;
	for (uint32_t i = 0; i < children.count; i++)
		if (!fb_item(&a->head, &children, i, "a column's child", &child) ||
			!add_field(a, &child, depth + 1, l))
			return false;
	return true;
}

/* The candidates for the column of tokens. */
struct choice {
	const char *wanted; /* or NULL */
	uint32_t named[3];  /* number of columns with the name `wanted`, tokens, input_ids */
	uint32_t at[3];
	bool flat[3];	 /* the one with the name has one number a row */
	bool fits, text; /* the last column holds integers; a column holds text */
	char names[120]; /* of all columns, as many as fit */
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
	struct arrow_column column;
	uint32_t length;
	unsigned type;

	if (!fb_item(&a->head, fields, i, "a column", &field) ||
		!read_name(a, &field, name, sizeof(name), &length) ||
		!field_type(a, &field, &type) || !token_type(a, &field, &c->fits, &column))
		return false;
	for (unsigned k = 0; k < 3; k++)
		if (names[k] && strlen(names[k]) == length && length < sizeof(name) &&
			memcmp(names[k], name, length) == 0) {
			c->named[k]++;
			c->at[k] = i;
			c->flat[k] = c->fits && column.list == ARROW_FLAT;
		}
	c->text |= type == TYPE_STRING || type == TYPE_LARGE_STRING || type == TYPE_STRING_VIEW;
	list_name(c, shown(name));
	return true;
}

static bool choose(struct arrow *a, const struct fb_vector *fields, const struct shard_hint *hint,
	uint32_t *column)
{
	struct choice c = {.wanted = hint->column};
	unsigned k;

	if (fields->count > FIELDS_MOST)
		return refuse(a, "its schema has %" PRIu32 " columns; must be at most %d",
			fields->count, FIELDS_MOST);
	for (uint32_t i = 0; i < fields->count; i++)
		if (!look_at(a, fields, i, &c))
			return false;
	for (k = hint->column ? 0 : 1; k < (hint->column ? 1 : 3) && c.named[k] == 0; k++)
		;
	if (k < (hint->column ? 1 : 3)) {
		const char *name = k == 0 ? hint->column : k == 1 ? "tokens" : "input_ids";

		*column = c.at[k];
		if (c.named[k] != 1)
			return refuse(a,
				"%" PRIu32 " columns are called '%.64s'; must be exactly one",
				c.named[k], name);
		return k == 0 || !c.flat[k] || !c.text ||
		       refuse(a,
			       "column '%s' has one number a row, next to text, as a count has; "
			       "if it does hold tokens, set `column: %s`; columns: %s",
			       name, name, c.names);
	}
	if (hint->column)
		return refuse(a, "no column is called '%.64s'; set `column` to one of: %s",
			hint->column, c.names);
	*column = 0;
	return (fields->count == 1 && c.fits) ||
	       refuse(a,
		       "no column is called tokens or input_ids; set `column` to the one with the "
		       "tokens, of: %s",
		       c.names);
}

static bool refuse_type(struct arrow *a, const struct fb_table *field)
{
	struct fb_table dictionary;
	unsigned type;

	if (!field_type(a, field, &type) ||
		!fb_table(&a->head, field, FIELD_DICTIONARY, "a column's dictionary", &dictionary))
		return false;
	return refuse(a,
		"column '%s' is of type %s%s; tokens must be a column of "
		"integers, or of lists of integers",
		a->name, types[type].name, dictionary.at ? ", dictionary-encoded" : "");
}

bool arrow_read_schema(
	struct arrow *a, const struct fb_table *schema, const struct shard_hint *hint)
{
	struct fb_table field;
	struct fb_vector fields;
	int64_t endianness;
	uint32_t column, length;
	bool fits;

	if (!fb_integer(&a->head, schema, SCHEMA_ENDIANNESS, 2, "endianness", &endianness) ||
		!fb_vector(&a->head, schema, SCHEMA_FIELDS, 4, "fields", &fields))
		return false;
	if (endianness != 0)
		return refuse(a, "endianness is %" PRId64 "%s; must be 0, little", endianness,
			endianness == 1 ? ", big" : "");
	if (!choose(a, &fields, hint, &column))
		return false;
	for (uint32_t i = 0; i < fields.count; i++) {
		if (!fb_item(&a->head, &fields, i, "a column", &field))
			return false;
		if (i == column) {
			a->before = a->all;
			if (!token_type(a, &field, &fits, &a->column) ||
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
