#include "daemon/store/list_page.h"

#include <errno.h>
#include <expat.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/*
 * The programs of the wheel contain libexpat.a, and run with glibc 2.34. There this function, with
 * which libexpat chooses the salt of its hash tables, is missing before 2.36. Hidden, because no
 * library of the process may get it instead of libc's.
 */
__attribute__((visibility("hidden"))) void arc4random_buf(void *to, size_t n);

void arc4random_buf(void *to, size_t n)
{
	for (size_t done = 0; done < n;) {
		ssize_t some = getrandom((char *)to + done, n - done, 0);

		if (some < 0 && errno != EINTR)
			abort();
		done += some > 0 ? (size_t)some : 0;
	}
}

enum { DEPTH_MOST = 8, TEXT_BYTES = 3 * LIST_KEY_BYTES + 1 };

/* What an element of the page means. */
enum element { OTHER, RESULT, CONTENTS, KEY, SIZE, ETAG, TRUNCATED, NEXT, ENCODING };

static const struct {
	const char *name;
	int depth;
	enum element parent, element;
} elements[] = {
	{"ListBucketResult", 0, OTHER, RESULT},
	{"Contents", 1, RESULT, CONTENTS},
	{"IsTruncated", 1, RESULT, TRUNCATED},
	{"NextContinuationToken", 1, RESULT, NEXT},
	{"EncodingType", 1, RESULT, ENCODING},
	{"Key", 2, CONTENTS, KEY},
	{"Size", 2, CONTENTS, SIZE},
	{"ETag", 2, CONTENTS, ETAG},
};

/* An object's members wait for the page's end: <EncodingType> may follow them. */
struct entry {
	char *key, *etag;
	uint64_t size;
};

struct reading {
	XML_Parser parser;
	struct list_page *page;
	struct fault *fault;
	bool failed, encoded;
	int depth;
	enum element path[DEPTH_MOST];
	char text[TEXT_BYTES];
	size_t n;
	struct entry now;
	bool has_size;
	struct entry *entry;
	unsigned entries, room;
};

__attribute__((format(printf, 2, 3))) static void fail(struct reading *r, const char *text, ...)
{
	va_list args;

	if (r->failed)
		return;
	r->failed = true;
	fault_set(r->fault, FAULT_DATA, "", "%s", "");
	va_start(args, text);
	vsnprintf(r->fault->text, sizeof(r->fault->text), text, args);
	va_end(args);
	fault_line(r->fault->text);
	XML_StopParser(r->parser, XML_FALSE);
}

static void free_entry(struct entry *entry)
{
	free(entry->key);
	free(entry->etag);
	*entry = (struct entry){0};
}

/* ---- the end of an element ---- */

static char *copy(struct reading *r)
{
	char *text = strdup(r->text);

	if (!text)
		fail(r, "out of memory");
	return text;
}

/* Adds the object that <Contents> described. */
static void add(struct reading *r)
{
	if (!r->now.key || !r->has_size) {
		fail(r, "the listing has an object without a key or a size; is this an S3 store?");
		return;
	}
	if (r->entries == LIST_OBJECTS) {
		fail(r, "the listing has more than %d objects on a page", LIST_OBJECTS);
		return;
	}
	if (r->entries == r->room) {
		unsigned room = r->room ? 2 * r->room : 256;
		struct entry *entry = realloc(r->entry, room * sizeof(*entry));

		if (!entry) {
			fail(r, "out of memory");
			return;
		}
		r->entry = entry;
		r->room = room;
	}
	r->entry[r->entries++] = r->now;
	r->now = (struct entry){0};
}

/* "\"abc\"" without its quotes. */
static char *take_etag(struct reading *r)
{
	size_t n = strlen(r->text);

	if (n >= 2 && r->text[0] == '"' && r->text[n - 1] == '"') {
		memmove(r->text, r->text + 1, n - 2);
		r->text[n - 2] = 0;
	}
	if (strlen(r->text) >= STORE_ETAG_BYTES) {
		fail(r, "the listing has an ETag of %zu bytes; must have at most %d",
			strlen(r->text), STORE_ETAG_BYTES - 1);
		return NULL;
	}
	return copy(r);
}

static void take_size(struct reading *r)
{
	char *end;
	size_t digits = strspn(r->text, "0123456789");

	r->now.size = strtoull(r->text, &end, 10);
	r->has_size = true;
	if (digits == 0 || digits > 18 || r->text[digits])
		fail(r, "the listing has a size that is not a number: '%.40s'", r->text);
}

static void take(struct reading *r, enum element element)
{
	switch (element) {
	case KEY:
		free(r->now.key);
		r->now.key = copy(r);
		break;
	case ETAG:
		free(r->now.etag);
		r->now.etag = take_etag(r);
		break;
	case SIZE:
		take_size(r);
		break;
	case CONTENTS:
		add(r);
		break;
	case TRUNCATED:
		r->page->truncated = strcmp(r->text, "true") == 0;
		break;
	case NEXT:
		if (r->n >= sizeof(r->page->next))
			fail(r, "the listing's continuation token has %zu bytes", r->n);
		else
			memcpy(r->page->next, r->text, r->n + 1);
		break;
	case ENCODING:
		r->encoded = strcmp(r->text, "url") == 0;
		break;
	case OTHER:
	case RESULT:
		break;
	}
}

/* ---- expat's calls ---- */

