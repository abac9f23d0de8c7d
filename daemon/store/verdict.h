/*
 * The judgement on one GET: whether its body can be used, whether the fault can heal, and the words
 * for users. Pure.
 */
#ifndef TOKEND_STORE_VERDICT_H
#define TOKEND_STORE_VERDICT_H

#include "daemon/store/answer.h"

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
	VERDICT_RANGE, /* exactly these bytes */
	VERDICT_BEGIN, /* these bytes, or fewer if the object ends before */
	VERDICT_WHOLE, /* whatever there is */
	VERDICT_HEAD,
};

struct verdict_asked {
	enum verdict_want want;
	const char *etag; /* NULL: any */
	uint64_t size;	  /* STORE_SIZE_UNKNOWN: any */
	uint64_t at;
	size_t n;
};

struct verdict {
	enum verdict_kind kind;
	bool overload;	      /* the in-flight limit must sink */
	bool keys;	      /* denied because of the keys, whatever the object */
	enum fault_code code; /* if it is or becomes final */
	char reason[280];     /* "503 SlowDown" */
	const char *remedy;   /* "" or what to do */
};

/* Judges by the headers only, as soon as they are there: nothing but GOOD needs the body. */
void verdict_headers(
	const struct verdict_asked *asked, const struct answer *answer, struct verdict *verdict);
/* Judges the whole answer, which brought @n bytes of body. */
void verdict_answer(const struct verdict_asked *asked, const struct answer *answer, uint64_t n,
	struct verdict *verdict);
/* How many bytes of body a good answer has. STORE_SIZE_UNKNOWN: it does not say. */
uint64_t verdict_body(const struct verdict_asked *asked, const struct answer *answer);

#endif
