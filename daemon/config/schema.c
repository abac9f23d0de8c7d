#include "daemon/config/schema.h"

#include "proto/nearest.h"
#include "proto/phrases.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- faults ---- */

bool schema_refuse(struct schema *s, int line, const char *text, ...)
{
	char what[sizeof(s->fault->text)];
	va_list args;

	va_start(args, text);
	vsnprintf(what, sizeof(what), text, args);
	va_end(args);
	return config_refuse(s->fault, s->file, line, s->field, s->index, "%s", what);
}

bool schema_refuse_memory(struct schema *s, int line)
{
	return config_refuse_memory(s->fault, s->file, line, s->field, s->index);
}

size_t schema_enter(struct schema *s, const char *part, ...)
{
	size_t before = strlen(s->field);
	va_list args;

	va_start(args, part);
	vsnprintf(s->field + before, sizeof(s->field) - before, part, args);
	va_end(args);
	return before;
}

size_t schema_enter_item(struct schema *s, size_t index)
{
	s->index = (int)index;
	s->item = schema_enter(s, "[%zu]", index);
	return s->item;
}

void schema_leave(struct schema *s, size_t field)
{
	s->field[field] = 0;
	if (field <= s->item)
		s->index = FAULT_NO_INDEX;
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

static bool plain_tag(const yaml_node_t *node)
{
	static const char *const defaults[] = {
		[YAML_SCALAR_NODE] = YAML_DEFAULT_SCALAR_TAG,
		[YAML_SEQUENCE_NODE] = YAML_DEFAULT_SEQUENCE_TAG,
		[YAML_MAPPING_NODE] = YAML_DEFAULT_MAPPING_TAG,
	};

	return !node->tag || strcmp((const char *)node->tag, defaults[node->type]) == 0;
}

yaml_node_t *schema_node(
	struct schema *s, yaml_node_t *node, yaml_node_type_t type, int line, const char *right)
{
	static const char *const kinds[] = {
		[YAML_NO_NODE] = "nothing",
		[YAML_SCALAR_NODE] = "a single value",
		[YAML_SEQUENCE_NODE] = "a list",
		[YAML_MAPPING_NODE] = "a mapping",
	};
	char shown[64];

	if (node->type != type && node->type == YAML_SCALAR_NODE && node->data.scalar.length > 0)
		schema_refuse(s, line, "'%s' is %s; must be %s",
			schema_show((char *)node->data.scalar.value, shown), kinds[node->type],
			right);
	else if (node->type != type)
		schema_refuse(s, line, "is %s; must be %s",
			node->type == YAML_SCALAR_NODE ? "empty" : kinds[node->type], right);
	else if (!plain_tag(node))
		schema_refuse(s, line, "has the tag %s; write the value without one",
			schema_show((const char *)node->tag, shown));
	else
		return node;
	return NULL;
}

const char *schema_scalar(struct schema *s, yaml_node_t *node, int line, const char *right)
{
	if (!schema_node(s, node, YAML_SCALAR_NODE, line, right))
		return NULL;
	const char *text = (const char *)node->data.scalar.value;

	if (strlen(text) != node->data.scalar.length) {
		schema_refuse(s, line, "contains a zero byte; must be %s", right);
		return NULL;
	}
	if (text[0] == 0) {
		schema_refuse(s, line, "is empty; must be %s", right);
		return NULL;
	}
	return text;
}

/* The text of a scalar that must not be quoted: quotes make it a string. */
static const char *bare_scalar(struct schema *s, yaml_node_t *node, int line, const char *right)
{
	const char *text = schema_scalar(s, node, line, right);
	char shown[64];

	if (text && node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE) {
		schema_refuse(s, line, "\"%s\" is quoted; must be %s, without quotes",
			schema_show(text, shown), right);
		return NULL;
	}
	return text;
}

/* ---- mappings ---- */

/* The remedy for a key of another mapping, or NULL. */
static const char *key_elsewhere(const struct schema *s, const char *name)
{
	for (const struct schema_level *level = s->levels; level->table; level++)
		for (size_t i = 0; i < level->table->n; i++)
			if (strcmp(level->table->keys[i].name, name) == 0)
				return level->is;
	return NULL;
}

static bool refuse_unknown(
	struct schema *s, int line, const char *name, const struct schema_key *keys, size_t n)
{
	const char *known[SCHEMA_KEYS], *near, *elsewhere = key_elsewhere(s, name);
	char list[256] = "";

	if (elsewhere)
		return schema_refuse(s, line, "%s", elsewhere);
	for (size_t i = 0; i < n; i++) {
		known[i] = keys[i].name;
		snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", i ? ", " : "",
			keys[i].name);
	}
	near = nearest(name, known, n);
	if (near)
		return schema_refuse(s, line, "unknown key; did you mean %s?", near);
	return schema_refuse(s, line, "unknown key; must be one of %s", list);
}

