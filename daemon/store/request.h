/*
 * Requests and answers: URLs, signatures, headers, listings, and what follows from an answer. All
 * of it is pure, but that url_place() reads the environment. Answers are foreign, and their size is
 * bounded. Private to the room.
 */
#ifndef TOKEND_STORE_REQUEST_H
#define TOKEND_STORE_REQUEST_H

#include "daemon/store/store.h"

/*
 * ---- url.c: from "s3://corpus/web/x.bin", the config and the environment to host, path and query
 *
 * One percent-encoder serves the request and its signature: a server computes the signature of the
 * bytes that it receives.
 */

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

/*
 * ---- sign.c: AWS Signature Version 4 of GET and HEAD without a body
 *
 * The host, the headers below and every query parameter are signed.
 */

enum {
	SIGN_ACCESS_BYTES = 160,
	SIGN_SECRET_BYTES = 160,
	SIGN_TOKEN_BYTES = 8192,
	SIGN_REGION_BYTES = 64,
	SIGN_AUTHORIZATION_BYTES = 576,
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
};

struct sign_request {
	const char *method; /* "GET" or "HEAD" */
	const char *host;   /* as in the Host header */
	const char *path;   /* as url_path() writes it */
	const char *query;  /* encoded and sorted, without '?'; "": none */
	const char *region;
	bool payer;
	int64_t now; /* seconds since 1970, by the server's clock */
};

struct sign_headers {
	char date[sizeof("x-amz-date: 20260101T000000Z")];
	char authorization[SIGN_AUTHORIZATION_BYTES]; /* "Authorization: AWS4-HMAC-SHA256 …" */
};

void sign_request(const struct sign_keys *keys, const struct sign_request *request,
	struct sign_headers *headers);

/* ---- answer.c: the parts that matter of an answer's headers, and of the body of an error ---- */

enum {
	ANSWER_ERROR_BYTES = 4 * 1024, /* of an error's body; later bytes are ignored */
	ANSWER_RETRY_S = 60,	       /* the longest Retry-After that is obeyed */
};

#define STORE_SIZE_UNKNOWN UINT64_MAX

struct answer {
	int status; /* 0: no answer */
	bool has_range, has_length, has_etag, chunked;
	bool encoded;		     /* a Content-Encoding that changes bytes */
	uint64_t from, to;	     /* of Content-Range: first and last byte */
	uint64_t size;		     /* of the object; STORE_SIZE_UNKNOWN: not said */
	uint64_t length;	     /* Content-Length */
	int64_t date;		     /* of an error, seconds since 1970; 0: not said */
	uint64_t retry_after_s;	     /* at most ANSWER_RETRY_S */
	char etag[STORE_ETAG_BYTES]; /* without quotes; a weak one is left as "W/…" */
	char region[40];	     /* of the bucket */
	char code[48];		     /* of an error: "SlowDown"; "": not said */
};

/* Reads one header line, or the status line, which begins the answer anew. */
void answer_header(struct answer *answer, const char *line, size_t n);
/* Copies an ETag without its quotes. False: it is too long. */
bool answer_etag(const char *text, char etag[STORE_ETAG_BYTES]);
/* Reads the body of an error: S3's XML. */
void answer_error(struct answer *answer, const char *body, size_t n);
/* Copies the text of the first element @name, "<Code>"; "" if there is none. A long one is cut. */
void answer_element(const char *body, size_t n, const char *name, char *to, size_t to_bytes);

/* ---- whether a body can be used, whether the fault can heal, the words for users ---- */

enum verdict_kind {
	VERDICT_GOOD,
	VERDICT_HEALS,	 /* the store does not answer, or asks to slow down */
	VERDICT_TORN,	 /* not the bytes that were asked for: a connection or a proxy is broken */
	VERDICT_EXPIRED, /* other credentials may do */
	VERDICT_CLOCK,	 /* the signature's time is wrong */
	VERDICT_DENIED,
	VERDICT_OTHER,	   /* another object than the listed one, or none */
	VERDICT_UNTRUSTED, /* the server's certificate is not of a known authority */
	VERDICT_FINAL,
};

enum verdict_want {
	VERDICT_RANGE, /* these bytes of the object of this size */
	VERDICT_WHOLE, /* whatever there is, at most @n bytes */
	VERDICT_HEAD,
};

struct verdict_asked {
	enum verdict_want want;
	const char *etag;  /* NULL: any */
	uint64_t size, at; /* of VERDICT_RANGE */
	size_t n;
};

struct verdict {
	enum verdict_kind kind;
	bool overload;	    /* the in-flight limit must sink */
	bool keys;	    /* denied because of the keys, whatever the object */
	char reason[280];   /* "503 SlowDown"; "": it is good */
	const char *remedy; /* "" or what to do */
};

/* Judges by the headers only, as soon as they are there: nothing but GOOD needs the body. */
void verdict_headers(
	const struct verdict_asked *asked, const struct answer *answer, struct verdict *verdict);
/* Judges the whole answer, which brought @n bytes of body. */
void verdict_answer(const struct verdict_asked *asked, const struct answer *answer, uint64_t n,
	struct verdict *verdict);

/* ---- listing.c: a page of ListObjectsV2 ---- */

enum {
	LIST_PAGE_BYTES = 16 << 20, /* the most: 1,000 keys take 4 MiB */
	LIST_KEY_BYTES = 1024,
	LIST_TOKEN_BYTES = 2048,
};

struct listing {
	const struct store_bucket *bucket;
	const char *prefix;
	bool (*each)(void *context, const struct object *object);
	void *context;
	/* Of the last page. */
	bool truncated;
	bool ended;		     /* @each returned false */
	char next[LIST_TOKEN_BYTES]; /* the continuation token; "": none */
};

/*
 * Calls @each for the objects of a page, which is @n bytes of XML, in their order there. A key is
 * decoded, but otherwise as the store gives it: perhaps twice, out of order, "" or with "..". One
 * that does not begin with @prefix is refused. False: @fault, FAULT_DATA; some objects may have
 * been passed to @each.
 */
bool list_page(struct listing *listing, const char *xml, size_t n, struct fault *fault);

#endif
