#include "daemon/config/path_text.h"

#include "daemon/config/url_text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_BYTES = 256 };

/* The length of the name of a variable at @text, which begins after "$"; *@skip: braces. */
static size_t variable(const char *text, size_t *skip)
{
	bool braces = text[0] == '{';
	size_t n = 0;

	text += braces;
	if (isalpha((unsigned char)text[0]) || text[0] == '_')
		while (isalnum((unsigned char)text[n]) || text[n] == '_')
			n++;
	if (braces && text[n] != '}')
		n = 0;
	*skip = braces;
	return n;
}

/* The first "$NAME" or "${NAME}" of @text. NULL: there is none. */
static const char *find_variable(const char *text, size_t *n, size_t *skip)
{
	for (const char *at = strchr(text, '$'); at; at = strchr(at + 1, '$')) {
		*n = variable(at + 1, skip);
		if (*n > 0)
			return at;
	}
	return NULL;
}

static bool refuse_variable(struct schema *s, int line, const char *text)
{
	size_t n, skip;
	const char *at = find_variable(text, &n, &skip);
	char name[64], whole[SHOWN_BYTES];

	if (!at)
		return true;
	snprintf(name, sizeof(name), "%.*s", (int)n, at + 1 + skip);
	const char *is = getenv(name);
	int length = snprintf(whole, sizeof(whole), "%.*s%s%s", (int)(at - text), text,
		is ? is : "", at + 1 + n + 2 * skip);

	if (!is || length < 0 || (size_t)length >= sizeof(whole))
		return schema_refuse(
			s, line, "variables ($%s) are not expanded; write the whole path", name);
	return schema_refuse(s, line, "variables ($%s) are not expanded; write %s", name, whole);
}

static bool refuse_home(struct schema *s, int line, const char *text)
{
	const char *home = getenv("HOME");

	if (text[0] != '~')
		return true;
	if (home && (text[1] == '/' || text[1] == 0) && strlen(home) + strlen(text) < SHOWN_BYTES)
		return schema_refuse(s, line, "~ is not expanded; write %s%s", home, text + 1);
	return schema_refuse(s, line, "~ is not expanded; write the whole path");
}

static bool refuse_url(struct schema *s, int line, const char *text)
{
	if (!url_text_is(text))
		return true;
	if (strncmp(text, "file://", 7) == 0)
		return schema_refuse(s, line, "is a URL; write the path alone: %.200s", text + 7);
	return schema_refuse(s, line, "is a URL; must be a local path");
}

bool path_text(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	if (!schema_text(s, key, value, line, to))
		return false;
	const char *text = *(char **)to;

	return refuse_url(s, line, text) && refuse_home(s, line, text) &&
	       refuse_variable(s, line, text);
}

bool path_or_url(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to)
{
	bool url = value->type == YAML_SCALAR_NODE && url_text_is((char *)value->data.scalar.value);

	return url ? schema_text(s, key, value, line, to) : path_text(s, key, value, line, to);
}
