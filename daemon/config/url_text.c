#include "daemon/config/url_text.h"

#include "proto/nearest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKET_LEAST = 3, BUCKET_MOST = 222 };

#define SAY(...) fault_set(fault, FAULT_ARGUMENT, "", __VA_ARGS__)

bool url_text_scheme_ok(const char *name)
{
	size_t n = strspn(name, URL_SCHEME_CHARACTERS);

	return n >= 1 && name[n] == 0 && n < CONFIG_SCHEME_BYTES && name[0] >= 'a' &&
	       name[0] <= 'z';
}

/* ---- hosts ---- */

static bool port_ok(const char *text, size_t n)
{
	unsigned long port = 0;

	for (size_t i = 0; i < n && port <= 65535; i++) {
		if (text[i] < '0' || text[i] > '9')
			return false;
		port = 10 * port + (unsigned long)(text[i] - '0');
	}
	return n >= 1 && port >= 1 && port <= 65535;
}

/* Whether @n bytes are HOST[:PORT]. *@usual: bytes without the scheme's usual port. */
static bool host_ok(const char *text, size_t n, bool tls, size_t *usual)
{
	const char *usual_port = tls ? ":443" : ":80";
	size_t host;

	if (n == 0 || n >= URL_ENDPOINT_BYTES)
		return false;
	if (text[0] == '[') {
		host = 1 + strspn(text + 1, "0123456789abcdefABCDEF:.");
		if (host < 4 || host >= n || text[host++] != ']')
			return false;
	} else {
		host = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				    "0123456789.-_");
	}
	if (host == 0 || host > n)
		return false;
	if (host < n && (text[host] != ':' || !port_ok(text + host + 1, n - host - 1)))
		return false;
	*usual = n - host == strlen(usual_port) && strncmp(text + host, usual_port, n - host) == 0
			 ? host
			 : n;
	return true;
}

bool url_text_endpoint(
	const char *endpoint, bool *tls, char host[URL_ENDPOINT_BYTES], struct fault *fault)
{
	size_t scheme = strncmp(endpoint, "https://", 8) == 0  ? 8
			: strncmp(endpoint, "http://", 7) == 0 ? 7
							       : 0;
	const char *text = endpoint + scheme;
	size_t n = strcspn(text, "/?#"), usual;

	if (strchr(endpoint, '@'))
		return SAY("contains a user or a password; must be " URL_ENDPOINT_RIGHT);
	if (scheme == 0)
		return SAY("has no scheme; write https:// or http:// before the host");
	if (text[n] && strcmp(text + n, "/") != 0)
		return SAY("has a path; must be " URL_ENDPOINT_RIGHT
			   ", and the path is a part of the dataset's URL");
	*tls = scheme == 8;
	if (!host_ok(text, n, *tls, &usual))
		return SAY("has no valid host and port; must be " URL_ENDPOINT_RIGHT);
	snprintf(host, URL_ENDPOINT_BYTES, "%.*s", (int)usual, text);
	return true;
}

/* ---- stores ---- */

static bool refuse_scheme(
	const struct config *config, const char *url, size_t n, struct fault *fault)
{
	const char *known[64] = {"s3", "gs", "https"};
	char list[NEAREST_LIST_BYTES], name[CONFIG_SCHEME_BYTES];
	size_t stores = 3;

	if (n == 4 && strncmp(url, "http", 4) == 0)
		return SAY("http:// is not read; use https://, or add the server to stores: as "
			   "NAME: {endpoint: \"http://HOST\", anonymous: true}, and write "
			   "NAME://DIRECTORY/");
	snprintf(name, sizeof(name), "%.*s", (int)n, url);
	for (uint32_t i = 0; config && i < config->stores && stores < 64; i++)
		known[stores++] = config->store[i].name;
	return SAY("%s:// is unknown; must be a store of stores:%s or one of: %s", name,
		config ? "" : " (name the file with -c)", nearest_list(list, name, known, stores));
}

/* NULL instead of "". */
static const char *set(const char *value)
{
	return value && *value ? value : NULL;
}