/* One "key: value" of a mapping. */
static bool take_pair(struct schema *s, const yaml_node_pair_t *pair, const struct schema_key *keys,
	size_t n, void *into, int *lines)
{
	yaml_node_t *key = yaml_document_get_node(s->document, pair->key);
	yaml_node_t *value = yaml_document_get_node(s->document, pair->value);
	int line = (int)key->start_mark.line + 1;
	const char *name = schema_scalar(s, key, line, "a key");
	char shown[64];
	size_t i = 0;

	if (!name)
		return false;
	size_t field = schema_enter(s, "%s%s", s->field[0] ? "." : "", schema_show(name, shown));

	while (i < n && strcmp(keys[i].name, name) != 0)
		i++;
	if (i == n)
		return refuse_unknown(s, line, name, keys, n);
	if (lines[i])
		return schema_refuse(
			s, line, PHRASE_TWICE "; remove it here or on line %d", lines[i]);
	lines[i] = line;
	if (!keys[i].take(s, &keys[i], value, line, (char *)into + keys[i].at))
		return false;
	schema_leave(s, field);
	return true;
}

/* A key that is not given. */
static bool take_default(struct schema *s, const struct schema_key *key, int line, void *into)
{
	char right[SCHEMA_RIGHT_BYTES];
	yaml_node_t preset = {.type = YAML_SCALAR_NODE};

	if (key->preset) {
		preset.data.scalar.value = (yaml_char_t *)key->preset;
		preset.data.scalar.length = strlen(key->preset);
		preset.data.scalar.style = YAML_PLAIN_SCALAR_STYLE;
		return key->take(s, key, &preset, line, (char *)into + key->at);
	}
	if (!key->required)
		return true;
	schema_enter(s, "%s%s", s->field[0] ? "." : "", key->name);
	return schema_refuse(s, line, "is missing; set it to %s", schema_right(key, right));
}

bool schema_mapping(struct schema *s, yaml_node_t *node, int line, const struct schema_key *keys,
	size_t n, void *into, int *lines)
{
	int own[SCHEMA_KEYS] = {0};

	assert(n <= SCHEMA_KEYS);
	lines = lines ? lines : own;
	memset(lines, 0, n * sizeof(*lines));
	if (!schema_node(s, node, YAML_MAPPING_NODE, line, "a mapping of keys to values"))
		return false;
	for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top;
		p++)
		if (!take_pair(s, p, keys, n, into, lines))
			return false;
	for (size_t i = 0; i < n; i++)
		if (!lines[i] && !take_default(s, &keys[i], line, into))
			return false;
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

/* ---- takers ---- */

bool schema_keep(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	(void)s, (void)key, (void)line;
	*(yaml_node_t **)to = value;
	return true;
}

/* Decimal digits without a leading zero. Returns the mistake in words, or NULL. */
static const char *whole(const char *text, size_t n, uint64_t *value)
{
	*value = 0;
	if (n == 0)
		return PHRASE_NOT_INTEGER " in decimal digits";
	for (size_t i = 0; i < n; i++) {
		if (text[i] < '0' || text[i] > '9')
			return PHRASE_NOT_INTEGER " in decimal digits";
		uint64_t digit = (uint64_t)(text[i] - '0');

		if (*value > (UINT64_MAX - digit) / 10)
			return "is too large";
		*value = *value * 10 + digit;
	}
	return n > 1 && text[0] == '0' ? "has a leading zero, which YAML reads as octal" : NULL;
}

static bool refuse_number(struct schema *s, int line, const struct schema_key *key,
	const char *text, const char *wrong)
{
	char shown[64], right[SCHEMA_RIGHT_BYTES];

	return schema_refuse(s, line, "'%s' %s; must be %s", schema_show(text, shown), wrong,
		schema_right(key, right));
}