static enum element find(const struct reading *r, const char *name)
{
	const char *colon = strrchr(name, ':');
	enum element parent = r->depth > 0 ? r->path[r->depth - 1] : OTHER;

	name = colon ? colon + 1 : name;
	for (size_t i = 0; i < sizeof(elements) / sizeof(elements[0]); i++)
		if (elements[i].depth == r->depth && elements[i].parent == parent &&
			strcmp(elements[i].name, name) == 0)
			return elements[i].element;
	return OTHER;
}

static void begin(void *context, const char *name, const char **attributes)
{
	struct reading *r = context;
	enum element element = find(r, name);

	(void)attributes;
	if (r->depth == 0 && element != RESULT) {
		fail(r, "the answer is <%.60s>, not a listing; is this an S3 store?", name);
		return;
	}
	if (r->depth == DEPTH_MOST) {
		fail(r, "the listing has more than %d nested elements", DEPTH_MOST);
		return;
	}
	if (element == CONTENTS) {
		free_entry(&r->now);
		r->has_size = false;
	}
	r->path[r->depth++] = element;
	r->n = 0;
	r->text[0] = 0;
}

static void end(void *context, const char *name)
{
	struct reading *r = context;

	(void)name;
	take(r, r->path[--r->depth]);
	r->n = 0;
	r->text[0] = 0;
}

static void text(void *context, const char *text, int n)
{
	struct reading *r = context;

	if (r->depth == 0 || r->path[r->depth - 1] <= CONTENTS)
		return;
	if (r->n + (size_t)n >= sizeof(r->text)) {
		fail(r, "the listing has a key of more than %d bytes", LIST_KEY_BYTES);
		return;
	}
	memcpy(r->text + r->n, text, (size_t)n);
	r->n += (size_t)n;
	r->text[r->n] = 0;
}

/* A listing has none. Entities could make a small page large. */
static void refuse_doctype(
	void *context, const char *name, const char *system, const char *public, int has_subset)
{
	(void)name, (void)system, (void)public, (void)has_subset;
	fail(context, "the listing has a document type; is this an S3 store?");
}

/* ---- after the page ---- */

static int hex(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
				      : -1;
}

/* Decodes in place. AWS writes a space as '+', and a plus as "%2B". False: not encoded. */
static bool decode(char *text)
{
	char *to = text;

	for (const char *from = text; *from; from++) {
		if (*from != '%') {
			*to++ = *from == '+' ? ' ' : *from;
			continue;
		}
		int high = hex(from[1]), low = high < 0 ? -1 : hex(from[2]);

		if (low < 0 || high * 16 + low == 0)
			return false;
		*to++ = (char)(high * 16 + low);
		from += 2;
	}
	*to = 0;
	return true;
}

static bool give(struct reading *r, const struct store_bucket *bucket, const char *prefix,
	bool (*each)(void *context, const struct object *object), void *context)
{
	for (unsigned i = 0; i < r->entries; i++) {
		struct entry *entry = &r->entry[i];

		if (r->encoded && !decode(entry->key))
			return fault_set(r->fault, FAULT_DATA, "",
				"the listing has a key that is not percent-encoded: '%.200s'",
				entry->key);
		if (strlen(entry->key) > LIST_KEY_BYTES)
			return fault_set(r->fault, FAULT_DATA, "",
				"the listing has a key of %zu bytes; must have at most %d",
				strlen(entry->key), LIST_KEY_BYTES);
		if (strncmp(entry->key, prefix, strlen(prefix)) != 0)
			return fault_set(r->fault, FAULT_DATA, "",
				"the listing has the key '%.200s', which does not begin with "
				"'%.200s'; is this an S3 store?",
				entry->key, prefix);
		const struct object object = {.bucket = bucket,
			.key = entry->key,
			.etag = entry->etag && entry->etag[0] ? entry->etag : NULL,
			.size = entry->size};

		r->page->objects++;
		if (!each(context, &object)) {
			r->page->ended = true;
			break;
		}
	}
	return true;
}

bool list_page(const char *xml, size_t n, const struct store_bucket *bucket, const char *prefix,
	bool (*each)(void *context, const struct object *object), void *context,
	struct list_page *page, struct fault *fault)
{
	struct reading r = {.parser = XML_ParserCreate(NULL), .page = page, .fault = fault};
	bool done = false;

	*page = (struct list_page){0};
	if (!r.parser)
		return fault_memory(fault);
	XML_SetUserData(r.parser, &r);
	XML_SetElementHandler(r.parser, begin, end);
	XML_SetCharacterDataHandler(r.parser, text);
	XML_SetStartDoctypeDeclHandler(r.parser, refuse_doctype);
	if (n > LIST_PAGE_BYTES)
		fail(&r, "the listing's page has %zu bytes; must have at most %d", n,
			LIST_PAGE_BYTES);
	else if (XML_Parse(r.parser, xml, (int)n, 1) == XML_STATUS_ERROR && !r.failed)
		fault_set(fault, FAULT_DATA, "",
			"the listing is not XML: %s at byte %ld; is this an S3 store?",
			XML_ErrorString(XML_GetErrorCode(r.parser)),
			(long)XML_GetCurrentByteIndex(r.parser));
	else if (!r.failed)
		done = give(&r, bucket, prefix, each, context);
	XML_ParserFree(r.parser);
	free_entry(&r.now);
	for (unsigned i = 0; i < r.entries; i++)
		free_entry(&r.entry[i]);
	free(r.entry);
	if (!done)
		fault_line(fault->text);
	return done;
}
