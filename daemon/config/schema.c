#include "daemon/config/schema.h"

#include "daemon/config/url_text.h"
#include "proto/phrases.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- faults ---- */

void schema_enter(struct schema *s, int line, const char *name)
{
	size_t n = strlen(s->field);

	s->line = line;
	snprintf(s->field + n, sizeof(s->field) - n, "%s%s",
		n && name[0] && name[0] != '[' ? "." : "", name);
}

bool schema_refuse_memory(struct schema *s)
{
	return config_refuse_memory(s->fault, s->config->path, s->line, s->field);
}

const char *schema_show(const char *text, char shown[64])
{
	size_t n = 0;

	for (; text[n] && n < 56; n++)
		shown[n] = (unsigned char)text[n] < 0x20 || text[n] == 0x7f ? '?' : text[n];
	if (text[n])
		while (n > 0 &&
			((unsigned char)text[n] & 0xc0) == 0x80) /* do not split a character */
			n--;
	memcpy(shown + n, text[n] ? "…" : "", text[n] ? sizeof("…") : 1);
	return shown;
}

/* ---- nodes ---- */

/* Whether it looks like a key or a token of a store. */
static bool is_secret(const char *text)
{
	static const char *const begins[] = {"AKIA", "ASIA", "hf_", "ya29.", "GOOG1"};

	for (size_t i = 0; i < SCHEMA_COUNT(begins); i++)
		if (strncmp(text, begins[i], strlen(begins[i])) == 0 && strlen(text) >= 20)
			return true;
	return false;
}

yaml_node_t *schema_node(
	struct schema *s, yaml_node_t *node, yaml_node_type_t type, const char *right)
{
	static const char *const kinds[] = {
		[YAML_NO_NODE] = "nothing",
		[YAML_SCALAR_NODE] = "a single value",
		[YAML_SEQUENCE_NODE] = "a list",
		[YAML_MAPPING_NODE] = "a mapping",
	};
	char shown[64];

	if (node->type == YAML_SCALAR_NODE && strncmp(s->field, "stores", 6) == 0 &&
		is_secret((char *)node->data.scalar.value))
		schema_refuse(s, "a secret does not belong in this file, which other users may "
				 "read; use profile:, token_file: or the environment");
	else if (node->type != type && node->type == YAML_SCALAR_NODE &&
		 node->data.scalar.length > 0)
		schema_refuse(s, "'%s' is %s; must be %s",
			schema_show((char *)node->data.scalar.value, shown), kinds[node->type],
			right);
	else if (node->type != type)
		schema_refuse(s, "is %s; must be %s",
			node->type == YAML_SCALAR_NODE ? "empty" : kinds[node->type], right);
	else
		return node;
	return NULL;
}

const char *schema_scalar(struct schema *s, yaml_node_t *node, const char *right)
{
	if (!schema_node(s, node, YAML_SCALAR_NODE, right))
		return NULL;
	const char *text = (const char *)node->data.scalar.value;

	if (strlen(text) == node->data.scalar.length && text[0])
		return text;
	schema_refuse(s, "%s; must be %s", text[0] ? "contains a zero byte" : "is empty", right);
	return NULL;
}

