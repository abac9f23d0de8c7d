/*
 * The text of URLs of objects, "s3://corpus/web/", and the server that the config or the
 * environment names for them.
 */
#ifndef TOKEND_URL_TEXT_H
#define TOKEND_URL_TEXT_H

#include "daemon/config/config.h"

#include <string.h>

#define URL_SCHEME_CHARACTERS "abcdefghijklmnopqrstuvwxyz0123456789+.-"

enum { URL_KEY_BYTES = 1024, URL_ENDPOINT_BYTES = 320 };

/* A correct name of a store, and a correct endpoint, in words. */
#define URL_SCHEME_RIGHT   "1 to 31 of a-z, 0-9, '+', '-' and '.', beginning with a letter"
#define URL_ENDPOINT_RIGHT "https://HOST or https://HOST:PORT"

struct url_text {
	char scheme[CONFIG_SCHEME_BYTES];
	const char *bucket; /* in the URL; of https:// its host and port */
	size_t bucket_bytes;
	const char *key;		  /* in the URL, not percent-encoded; may be "" */
	const struct config_store *store; /* its entry; NULL: none */
	bool https;			  /* the URL is a plain one */
	bool tls, virtual;		  /* virtual: the bucket is a part of the host's name */
	char host[URL_ENDPOINT_BYTES];	  /* of the endpoint; "": AWS's, by region */
};

/* Whether @text begins with a scheme and "://". */
static inline bool url_text_is(const char *text)
{
	size_t n = strspn(text, URL_SCHEME_CHARACTERS);

	return n >= 2 && strncmp(text + n, "://", 3) == 0;
}

/* Whether @name may be the name of a store. */
bool url_text_scheme_ok(const char *name);
/*
 * Splits @url and checks it. False: @fault (FAULT_ARGUMENT), whose text is the end of a message
 * about the URL. Secrets that someone wrote into a URL are not repeated. @config has the
 * `stores:`; it may be NULL.
 */
bool url_text(
	const struct config *config, const char *url, struct url_text *parts, struct fault *fault);
/* Checks an endpoint, and splits it. @host gets its host, with the port unless it is the usual
 * one. As url_text(). */
bool url_text_endpoint(
	const char *endpoint, bool *tls, char host[URL_ENDPOINT_BYTES], struct fault *fault);

#endif
