/*
 * The state of the room, for its own files. Callers use store.h.
 *
 * A read of a caller is a want. A range is what one GET fetches: one want, several wants of the
 * same bytes, or neighbours. Wants and ranges belong to the lock. The fetch thread alone owns GETs
 * and the body of a range in flight, and works on them without the lock.
 */
#ifndef TOKEND_STORE_STORES_H
#define TOKEND_STORE_STORES_H

#include "daemon/store/cache.h"
#include "daemon/store/certificates.h"
#include "daemon/store/credentials.h"
#include "daemon/store/curl.h"
#include "daemon/store/limit.h"
#include "daemon/store/retry.h"
#include "daemon/store/store.h"
#include "daemon/store/url.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include <unistd.h>

struct range;

enum want_state {
	WANT_QUEUED,  /* by the data thread, before its commit */
	WANT_ARRIVED, /* for the fetch thread */
	WANT_JOINED,  /* waits for `range` */
	WANT_DONE,
};

TAILQ_HEAD(wants, want);

struct want {
	uint64_t tag;
	struct object object; /* its strings are the caller's: not for the time after DONE */
	uint64_t at;
	size_t n;
	void *to;
	uint32_t session_id;
	struct session *session;
	enum want_state state;
	struct range *range; /* JOINED, DONE: holds a reference; NULL: without */
	size_t offset;	     /* in the body of `range` */
	int64_t since_ms;
	const struct fault *fault; /* DONE; NULL: read */
	pthread_cond_t *ended;	   /* of a blocked thread; NULL: the data thread's */
	bool piece;		   /* for the cache */
	TAILQ_ENTRY(want) link;	   /* of its list by state */
	TAILQ_ENTRY(want) of_session;
};

/* Ranges of one session and bucket that wait for their GET. Sessions of a bucket take turns. */
struct line {
	struct session *session;
	struct store_bucket *bucket;
	TAILQ_HEAD(ranges, range) ranges;
	TAILQ_ENTRY(line) turn; /* while there are ranges */
	struct line *next;	/* of the session */
};

struct session {
	uint32_t id;
	bool cancelled;
	struct wants wants; /* unanswered, oldest first */
	struct line *lines;
	struct session *next; /* of its chain in the table */
};

/* One window in a range, in the index of those that are fetched or kept. */
struct part {
	uint64_t hash, at;
	size_t n;
	struct range *range;
	struct part *next; /* of its chain in the index */
};

enum range_state {
	RANGE_WAITS, /* in `line` */
	RANGE_FLIES, /* the fetch thread has a GET for it */
	RANGE_RESTS, /* until `due_ms` */
	RANGE_KEPT,  /* the body is there */
	RANGE_ENDED, /* with a fault, or not to be kept: freed with its last reference */
};

struct range {
	struct store_bucket *bucket;
	struct line *line;
	char *key, *etag;  /* etag NULL: any */
	const char *query; /* of a listing; "": none */
	uint64_t size, at;
	size_t n; /* bytes of `body`; of a whole answer, the most */
	enum verdict_want kind;
	enum range_state state;
	bool piece;	     /* for the cache: not merged, and not kept once nobody copies it */
	unsigned references; /* of wants that are done, and of the index while it is kept */
	char *body;
	size_t body_n;	    /* after its end */
	struct wants wants; /* joined */
	struct tries tries;
	int64_t denied_ms; /* when it was first denied */
	bool denied;
	bool heals;    /* waits for a store that does not answer */
	bool renews;   /* waits for other credentials */
	bool once;     /* of store_ask() */
	bool no_match; /* without If-Match, so that the answer says the ETag */
	bool fresh;    /* over a new connection */
	int64_t since_ms, due_ms;
	char reason[96];     /* of the last fault */
	struct fault *fault; /* ENDED; NULL: none */
	/* Of WHOLE and HEAD: what the answer said. */
	char answer_etag[STORE_ETAG_BYTES];
	uint64_t answer_size;
	TAILQ_ENTRY(range) link; /* of its list by state */
	unsigned parts;
	struct part part[];
};

struct get;

struct store_bucket {
	struct stores *stores;
	struct url_place place;
	struct wallet *wallet;
	struct store_bucket *next;

	/* The lock's. */
	struct limit limit;
	TAILQ_HEAD(, line) turns;
	struct ranges kept;  /* least recently used first */
	uint64_t body_bytes; /* of all bodies, in flight and kept */
	bool starved;	     /* ranges wait for memory */
	uint64_t successes;
	int64_t success_begun_ms; /* the latest beginning of a GET that succeeded */
	char waits_for[160];	  /* no credentials yet: why; "": they are there */
	struct store_status status;
	int64_t fault_ms;	/* of status.last; 0: none */
	int64_t fails_since_ms; /* since the last success; 0: it does not fail */
	int64_t logged_ms;	/* the last log line; 0: none since the last recovery */

	/* The fetch thread's. */
	struct credentials *credentials;
	int64_t clock_offset_s;
	struct get *spare;		  /* handles */
	struct certificates certificates; /* of a store with `ca:` */
	const char *ca_directory;	  /* the system's, in addition; NULL: none */
};

enum { SESSIONS_CHAINS = 64, INDEX_CHAINS = 1 << 14 };