/* The text of a scalar that must not be quoted: quotes make it a string. */
static const char *bare_scalar(struct schema *s, yaml_node_t *node, const char *right)
{
	const char *text = schema_scalar(s, node, right);
	char shown[64];

	if (!text || node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
		return text;
	schema_refuse(
		s, "\"%s\" is quoted; must be %s, without quotes", schema_show(text, shown), right);
	return NULL;
}

static int line_of(const yaml_node_t *node)
{
	return (int)node->start_mark.line + 1;
}

/* ---- lists and mappings ---- */

static yaml_node_t *node_at(struct schema *s, int index)
{
	return yaml_document_get_node(s->document, index);
}

/* Refuses the name of entry @i if an earlier one has it. */
static bool check_once(struct schema *s, const yaml_node_pair_t *pairs, size_t i, const char *name)
{
	for (size_t j = 0; j < i; j++) {
		const yaml_node_t *other = node_at(s, pairs[j].key);

		if (strcmp((const char *)other->data.scalar.value, name) == 0)
			return schema_refuse(
				s, PHRASE_TWICE "; remove it here or on line %d", line_of(other));
	}
	return true;
}

static bool take_entry(struct schema *s, const struct schema_entries *entries, yaml_node_t *node,
	size_t i, void *to)
{
	const yaml_node_pair_t *pairs = node->data.mapping.pairs.start;
	size_t n = strlen(s->field);
	char shown[64], part[24];
	const char *name = NULL;
	int line = s->line;
	yaml_node_t *value;

	if (entries->type == YAML_SEQUENCE_NODE) {
		value = node_at(s, node->data.sequence.items.start[i]);
		snprintf(part, sizeof(part), "[%zu]", i);
		schema_enter(s, line_of(value), part);
	} else {
		yaml_node_t *key = node_at(s, pairs[i].key);

		value = node_at(s, pairs[i].value);
		s->line = line_of(key);
		name = schema_scalar(s, key, entries->name);
		if (!name)
			return false;
		schema_enter(s, s->line, schema_show(name, shown));
		if (!check_once(s, pairs, i, name))
			return false;
	}
	if (!entries->take(s, name, value, to))
		return false;
	s->field[n] = 0;
	s->line = line;
	return true;
}

bool schema_each(struct schema *s, const struct schema_entries *entries, yaml_node_t *node,
	void *array, void *to)
{
	if (!schema_node(s, node, entries->type, entries->right))
		return false;
	size_t n =
		entries->type == YAML_MAPPING_NODE
			? (size_t)(node->data.mapping.pairs.top - node->data.mapping.pairs.start)
			: (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);

	if (entries->what && (n < entries->least || n > entries->most))
		return schema_refuse(s, "has %zu %s; must have %s%zu", n, entries->what,
			entries->least ? "1 to " : "at most ", entries->most);
	if (entries->bytes) {
		void *elements = calloc(n + 1, entries->bytes);

		if (!elements)
			return schema_refuse_memory(s);
		memcpy(array, &elements, sizeof(elements));
	}
	for (size_t i = 0; i < n; i++)
		if (!take_entry(s, entries, node, i, to))
			return false;
	return true;
}

/* ---- mappings with a table of keys ---- */

/* The index of a key of @table, or table->n. */
static size_t find_key(const struct schema_table *table, const char *name)
{
	size_t i = 0;

	while (i < table->n && strcmp(table->keys[i].name, name) != 0)
		i++;
	return i;
}

/* The remedy for a key of another mapping, or NULL. */
static const char *key_elsewhere(const char *name)
{
	static const struct {
		const struct schema_table *table;
		const char *is;
	} tables[] = {
		/* in the order in which a key is looked for */
		{&config_table, "is a key of the whole config; move it out of streams:"},
		{&stream_table,
			"is a key of a stream; move it below the stream's name in streams:"},
		{&dataset_table, "is a key of a dataset; move it into an entry of datasets:"},
		{&step_table, "is a key of a planned change; move it into an entry of schedule:"},
		{&store_table, "is a key of a store; move it into an entry of stores:"},
		{&cache_table, "is a key of the cache; move it into cache:"},
	};

	for (size_t t = 0; t < SCHEMA_COUNT(tables); t++)
		if (find_key(tables[t].table, name) < tables[t].table->n)
			return tables[t].is;
	return NULL;
}

static bool refuse_unknown(struct schema *s, const char *name, const struct schema_table *table)
{
	const char *known[SCHEMA_KEYS], *near, *elsewhere = key_elsewhere(name);
	char list[256] = "";

	if (elsewhere)
		return schema_refuse(s, "%s", elsewhere);
	for (size_t i = 0; i < table->n; i++) {
		known[i] = table->keys[i].name;
		snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", i ? ", " : "",
			known[i]);
	}
	near = nearest(name, known, table->n);
	return schema_refuse(s, "unknown key; %s%s%s", near ? "did you mean " : "must be one of ",
		near ? near : list, near ? "?" : "");
}

struct reading {
	char *into;
	struct schema_lines *lines;
};

int schema_line(const struct schema_lines *lines, const char *key)
{
	size_t i = find_key(lines->table, key);

	assert(i < lines->table->n);
	return lines->line[i];
}

static bool take_key(struct schema *s, const char *name, yaml_node_t *value, void *to)
{
	const struct reading *r = to;
	const struct schema_table *table = r->lines->table;
	size_t i = find_key(table, name);

	if (i == table->n)
		return refuse_unknown(s, name, table);
	const struct schema_key *key = &table->keys[i];

	r->lines->line[i] = s->line;
	return key->take(s, key, value, r->into + key->at);
}

