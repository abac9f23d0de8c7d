/* A search for credentials: what it is for, and its result. No message contains a secret. */
#ifndef TOKEND_STORE_SEEK_H
#define TOKEND_STORE_SEEK_H

#include "daemon/store/credentials.h"

enum provided {
	PROVIDED,	  /* the credentials are in @to */
	PROVIDED_NOTHING, /* this one is not set up here; the next one is asked */
	PROVIDED_LATER,	  /* it is set up, and failed with @fault; asked again later */
	PROVIDED_WRONG,	  /* it is set up wrong, @fault; a new try would fail, too */
};

struct seek {
	/* Of what. */
	const struct config_store *store; /* NULL: no entry */
	enum url_kind kind;
	char region[URL_REGION_BYTES];
	int stop; /* a descriptor that is readable when the search must end */
	bool met; /* an earlier search found the instance's metadata */
	/* The result. */
	struct credentials *to; /* without its serial */
	int64_t expires;	/* INT64_MAX: never */
	char provider[64];
	struct fault fault;
};

/* Whether the text can be a header's value of fewer than @bytes. */
bool seek_fits(const char *text, size_t n, size_t bytes);
/* Sets the keys. False: one is empty, too long or has control characters. */
bool seek_keys(struct seek *search, const char *access, const char *secret, const char *token);
/* Sets a bearer token. As seek_keys(). */
bool seek_bearer(struct seek *search, const char *token, size_t n);
/* A final failure. */
__attribute__((format(printf, 2, 3))) enum provided seek_wrong(
	struct seek *search, const char *text, ...);
/* A failure that may end. */
__attribute__((format(printf, 2, 3))) enum provided seek_later(
	struct seek *search, const char *text, ...);

#endif
