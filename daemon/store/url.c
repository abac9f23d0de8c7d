#include "daemon/store/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Encodes @n bytes; '/' stays if @slashes. @to has room for 3 · n + 1. Returns the length. */
static size_t encode(const char *text, size_t n, bool slashes, char *to)
{
	static const char digits[] = "0123456789ABCDEF";
	char *end = to;

	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)text[i];
		bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');

		if (letter || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' ||
			c == '~' || (c == '/' && slashes)) {
			*end++ = (char)c;
			continue;
		}
		*end++ = '%';
		*end++ = digits[c >> 4];
		*end++ = digits[c & 15];
	}
	*end = 0;
	return (size_t)(end - to);
}

size_t url_path(const struct url_place *place, const char *key, char *path)
{
	size_t n = strlen(place->base), bytes = strnlen(key, URL_KEY_BYTES);

	memcpy(path, place->base, n + 1);
	return n + encode(key, bytes, true, path + n);
}

bool url_query(char *query, size_t bytes, const char *name, const char *value)
{
	size_t used = strlen(query), first = used > 0;
	size_t most = used + first + 3 * strlen(name) + 1 + 3 * strlen(value) + 1;

	if (most > bytes)
		return false;
	if (first)
		query[used++] = '&';
	used += encode(name, strlen(name), false, query + used);
	query[used++] = '=';
	encode(value, strlen(value), false, query + used);
	return true;
}

/* ---- places ---- */

/* Of the config, the environment, the profile; otherwise AWS's first one. */
static void find_region(struct url_place *place)
{
	const char *region = place->store ? place->store->region : NULL;
	const char *name = place->store ? place->store->profile : NULL;
	struct profile profile;
	struct fault fault;

	if (!region && place->kind == URL_GS)
		region = "auto";
	if (!region)
		region = variable("AWS_REGION");
	if (!region)
		region = variable("AWS_DEFAULT_REGION");
	if (!region && profile_read(name, &profile, &fault) && profile.region[0])
		region = profile.region;
	snprintf(place->region, sizeof(place->region), "%s", region ? region : "us-east-1");
}

static void put_host(struct url_place *place, const struct url_text *parts)
{
	const char *in_china = strncmp(place->region, "cn-", 3) == 0 ? ".cn" : "";
	char *end = place->host;

	if (parts->virtual)
		end = stpcpy(stpcpy(end, place->bucket), ".");
	if (parts->host[0])
		strcpy(end, parts->host);
	else
		snprintf(end, URL_ENDPOINT_BYTES, "s3.%s.amazonaws.com%s", place->region, in_china);
}

/* The bytes of a wrong URL that may be shown: no password and no query. */
static int shown_bytes(const char *url)
{
	size_t scheme = strcspn(url, ":"), n = strcspn(url, "?");

	n = memchr(url, '@', n) ? scheme : n;
	return n < 200 ? (int)n : 200;
}

bool url_place(const struct config *config, const char *url, struct url_place *place,
	const char **key, struct fault *fault)
{
	struct url_text parts;

	if (!url_text(config, url, &parts, fault))
		return fault_prefix(fault, "%.*s: ", shown_bytes(url), url);
	*place = (struct url_place){.store = parts.store,
		.kind = parts.https			  ? URL_HTTPS
			: strcmp(parts.scheme, "gs") == 0 ? URL_GS
							  : URL_S3,
		.tls = parts.tls};
	memcpy(place->bucket, parts.bucket, parts.bucket_bytes); /* < URL_ENDPOINT_BYTES */
	stpcpy(stpcpy(stpcpy(place->name, parts.scheme), "://"), place->bucket);
	place->base[0] = '/';
	if (parts.https) {
		strcpy(place->host, parts.host);
	} else {
		find_region(place);
		put_host(place, &parts);
		if (!parts.virtual) {
			size_t n = encode(
				place->bucket, strlen(place->bucket), false, place->base + 1);

			memcpy(place->base + 1 + n, "/", 2);
		}
	}
	*key = parts.key;
	return true;
}
