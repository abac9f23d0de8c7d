#include "daemon/store/sign.h"

#include <nettle/hmac.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { DAY_S = 86400, STAMP_BYTES = sizeof("20260101T000000Z"), HEX_BYTES = 65 };

#define ALGORITHM "AWS4-HMAC-SHA256"

static void put(struct sha256_ctx *hash, const char *text)
{
	sha256_update(hash, strlen(text), (const uint8_t *)text);
}

static void put_hex(const uint8_t digest[SHA256_DIGEST_SIZE], char hex[HEX_BYTES])
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < SHA256_DIGEST_SIZE; i++) {
		hex[2 * i] = digits[digest[i] >> 4];
		hex[2 * i + 1] = digits[digest[i] & 15];
	}
	hex[2 * SHA256_DIGEST_SIZE] = 0;
}

static void hmac(
	const void *key, size_t key_bytes, const char *text, uint8_t result[SHA256_DIGEST_SIZE])
{
	struct hmac_sha256_ctx context;

	hmac_sha256_set_key(&context, key_bytes, key);
	hmac_sha256_update(&context, strlen(text), (const uint8_t *)text);
	hmac_sha256_digest(&context, SHA256_DIGEST_SIZE, result);
}

/* Computes the signing key of @now's day. */
static void derive(struct sign_keys *keys, const char *region, int64_t now)
{
	char secret[sizeof("AWS4") + SIGN_SECRET_BYTES];
	time_t time = now;
	struct tm tm;

	gmtime_r(&time, &tm);
	strftime(keys->date, sizeof(keys->date), "%Y%m%d", &tm);
	int n = snprintf(secret, sizeof(secret), "AWS4%s", keys->secret);

	hmac(secret, (size_t)n, keys->date, keys->key);
	hmac(keys->key, 32, region, keys->key);
	hmac(keys->key, 32, "s3", keys->key);
	hmac(keys->key, 32, "aws4_request", keys->key);
	snprintf(keys->region, sizeof(keys->region), "%s", region);
	keys->day = now / DAY_S;
}

/* "20260101T000000Z" */
static void put_stamp(const struct sign_keys *keys, int64_t now, char stamp[STAMP_BYTES])
{
	int64_t second = now % DAY_S;
	int64_t parts[] = {second / 3600, second / 60 % 60, second % 60};

	memcpy(stamp, keys->date, 8);
	stamp[8] = 'T';
	for (int i = 0; i < 3; i++) {
		stamp[9 + 2 * i] = (char)('0' + parts[i] / 10);
		stamp[10 + 2 * i] = (char)('0' + parts[i] % 10);
	}
	memcpy(stamp + 15, "Z", 2);
}

/* The hash of the canonical request. @names: of the signed headers, in ascending order. */
static void hash_request(const struct sign_keys *keys, const struct sign_request *r,
	const char *stamp, const char *names, char hex[HEX_BYTES])
{
	struct sha256_ctx hash;
	uint8_t digest[SHA256_DIGEST_SIZE];

	sha256_init(&hash);
	put(&hash, r->method);
	put(&hash, "\n");
	put(&hash, r->path);
	put(&hash, "\n");
	put(&hash, r->query);
	put(&hash, "\nhost:");
	put(&hash, r->host);
	put(&hash, "\nx-amz-content-sha256:");
	put(&hash, strchr(SIGN_BODY_HEADER, ' ') + 1);
	put(&hash, "\nx-amz-date:");
	put(&hash, stamp);
	if (r->payer)
		put(&hash, "\nx-amz-request-payer:requester");
	if (keys->token_header[0]) {
		put(&hash, "\nx-amz-security-token:");
		put(&hash, keys->token_header + strlen(SIGN_TOKEN_HEADER));
	}
	put(&hash, "\n\n");
	put(&hash, names);
	put(&hash, "\n");
	put(&hash, strchr(SIGN_BODY_HEADER, ' ') + 1);
	sha256_digest(&hash, sizeof(digest), digest);
	put_hex(digest, hex);
}

/* Appends @text and returns the new end. The buffers fit the longest fields. */
static char *add(char *end, const char *text)
{
	return stpcpy(end, text);
}

void sign_request(
	struct sign_keys *keys, const struct sign_request *r, struct sign_headers *headers)
{
	static const char *const names[2][2] = {
		{"host;x-amz-content-sha256;x-amz-date",
			"host;x-amz-content-sha256;x-amz-date;x-amz-security-token"},
		{"host;x-amz-content-sha256;x-amz-date;x-amz-request-payer",
			"host;x-amz-content-sha256;x-amz-date;x-amz-request-payer;"
			"x-amz-security-token"},
	};
	const char *signed_names = names[r->payer][keys->token_header[0] != 0];
	char stamp[STAMP_BYTES], hex[HEX_BYTES], scope[SIGN_REGION_BYTES + 32], text[256];
	uint8_t digest[SHA256_DIGEST_SIZE];

	if (keys->day != r->now / DAY_S || strcmp(keys->region, r->region) != 0)
		derive(keys, r->region, r->now);
	put_stamp(keys, r->now, stamp);
	hash_request(keys, r, stamp, signed_names, hex);

	add(add(add(add(scope, keys->date), "/"), keys->region), "/s3/aws4_request");
	add(add(add(add(add(add(text, ALGORITHM "\n"), stamp), "\n"), scope), "\n"), hex);
	hmac(keys->key, sizeof(keys->key), text, digest);
	put_hex(digest, hex);

	add(add(headers->date, "x-amz-date: "), stamp);
	char *end = add(headers->authorization, "Authorization: " ALGORITHM " Credential=");

	end = add(add(add(add(end, keys->access), "/"), scope), ", SignedHeaders=");
	add(add(add(end, signed_names), ", Signature="), hex);
}