/* Fills the members about the server. */
static bool find_server(struct url_text *parts, struct fault *fault)
{
	bool gs = strcmp(parts->scheme, "gs") == 0;
	const char *endpoint = parts->store ? parts->store->endpoint : NULL, *from = "";

	if (!endpoint && !gs && (endpoint = set(getenv("AWS_ENDPOINT_URL_S3"))))
		from = "AWS_ENDPOINT_URL_S3";
	if (!endpoint && !gs && (endpoint = set(getenv("AWS_ENDPOINT_URL"))))
		from = "AWS_ENDPOINT_URL";
	if (!endpoint && gs)
		endpoint = "https://storage.googleapis.com";
	parts->tls = true;
	parts->host[0] = 0;
	parts->virtual = parts->store && parts->store->style != CONFIG_STYLE_AUTO
				 ? parts->store->style == CONFIG_STYLE_VIRTUAL
				 : !endpoint;
	return !endpoint || url_text_endpoint(endpoint, &parts->tls, parts->host, fault) ||
	       fault_prefix(fault, "the store's endpoint ($%s) ", from);
}

/* ---- URLs ---- */

static bool check_bucket(const struct url_text *parts, struct fault *fault)
{
	const char *bucket = parts->bucket;
	int n = (int)parts->bucket_bytes;
	size_t good = strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789.-_");

	if (n == 0)
		return SAY("has no bucket; must be %s://BUCKET/PREFIX/", parts->scheme);
	if (good < (size_t)n)
		return SAY(
			"has a bucket with other characters than a-z, 0-9, '-', '_' and '.'; must "
			"be %s://BUCKET/PREFIX/, without user, password or port",
			parts->scheme);
	if (n < BUCKET_LEAST || n > BUCKET_MOST || bucket[0] == '.' || bucket[n - 1] == '.')
		return SAY("the bucket %.*s is not valid; must have 3 to 63 characters",
			n < 64 ? n : 64, bucket);
	if (parts->virtual && parts->tls && memchr(bucket, '.', (size_t)n))
		return SAY("the bucket %.*s has a dot, so no certificate fits its host name; set "
			   "style: path for %s in stores:",
			n < 64 ? n : 64, bucket, parts->scheme);
	return true;
}

static bool check_server(struct url_text *parts, struct fault *fault)
{
	size_t usual;

	if (memchr(parts->bucket, '@', parts->bucket_bytes))
		return SAY("contains a user or a password; write the URL without them, and "
			   "see token_file");
	if (!host_ok(parts->bucket, parts->bucket_bytes, true, &usual))
		return SAY("has no valid host; must be https://HOST/DIRECTORY/");
	if (strpbrk(parts->key, "?#"))
		return SAY("has a query; write the URL without it, and see query_file");
	snprintf(parts->host, sizeof(parts->host), "%.*s", (int)usual, parts->bucket);
	parts->tls = true;
	return true;
}

bool url_text(
	const struct config *config, const char *url, struct url_text *parts, struct fault *fault)
{
	size_t n = strspn(url, URL_SCHEME_CHARACTERS);

	*parts = (struct url_text){0};
	if (!url_text_is(url))
		return SAY("is not a URL; must be SCHEME://BUCKET/PREFIX/");
	if (n == 4 && strncmp(url, "file", n) == 0)
		return SAY("is a URL; write the path alone: %.200s", url + 7);
	if (n < sizeof(parts->scheme))
		memcpy(parts->scheme, url, n);
	parts->store = config_store(config, parts->scheme);
	parts->https = strcmp(parts->scheme, "https") == 0;
	if (!parts->store && !parts->https && strcmp(parts->scheme, "s3") != 0 &&
		strcmp(parts->scheme, "gs") != 0)
		return refuse_scheme(config, url, n, fault);
	parts->bucket = url + n + 3;
	parts->bucket_bytes = strcspn(parts->bucket, "/");
	parts->key = parts->bucket + parts->bucket_bytes;
	parts->key += *parts->key == '/';
	if (strlen(parts->key) > URL_KEY_BYTES)
		return SAY("has a key of %zu bytes; must have at most %d", strlen(parts->key),
			URL_KEY_BYTES);
	for (const char *c = parts->key; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			return SAY("contains control characters; must be one line of text");
	if (parts->https)
		return check_server(parts, fault);
	return find_server(parts, fault) && check_bucket(parts, fault);
}
