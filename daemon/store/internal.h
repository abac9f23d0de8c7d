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

#include <curl/curl.h>

#include <pthread.h>
#include <stdatomic.h>
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

/* The functions that are used, without "curl_". */
struct curl {
	typeof(curl_global_init) *global_init;
	typeof(curl_easy_init) *easy_init;
	typeof(curl_easy_cleanup) *easy_cleanup;
	typeof(curl_easy_perform) *easy_perform; /* only for threads that may block */
	typeof(curl_easy_setopt) *easy_setopt;
	typeof(curl_easy_getinfo) *easy_getinfo;
	typeof(curl_easy_strerror) *easy_strerror;
	typeof(curl_slist_append) *slist_append;
	typeof(curl_slist_free_all) *slist_free_all;
	typeof(curl_multi_init) *multi_init;
	typeof(curl_multi_cleanup) *multi_cleanup;
	typeof(curl_multi_add_handle) *multi_add_handle;
	typeof(curl_multi_remove_handle) *multi_remove_handle;
	typeof(curl_multi_perform) *multi_perform;
	typeof(curl_multi_poll) *multi_poll;
	typeof(curl_multi_wakeup) *multi_wakeup;
	typeof(curl_multi_info_read) *multi_info_read;
};

/* Loads libcurl once per process; it stays. NULL: @fault. Any thread. */
const struct curl *curl_load(struct fault *fault);

/* PEM, of several files. Initialise with zeros; free `text`. */
struct certificates {
	char *text; /* NULL: none */
	size_t n;
};

/* SSL_CERT_FILE, or the system's file. NULL: not found. */
const char *certificates_system(void);
/* The system's directory in which OpenSSL finds single certificates. NULL: none, or SSL_CERT_FILE
 * is to be used. */
const char *certificates_directory(void);
/* False: the file cannot be read, and errno says why. */
bool certificates_append(struct certificates *to, const char *path);

/*
 * ---- credentials.c: credentials of stores
 *
 * A wallet belongs to a store (a scheme), and all sessions share it. Its helper thread finds
 * credentials and renews them before they expire. It may block; the functions below do not.
 *
 * Secrets are in no message. A process that has any leaves no core dump, and other processes of its
 * user cannot read its memory (PR_SET_DUMPABLE).
 */

struct wallet; /* of a store; owned by the stores */

enum { CREDENTIALS_BEARER_BYTES = 8192, CREDENTIALS_QUERY_BYTES = 4096 };

enum credentials_kind {
	CREDENTIALS_ANONYMOUS, /* requests are sent as they are */
	CREDENTIALS_KEYS,      /* requests are signed with `keys` */
	CREDENTIALS_BEARER,    /* requests get the header `bearer` */
	CREDENTIALS_QUERY,     /* requests get `query` after their own */
};

/* A copy for one thread. Secret. */
struct credentials {
	uint64_t serial; /* 0: none yet. Other credentials have another one */
	enum credentials_kind kind;
	struct sign_keys keys;
	char bearer[CREDENTIALS_BEARER_BYTES]; /* "Authorization: Bearer …" */
	char query[CREDENTIALS_QUERY_BYTES];   /* encoded, without '?' */
};

/* Checks the entries of `stores:`: profiles exist, files can be read, `ca` has certificates.
 * @config may be NULL. False: @fault. */
bool wallets_check(const struct config *config, struct fault *fault);
/* Ends the helper threads, within a second. */
void wallets_close(struct stores *stores);
/* The wallet for a bucket's store. The search begins with the first call. NULL: @fault. */
struct wallet *wallet_find(
	struct stores *stores, const struct url_place *place, struct fault *fault);

enum wallet_state {
	WALLET_READY,
	WALLET_LATER, /* none yet, or they have expired and could not be renewed */
	WALLET_NONE,  /* @fault: there are none, or the config is wrong */
};

/*
 * Brings @mine up to date; nothing is copied if its serial is the current one. LATER sets @fault to
 * what is waited for ("credentials: …"), if anything failed; readings are woken when that changes.
 * This and the functions below: with the lock.
 */
enum wallet_state wallet_get(struct wallet *wallet, struct credentials *mine, struct fault *fault);
/* A store rejected the credentials with this serial (expired, or unknown): they are found anew,
 * unless newer ones are there. Until then wallet_get() returns the same ones. */
void wallet_refused(struct wallet *wallet, uint64_t serial);
/* The server's clock minus ours, in seconds: expiry is judged by it. */
void wallet_clock(struct wallet *wallet, int64_t offset_s);
/* Fills the provider's name ("web identity"; "": none yet) and the seconds until the credentials
 * expire (INT64_MAX: never). */
void wallet_status(const struct wallet *wallet, char provider[64], int64_t *expires_s);

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

struct seek {
	/* Of what. */
	const struct config_store *store; /* NULL: no entry */
	enum url_kind kind;
	char region[URL_REGION_BYTES];
	const atomic_bool *stop; /* the search must end */
	/* The result. */
	struct credentials found; /* without its serial */
	int64_t expires;	  /* INT64_MAX: never */
	char provider[64];
	struct fault fault;
	/* The search's own. */
	bool met; /* an earlier search found the instance's metadata */
	struct seek_work *work;
};

/* Asks the providers of the store in turn. Never PROVIDED_NOTHING. */
enum provided providers_search(struct seek *seek);
/* Uses the JSON object of a program or server, whose members have AWS's names. @token: the member
 * with the session token. @who: for messages. */
enum provided provide_json(struct seek *seek, const char *text, const char *token, const char *who);

/* ---- profile.c: sections of the shared AWS files ---- */

enum { PROFILE_TEXT_BYTES = 4096, PROFILE_NAME_BYTES = 128 };

