/*
 * The state of the room, for its own files. Callers use store.h.
 *
 * A thread in store_read() makes one GET after the other until one succeeds, and waits meanwhile:
 * for credentials, for its turn, for the GET, for the time of a repetition, or for another thread
 * that fetches the same bytes. It can be cancelled in all of these waits. libcurl runs in one
 * thread for all GETs, the fetch thread. So connections and certificates are shared, and a GET that
 * nobody waits for any more ends without its reader.
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

enum reading_state {
	READING_WORKS, /* does not wait */
	READING_CREDENTIALS,
	READING_TURN, /* waits for a GET to end, or for memory */
	READING_MAY,  /* it may begin its GET */
	READING_GET,
	READING_PAUSES, /* until `due_ms` */
	READING_SHARES, /* another thread fetches `shared` */
};

/* A thread that reads. It is on that thread's stack. */
struct reading {
	struct stores *stores;
	uint32_t session;
	struct store_bucket *bucket;
	const char *key;
	enum reading_state state;
	pthread_cond_t wake;
	int64_t since_ms;
	uint64_t bytes; /* TURN: of memory that the GET needs */
	int64_t due_ms; /* PAUSES */
	bool heals;	/* PAUSES: for a store that does not answer */
	bool renews;	/* PAUSES: for other credentials */
	struct shared *shared;
	char reason[96]; /* of the last fault */
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
	const char *ca_directory;	  /* the system's, in addition; NULL: none */

	/* The lock's. */
	struct credentials *credentials;
	int64_t clock_offset_s;
	struct limit limit;
	unsigned turns;		   /* readings that wait for theirs */
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

TAILQ_HEAD(gets, get);

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
	bool stopped, ending, woken;
	struct gets begun; /* for the fetch thread */

	/* The fetch thread. */
	pthread_t thread;
	bool running;
	int wake_fd, epoll_fd;
	CURLM *multi;
	int64_t curl_due_ms; /* INT64_MAX: never */
	struct gets gets;    /* in flight */
};

/* ---- store.c ---- */

int64_t stores_now_ms(void);
/* A thread begins to read: to wait for one object. With the lock. */
void reading_begin(struct reading *reading, struct stores *stores,
	const struct store_bucket *bucket, const char *key);
void reading_end(struct reading *reading);
bool reading_cancelled(const struct reading *reading);
/* Waits until it is woken, @due_ms the latest. With the lock, unlocked meanwhile. */
void reading_wait(struct reading *reading, enum reading_state state, int64_t due_ms);
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
	const char *etag;  /* NULL: any */
	uint64_t size;	   /* STORE_SIZE_UNKNOWN: any */
	enum verdict_want want;
	uint64_t at;
	size_t n;      /* of WHOLE: the most bytes */
	bool no_match; /* without If-Match, so that the answer says the ETag */
	bool fresh;    /* over a new connection */
	int64_t first_byte_ms;
};

struct get {
	struct store_bucket *bucket;
	struct reading *reading; /* that waits for it; NULL: none does any more */
	bool ended;		 /* the reading's; otherwise the fetch thread's */
	CURL *easy;
	TAILQ_ENTRY(get) link; /* of `begun` or `gets` */
	struct get *next;      /* spare */
	struct verdict_asked asked;
	char etag[STORE_ETAG_BYTES];
	struct answer answer;
	struct verdict verdict; /* by the headers, once the body begins; then of all */
	bool judged, timed_out, large;
	char *body; /* [asked.n] */
	size_t n;   /* of the body, or of the body of an error */
	char error_body[ANSWER_ERROR_BYTES];
	uint64_t serial;	       /* of the credentials */
	int64_t begun_ms, answered_ms; /* answered: 0 before the first header */
	int64_t first_byte_ms, deadline_ms;
	size_t stall_n; /* of the body, when deadline_ms was set */
	struct curl_slist headers[GET_HEADERS];
	unsigned header_count;
	struct sign_headers sign;
	char range_header[64], match[STORE_ETAG_BYTES + 32];
	char error[CURL_ERROR_SIZE];
};

/* Gives a signed GET to the fetch thread. NULL: out of memory. With the lock. */
struct get *get_begin(struct reading *reading, const struct ask *ask);
/* Nobody waits for it any more. With the lock. */
void get_leave(struct get *get);
/* It is over: judges it. The fetch thread, without the lock. */
void get_judge(struct get *get, CURLcode code);
/* Whether it may be ended now: while a name is being looked up, libcurl would wait for that. */
bool get_may_end(const struct get *get);
bool get_too_slow(struct get *get, int64_t now_ms);
/* Its handle can be used again. With the lock. */
void get_release(struct get *get);
void get_free_spares(struct store_bucket *bucket);

/* ---- fetch.c ---- */

/* Starts the fetch thread. False: @fault. */
bool fetch_open(struct stores *stores, struct fault *fault);
/* Wakes it. With the lock. */
void fetch_wake(struct stores *stores);
/* Ends it, and all GETs. */
void fetch_close(struct stores *stores);

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
