#include "daemon/shard/json.h"

#include "daemon/shard/bytes.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

enum { VALUE_MOST = 1 << 20 };

struct text {
	const char *text;
	size_t at, n;
	struct fault *fault;
};

const char *json_shown(const char *text, char *to, size_t to_bytes)
{
	size_t n = 0;

	for (; *text && n + 1 < to_bytes; text++)
		to[n++] = *text >= ' ' && *text <= '~' ? *text : '?';
	to[n] = 0;
	return to;
}

const char *json_kind(const json_t *value)
{
	static const char *const kinds[] = {
		[JSON_OBJECT] = "an object",
		[JSON_ARRAY] = "an array",
		[JSON_STRING] = "a string",
		[JSON_INTEGER] = "an integer",
		[JSON_REAL] = "a fraction",
		[JSON_TRUE] = "true",
		[JSON_FALSE] = "false",
		[JSON_NULL] = "null",
	};

	return value ? kinds[json_typeof(value)] : "missing";
}

/* ---- text ---- */

static bool refuse(const struct text *t, size_t at, const char *what)
{
	char shown[96];

	return fault_set(t->fault, FAULT_DATA, "", "invalid JSON at byte %zu: %s", at,
		json_shown(what, shown, sizeof(shown)));
}

/*
 * Parses a value of at most @most bytes. If memory runs out, errno is ENOMEM: jansson may then drop
 * characters without an error. malloc() that succeeds may set ENOMEM, too, hence the second try.
 */
static json_t *parse(const struct text *t, size_t most, json_error_t *error)
{
	for (bool again = false;; again = true) {
		errno = 0;

		json_t *value = json_loadb(t->text + t->at, most,
			JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK | JSON_DECODE_ANY, error);

		if (errno != ENOMEM)
			return value;
		json_decref(value);
		errno = ENOMEM;
		if (again)
			return NULL;
	}
}

/* Parses the next value, of any type. NULL: @fault. */
static json_t *take_value(struct text *t)
{
	size_t left = t->n - t->at, most = left < VALUE_MOST ? left : VALUE_MOST;
	json_error_t error;
	json_t *value = parse(t, most, &error);

	if (value)
		t->at += (size_t)error.position;
	else if (errno == ENOMEM)
		fault_memory(t->fault);
	else if (json_error_code(&error) == json_error_premature_end_of_input && most < left)
		fault_set(t->fault, FAULT_DATA, "",
			"the JSON value at byte %zu is longer than %d bytes", t->at, VALUE_MOST);
	else
		refuse(t, t->at + (size_t)error.position, error.text);
	return value;
}

static char next(struct text *t)
{
	while (t->at < t->n && strchr(" \t\r\n", t->text[t->at]) && t->text[t->at])
		t->at++;
	return t->at < t->n ? t->text[t->at] : 0;
}

static bool take(struct text *t, char c)
{
	char what[] = "'x' is missing";

	what[1] = c;
	if (next(t) != c)
		return refuse(t, t->at, what);
	t->at++;
	return true;
}

static bool take_end(struct text *t)
{
	next(t);
	return t->at == t->n || refuse(t, t->at, "extra characters after the end");
}

json_t *json_object_of(const char *text, size_t n, struct fault *fault)
{
	struct text t = {text, 0, n, fault};
	json_t *value = take_value(&t);

	if (!value)
		return NULL;
	if (!json_is_object(value))
		fault_set(fault, FAULT_DATA, "", "is %s; must be a JSON object", json_kind(value));
	else if (take_end(&t))
		return value;
	json_decref(value);
	return NULL;
}

/* ---- long arrays ---- */

static bool each_value(struct text *t, json_visit *visit, void *context)
{
	if (!take(t, '['))
		return false;
	for (uint64_t i = 0; next(t) != ']'; i++) {
		if (i > 0 && !take(t, ','))
			return false;
		json_t *value = take_value(t);
		bool fine = value && visit(context, i, value, t->fault);

		json_decref(value);
		if (!fine)
			return false;
	}
	return take(t, ']');
}

static bool keep(struct text *t, const char *key, json_t *rest)
{
	json_t *value = take_value(t);

	if (!value)
		return false;
	if (json_is_object(value) || json_is_array(value)) {
		json_decref(value);
		value = json_null();
	}
	return json_object_set_new(rest, key, value) == 0 || fault_memory(t->fault);
}

bool json_each(const char *text, size_t n, const char *array, json_visit *visit, void *context,
	json_t **rest, struct fault *fault)
{
	struct text t = {text, 0, n, fault};
	bool seen = false, fine = true;

	*rest = json_object();
	if (!*rest)
		return fault_memory(fault);
	if (!take(&t, '{'))
		return false;
	for (unsigned i = 0; fine && next(&t) != '}'; i++) {
		if (i > 0 && !take(&t, ','))
			return false;
		size_t at = t.at;
		json_t *key = take_value(&t);
		const char *name = json_string_value(key);

		if (!key)
			return false;
		if (!name)
			fine = refuse(&t, at, "a key is not a string");
		else if (!take(&t, ':'))
			fine = false;
		else if (json_object_get(*rest, name) || (seen && strcmp(name, array) == 0))
			fine = refuse(&t, at, "a key occurs twice");
		else if (strcmp(name, array) == 0)
			fine = seen = each_value(&t, visit, context);
		else
			fine = keep(&t, name, *rest);
		json_decref(key);
	}
	if (!fine || !take(&t, '}') || !take_end(&t))
		return false;
	return seen || fault_set(fault, FAULT_DATA, "", "`%s` is missing; must be an array", array);
}

/* ---- members ---- */

bool json_number_in(const json_t *object, const char *where, const char *key, uint64_t most,
	uint64_t *value, struct fault *fault)
{
	const json_t *number = json_object_get(object, key);

	if (!json_is_integer(number))
		return fault_set(fault, FAULT_DATA, "", "%s%s is %s; must be an integer", where,
			key, json_kind(number));
	*value = (uint64_t)json_integer_value(number);
	return (json_integer_value(number) >= 0 && *value <= most) ||
	       fault_set(fault, FAULT_DATA, "",
		       "%s%s is %" JSON_INTEGER_FORMAT "; must be 0 to %" PRIu64, where, key,
		       json_integer_value(number), most);
}

const char *json_string_in(
	const json_t *object, const char *where, const char *key, struct fault *fault)
{
	const json_t *value = json_object_get(object, key);

	if (!json_is_string(value))
		fault_set(fault, FAULT_DATA, "", "%s%s is %s; must be a string", where, key,
			json_kind(value));
	return json_string_value(value);
}
