/* Listings, for tools: pages of ListObjectsV2, one after the other. */
#include "daemon/store/internal.h"

#include <ctype.h>
#include <errno.h>
#include <expat.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
	QUERY_BYTES = 3 * (LIST_TOKEN_BYTES + LIST_KEY_BYTES) + 256,
	TEXT_BYTES = 3 * LIST_KEY_BYTES + 1,
	DEPTH_MOST = 8,
};

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
	bool has_key, has_size;
};

/* The first fault ends the page. */
#define FAIL(r, ...)                                                                               \
	((void)((r)->failed || (fault_set((r)->fault, FAULT_DATA, "", __VA_ARGS__), stop(r))))

static bool stop(struct parsing *r)
{
	r->failed = true;
	XML_StopParser(r->parser, XML_FALSE);
	return true;
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

	if (!r->has_key || !r->has_size)
		FAIL(r, "the listing has an object without a key or a size; is this an S3 store?");
	else if (r->encoded && !decode(r->key))
		FAIL(r, "the listing has a key that is not percent-encoded: '%.200s'", r->key);
	else if (strlen(r->key) > LIST_KEY_BYTES)
		FAIL(r, "the listing has a key of %zu bytes; must have at most %d", strlen(r->key),
			LIST_KEY_BYTES);
	else if (strncmp(r->key, of->prefix, strlen(of->prefix)) != 0)
		FAIL(r,
			"the listing has the key '%.200s', which does not begin with '%.200s'; is "
			"this an S3 store?",
			r->key, of->prefix);
	else if (!of->ended)
		of->ended = !of->each(of->context, &object);
}

static void take_size(struct parsing *r)
{
	size_t digits = strspn(r->text, "0123456789");

	r->size = strtoull(r->text, NULL, 10);
	r->has_size = true;
	if (digits == 0 || digits > 18 || r->text[digits])
		FAIL(r, "the listing has a size that is not a number: '%.40s'", r->text);
}

/* The name without the prefix of its namespace. */
static const char *bare(const char *name)
{
	const char *colon = strrchr(name, ':');

	return colon ? colon + 1 : name;
}

static void on_begin(void *context, const char *name, const char **attributes)
{
	struct parsing *r = context;

	(void)attributes;
	if (r->depth == 0 && strcmp(bare(name), "ListBucketResult") != 0)
		FAIL(r, "the answer is <%.60s>, not a listing; is this an S3 store?", name);
	if (r->depth == DEPTH_MOST)
		FAIL(r, "the listing has more than %d nested elements", DEPTH_MOST);
	if (r->depth == 1) {
		r->has_key = r->has_size = false;
		r->etag[0] = 0;
	}
	r->depth++;
	r->n = 0;
	r->text[0] = 0;
}

static void on_text(void *context, const char *text, int n)
{
	struct parsing *r = context;

	if (r->n + (size_t)n >= sizeof(r->text)) {
		FAIL(r, "the listing has a key of more than %d bytes", LIST_KEY_BYTES);
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

	name = bare(name);
	if (--r->depth == 1 && strcmp(name, "Contents") == 0) {
		give(r);
	} else if (r->depth == 1 && strcmp(name, "IsTruncated") == 0) {
		r->of->truncated = strcmp(r->text, "true") == 0;
	} else if (r->depth == 1 && strcmp(name, "NextContinuationToken") == 0) {
		if (r->n >= sizeof(r->of->next))
			FAIL(r, "the listing's continuation token has %zu bytes", r->n);
		else
			memcpy(r->of->next, r->text, r->n + 1);
	} else if (r->depth == 2 && strcmp(name, "Key") == 0) {
		memcpy(r->key, r->text, r->n + 1);
		r->has_key = true;
	} else if (r->depth == 2 && strcmp(name, "ETag") == 0) {
		if (!answer_etag(r->text, r->etag))
			FAIL(r, "the listing has an ETag of %zu bytes; must have at most %d", r->n,
				STORE_ETAG_BYTES - 1);
	} else if (r->depth == 2 && strcmp(name, "Size") == 0) {
		take_size(r);
	}
	r->n = 0;
	r->text[0] = 0;
}

/* A listing has none. Entities could make a small page large. */
static void refuse_doctype(
	void *context, const char *name, const char *system, const char *public, int has_subset)
{
	struct parsing *r = context;

	(void)name, (void)system, (void)public, (void)has_subset;
	FAIL(r, "the listing has a document type; is this an S3 store?");
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
	XML_SetStartDoctypeDeclHandler(r.parser, refuse_doctype);
	if (XML_Parse(r.parser, xml, (int)n, 1) == XML_STATUS_ERROR)
		FAIL(&r, "the listing is not XML: %s at byte %ld; is this an S3 store?",
			XML_ErrorString(XML_GetErrorCode(r.parser)),
			(long)XML_GetCurrentByteIndex(r.parser));
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
			"%s/: HTTPS servers have no listing; name the shards with --from FILE",
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