bool schema_number(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	char right[SCHEMA_RIGHT_BYTES];
	const char *text = bare_scalar(s, value, line, schema_right(key, right));
	uint64_t number;

	if (!text)
		return false;
	const char *wrong = whole(text, strlen(text), &number);

	if (!wrong && (number < key->min || number > key->max))
		wrong = number < key->min ? "is too small" : "is too large";
	if (wrong)
		return refuse_number(s, line, key, text, wrong);
	*(uint64_t *)to = number;
	return true;
}

bool schema_number32(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	uint64_t number = 0;

	if (!schema_number(s, key, value, line, &number))
		return false;
	*(uint32_t *)to = (uint32_t)number;
	return true;
}

bool schema_size(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	static const struct {
		const char *name;
		unsigned shift;
	} units[] = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
	const char *text = bare_scalar(s, value, line, key->right);
	uint64_t number;

	if (!text)
		return false;
	size_t digits = strspn(text, "0123456789"), unit = 0;
	const char *wrong = whole(text, digits, &number);

	while (unit < 5 && strcmp(units[unit].name, text + digits) != 0)
		unit++;
	if (unit == 5)
		wrong = "is not a size";
	else if (!wrong && number > key->max >> units[unit].shift)
		wrong = "is too large";
	else if (!wrong && number << units[unit].shift < key->min)
		wrong = "is too small";
	if (wrong)
		return refuse_number(s, line, key, text, wrong);
	*(uint64_t *)to = number << units[unit].shift;
	return true;
}

/* [+-]digits[.digits][e[+-]digits], with a digit before the exponent. Not hex, nan or inf. */
static bool looks_real(const char *text)
{
	size_t sign = strspn(text, "+-"), whole_digits, digits;
	const char *p = text + sign;

	if (sign > 1)
		return false;
	digits = whole_digits = strspn(p, "0123456789");
	p += whole_digits;
	if (*p == '.') {
		size_t fraction = strspn(++p, "0123456789");

		digits += fraction;
		p += fraction;
	}
	if (digits == 0)
		return false;
	if (*p == 'e' || *p == 'E') {
		p++;
		p += *p == '+' || *p == '-';
		if (*p == 0)
			return false;
		p += strspn(p, "0123456789");
	}
	return *p == 0;
}

bool schema_real(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	const char *text = bare_scalar(s, value, line, key->right);

	if (!text)
		return false;
	if (!looks_real(text))
		return refuse_number(s, line, key, text, "is not a number");
	errno = 0;
	double number = strtod(text, NULL);

	if (!isfinite(number))
		return refuse_number(s, line, key, text, "is too large");
	if (number == 0 && errno == ERANGE)
		return refuse_number(s, line, key, text, "is too close to 0");
	if (number < 0)
		return refuse_number(s, line, key, text, "is negative");
	*(double *)to = number;
	return true;
}

bool schema_flag(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	const char *text = bare_scalar(s, value, line, "true or false");
	char shown[64];

	(void)key;
	if (!text)
		return false;
	if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
		return schema_refuse(s, line, "'%s' is not a boolean; must be true or false",
			schema_show(text, shown));
	*(bool *)to = text[0] == 't';
	return true;
}

bool schema_choice(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	char shown[64], right[SCHEMA_RIGHT_BYTES];
	const char *text = schema_scalar(s, value, line, schema_right(key, right)), *near;
	size_t n = 0;

	if (!text)
		return false;
	for (; key->choices[n]; n++) {
		if (strcmp(key->choices[n], text) == 0) {
			*(unsigned *)to = (unsigned)n;
			return true;
		}
	}
	schema_show(text, shown);
	near = nearest(text, key->choices, n);
	if (near)
		return schema_refuse(s, line, "'%s' is unknown; must be %s (did you mean %s?)",
			shown, right, near);
	return schema_refuse(s, line, "'%s' is unknown; must be %s", shown, right);
}

bool schema_text(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	const char *text = schema_scalar(s, value, line, key->right);
	char *copy;

	if (!text)
		return false;
	if (value->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
		(strcmp(text, "~") == 0 || strcmp(text, "null") == 0))
		return schema_refuse(s, line, "is null; must be %s", key->right);
	copy = strdup(text);
	if (!copy)
		return schema_refuse_memory(s, line);
	free(*(char **)to);
	*(char **)to = copy;
	return true;
}