/* A key that is not given. */
static bool take_default(struct schema *s, const struct schema_key *key, char *into)
{
	char right[SCHEMA_RIGHT_BYTES];
	yaml_node_t preset = {.type = YAML_SCALAR_NODE};

	if (key->preset) {
		preset.data.scalar.value = (yaml_char_t *)key->preset;
		preset.data.scalar.length = strlen(key->preset);
		preset.data.scalar.style = YAML_PLAIN_SCALAR_STYLE;
		return key->take(s, key, &preset, into + key->at);
	}
	return !key->required || schema_refuse_key(s, s->line, key->name,
					 "is missing; set it to %s", schema_right(key, right));
}

bool schema_mapping(struct schema *s, yaml_node_t *node, const struct schema_table *table,
	void *into, struct schema_lines *lines)
{
	static const struct schema_entries keys = {.type = YAML_MAPPING_NODE,
		.right = "a mapping of keys to values",
		.name = "a key",
		.take = take_key};
	struct reading reading = {into, lines};

	assert(table->n <= SCHEMA_KEYS);
	*lines = (struct schema_lines){.table = table};
	if (!schema_each(s, &keys, node, NULL, &reading))
		return false;
	for (size_t i = 0; i < table->n; i++) {
		const struct schema_key *key = &table->keys[i];
		int line = lines->line[i];

		if (!line && !take_default(s, key, into))
			return false;
		if (key->line)
			*(int *)(reading.into + key->line) = line ? line : s->line;
	}
	return true;
}

/* ---- values in words ---- */

static void list_choices(const struct schema_key *key, char *right)
{
	size_t n = 0, used = 0;

	while (key->choices[n])
		n++;
	for (size_t i = 0; i < n; i++)
		used += (size_t)snprintf(right + used, SCHEMA_RIGHT_BYTES - used, "%s%s",
			i == 0	    ? ""
			: i + 1 < n ? ", "
				    : " or ",
			key->choices[i]);
}

static void put_range(const struct schema_key *key, char *right)
{
	char most[24];

	snprintf(most, sizeof(most), key->max == UINT64_MAX ? "2^64 - 1" : "%" PRIu64, key->max);
	snprintf(right, SCHEMA_RIGHT_BYTES, "%s%s from %" PRIu64 " to %s",
		key->unit ? "a number of " : "", key->unit ? key->unit : "an integer", key->min,
		most);
}

const char *schema_right(const struct schema_key *key, char right[SCHEMA_RIGHT_BYTES])
{
	if (key->right)
		snprintf(right, SCHEMA_RIGHT_BYTES, "%s", key->right);
	else if (key->choices)
		list_choices(key, right);
	else if (key->take == schema_flag)
		snprintf(right, SCHEMA_RIGHT_BYTES, "true or false");
	else
		put_range(key, right);
	return right;
}

/* ---- takers: numbers ---- */

SCHEMA_TAKER(schema_keep)
{
	(void)s, (void)key;
	*(yaml_node_t **)to = value;
	return true;
}

/* Decimal digits without a leading zero: @n bytes. Returns the mistake in words, or NULL. */
static const char *whole(const char *text, size_t n, uint64_t *value)
{
	errno = 0;
	*value = strtoull(text, NULL, 10);
	if (n == 0 || strspn(text, "0123456789") < n)
		return PHRASE_NOT_INTEGER " in decimal digits";
	if (errno == ERANGE)
		return "is too large";
	return n > 1 && text[0] == '0' ? "has a leading zero, which YAML reads as octal" : NULL;
}

static bool refuse_number(
	struct schema *s, const struct schema_key *key, const char *text, const char *wrong)
{
	char shown[64], right[SCHEMA_RIGHT_BYTES];

	return schema_refuse(s, "'%s' %s; must be %s", schema_show(text, shown), wrong,
		schema_right(key, right));
}

SCHEMA_TAKER(schema_number)
{
	char right[SCHEMA_RIGHT_BYTES];
	const char *text = bare_scalar(s, value, schema_right(key, right));
	uint64_t number;

	if (!text)
		return false;
	const char *wrong = whole(text, strlen(text), &number);

	if (!wrong && (number < key->min || number > key->max))
		wrong = number < key->min ? "is too small" : "is too large";
	if (wrong)
		return refuse_number(s, key, text, wrong);
	*(uint64_t *)to = number;
	return true;
}

SCHEMA_TAKER(schema_number32)
{
	uint64_t number = 0;

	if (!schema_number(s, key, value, &number))
		return false;
	*(uint32_t *)to = (uint32_t)number;
	return true;
}

