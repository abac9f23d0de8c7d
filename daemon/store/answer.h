/*
 * The parts of an HTTP answer that matter here, from its headers and the first bytes of the body of
 * an error. Pure; the input is foreign, and its size is bounded.
 */
#ifndef TOKEND_STORE_ANSWER_H
#define TOKEND_STORE_ANSWER_H

#include "daemon/store/store.h"

enum {
	ANSWER_HEADER_BYTES = 64 * 1024, /* of all headers of one answer */
	ANSWER_ERROR_BYTES = 4 * 1024,	 /* of an error's body; later bytes are ignored */
	ANSWER_RETRY_S = 60,		 /* the longest Retry-After that is obeyed */
};

struct answer {
	int status; /* 0: no answer */
	bool has_range, has_length, has_etag;
	bool encoded;	   /* a Content-Encoding that changes bytes */
	bool too_long;	   /* more headers than ANSWER_HEADER_BYTES */
	bool deleted;	   /* a delete marker of a bucket with versions */
	uint64_t from, to; /* of Content-Range: first and last byte */
	uint64_t size;	   /* of the object; STORE_SIZE_UNKNOWN: not said */
	uint64_t length;   /* Content-Length */
	int64_t date;	   /* of an error, seconds since 1970; 0: not said */
	int64_t retry_at;  /* the date of Retry-After, likewise */
	unsigned retry_after_s;
	size_t header_bytes;
	char etag[STORE_ETAG_BYTES]; /* without quotes; a weak one is left as "W/…" */
	char region[40];	     /* of the bucket */
	char code[48];		     /* of an error: "SlowDown"; "": not said */
};

/* Reads one header line, or the status line, which begins the answer anew. False: the headers are
 * too long, so the GET must end. */
bool answer_header(struct answer *answer, const char *line, size_t n);
/* Reads the body of an error: S3's XML. */
void answer_error(struct answer *answer, const char *body, size_t n);
/* Copies the text of the first element @name, "<Code>"; "" if there is none. A long one is cut. */
void answer_element(const char *body, size_t n, const char *name, char *to, size_t to_bytes);

#endif
