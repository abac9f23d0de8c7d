/*
 * The state of the room, for its own files. Callers use store.h.
 *
 * A thread in store_read() makes one GET after the other until one succeeds, and waits meanwhile:
 * for credentials, for its turn, for the GET, for the time of a repetition, or for another thread
 * that fetches the same bytes. It can be cancelled in all of these waits.
 */
#ifndef TOKEND_STORE_INTERNAL_H
#define TOKEND_STORE_INTERNAL_H

#include "daemon/store/cache.h"
#include "daemon/store/certificates.h"
#include "daemon/store/credentials.h"
#include "daemon/store/curl.h"
#include "daemon/store/pace.h"
#include "daemon/store/store.h"
#include "daemon/store/url.h"

#include <pthread.h>
#include <sys/queue.h>

struct get;

/* A thread that reads. It is on that thread's stack. */
struct reading {
	struct stores *stores;
	uint32_t session;
	struct store_bucket *bucket;
	const char *key;
	pthread_cond_t wake;
	int64_t since_ms;
	bool queued;	       /* waits until another GET ends, or for memory */
	uint64_t bytes;	       /* of memory that its GET needs */
	struct get *get;       /* in flight */
	int64_t due_ms;	       /* of a pause; 0: none */
	bool heals;	       /* the pause is for a store that does not answer */
	bool renews;	       /* the pause is for other credentials */
	struct shared *shared; /* that another thread fetches */
	char reason[96];       /* of the last fault */
	TAILQ_ENTRY(reading) link;
};

/* Bytes that threads share: fetched by one of them, or kept for later ones. */
struct shared {
	struct store_bucket *bucket;
	const char *key, *etag; /* etag NULL: any */
	uint64_t hash, size, at;
	size_t n;
	bool piece;	     /* for the cache: not kept in memory */
	bool fetched;	     /* by a thread, now */
	unsigned references; /* of threads */
	char *body;	     /* NULL: not there yet */
	struct fault *fault; /* final: nobody finds it any more */
	bool failed;
	TAILQ_ENTRY(shared) link; /* without references: in `kept` */
	struct shared *next;	  /* of its chain */
};

struct store_bucket {
	struct stores *stores;
	struct url_place place;
	struct wallet *wallet;
	struct store_bucket *next;
	unsigned number;
	struct certificates certificates; /* of a store with `ca:` */
	const char *ca_directory;	  /* the system's; NULL: its file is used */

	/* The lock's. */
	struct credentials *credentials;
	int64_t clock_offset_s;
	struct limit limit;
	unsigned queued;	   /* readings that are */
	TAILQ_HEAD(, shared) kept; /* least recently used first */
	uint64_t body_bytes;	   /* of GETs in flight, and of all that is shared */
	uint64_t successes;
	int64_t success_begun_ms; /* the latest beginning of a GET that succeeded */
	char waits_for[160];	  /* no credentials yet: why; "": they are there */
	struct store_status status;
	int64_t fault_ms;	/* of status.last; 0: none */
	int64_t fails_since_ms; /* since the last success; 0: it does not fail */
	int64_t logged_ms;	/* the last log line; 0: none since the last recovery */
	struct get *spare;	/* handles */
};

enum { STORES_CHAINS = 1 << 14 };

struct stores {
	struct store_options options;
	struct store_cache *cache; /* NULL: none */
	struct wallets *wallets;
	const struct curl *curl;
	pthread_mutex_t adding; /* of buckets; taken before the lock */
	pthread_mutex_t lock;

	/* The lock's. */
	struct store_bucket *buckets;
	unsigned bucket_count;
	TAILQ_HEAD(, reading) readings; /* oldest first */
	struct shared *chain[STORES_CHAINS];
	bool cancelled[LIMIT_SESSIONS];
	uint64_t turn[LIMIT_SESSIONS + 1]; /* of a session, and of those without one */
	uint64_t turns;
	uint32_t random;
	bool stopped;
};

/* ---- store.c ---- */

int64_t stores_now_ms(void);
/* A thread begins to read: to wait for one object. With the lock. */
void reading_begin(struct reading *reading, struct stores *stores,
	const struct store_bucket *bucket, const char *key);
void reading_end(struct reading *reading);
bool reading_cancelled(const struct reading *reading);
/* Waits until it is woken, @due_ms the latest. With the lock, unlocked meanwhile. */
void reading_wait(struct reading *reading, int64_t due_ms);
/* Lets readings begin their GETs, as the limit and memory allow: sessions take turns. With the
 * lock. */
void bucket_turns(struct store_bucket *bucket);

/* ---- get.c: one GET (or HEAD) ---- */

enum {
	GET_HEADERS = 10,
	GET_STALL_MS = 10 * 1000, /* a large body: GET_STALL_BYTES in this time */
	GET_STALL_BYTES = 64 * 1024 * 10,
	GET_LARGE_BYTES = 1024 * 1024, /* judged by its rate, not by its whole time */
	GET_URL_BYTES = 16 + URL_HOST_BYTES + URL_PATH_BYTES + CREDENTIALS_QUERY_BYTES + 4096,
};

/* What a thread asks for. */
struct ask {
	const struct store_bucket *bucket;
	const char *key;   /* "": the bucket */
	const char *query; /* encoded and sorted; "": none */
	struct verdict_asked asked;
	bool no_match; /* without If-Match, so that the answer says the ETag */
	bool fresh;    /* over a new connection */
	int64_t first_byte_ms;
};

/* It and its handles, with an open connection, serve one GET after the other. */
struct get {
	struct store_bucket *bucket;
	CURL *easy;
	CURLM *multi;
	struct get *next; /* spare */
	_Atomic bool left;
	const struct verdict_asked *asked;
	struct answer answer;
	struct verdict verdict; /* by the headers, once the body begins; then of all */
	bool judged, timed_out, large;
	char *body; /* [body_bytes] */
	uint64_t body_bytes;
	size_t n; /* of the body, or of the body of an error */
	char error_body[ANSWER_ERROR_BYTES];
	uint64_t serial;	       /* of the credentials */
	int64_t begun_ms, answered_ms; /* answered: 0 before the first header */
	int64_t first_byte_ms, deadline_ms;
	size_t stall_n; /* of the body, when deadline_ms was set */
	struct curl_slist headers[GET_HEADERS];
	unsigned header_count;
	struct sign_headers sign;
	char range_header[64], match[STORE_ETAG_BYTES + 32];
	char secret[sizeof(((struct sign_keys *)0)->token_header)];
	char error[CURL_ERROR_SIZE];
};

/* Makes a signed GET, and judges it. NULL: out of memory. With the lock, unlocked meanwhile. */
struct get *get_make(struct reading *reading, const struct ask *ask);
/* Ends one in flight soon. With the lock. */
void get_leave(struct get *get);
/* Its handle can be used again. With the lock. */
void get_release(struct get *get);
void get_free_spares(struct store_bucket *bucket);

/* ---- read.c ---- */

struct asked {
	char *body; /* the caller frees it; of HEAD: NULL */
	size_t n;
	uint64_t size; /* of the object; STORE_SIZE_UNKNOWN: the answer does not say */
	char etag[STORE_ETAG_BYTES];
};

/* A request that is not shared with others. Blocks until the answer is there, for the calling
 * thread's session. False: @fault. */
bool store_ask(
	struct stores *stores, const struct ask *ask, struct asked *answer, struct fault *fault);
/* Frees what is kept until @bytes more fit. False: they do not. With the lock. */
bool shared_make_room(struct store_bucket *bucket, uint64_t bytes);
/* Frees all that is kept. */
void shared_drop(struct store_bucket *bucket);

#endif