struct stores {
	struct store_options options;
	struct store_cache *cache; /* NULL: none */
	struct wallets *wallets;
	const struct curl *curl;
	pthread_mutex_t adding; /* of buckets; taken before the lock */
	pthread_mutex_t lock;
	atomic_bool new_credentials;
	/* The lock's. */
	struct store_bucket *buckets;
	unsigned bucket_count;
	struct session *session[SESSIONS_CHAINS];
	struct part *index[INDEX_CHAINS];
	struct wants arrived, done;
	struct ranges resting;
	bool stopped, ending, woken;
	char line[400]; /* to be logged; "": none */
	void (*news)(void *context);
	void *news_context;
	/* The data thread's. */
	struct wants queued, taken; /* taken: until the next store_take() */
	struct wants spare;
	/* The fetch thread. */
	pthread_t thread;
	bool running;
	bool leaks; /* a name is being looked up, which cannot be ended */
	int wake_fd, epoll_fd;
	CURLM *multi;
	int64_t curl_due_ms;	    /* INT64_MAX: never */
	TAILQ_HEAD(gets, get) gets; /* in flight */
	struct gets ended;	    /* their outcome is not applied yet */
	uint32_t random;
};

/* ---- stores.c ---- */

int64_t stores_now_ms(void);
/* Wakes the fetch thread. With the lock. */
void stores_wake(struct stores *stores);
/* Tells the data thread that store_take() has something. Without the lock. */
void stores_tell(struct stores *stores);
/* With the lock. NULL: out of memory. */
struct session *session_find(struct stores *stores, uint32_t id);
struct line *session_line(struct session *session, struct store_bucket *bucket);

/* ---- bucket.c ---- */

void buckets_free(struct stores *stores);

/* Counts bytes that a read returns. Without the lock. */
void bucket_used(const struct object *object, size_t n);

/* ---- wants.c; all with the lock ---- */

/* Adds a want for the fetch thread. True: the data thread has news. */
bool want_arrive(struct stores *stores, struct want *want);
/* The want ends: its thread is woken, or it goes to the data thread. @fault NULL: `range` has its
 * bytes. True: the data thread has news. */
bool want_end(struct stores *stores, struct want *want, const struct fault *fault);
/* Ends all wants of @session with ECANCELED. True: the data thread has news. */
bool wants_cancel(struct stores *stores, struct session *session);
/* The want leaves its range, after its body was copied. */
void want_leave(struct stores *stores, struct want *want);
extern const struct fault want_cancelled, want_no_memory;

/* ---- ranges.c; all with the lock ---- */

uint64_t range_hash(const struct object *object);
/* The range that has, or will have, exactly these bytes. */
struct part *range_find(
	struct stores *stores, const struct object *object, uint64_t hash, uint64_t at, size_t n);
/* A range with room for @parts, which is not in the index. NULL: out of memory. */
struct range *range_new(const struct object *object, const char *query, unsigned parts);
/* Adds a window to the index. */
void range_add_part(
	struct stores *stores, struct range *range, uint64_t hash, uint64_t at, size_t n);
void range_join(struct range *range, struct want *want);
/* Appends it to its line; @first: puts it at the front. */
void range_wait(struct range *range, struct session *session, bool first);
/* Reserves memory and allocates the body. False: later. */
bool range_reserve(struct range *range);
void range_free_body(struct range *range);
/* Gives the body to the caller, who frees it. */
char *range_take_body(struct range *range);
/* Removes it from the index. It is freed with its last reference. */
void range_end(struct range *range);
void range_unref(struct range *range);
/* Frees a range that nobody waits for, unless it is in flight. */
void range_abandon(struct range *range);
/* Keeps the body of a range, whose wants have ended. */
void range_keep(struct range *range);
/* Frees all that are kept. */
void ranges_drop(struct store_bucket *bucket);

/* ---- arrive.c; with the lock ---- */

/* Assigns the wants that have arrived to ranges. True: the data thread has news. */
bool stores_arrive(struct stores *stores);

/* ---- outcome.c ---- */

/* What one GET brought. The fetch thread, without the lock. */
struct outcome {
	struct verdict verdict;
	unsigned retry_after_s, first_byte_ms;
	int status; /* 0: no answer */
	uint64_t bytes;
	uint64_t serial; /* of the credentials */
	bool timeout, fresh_clock;
	int64_t clock_offset_s;
	int64_t begun_ms;
};

/* With the lock. True: the data thread has news. */
bool outcome_apply(struct range *range, const struct outcome *outcome);

/* ---- get.c; the fetch thread, without the lock ---- */

/* Starts a GET. False: @fault. */
bool get_begin(struct range *range, struct fault *fault);
/* One GET has ended, or its time is over: it moves to `ended`, with its outcome. */
void get_end(struct get *get, CURLcode code);
/* Ends GETs that are too slow. Returns after how many milliseconds to call again. */
unsigned gets_check(struct stores *stores, int64_t now_ms);
/* Its handle can be used again. */
void get_release(struct get *get);
void gets_close(struct stores *stores);
void get_free_spares(struct store_bucket *bucket);

/* ---- fetch.c ---- */

/* Starts the fetch thread. False: @fault. */
bool fetch_open(struct stores *stores, struct fault *fault);
/* Ends the thread. GETs in flight stay. */
void fetch_end(struct stores *stores);
/* Frees the GETs and what the thread had. */
void fetch_close(struct stores *stores);

#endif
