/* Requests that are not shared with others: a HEAD, a listing's page, a part of a small object. */
#ifndef TOKEND_STORE_ASK_H
#define TOKEND_STORE_ASK_H

#include "daemon/store/store.h"
#include "daemon/store/verdict.h"

struct ask {
	const struct store_bucket *bucket;
	const char *key;   /* "": the bucket */
	const char *query; /* encoded and sorted; "": none */
	const char *etag;  /* NULL: any */
	uint64_t size;	   /* STORE_SIZE_UNKNOWN: any */
	enum verdict_want want;
	uint64_t at;
	size_t n; /* of WHOLE: the most bytes */
};

struct asked {
	char *body; /* the caller frees it; of HEAD: NULL */
	size_t n;
	uint64_t size; /* of the object; STORE_SIZE_UNKNOWN: the answer does not say */
	char etag[STORE_ETAG_BYTES];
};

/* Blocks until the answer is there, for the calling thread's session. False: @fault. */
bool store_ask(
	struct stores *stores, const struct ask *ask, struct asked *answer, struct fault *fault);

#endif
