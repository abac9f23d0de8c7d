/* Small requests for credentials. Each blocks; only for helper threads. */
#ifndef TOKEND_STORE_HTTP_ASK_H
#define TOKEND_STORE_HTTP_ASK_H

#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>

enum { HTTP_BODY_BYTES = 64 << 10 };

struct http_ask {
	const char *url;
	const char *method;	/* NULL: GET, or POST if there is a form */
	const char *form;	/* the body; NULL: none */
	const char *headers[3]; /* up to the first NULL */
	bool direct;		/* never through a proxy */
	long patience_ms;
	int stop; /* a descriptor that is readable when the request must end */
};

/* Fills @body, in memory of secret_new(), and returns the status. 0: no answer, @fault says why. */
int http_ask(const struct http_ask *ask, char body[HTTP_BODY_BYTES], struct fault *fault);

#endif
