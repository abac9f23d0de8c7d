#include "daemon/store/request.h"

#include <assert.h>
#include <nettle/base16.h>
#include <nettle/hmac.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
	STAMP_BYTES = sizeof("20260101T000000Z"),
	HEX_BYTES = 65,
	REQUEST_BYTES = URL_PATH_BYTES + URL_HOST_BYTES + SIGN_TOKEN_BYTES + 16 * 1024,
};

#define ALGORITHM "AWS4-HMAC-SHA256"

static void put_hex(const uint8_t digest[SHA256_DIGEST_SIZE], char hex[HEX_BYTES])
{
	base16_encode_update(hex, SHA256_DIGEST_SIZE, digest);
	hex[HEX_BYTES - 1] = 0;
}

static void hmac(
	const void *key, size_t key_bytes, const char *text, uint8_t result[SHA256_DIGEST_SIZE])
{
	struct hmac_sha256_ctx context;

	hmac_sha256_set_key(&context, key_bytes, key);
	hmac_sha256_update(&context, strlen(text), (const uint8_t *)text);
	hmac_sha256_digest(&context, SHA256_DIGEST_SIZE, result);
}

/* The signing key of a day. */
static void derive(const struct sign_keys *keys, const char *region, const char *day,
	uint8_t key[SHA256_DIGEST_SIZE])
{
	char secret[sizeof("AWS4") + SIGN_SECRET_BYTES];
	int n = snprintf(secret, sizeof(secret), "AWS4%s", keys->secret);

	hmac(secret, (size_t)n, day, key);
	hmac(key, SHA256_DIGEST_SIZE, region, key);
	hmac(key, SHA256_DIGEST_SIZE, "s3", key);
	hmac(key, SHA256_DIGEST_SIZE, "aws4_request", key);
}

/* The hash of the canonical request. @names: of the signed headers, in ascending order. */
static void hash_request(const struct sign_keys *keys, const struct sign_request *r,
	const char *stamp, const char *names, char hex[HEX_BYTES])
{
	const char *body = strchr(SIGN_BODY_HEADER, ' ') + 1, *token = keys->token_header;
	char text[REQUEST_BYTES];
	struct sha256_ctx hash;
	uint8_t digest[SHA256_DIGEST_SIZE];
	int n = snprintf(text, sizeof(text),
		"%s\n%s\n%s\nhost:%s\nx-amz-content-sha256:%s\nx-amz-date:%s%s%s%s\n\n%s\n%s",
		r->method, r->path, r->query, r->host, body, stamp,
		r->payer ? "\nx-amz-request-payer:requester" : "",
		*token ? "\nx-amz-security-token:" : "",
		*token ? token + strlen(SIGN_TOKEN_HEADER) : "", names, body);

	assert(n > 0 && n < REQUEST_BYTES);
	sha256_init(&hash);
	sha256_update(&hash, (size_t)n, (const uint8_t *)text);
	sha256_digest(&hash, sizeof(digest), digest);
	put_hex(digest, hex);
}

void sign_request(
	const struct sign_keys *keys, const struct sign_request *r, struct sign_headers *headers)
{
	char names[128], stamp[STAMP_BYTES], hex[HEX_BYTES], scope[SIGN_REGION_BYTES + 32],
		text[256], day[9];
	uint8_t key[SHA256_DIGEST_SIZE];
	time_t now = r->now;
	struct tm tm;

	strftime(stamp, sizeof(stamp), "%Y%m%dT%H%M%SZ", gmtime_r(&now, &tm));
	snprintf(day, sizeof(day), "%.8s", stamp);
	derive(keys, r->region, day, key);
	snprintf(names, sizeof(names), "host;x-amz-content-sha256;x-amz-date%s%s",
		r->payer ? ";x-amz-request-payer" : "",
		keys->token_header[0] ? ";x-amz-security-token" : "");
	hash_request(keys, r, stamp, names, hex);

	snprintf(scope, sizeof(scope), "%s/%s/s3/aws4_request", day, r->region);
	snprintf(text, sizeof(text), ALGORITHM "\n%s\n%s\n%s", stamp, scope, hex);
	hmac(key, sizeof(key), text, key);
	put_hex(key, hex);

	snprintf(headers->date, sizeof(headers->date), "x-amz-date: %s", stamp);
	snprintf(headers->authorization, sizeof(headers->authorization),
		"Authorization: " ALGORITHM " Credential=%s/%s, SignedHeaders=%s, Signature=%s",
		keys->access, scope, names, hex);
}