SCHEMA_TAKER(schema_size)
{
	static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
	const char *text = bare_scalar(s, value, key->right);
	uint64_t number;

	if (!text)
		return false;
	size_t digits = strspn(text, "0123456789"), unit = 0;
	const char *wrong = whole(text, digits, &number);

	while (unit < SCHEMA_COUNT(units) && strcmp(units[unit], text + digits) != 0)
		unit++;
	if (unit == SCHEMA_COUNT(units))
		wrong = "is not a size";
	else if (!wrong && number > key->max >> 10 * unit)
		wrong = "is too large";
	else if (!wrong && number << 10 * unit < key->min)
		wrong = "is too small";
	if (wrong)
		return refuse_number(s, key, text, wrong);
	*(uint64_t *)to = number << 10 * unit;
	return true;
}

SCHEMA_TAKER(schema_real)
{
	const char *text = bare_scalar(s, value, key->right);
	char *end;

	if (!text)
		return false;
	errno = 0;
	double number = strtod(text, &end);

	/* strtod() also reads blanks, hex, nan and inf */
	if (text[strspn(text, "0123456789+-.eE")] || *end || end == text)
		return refuse_number(s, key, text, "is not a number");
	if (!isfinite(number))
		return refuse_number(s, key, text, "is too large");
	if (number == 0 && errno == ERANGE)
		return refuse_number(s, key, text, "is too close to 0");
	if (number < 0)
		return refuse_number(s, key, text, "is negative");
	*(double *)to = number;
	return true;
}

/* ---- takers: words ---- */

SCHEMA_TAKER(schema_flag)
{
	const char *text = bare_scalar(s, value, "true or false");
	char shown[64];

	(void)key;
	if (!text)
		return false;
	if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
		return schema_refuse(s, "'%s' is not a boolean; must be true or false",
			schema_show(text, shown));
	*(bool *)to = text[0] == 't';
	return true;
}

SCHEMA_TAKER(schema_choice)
{
	char shown[64], right[SCHEMA_RIGHT_BYTES];
	const char *text = schema_scalar(s, value, schema_right(key, right));
	unsigned n = 0;

	if (!text)
		return false;
	while (key->choices[n] && strcmp(key->choices[n], text) != 0)
		n++;
	*(unsigned *)to = n;
	return key->choices[n] ||
	       schema_refuse(s, "'%s' is unknown; must be %s", schema_show(text, shown), right);
}

SCHEMA_TAKER(schema_text)
{
	const char *text = schema_scalar(s, value, key->right);
	char *copy;

	if (!text)
		return false;
	if (value->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
		(strcmp(text, "~") == 0 || strcmp(text, "null") == 0))
		return schema_refuse(s, "is null; must be %s", key->right);
	copy = strdup(text);
	if (!copy)
		return schema_refuse_memory(s);
	free(*(char **)to);
	*(char **)to = copy;
	return true;
}

/* ---- takers: paths ---- */

/* Refuses "$NAME" and "${NAME}". */
static bool check_variables(struct schema *s, const char *text)
{
	for (const char *at = text; (at = strchr(at, '$'));) {
		at += 1 + (at[1] == '{');
		size_t n = strspn(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
				      "0123456789_");

		if (n > 0 && !isdigit((unsigned char)at[0]) && (at[-1] == '$' || at[n] == '}'))
			return schema_refuse(s,
				"variables ($%.*s) are not expanded; write the whole path",
				n < 64 ? (int)n : 64, at);
	}
	return true;
}

SCHEMA_TAKER(schema_path_or_url)
{
	char **path = to, *copy;

	if (!schema_text(s, key, value, to))
		return false;
	if (**path == '~')
		return schema_refuse(s, "~ is not expanded; write the whole path");
	if (url_text_is(*path))
		return true;
	if (!check_variables(s, *path))
		return false;
	if (**path == '/')
		return true;
	if (asprintf(&copy, "%s/%s", s->config->directory, *path) < 0)
		return schema_refuse_memory(s);
	free(*path);
	*path = copy;
	return true;
}

SCHEMA_TAKER(schema_path)
{
	const char *const *path = to;

	if (!schema_path_or_url(s, key, value, to))
		return false;
	if (strncmp(*path, "file://", 7) == 0)
		return schema_refuse(s, "is a URL; write the path alone: %.200s", *path + 7);
	return !url_text_is(*path) || schema_refuse(s, "is a URL; must be a local path");
}
