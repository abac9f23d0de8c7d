/* Listings, for tools: pages of ListObjectsV2, one after the other. */
#include "daemon/store/internal.h"

#include <ctype.h>
#include <expat.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	QUERY_BYTES = 3 * (LIST_TOKEN_BYTES + LIST_KEY_BYTES) + 256,
	TEXT_BYTES = 3 * LIST_KEY_BYTES + 1,
};

/*
 * The programs of the wheel contain libexpat.a, and run with glibc 2.34. There this function, with
 * which libexpat chooses the salt of its hash tables, is missing before 2.36. Hidden, because no
 * library of the process may get it instead of libc's.
 */
__attribute__((visibility("hidden"))) void arc4random_buf(void *to, size_t n);

void arc4random_buf(void *to, size_t n)
{
	if (getentropy(to, n) != 0)
		abort();
}

/* ---- a page ---- */

struct parsing {
	struct listing *of;
	struct fault *fault;
	XML_Parser parser;
	bool failed;
	bool encoded; /* keys are */
	int depth;
	char text[TEXT_BYTES]; /* of the innermost element */
	size_t n;
	/* Of <Contents>. */
	char key[TEXT_BYTES], etag[STORE_ETAG_BYTES];
	uint64_t size;
};

/* The first fault ends the page. @shown: a part of it. */
static void fail(struct parsing *r, const char *what, const char *shown)
{
	if (r->failed)
		return;
	r->failed = true;
	fault_set(r->fault, FAULT_DATA, "", "the listing %s: '%.200s'; is this an S3 store?", what,
		shown);
	XML_StopParser(r->parser, XML_FALSE);
}

/* Decodes in place. AWS writes a space as '+', and a plus as "%2B". False: not encoded. */
static bool decode(char *text)
{
	char *to = text, *end;

	for (const char *from = text; *from; from++) {
		char digits[3] = {from[1], from[1] ? from[2] : 0};

		if (*from != '%') {
			*to++ = *from == '+' ? ' ' : *from;
			continue;
		}
		*to = (char)strtoul(digits, &end, 16);
		if (!isxdigit((unsigned char)digits[0]) || end != digits + 2 || *to++ == 0)
			return false;
		from += 2;
	}
	*to = 0;
	return true;
}

/* Passes the object that <Contents> described to the caller. */
static void give(struct parsing *r)
{
	struct listing *of = r->of;
	const struct object object = {.bucket = of->bucket,
		.key = r->key,
		.etag = r->etag[0] ? r->etag : NULL,
		.size = r->size};

	if (!r->key[0] || r->size == STORE_SIZE_UNKNOWN)
		fail(r, "has an object without a key or a size", r->key);
	else if (r->encoded && !decode(r->key))
		fail(r, "has a key that is not percent-encoded", r->key);
	else if (strlen(r->key) > LIST_KEY_BYTES)
		fail(r, "has a key that is too long", r->key);
	else if (strncmp(r->key, of->prefix, strlen(of->prefix)) != 0)
		fail(r, "has a key that does not begin with the prefix", r->key);
	else if (!of->ended)
		of->ended = !of->each(of->context, &object);
}

static void take_size(struct parsing *r)
{
	size_t digits = strspn(r->text, "0123456789");

	r->size = strtoull(r->text, NULL, 10);
	if (digits == 0 || digits > 18 || r->text[digits])
		fail(r, "has a size that is not a number", r->text);
}

static void on_begin(void *context, const char *name, const char **attributes)
{
	struct parsing *r = context;

	(void)attributes;
	if (r->depth == 0 && strcmp(name, "ListBucketResult") != 0)
		fail(r, "is something else", name);
	if (r->depth == 1) {
		r->size = STORE_SIZE_UNKNOWN;
		r->key[0] = r->etag[0] = 0;
	}
	r->depth++;
	r->n = 0;
	r->text[0] = 0;
}

static void on_text(void *context, const char *text, int n)
{
	struct parsing *r = context;

	if (r->n + (size_t)n >= sizeof(r->text)) {
		fail(r, "has a key that is too long", r->text);
		return;
	}
	memcpy(r->text + r->n, text, (size_t)n);
	r->n += (size_t)n;
	r->text[r->n] = 0;
}