/* What a section says; "": nothing. Secret. */
struct profile {
	bool found; /* in one of the files */
	char name[PROFILE_NAME_BYTES];
	char access[SIGN_ACCESS_BYTES], secret[SIGN_SECRET_BYTES], token[SIGN_TOKEN_BYTES];
	char region[SIGN_REGION_BYTES];
	char process[PROFILE_TEXT_BYTES];    /* credential_process */
	char role[PROFILE_TEXT_BYTES];	     /* role_arn */
	char token_file[PROFILE_TEXT_BYTES]; /* web_identity_token_file */
	char session[PROFILE_NAME_BYTES];    /* role_session_name */
	char source[PROFILE_NAME_BYTES];     /* source_profile, which is not supported */
	char sso[PROFILE_NAME_BYTES];	     /* sso_session or sso_start_url: the same */
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
/* The path of a file: @given, or below ~/.aws. False: there is no home. */
bool profile_path(const char *given, const char *file, char *path, size_t path_bytes);
/* Reads a file of fewer than @bytes into @text, with a zero after it. False: @fault. */
bool profile_text(const char *path, char *text, size_t bytes, struct fault *fault);
/* Cuts blanks off both ends of the @n bytes at @text, and ends it. Returns the new beginning. */
char *profile_trim(char *text, size_t n);

/*
 * ---- cache.c: pieces of objects on a local disk, each in a file of its own:
 *
 *   dir/ab/HASH/name          the object: URL, ETag, server, size, size of its pieces
 *   dir/ab/HASH/NUMBER.piece  a piece, then its XXH64 and which daemon compared them last
 *   dir/lock                  pid of the daemon that has locked the directory
 *
 * HASH is the beginning of the SHA-256 of `name`, so a replaced object is another directory. There
 * is no other index: who reads a piece opens its file. Only tokctl reads `name`.
 *
 * A piece is written to another file, which is renamed when it is whole. So a daemon that is killed
 * leaves whole pieces or none. Nothing is synced: after a power cut a piece may have other bytes.
 * So each piece is compared with its sum before a daemon first reads it. When there is no space
 * left, the pieces that were not read for the longest time are removed, by their files' times; who
 * reads one reads on.
 *
 * Functions may be called in any thread. Those that do not say so may wait for the disk.
 */

struct store_cache;

enum {
	CACHE_LEAST_PIECES = 64,
	CACHE_BLOCK = 4096, /* of the disk, for counting */
};

/* Creates, judges and locks the directory, for @size bytes, and starts a thread that adds up the
 * pieces of earlier daemons. NULL: @fault, also if another daemon uses it. */
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
	unsigned answers; /* since the last increase */
	bool halved;	  /* slow start is over */
	int64_t halved_ms;
};

/* What a thread asks for. */
struct ask {
	const char *query; /* encoded and sorted; "": none */
	struct verdict_asked asked;
	bool no_match; /* without If-Match, so that the answer says the ETag */
	bool fresh;    /* over a new connection */
	int64_t first_byte_ms;
};

/* A thread that reads an object. It is on that thread's stack. */
struct reading {
	struct stores *stores;
	uint32_t session;
	struct store_bucket *bucket;
	const char *key; /* "": the bucket */
	struct ask ask;
	bool once; /* what is missing is said at once */
	struct tries tries;
	int64_t denied_ms; /* when it was first denied; 0: never */
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
	uint64_t range[5]; /* number of the bucket, the object's size, offset, bytes, `piece` */
	struct store_bucket *bucket;
	const char *key, *etag; /* etag "": any */
	size_t n;
	bool piece;		  /* for the cache: not kept in memory */
	bool fetched;		  /* by a thread, now */
	unsigned references;	  /* of threads */
	char *body;		  /* NULL: not there yet */
	bool failed;		  /* nobody finds it any more */
	struct fault *fault;	  /* why; NULL: out of memory, too */
	TAILQ_ENTRY(shared) link; /* without references: in `kept` */
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

struct stores {
	struct store_options options;
	struct store_cache *cache; /* NULL: none */
	const struct curl *curl;
	pthread_mutex_t adding; /* of buckets; taken before the lock */
	pthread_mutex_t lock;

	/* The lock's. */
	struct wallet *wallets;
	pthread_cond_t helpers; /* of the wallets; they wake for a search */
	uint64_t serial;	/* of the newest credentials */
	atomic_bool closing;
	struct store_bucket *buckets;
	unsigned bucket_count;
	TAILQ_HEAD(, reading) readings; /* oldest first */
	void *shared;			/* a tree of all that can be found */
	bool cancelled[LIMIT_SESSIONS];
	uint64_t turn[LIMIT_SESSIONS + 1]; /* of a session, and of those without one */
	uint64_t turns;
	bool stopped;
};

/* ---- store.c ---- */

int64_t stores_now_ms(void);
uint32_t stores_random(void);
/* Starts one without signals. False: @fault. */
bool stores_thread(
	pthread_t *thread, void *(*run)(void *argument), void *argument, struct fault *fault);
/* Logs a line. Without locks. */
__attribute__((format(printf, 2, 3))) void stores_log(
	const struct store_options *options, const char *format, ...);
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

/* Makes a signed GET of what the reading asks for, and judges it. NULL: out of memory. With the
 * lock, unlocked meanwhile. */
struct get *get_make(struct reading *reading);
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
bool store_ask(struct stores *stores, const struct store_bucket *bucket, const char *key,
	const struct ask *ask, struct asked *answer, struct fault *fault);
/* Frees what is kept until @bytes more fit. False: they do not. With the lock. */
bool shared_make_room(struct store_bucket *bucket, uint64_t bytes);
/* Frees all that is kept. */
void shared_drop(struct store_bucket *bucket);

#endif
