#include "daemon/shard/mds_columns.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* What a column holds. */
enum rank { NO_TOKENS, A_NUMBER, RAW_BYTES, AN_ARRAY };

/* The type called @name, of @n characters. False: there is none. */
static bool type_named(const char *name, size_t n, enum shard_type *type)
{
	for (int i = 0; i < TYPES; i++)
		if (strlen(types[i].name) == n && memcmp(types[i].name, name, n) == 0) {
			*type = types[i].type;
			return true;
		}
	return false;
}

/* Parses "2,1024" and returns the product. */
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

/* What a column of an encoding holds. Fills the members of @l that depend on it. */
static enum rank encoding(const char *text, const struct shard_hint *hint, struct mds_layout *l)
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

bool mds_check_columns(const json_t *config, const char *where, struct fault *fault)
{
	static const char *const keys[] = {"column_names", "column_encodings", "column_sizes"};
	size_t n = json_array_size(json_object_get(config, keys[0]));
	char shown[MDS_SHOWN];

	for (int k = 0; k < 3; k++) {
		const json_t *array = json_object_get(config, keys[k]);

		if (!json_is_array(array))
			return fault_set(fault, FAULT_DATA, "", "%s%s is %s; must be an array",
				where, keys[k], json_kind(array));
		if (json_array_size(array) != n || n == 0 || n > MDS_COLUMNS_MOST)
			return fault_set(fault, FAULT_DATA, "",
				"%s%s has %zu entries, column_names has %zu; must be the same "
				"number, 1 to %d",
				where, keys[k], json_array_size(array), n, MDS_COLUMNS_MOST);
	}
	for (size_t i = 0; i < n; i++) {
		const json_t *size = item(config, keys[2], i);

		for (int k = 0; k < 2; k++)
			if (!text_item(config, keys[k], i))
				return fault_set(fault, FAULT_DATA, "",
					"%s%s[%zu] is %s; must be a string", where, keys[k], i,
					json_kind(item(config, keys[k], i)));
		if (!json_is_null(size) && !json_is_integer(size))
			return fault_set(fault, FAULT_DATA, "",
				"%s%s[%zu] is %s; must be null or an integer", where, keys[2], i,
				json_kind(size));
		if (json_integer_value(size) < 0 || json_integer_value(size) > UINT32_MAX)
			return fault_set(fault, FAULT_DATA, "",
				"%s%s[%zu] is %" JSON_INTEGER_FORMAT "; must be null or 0 to %u",
				where, keys[2], i, json_integer_value(size), UINT32_MAX);
		if (i > 0 && strcmp(text_item(config, keys[0], i),
				     text_item(config, keys[0], i - 1)) <= 0)
			return fault_set(fault, FAULT_DATA, "",
				"%s%s[%zu] is '%s'; must come after the previous name: names are "
				"sorted and unique",
				where, keys[0], i,
				json_shown(text_item(config, keys[0], i), shown, sizeof(shown)));
	}
	return true;
}

char *mds_columns_text(const json_t *config)
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
	const json_t *config, const char *what, const char *name, struct fault *fault)
{
	char *all = mds_columns_text(config), shown[160], shown_name[MDS_SHOWN];

	fault_set(fault, FAULT_DATA, "", "%s%s; set `column` to the one with the tokens, of: %s",
		what, json_shown(name, shown_name, sizeof(shown_name)),
		all ? json_shown(all, shown, sizeof(shown)) : "?");
	free(all);
	return false;
}

/*
 * Chooses the config's column; otherwise one with llm-foundry's names; otherwise the only one. With
 * other columns, a number is an id, a label or a count, whatever its name.
 */
static bool choose(
	const json_t *config, const struct shard_hint *hint, unsigned *column, struct fault *fault)
{
	const char *const names[] = {hint->column, "tokens", "input_ids"};
	unsigned n = (unsigned)json_array_size(json_object_get(config, "column_names"));
	struct mds_layout l;

	for (int k = hint->column ? 0 : 1; k < (hint->column ? 1 : 3); k++)
		for (*column = 0; *column < n; ++*column)
			if (strcmp(text_item(config, "column_names", *column), names[k]) == 0 &&
				(k == 0 || n == 1 ||
					encoding(text_item(config, "column_encodings", *column),
						hint, &l) != A_NUMBER))
				return true;
	if (hint->column)
		return refuse_column(config, "has no column ", hint->column, fault);
	*column = 0;
	return (n == 1 &&
		       encoding(text_item(config, "column_encodings", 0), hint, &l) != NO_TOKENS) ||
	       refuse_column(config, "no column is called tokens or input_ids", "", fault);
}

bool mds_lay_out(const json_t *config, const struct shard_hint *hint, struct mds_layout *l,
	struct fault *fault)
{
	char shown[MDS_SHOWN];

	*l = (struct mds_layout){0};
	if (!choose(config, hint, &l->column, fault))
		return false;
	const char *text = text_item(config, "column_encodings", l->column);

	json_shown(text_item(config, "column_names", l->column), l->name, sizeof(l->name));
	if (encoding(text, hint, l) == NO_TOKENS)
		return fault_set(fault, FAULT_DATA, "",
			"column `%s` is encoded as `%s`, %s; must be ndarray, ndarray:DTYPE or "
			"ndarray:DTYPE:SHAPE with an integer type, bytes, or an integer",
			l->name, json_shown(text, shown, sizeof(shown)),
			strcmp(text, "pkl") == 0 ? "which is a pickle"
						 : "which does not hold tokens");
	l->columns = (unsigned)json_array_size(json_object_get(config, "column_names"));
	for (unsigned i = 0; i < l->columns; i++) {
		l->size[i] = (uint32_t)json_integer_value(item(config, "column_sizes", i));
		l->variable += l->size[i] == 0;
		l->fixed += l->size[i];
	}
	return true;
}

bool mds_check_two(const json_t *object, const char *where, struct fault *fault)
{
	const json_t *version = json_object_get(object, "version");

	if (!json_is_integer(version))
		return fault_set(fault, FAULT_DATA, "", "%sversion is %s; must be 2", where,
			json_kind(version));
	return json_integer_value(version) == 2 ||
	       fault_set(fault, FAULT_DATA, "", "%sversion is %" JSON_INTEGER_FORMAT "; must be 2",
		       where, json_integer_value(version));
}

bool mds_check_version(const json_t *config, const char *where, struct fault *fault)
{
	char shown[MDS_SHOWN];

	if (!mds_check_two(config, where, fault))
		return false;
	const char *format = json_string_in(config, where, "format", fault);

	return format && (strcmp(format, "mds") == 0 ||
				 fault_set(fault, FAULT_DATA, "", "%sformat is '%s'; must be mds",
					 where, json_shown(format, shown, sizeof(shown))));
}

bool mds_type_of(uint8_t code, enum shard_type *type)
{
	for (int i = 0; i < TYPES; i++)
		if (types[i].code == code) {
			*type = types[i].type;
			return true;
		}
	return false;
}
