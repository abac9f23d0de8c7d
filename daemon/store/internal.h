/*
 * The state of the room, for its own files. Callers use store.h.
 *
 * A thread in store_read() makes one GET after the other until one succeeds, and waits meanwhile:
 * for credentials, for its turn, for the GET, for the time of a repetition, or for another thread
 * that fetches the same bytes. It can be cancelled in all of these waits.
 */
#ifndef TOKEND_STORE_INTERNAL_H
#define TOKEND_STORE_INTERNAL_H

#include "daemon/store/request.h"

#define CURL_DISABLE_DEPRECATION /* of masks of protocols: their successors need 7.85 */
#include <curl/curl.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/queue.h>

/*
 * ---- curl.c: libcurl, loaded when a process reads the first object
 *
 * It is not linked, so a process without objects does not load its 28 libraries, and a wheel runs
 * where there is none.
 */

/* The macros of curl.h that check the types of arguments cannot be members' names. */
#undef curl_easy_setopt
#undef curl_easy_getinfo

/* clang-format off */
#define CURL_FUNCTIONS(of)                                                                         \
	of(global_init) of(easy_init) of(easy_cleanup) of(easy_perform) of(easy_setopt)            \
	of(easy_getinfo) of(easy_strerror) of(slist_append) of(slist_free_all) of(multi_init)      \
	of(multi_cleanup) of(multi_add_handle) of(multi_remove_handle) of(multi_perform)           \
	of(multi_poll) of(multi_wakeup) of(multi_info_read)
/* clang-format on */

/* The functions that are used, without "curl_". */
struct curl {
#define CURL_MEMBER(name) typeof(curl_##name) *name;
	CURL_FUNCTIONS(CURL_MEMBER)
#undef CURL_MEMBER
	bool hashed; /* the system has a directory of certificates: see curl.c */
};

/* Loads libcurl once per process; it stays. NULL: @fault. Any thread. */
const struct curl *curl_load(struct fault *fault);
/* A handle with the options that all have. It trusts the certificates in the file @ca; NULL: the
 * system's. NULL: out of memory. */
CURL *curl_handle(const struct curl *curl, const char *ca);

/*
 * ---- credentials.c: credentials of stores
 *
 * A wallet belongs to a bucket, and all sessions share it. Its helper thread finds credentials and
 * renews them before they expire. It may block, as wallet_open() may; the other functions do not.
 *
 * Secrets are in no message. A process that has any leaves no core dump, and other processes of its
 * user cannot read its memory (PR_SET_DUMPABLE).
 */

enum { CREDENTIALS_BEARER_BYTES = 8192, CREDENTIALS_QUERY_BYTES = 4096 };

enum credentials_kind {
	CREDENTIALS_ANONYMOUS, /* requests are sent as they are */
	CREDENTIALS_KEYS,      /* requests are signed with `keys` */
	CREDENTIALS_BEARER,    /* requests get the header `bearer` */
	CREDENTIALS_QUERY,     /* requests get `query` after their own */
};

/* Secret. */
struct credentials {
	uint64_t serial; /* 0: none yet. Other credentials have another one */
	enum credentials_kind kind;
	int64_t expires;		       /* seconds since 1970; INT64_MAX: never */
	char provider[64];		       /* "web identity" */
	char bearer[CREDENTIALS_BEARER_BYTES]; /* "Authorization: Bearer …" */
	char query[CREDENTIALS_QUERY_BYTES];   /* encoded, without '?' */
	struct sign_keys keys;
};

/*
 * ---- providers.c: the environment, the shared AWS files, programs and servers
 *
 * A search may block. No message contains a secret.
 */

enum provided {
	PROVIDED,	  /* the credentials are in `found` */
	PROVIDED_NOTHING, /* this one is not set up here; the next one is asked */
	PROVIDED_LATER,	  /* it is set up, and failed with `fault`; asked again later */
	PROVIDED_WRONG,	  /* it is set up wrong, `fault`; nothing but a change helps */
};

enum {
	SEEK_ANSWER_BYTES = 64 << 10,
	SEEK_TOKEN_BYTES = 16 << 10,
	PROFILE_TEXT_BYTES = 4096,
	PROFILE_NAME_BYTES = 128,
};

