/* Listings, for tools: pages of ListObjectsV2, one after the other. */
#include "daemon/store/ask.h"
#include "daemon/store/list_page.h"
#include "daemon/store/stores.h"

#include <stdlib.h>
#include <string.h>

enum { QUERY_BYTES = 3 * (LIST_TOKEN_BYTES + LIST_KEY_BYTES) + 256 };

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

static bool list_one(struct stores *stores, const struct store_bucket *bucket, const char *query,
	const char *prefix, bool (*each)(void *context, const struct object *object), void *context,
	struct list_page *page, struct fault *fault)
{
	const struct ask ask = {
		.bucket = bucket,
		.key = "",
		.query = query,
		.size = STORE_SIZE_UNKNOWN,
		.want = VERDICT_WHOLE,
		.n = LIST_PAGE_BYTES,
	};
	struct asked answer;

	if (!store_ask(stores, &ask, &answer, fault))
		return false;
	bool good = list_page(answer.body, answer.n, bucket, prefix, each, context, page, fault);

	free(answer.body);
	return good || fault_prefix(fault, "%s/: ", bucket->place.name);
}

bool store_list(struct stores *stores, const struct store_bucket *bucket, const char *prefix,
	bool (*each)(void *context, const struct object *object), void *context,
	struct fault *fault)
{
	char query[QUERY_BYTES], token[LIST_TOKEN_BYTES] = "";
	struct list_page *page = malloc(sizeof(*page));
	bool good = page != NULL;

	if (!page)
		return fault_memory(fault);
	if (bucket->place.kind == URL_HTTPS)
		good = fault_set(fault, FAULT_ARGUMENT, "",
			"%s/: HTTPS servers have no listing; name the shards with --from FILE",
			bucket->place.name);
	for (page->truncated = true, page->ended = false;
		good && page->truncated && !page->ended;) {
		good = write_query(token, prefix, query, fault) &&
		       list_one(stores, bucket, query, prefix, each, context, page, fault);
		if (!good || !page->truncated || page->ended)
			break;
		if (!page->next[0] || strcmp(page->next, token) == 0)
			good = fault_set(fault, FAULT_DATA, "",
				"%s/: the listing is cut off without a new continuation token; is "
				"this an S3 store with ListObjectsV2?",
				bucket->place.name);
		memcpy(token, page->next, sizeof(token));
	}
	free(page);
	return good;
}
