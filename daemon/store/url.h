/*
 * URLs of objects: from "s3://corpus/web/x.bin", the config and the environment to the host, path
 * and query of a request. Pure, except that the environment is read.
 *
 * One percent-encoder serves the request and its signature: a server computes the signature of the
 * bytes that it receives.
 */
#ifndef TOKEND_URL_H
#define TOKEND_URL_H

#include "daemon/config/config.h"
#include "daemon/config/url_text.h"
#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	URL_NAME_BYTES = URL_ENDPOINT_BYTES + CONFIG_SCHEME_BYTES + 3,
	URL_HOST_BYTES = URL_NAME_BYTES + URL_ENDPOINT_BYTES,
	URL_BASE_BYTES = 768, /* a bucket's name, encoded */
	URL_REGION_BYTES = 64,
	/* Of an encoded path, with its zero: a key has at most 1024 bytes. */
	URL_PATH_BYTES = URL_BASE_BYTES + 3 * URL_KEY_BYTES + 1,
};

enum url_kind {
	URL_S3,	   /* requests are signed */
	URL_GS,	   /* the same, or with a bearer token */
	URL_HTTPS, /* never signed, and nothing can be listed */
};

/* A bucket, or an HTTPS server, and how its requests are written. A value. */
struct url_place {
	enum url_kind kind;
	const struct config_store *store; /* its entry of `stores:`; NULL: none */
	char scheme[CONFIG_SCHEME_BYTES];
	char name[URL_NAME_BYTES];   /* "s3://corpus"; for users, and equal for equal buckets */
	char bucket[URL_NAME_BYTES]; /* "corpus"; of an HTTPS server: its host and port */
	bool tls;
	char host[URL_HOST_BYTES];     /* the Host header: with a port if it is not the usual one */
	char base[URL_BASE_BYTES];     /* encoded path before the key: "/corpus/" or "/" */
	char region[URL_REGION_BYTES]; /* for the signature */
};

/*
 * Fills @place for @url, and sets *@key to the beginning of its key, in @url. @config may be NULL.
 * A value that the config does not give is read from the environment, the profile or the default.
 * False: @fault, FAULT_ARGUMENT.
 */
bool url_place(const struct config *config, const char *url, struct url_place *place,
	const char **key, struct fault *fault);

/*
 * Writes the encoded path of @key, "/corpus/a%20b", with at most URL_PATH_BYTES. @key "": of the
 * bucket itself. Returns its length.
 */
size_t url_path(const struct url_place *place, const char *key, char *path);
/*
 * Appends "NAME=VALUE" to @query, with a "&" if it is not empty. The names must come in ascending
 * order, which the signature requires. False: it does not fit into @bytes.
 */
bool url_query(char *query, size_t bytes, const char *name, const char *value);

#endif