struct seek {
	const struct store_bucket *bucket; /* once its stores close, the search ends in a second */
	/* The result. */
	struct credentials found; /* without its serial */
	struct fault fault;
	/* The search's own. */
	char answer[SEEK_ANSWER_BYTES]; /* of a file, a program or a server */
	size_t answer_n;
	char form[4 * SEEK_TOKEN_BYTES], token[SEEK_TOKEN_BYTES], header[SEEK_TOKEN_BYTES + 64];
	char url[2048];
};

/* Asks the providers of the store in turn. Never PROVIDED_NOTHING. */
enum provided providers_search(struct seek *seek);
/* Uses the answer, a JSON object whose members have AWS's names. @token: the member with the
 * session token. */
enum provided provide_json(struct seek *seek, const char *token);

/* What a section of the shared AWS files says; "": nothing. Secret. */
struct profile {
	char name[PROFILE_NAME_BYTES];
	char access[SIGN_ACCESS_BYTES], secret[SIGN_SECRET_BYTES], token[SIGN_TOKEN_BYTES];
	char region[SIGN_REGION_BYTES];
	char process[PROFILE_TEXT_BYTES]; /* credential_process */
	char other[PROFILE_TEXT_BYTES];	  /* SSO, a role or another profile, which are not read */
};

/*
 * Reads a section of $AWS_SHARED_CREDENTIALS_FILE and then $AWS_CONFIG_FILE, otherwise of
 * ~/.aws/credentials and ~/.aws/config; the first that has a setting counts. @name NULL:
 * $AWS_PROFILE or "default". A missing file has no sections. False: @fault, without any of the
 * file's text.
 */
bool profile_read(const char *name, struct profile *profile, struct fault *fault);
/* Parses a file's text, which is changed. @prefixed: sections are "[profile NAME]". Returns 0, or
 * the number of the line that is wrong. */
int profile_parse(char *text, bool prefixed, struct profile *profile);

struct wallet {
	struct seek search; /* the helper thread's */
	pthread_t thread;

	/* The lock's. */
	struct credentials now; /* the newest; serial 0: none */
	enum provided last;	/* what the last search ended with; NOTHING: none has ended */
	struct fault fault;	/* of `last` */
	int64_t due_ms;		/* the next search */
	unsigned failures;	/* in a row */
	int64_t clock_offset_s; /* the server's clock minus ours */
};

/* Starts the helper thread, which searches until stores.closing. False: @fault. */
bool wallet_open(struct store_bucket *bucket, struct fault *fault);

/* Searches now, but less and less often if that does not help. Readings that wait are woken when
 * there are others. This and the next one: with the lock. */
void wallet_hurry(struct wallet *wallet);
/* The seconds until the credentials expire, by the server's clock. INT64_MAX: never. */
int64_t wallet_left_s(const struct wallet *wallet);

/* One of the environment. NULL: it is not set, or empty. */
static inline const char *variable(const char *name)
{
	const char *text = getenv(name);

	return text && *text ? text : NULL;
}

/*
 * ---- cache.c: pieces of objects on a local disk, each in a file of its own
 *
 *   dir/HASH.NUMBER  a piece, then the XXH3 of each 4 KiB of it; the last 4 KiB name its object
 *   dir/new          a piece that is being written
 *
 * HASH is the beginning of the SHA-256 of the object's name, which contains its ETag: a replaced
 * object has other files. There is no other index: who reads a piece opens its file. Only tokctl
 * reads the names.
 *
 * A piece is renamed when it is whole. So a daemon that is killed leaves whole pieces or none.
 * Nothing is synced: after a power cut a piece may have other bytes, and disks flip bits. So all
 * that is read is compared with its sums. When there is no space left, the pieces that were not
 * read for the longest time are removed, by their files' times; who reads one reads on.
 *
 * Functions may be called in any thread. Those that do not say so may wait for the disk.
 */

struct store_cache;

enum {
	CACHE_LEAST_PIECES = 64,
	CACHE_BLOCK = 4096, /* of the disk; has a sum */
};