/* Elements of the page have depth 1, those of an object 2. */
static void on_end(void *context, const char *name)
{
	struct parsing *r = context;

	if (--r->depth == 1 && strcmp(name, "Contents") == 0) {
		give(r);
	} else if (r->depth == 1 && strcmp(name, "IsTruncated") == 0) {
		r->of->truncated = strcmp(r->text, "true") == 0;
	} else if (r->depth == 1 && strcmp(name, "NextContinuationToken") == 0) {
		if (r->n >= sizeof(r->of->next))
			fail(r, "has a continuation token that is too long", r->text);
		else
			memcpy(r->of->next, r->text, r->n + 1);
	} else if (r->depth == 2 && strcmp(name, "Key") == 0) {
		memcpy(r->key, r->text, r->n + 1);
	} else if (r->depth == 2 && strcmp(name, "ETag") == 0) {
		if (!answer_etag(r->text, r->etag))
			fail(r, "has an ETag that is too long", r->text);
	} else if (r->depth == 2 && strcmp(name, "Size") == 0) {
		take_size(r);
	}
	r->n = 0;
	r->text[0] = 0;
}

bool list_page(struct listing *listing, const char *xml, size_t n, struct fault *fault)
{
	static const char encoding[] = "EncodingType>url</"; /* it may follow the keys */
	struct parsing r = {.of = listing,
		.fault = fault,
		.encoded = memmem(xml, n, encoding, strlen(encoding))};

	listing->truncated = false;
	listing->next[0] = 0;
	r.parser = XML_ParserCreate(NULL);
	if (!r.parser)
		return fault_memory(fault);
	XML_SetUserData(r.parser, &r);
	XML_SetElementHandler(r.parser, on_begin, on_end);
	XML_SetCharacterDataHandler(r.parser, on_text);
	if (XML_Parse(r.parser, xml, (int)n, 1) == XML_STATUS_ERROR)
		fail(&r, "is not XML", XML_ErrorString(XML_GetErrorCode(r.parser)));
	XML_ParserFree(r.parser);
	return !r.failed;
}

/* ---- all pages ---- */

/* The names are in ascending order, for the signature. */
static bool write_query(
	const char *token, const char *prefix, char query[QUERY_BYTES], struct fault *fault)
{
	query[0] = 0;
	if ((!*token || url_query(query, QUERY_BYTES, "continuation-token", token)) &&
		url_query(query, QUERY_BYTES, "encoding-type", "url") &&
		url_query(query, QUERY_BYTES, "list-type", "2") &&
		(!*prefix || url_query(query, QUERY_BYTES, "prefix", prefix)))
		return true;
	return fault_set(
		fault, FAULT_ARGUMENT, "", "the prefix has more than %d bytes", LIST_KEY_BYTES);
}

bool store_list(struct stores *stores, const struct store_bucket *bucket, const char *prefix,
	bool (*each)(void *context, const struct object *object), void *context,
	struct fault *fault)
{
	const struct verdict_asked asked = {.want = VERDICT_WHOLE, .n = LIST_PAGE_BYTES};
	struct listing listing = {bucket, prefix, each, context, .truncated = true};
	char query[QUERY_BYTES], token[LIST_TOKEN_BYTES] = "";
	const char *name = bucket->place.name;
	struct answer answer;
	size_t n;

	if (bucket->place.kind == URL_HTTPS)
		return fault_set(fault, FAULT_ARGUMENT, "",
			"%s/: HTTPS servers have no listing; name each shard, or download them, or "
			"give tokctl manifest --from FILE",
			name);
	while (listing.truncated && !listing.ended) {
		char *page =
			write_query(token, prefix, query, fault)
				? store_ask(stores, bucket, "", query, asked, &n, &answer, fault)
				: NULL;

		if (!page)
			return false;
		bool good = list_page(&listing, page, n, fault);

		free(page);
		if (!good)
			return fault_prefix(fault, "%s/: ", name);
		if (listing.truncated && (!listing.next[0] || strcmp(listing.next, token) == 0))
			return fault_set(fault, FAULT_DATA, "",
				"%s/: the listing is cut off without a new continuation token; is "
				"this an S3 store with ListObjectsV2?",
				name);
		memcpy(token, listing.next, sizeof(token));
	}
	return true;
}
