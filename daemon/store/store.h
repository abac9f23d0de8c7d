/*
 * Objects in stores: S3, compatible services, and HTTPS servers. A range of an object is read by
 * signed GETs, which are repeated until one succeeds or a fault is final. The calling thread blocks
 * meanwhile. Equal ranges share one GET, and answers stay in memory for peers.
 *
 * libcurl is loaded with the first bucket, so a process without objects pays nothing.
 *
 * A fault that can heal (the store does not answer, or asks to slow down) is waited for, without
 * limit or for options.patience_ms, and store_waits() reports it. Any other fault is final:
 * FAULT_CHANGED (another ETag or size than the manifest's), FAULT_PERMISSION, FAULT_DATA, or
 * FAULT_IO with EREMOTEIO; never passing. A cancelled read fails with FAULT_IO and ECANCELED.
 */
#ifndef TOKEND_STORE_H
#define TOKEND_STORE_H

#include "daemon/config/url_text.h"
#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stores;	     /* all stores of a process */
struct store_bucket; /* a bucket of one, or a directory of an HTTPS server; owned by the stores */

#define STORE_NO_SESSION UINT32_MAX /* sessions are < LIMIT_SESSIONS */

enum {
	STORE_ETAG_BYTES = 128,
	STORE_BLOCK_BYTES = 64 << 10, /* a good struct object.block: nodes that share an object
					 fetch little that others use */
};

/* An object, or a file of an HTTPS server. A value; the strings are the caller's. */
struct object {
	const struct store_bucket *bucket;
	const char *key;  /* not percent-encoded */
	const char *etag; /* without quotes; NULL: any */
	uint64_t size;	  /* bytes */
	uint32_t piece;	  /* bytes of a piece, which is read through the cache; 0: not in pieces */
	uint32_t block;	  /* bytes of an aligned block: a GET fetches all of it, because what
			     follows is read soon; 0: only what is read */
};

struct store_options {
	const struct config *config; /* `stores:` and `cache:`; NULL: only what the environment
					says. Outlives the stores */
	uint64_t memory_bytes;	     /* for answers: those in flight, and those that are kept */
	/* How long a fault that can heal is waited for, and a missing object is not asked for
	   again; 0: without limit, and it is, because a store may lag. Later reads do not wait
	   again until the store has answered */
	_Atomic int64_t patience_ms;
	bool cache; /* use the config's `cache:`, which only one process may */
	/* Called for each line to log, at most one a minute and bucket, in any thread, without
	   locks. NULL: none */
	void (*log)(const char *line);
};

/* NULL: @fault. Cheap: nothing is connected or loaded yet. */
struct stores *store_open(const struct store_options *options, struct fault *fault);
/* Changes options.patience_ms, also for reads that wait. */
void store_patience(struct stores *stores, int64_t patience_ms);
/* Ends all reads with ECANCELED, now and later, so that threads in store_read() return. */
void store_stop(struct stores *stores);
/* After every thread has left the functions below. NULL: does nothing. */
void store_close(struct stores *stores);

/*
 * The bucket of @url, "SCHEME://BUCKET/KEY", and the beginning of its key, in @url. NULL: @fault,
 * FAULT_ARGUMENT for a URL that is wrong. Any thread.
 */
const struct store_bucket *store_bucket(
	struct stores *stores, const char *url, const char **key, struct fault *fault);

/* The number of a bucket, as in store_status(). It never changes. Any thread. */
unsigned store_number(const struct store_bucket *bucket);

/* ---- sessions: any thread ---- */

/* A session begins: its reads are no longer cancelled. */
void store_allow(struct stores *stores, uint32_t session);
/* Cancels all reads of the session until store_allow(): threads return at once from what they wait
 * for, except from the disk of the cache. GETs in flight are ended. */
void store_cancel(struct stores *stores, uint32_t session);

/* ---- pool threads and tools: these block ---- */

/* Until the next call, the calling thread's reads belong to @session, or to none. Of a session's
 * reads, those with the lowest @number get their GETs first. */
void store_on_behalf(uint32_t session, uint64_t number);
/* Reads bytes [at, at + n) of @object to @to; in piece mode through the cache. Any thread. */
bool store_read(struct stores *stores, const struct object *object, uint64_t at, void *to, size_t n,
	struct fault *fault);
/* Reads a whole object, for example a manifest, of at most @most bytes, by one GET. Sets *@n. The
 * caller frees the result, which ends with a zero that is not counted. NULL: @fault. */
char *store_load(struct stores *stores, const struct store_bucket *bucket, const char *key,
	size_t most, size_t *n, struct fault *fault);
/* Fills size and @etag of one object. Where reads are patient without limit, this is not: it gives
 * up after about two seconds. */
bool store_head(struct stores *stores, const struct store_bucket *bucket, const char *key,
	uint64_t *size, char etag[STORE_ETAG_BYTES], struct fault *fault);
/*
 * Calls @each for all objects whose keys begin with @prefix, in the order of their keys. The
 * strings are valid during the call; false ends the listing, which then succeeds. For tools: the
 * daemon never lists.
 */
bool store_list(struct stores *stores, const struct store_bucket *bucket, const char *prefix,
	bool (*each)(void *context, const struct object *object), void *context,
	struct fault *fault);

/* ---- for status and metrics: any thread ---- */

/*
 * Sets @text to the wait of the oldest unanswered read of @session: "s3://corpus/web/: 503
 * SlowDown". Returns its seconds; 0: no read waits.
 */
unsigned store_waits(struct stores *stores, uint32_t session, char *text, size_t text_bytes);

enum { STORE_TIMES = 16 }; /* first bytes within 2^i ms; the last: any time */

struct store_status {
	char name[160];	      /* "s3://corpus" */
	char provider[64];    /* of its credentials: "web identity"; "" : none yet */
	int64_t expires_s;    /* until the credentials expire; INT64_MAX: never */
	uint64_t requests;    /* GETs begun, with their repetitions */
	uint64_t bytes;	      /* bodies received */
	uint64_t used_bytes;  /* bytes that reads returned */
	uint64_t retries;     /* GETs that were repeated */
	uint64_t faults[600]; /* answers, by HTTP status; [0]: no answer */
	uint64_t first_byte[STORE_TIMES];
	double first_byte_seconds; /* sum */
	unsigned in_flight, limit; /* GETs now, and at most now */
	unsigned waiting;	   /* reads that wait for their GET or for a repetition */
	char last[160];		   /* the last fault, "503 SlowDown"; "": none */
	int64_t last_ago_s;
};

/* Fills @status for bucket number @i. False: the number is too large. */
bool store_status(struct stores *stores, unsigned i, struct store_status *status);

/* Whether @dir can be a cache of @size bytes; creates it. For a check next to a running daemon: it
 * is not locked. False: @fault, whose text begins with @dir. */
bool store_cache_suits(const char *dir, uint64_t size, struct fault *fault);

struct store_cache_status {
	char dir[256];
	uint64_t size_bytes, used_bytes; /* of disk blocks */
	uint64_t hits, misses;		 /* pieces that reads needed */
	uint64_t evictions;		 /* pieces */
	uint64_t mismatches;		 /* pieces with a wrong sum, dropped and fetched again */
	unsigned failing_s; /* seconds until the disk, which fails, is tried again; 0: it works */
	char last[160];	    /* the disk's last fault, "ENOSPC (No space left on device)"; "" */
	int64_t last_ago_s;
};

/* False: there is no cache. */
bool store_cache_status(struct stores *stores, struct store_cache_status *status);

#endif