/* Creates, judges and locks the directory, for @size bytes, and adds up the pieces of earlier
 * daemons. NULL: @fault, also if another daemon uses it. */
struct store_cache *store_cache_open(
	const char *dir, uint64_t size, const struct store_options *options, struct fault *fault);
/* After every thread has left the functions below. NULL: does nothing. */
void store_cache_close(struct store_cache *cache);
/* Whether store_cache_put() takes pieces: not for a minute after a fault of the disk. Does not
 * wait. */
bool store_cache_takes(struct store_cache *cache);

/* Reads bytes [at, at + n), which are in one piece. False: the piece is not there, or was damaged
 * and is dropped. */
bool store_cache_read(
	struct store_cache *cache, const struct object *object, uint64_t at, void *to, size_t n);
/* Adds a piece, and removes others for it, unless it is there or cannot be written. */
void store_cache_put(
	struct store_cache *cache, const struct object *object, uint64_t piece, const void *bytes);

static inline uint64_t cache_piece_bytes(uint64_t size, uint64_t piece, uint64_t number)
{
	uint64_t left = size - number * piece;

	return left < piece ? left : piece;
}

/* ---- what a process reads ---- */

/* How many GETs may be in flight (AIMD), so that many nodes that begin together do not overload a
 * store. It grows by one per answer until the store is first overloaded (slow start), then by one
 * per limit answers. Overload halves it, at most once a second. */
struct limit {
	unsigned now, most;
	unsigned answers;  /* since the last increase */
	int64_t halved_ms; /* 0: slow start is not over */
};

/* What ends a reading's pause early. */
enum hasty {
	HASTY_NO,
	HASTY_STORE,	   /* the store answers again */
	HASTY_CREDENTIALS, /* there are new credentials */
};

/* libcurl's, with an open connection. It serves one GET after the other. */
struct handle {
	CURL *easy;
	CURLM *multi;
	struct handle *next; /* spare */
	char error[CURL_ERROR_SIZE];
};

/* The GET that a reading makes. */
struct get {
	struct answer answer;
	struct verdict verdict; /* by the headers, once the body begins; then of all */
	bool judged, timed_out, too_long;
	bool incomplete; /* no memory for a header */
	char *body;	 /* of an error, its beginning */
	size_t n;
	uint64_t serial;	       /* of the credentials */
	int64_t begun_ms, answered_ms; /* answered: 0 before the first header */
	int64_t first_byte_ms, deadline_ms;
	size_t stall_n; /* of the body, when deadline_ms was set */
	struct curl_slist *headers;
};

/* A thread that reads an object. It is on that thread's stack. */
struct reading {
	struct stores *stores;
	uint32_t session; /* LIMIT_SESSIONS: none */
	uint64_t number;  /* as of store_on_behalf() */
	struct store_bucket *bucket;
	const char *key;   /* "": the bucket */
	const char *query; /* encoded and sorted; "": none */
	struct verdict_asked asked;
	bool fresh;			 /* over a new connection */
	unsigned paced, other, timeouts; /* its GETs that failed: see pause_ms() */
	int64_t denied_ms;		 /* when it was first denied; 0: never */
	pthread_cond_t wake;
	int64_t since_ms;
	bool queued;	       /* waits until another GET ends, or for memory */
	uint64_t bytes;	       /* of memory that its GET needs */
	struct handle *handle; /* of its GET, until that is released */
	struct get get;
	int64_t due_ms;	  /* the end of a pause; negative: a fault is final */
	int64_t until_ms; /* it is cancelled then */
	enum hasty hasty;
	struct shared *shared;		 /* that another thread fetches; NULL: that failed, too */
	struct fault *fault;		 /* gets its fault then */
	char reason[160];		 /* of the last fault, or what it waits for */
	TAILQ_ENTRY(reading) link, turn; /* turn: while it is queued */
};

/* Bytes that threads share: fetched by one of them, or kept for later ones. */
struct shared {
	struct store_bucket *bucket;
	size_t n;
	bool piece;		  /* for the cache: not kept in memory */
	bool fetched;		  /* by a thread, now */
	unsigned references;	  /* of threads */
	char *body;		  /* NULL: not there yet */
	TAILQ_ENTRY(shared) link; /* without references: in `kept` */
	LIST_ENTRY(shared) same;  /* in stores.shared */
	char name[];		  /* of bucket, object and range */
};

