/* The request of a GET: its URL, its headers, and its signature. */
#include "daemon/store/get.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static void add(struct get *get, char *header)
{
	struct curl_slist *node = &get->headers[get->header_count];

	*node = (struct curl_slist){.data = header};
	if (get->header_count++ > 0)
		node[-1].next = node;
}

static void add_range(struct get *get)
{
	const struct range *range = get->range;

	if (range->kind != VERDICT_RANGE && range->kind != VERDICT_BEGIN)
		return;
	snprintf(get->range_header, sizeof(get->range_header), "Range: bytes=%" PRIu64 "-%" PRIu64,
		range->at, range->at + range->n - 1);
	add(get, get->range_header);
	if (!range->etag || range->no_match || strncmp(range->etag, "W/", 2) == 0)
		return;
	snprintf(get->match, sizeof(get->match), "If-Match: \"%s\"", range->etag);
	add(get, get->match);
}

static void add_signature(struct get *get, const char *path)
{
	static char body[] = SIGN_BODY_HEADER, payer[] = SIGN_PAYER_HEADER;
	struct store_bucket *bucket = get->range->bucket;
	struct sign_keys *keys = &bucket->credentials->keys;
	bool pays = bucket->place.store && bucket->place.store->requester_pays;

	sign_request(keys,
		&(struct sign_request){
			.method = get->range->kind == VERDICT_HEAD ? "HEAD" : "GET",
			.host = bucket->place.host,
			.path = path,
			.query = get->range->query,
			.region = bucket->place.region,
			.payer = pays,
			.now = (int64_t)time(NULL) + bucket->clock_offset_s,
		},
		&get->sign);
	add(get, body);
	if (pays)
		add(get, payer);
	if (keys->token_header[0])
		add(get, keys->token_header);
	add(get, get->sign.date);
	add(get, get->sign.authorization);
}

void get_request(struct get *get, char url[GET_URL_BYTES])
{
	static char identity[] = "Accept-Encoding: identity", accept[] = "Accept:";
	const struct store_bucket *bucket = get->range->bucket;
	const char *query = get->range->query;
	char path[URL_PATH_BYTES];

	get->header_count = 0;
	add(get, identity);
	add(get, accept);
	add_range(get);
	url_path(&bucket->place, get->range->key, path);
	int n = snprintf(url, GET_URL_BYTES, "%s://%s%s%s%s", bucket->place.tls ? "https" : "http",
		bucket->place.host, path, query[0] ? "?" : "", query);

	switch (bucket->credentials->kind) {
	case CREDENTIALS_KEYS:
		add_signature(get, path);
		break;
	case CREDENTIALS_BEARER:
		add(get, bucket->credentials->bearer);
		break;
	case CREDENTIALS_QUERY:
		snprintf(url + n, GET_URL_BYTES - (size_t)n, "%s%s", query[0] ? "&" : "?",
			bucket->credentials->query);
		break;
	case CREDENTIALS_ANONYMOUS:
		break;
	}
}
