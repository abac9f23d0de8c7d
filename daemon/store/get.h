/* One GET (or HEAD) in flight. Owned by the fetch thread. */
#ifndef TOKEND_STORE_GET_H
#define TOKEND_STORE_GET_H

#include "daemon/store/stores.h"

enum {
	GET_HEADERS = 10,
	GET_STALL_MS = 10 * 1000, /* a large body: GET_STALL_BYTES in this time */
	GET_STALL_BYTES = 64 * 1024 * 10,
	GET_LARGE_BYTES = 1024 * 1024, /* judged by its rate, not by its whole time */
	GET_URL_BYTES = 16 + URL_HOST_BYTES + URL_PATH_BYTES + CREDENTIALS_QUERY_BYTES + 4096,
	GET_CHECK_MS = 100,
};

struct get {
	struct range *range;
	CURL *easy;
	TAILQ_ENTRY(get) link; /* in flight, or ended */
	struct get *next;      /* spare */
	struct verdict_asked asked;
	struct answer answer;
	struct verdict verdict; /* by the headers, once the body begins */
	bool judged, timed_out;
	size_t n; /* of the body, or of the body of an error */
	char error_body[ANSWER_ERROR_BYTES];
	uint64_t serial;	       /* of the credentials */
	int64_t begun_ms, answered_ms; /* answered: 0 before the first header */
	int64_t deadline_ms;
	struct outcome outcome; /* ended */
	size_t stall_n;		/* of the body, when deadline_ms was set */
	/* Until the GET ends. */
	struct curl_slist headers[GET_HEADERS];
	unsigned header_count;
	struct sign_headers sign;
	char range_header[64], match[STORE_ETAG_BYTES + 32];
	char error[CURL_ERROR_SIZE];
};

/* Fills the request's URL and headers, signed for @get->range. */
void get_request(struct get *get, char url[GET_URL_BYTES]);

#endif