struct store_bucket {
	struct stores *stores;
	struct url_place place;
	struct wallet wallet;
	struct store_bucket *next;
	unsigned number;

	/* The lock's. */
	struct limit limit;
	TAILQ_HEAD(, reading) queue; /* those that are queued */
	TAILQ_HEAD(, shared) kept;   /* least recently used first */
	uint64_t body_bytes;	     /* of ranges in flight, and of all that is shared */
	int64_t success_begun_ms;    /* the latest beginning of a GET that succeeded; 0: none did */
	struct store_status status;
	int64_t fault_ms;	/* of status.last; 0: none */
	int64_t fails_since_ms; /* since the last success; 0: it does not fail */
	int64_t logged_ms;	/* the last log line; 0: none */
	struct handle *spare;
};

struct stores {
	struct store_options options;
	struct store_cache *cache; /* NULL: none */
	const struct curl *curl;
	pthread_mutex_t adding; /* of buckets; taken before the lock */
	pthread_mutex_t lock;

	/* The lock's. */
	pthread_cond_t helpers; /* of the wallets; they wake for a search */
	atomic_bool closing;
	struct store_bucket *buckets;
	unsigned bucket_count;
	TAILQ_HEAD(, reading) readings;		     /* oldest first */
	LIST_HEAD(shared_list, shared) shared[1024]; /* all that can be found, by name */
	/* Of each session. The last is of readings without one, which are never cancelled. */
	_Atomic bool cancelled[LIMIT_SESSIONS + 1];
	uint64_t turn[LIMIT_SESSIONS + 1]; /* when it had its last one */
	uint64_t turns;
	_Atomic bool stopped;
};

/* ---- store.c ---- */

int64_t stores_now_ms(void);
uint32_t stores_random(void);

/* Logs a line. Without locks. */
__attribute__((format(printf, 2, 3))) void stores_log(
	const struct store_options *options, const char *format, ...);

/* A thread begins to read: to wait for one object. This and what follows: with the lock. */
void reading_begin(struct reading *reading, struct stores *stores,
	const struct store_bucket *bucket, const char *key);
void reading_end(struct reading *reading);
/* Also without the lock. */
bool reading_cancelled(const struct reading *reading);
/* Waits until it is woken, @due_ms the latest. Unlocked meanwhile. */
void reading_wait(struct reading *reading, int64_t due_ms);
/* Waits until reading.due_ms, or until it is cancelled. Ends reading.hasty. */
void reading_pause(struct reading *reading);
/* Ends the pauses that @cause ends, at random within @within_ms. Later ones are short again. */
void readings_hasten(struct store_bucket *bucket, enum hasty cause, uint32_t within_ms);
/* Lets readings begin their GETs, as the limit and memory allow: sessions take turns. */
void bucket_turns(struct store_bucket *bucket);

/* ---- get.c: one GET (or HEAD) ---- */

/* Makes a signed GET of what the reading asks for, and judges it: fills reading->get. False: out of
 * memory. With the lock, unlocked meanwhile. */
bool get_make(struct reading *reading);
/* Frees it; its connection stays for others. With the lock. */
void get_release(struct reading *reading);
void get_free_spares(struct store_bucket *bucket);

/* ---- read.c ---- */

/* A request that is not shared with others. Blocks until the answer is there, for the calling
 * thread's session. Returns its body of *@n bytes, which the caller frees. NULL: @fault. */
char *store_ask(struct stores *stores, const struct store_bucket *bucket, const char *key,
	const char *query, struct verdict_asked asked, size_t *n, struct answer *answer,
	struct fault *fault);
/* Frees what is kept until @bytes more fit. False: they do not. With the lock. */
bool shared_make_room(struct store_bucket *bucket, uint64_t bytes);
/* Frees what is kept for the longest time. False: nothing is kept. */
bool shared_drop_oldest(struct store_bucket *bucket);

#endif
