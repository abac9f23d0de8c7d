/*
 * AWS Signature Version 4 of GET and HEAD requests without a body. Pure: no clock, environment or
 * allocation. The host, the headers below and every query parameter are signed.
 *
 * The signing key depends on secret, day, region and service. It is kept with the secret, so a
 * signature is the hash of one short text and two HMACs.
 */
#ifndef TOKEND_SIGN_H
#define TOKEND_SIGN_H

#include <stdbool.h>
#include <stdint.h>

enum {
	SIGN_ACCESS_BYTES = 160,
	SIGN_SECRET_BYTES = 160,
	SIGN_TOKEN_BYTES = 8192,
	SIGN_REGION_BYTES = 64,
	SIGN_AUTHORIZATION_BYTES = 512,
};

/* Headers with constant values, which are sent with every signed request. */
#define SIGN_BODY_HEADER                                                                           \
	"x-amz-content-sha256: "                                                                   \
	"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define SIGN_PAYER_HEADER "x-amz-request-payer: requester" /* if sign_request.payer */
#define SIGN_TOKEN_HEADER "x-amz-security-token: "

/* The keys of an account. Secret. */
struct sign_keys {
	char access[SIGN_ACCESS_BYTES];
	char secret[SIGN_SECRET_BYTES];
	/* The whole header, to be sent with every signed request; "": there is none. */
	char token_header[sizeof(SIGN_TOKEN_HEADER) + SIGN_TOKEN_BYTES];
	/* The signing key of a day and a region. Zero: not computed yet. */
	int64_t day;
	char date[9]; /* "20260101" */
	char region[SIGN_REGION_BYTES];
	uint8_t key[32];
};

struct sign_request {
	const char *method; /* "GET" or "HEAD" */
	const char *host;   /* as in the Host header */
	const char *path;   /* encoded, see url.h */
	const char *query;  /* encoded and sorted, without '?'; "": none */
	const char *region;
	bool payer;
	int64_t now; /* seconds since 1970, by the server's clock */
};

struct sign_headers {
	char date[sizeof("x-amz-date: 20260101T000000Z")];
	char authorization[SIGN_AUTHORIZATION_BYTES]; /* "Authorization: AWS4-HMAC-SHA256 …" */
};

/* Fills @headers. The key in @keys is computed anew if day or region are others. One thread. */
void sign_request(
	struct sign_keys *keys, const struct sign_request *request, struct sign_headers *headers);

#endif
