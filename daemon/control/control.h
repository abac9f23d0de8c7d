/*
 * All parts of the control thread, for modules that need more than one. Each part belongs to the
 * module that declares its type; server.c creates and destroys them.
 */
#ifndef TOKEND_CONTROL_H
#define TOKEND_CONTROL_H

#include "daemon/catalog/catalog.h"
#include "daemon/control/cgroup.h"
#include "daemon/control/compare.h"
#include "daemon/control/connection.h"
#include "daemon/control/counts.h"
#include "daemon/control/data_thread.h"
#include "daemon/control/hang.h"
#include "daemon/control/reload.h"
#include "daemon/control/server.h"
#include "daemon/control/session.h"
#include "daemon/control/state.h"
#include "daemon/store/store.h"

#include <dirent.h>
#include <jansson.h>

/* ---- users.c: caps and rates of each user ---- */

enum user_rate {
	USER_PACKET, /* a packet, a KiB of one or of a reply, a new connection, a MiB of a ring */
	USER_FILE,   /* written into state_dir */
	USER_RATES,
};

struct user {
	SLIST_ENTRY(user) others;
	struct users *all;
	uid_t uid;
	unsigned connected;
	uint64_t bytes;		     /* of rings */
	int64_t used_us[USER_RATES]; /* until then, its tokens are used */
};

struct users {
	const struct config *config; /* the newest one */
	unsigned connections;	     /* at most */
	SLIST_HEAD(, user) known;
	unsigned present; /* users with connections */
	uid_t web_uid;	  /* of tokend-web; -1: there is no such user */
};

/* Looks for the user of tokend-web.service, who may only ask for the status. */
void users_find_web(struct users *users);
void users_free(struct users *users);
/* The user with @uid. NULL: out of memory. */
struct user *user_of(struct users *users, uid_t uid);

/* Counts a new connection of the user; @connected: all users' connections, including this one.
 * False: too many. */
bool user_connect(struct user *user, unsigned connected, struct fault *fault);
void user_disconnect(struct user *user);
/* May the user have @need more bytes of @total for rings? The caller counts them in ->bytes. */
bool user_may_take(const struct user *user, uint64_t need, uint64_t total, struct fault *fault);

/* Is a token left? */
bool user_may(struct user *user, enum user_rate rate, uint64_t now_ms);
/* The same for USER_FILE, with a fault. */
bool user_may_write(struct user *user, uint64_t now_ms, enum fault_code code, struct fault *fault);
/* Takes @n tokens. */
void user_charge(struct user *user, enum user_rate rate, uint64_t n);

/* ---- request.c: operators' changes of running jobs ---- */

struct participant {
	uint64_t rank, world, micro_batch, peer;
	pid_t pid;
	char host[LIMIT_NAME_BYTES + 1];
	enum wire_outcome outcome; /* 0: none yet */
};

struct request {
	struct request *next;
	uint64_t number, since_ms;
	const struct stream *stream;
	char run[LIMIT_NAME_BYTES + 1];
	char kind[16];
	char args[WIRE_ARGS_BYTES];
	struct connection *asker; /* the operator, who waits for answers; NULL: has left */
	uint64_t serial;	  /* of the asker's query */
	bool fetched;		  /* by a session */
	bool has_cursor;	  /* a WIRE_DONE arrived */
	uint64_t cursor;	  /* hash of that of the first one */
	unsigned participants;
	struct participant participant[LIMIT_SESSIONS];
};

struct requests {
	struct request *first; /* the open ones */
	uint64_t last;	       /* number of the newest one */
};

void requests_init(struct requests *requests);
void requests_free(struct requests *requests);

/* Asserts the invariants between turns of the loop. */
void requests_check(const struct requests *requests);

/* Handlers. The first three are for attached connections. */
void request_pending(struct connection *c, const struct wire *w);
void request_describe(struct connection *c, const struct wire *w);
void request_answer(struct connection *c, const struct wire *w);
void request_new(struct connection *c, const struct wire *w);
void request_cancel(struct connection *c, const struct wire *w);

/* A session has attached: shows it the open request of its run, unless it has answered that
 * already. */
void request_join(struct session *session);
/* A session ends that was fed. */
void request_leave(struct session *session);
/* A connection closes. If it is an operator's, its request is taken back unless it was fetched. */
void request_abandon(struct connection *c);
/* Number of the request that this session has not answered, or 0. */
uint64_t request_number(const struct session *session);

/* ---- status.c: the state of the daemon as one JSON document ---- */

enum { STATUS_STORES = 64 }; /* buckets with rates, and in a status */

/* The present state of sessions. */
struct stream_gauges {
	unsigned sessions, waiting;
	uint64_t slots, ready;	      /* batches, of all rings */
	uint64_t least_ready;	      /* of one ring */
	uint64_t published, released; /* batches */
	uint64_t full_ms;	      /* the longest: struct session */
	uint64_t store_wait_ms;	      /* the longest */
};

/* Counters of a bucket at a time. */
struct store_sample {
	uint64_t ms; /* uv_now(); 0: none */
	uint64_t requests, bytes, retries, first_byte[STORE_TIMES];
};

struct store_reports {
	struct stores *stores; /* NULL: there are none */
	struct {
		struct store_sample older, newer;
	} of[STATUS_STORES]; /* by the bucket's number */
};

/* Handles a status message. */
void status_reply(struct connection *c, const struct wire *w);
/* Of the sessions of a stream; NULL: of all, without waits for stores. */
struct stream_gauges status_gauges(const struct control *control, const struct stream *stream);
/* Takes samples for the rates of stores. Once a second. */
void status_clock(struct store_reports *r, uint64_t now_ms);
/* The state of the cache, or null. The caller owns it. @public: without its directory. */
json_t *status_cache(const struct store_reports *r, bool public);

/* ---- all parts ---- */

/* Figures of the daemon's own process, from /proc. The files are opened once, at the start, so that
 * the loop opens none. */
struct process {
	int stat; /* -1: no /proc */
	DIR *fds;
	double start_s; /* Unix time */
};

struct process_figures {
	uint64_t resident_bytes, virtual_bytes, threads, descriptors, descriptors_most;
};

struct control {
	uv_loop_t *loop;
	const struct server_options *options; /* its reader is the data thread's */
	const struct catalog *catalog;
	const struct config *config; /* the catalog's */
	struct reload reload;
	struct comparing comparing;
	uint64_t started_ms;
	char announced[LIMIT_TEXT_BYTES + 128]; /* systemd's status line */
	struct data_thread *data_thread;
	uint64_t turns, turned_ms; /* of the data thread: the number, and when it last changed */
	struct state state;
	struct state_jobs cache_jobs; /* wait for the cache's disk */
	struct users users;
	struct counts counts;
	struct process process;
	struct hangs hangs;
	struct store_reports stores;
	struct sessions sessions;
	struct requests requests;
	struct connections connections;
	struct acceptor acceptor;

	/* ---- server.c's ---- */
	uv_signal_t signal[2], hangup;
	uv_timer_t second, watchdog;
	uv_async_t news;    /* from the data thread */
	bool state_stalled; /* state_dir hangs, and that was logged */
	bool stopping;
	bool leaving; /* the last connection is gone */
	uint64_t lonely_since_ms;
};

/* ---- reading.c: how the reader is opened for a config, and descriptors are divided ---- */

struct reading {
	struct reader_options options;
	char note[LIMIT_TEXT_BYTES]; /* as reader_open() */
	unsigned sessions;	     /* clients at most; other descriptors are for shards */
	/* Datasets in stores. 0: there are none. */
	unsigned store_queues; /* of the engine */
	unsigned store_depth;  /* of each */
	uint64_t store_bytes;  /* part of memory: for answers of stores */
};

/* Raises the limit of open files as far as it goes. False: it is too small for the daemon. */
bool reading_descriptors(struct fault *fault);
/* The stores of @config's datasets, for a start. @cache: with the config's, which only one process
 * may use. */
struct stores *reading_stores(const struct config *config, bool cache, struct fault *fault);
/* Whether a daemon could use the config's cache, also if one does. Waits for its disk. */
bool reading_fits_cache(const struct config *config, struct fault *fault);
/* Opens the reader of @catalog, and fills @reading. @stores: of its datasets. NULL: @fault. */
struct reader *reading_open(const struct catalog *catalog, struct stores *stores,
	struct reading *reading, struct fault *fault);
/* Is any of the stream's datasets in a store, and in window mode? */
bool reading_by_window(const struct stream *s);
/* Bytes that reading needs, which count in `memory:`. */
static inline uint64_t reading_memory(const struct reading *reading)
{
	return reader_memory(&reading->options) + reading->store_bytes;
}

/*
 * Lowers memory: to what the cgroup allows. Beyond that, an attach would cause an OOM kill instead
 * of an error. Memory that other processes use now is ignored here: it may be rings of the previous
 * daemon, which trainers release when they attach again. Each attach checks what is left.
 */
void reading_cap_memory(struct config *config, const struct cgroup *cgroup);
/* The engine's queue for reads of @dataset, of @queues queues for stores. */
unsigned reading_queue(const struct dataset *dataset, unsigned queues);

/* ---- announce.c ---- */

/* Logs that the daemon is ready at @path: with its version, config and streams. */
void announce_ready(const struct control *control, const char *path);
/* Sends systemd the status line if it has changed. Call once a second. @ready: sends READY=1, too.
 */
void announce_state(struct control *control, bool ready);

/* ---- plan.c: remarks about a stream ---- */

/*
 * Shards that look wrong, the end of its datasets, its schedule: passes them to @tell, line by
 * line. @doubt: trainers are warned, because the tokens may not be the ones that are meant.
 */
void plan_tell(const struct stream *s, void *context,
	void (*tell)(void *context, const struct stream *s, bool doubt, const char *text));
/* Logs them. */
void plan_log(const struct stream *s);
/*
 * Whether the config's weights have no effect on a run that is at @c, with both mixes in @text:
 * they were edited since the run began. False for a run whose mix has changed since then, by an
 * operator or a schedule.
 */
bool plan_mix_differs(const struct stream *s, const struct cursor *c, const char *run, char *text,
	size_t text_bytes);

/* ---- check.c ---- */

/*
 * tokend --check: tries what would fail later. A ring of each stream must fit into memory:.
 * state_dir and the directory of the socket must be writable. A window of each dataset is read as a
 * session would read it. The plan of the streams goes to stdout, a line for each fault to stderr.
 * @stores: of the catalog's datasets. Returns the exit code.
 */
int check_run(const struct catalog *catalog, struct stores *stores);

/* ---- process.c ---- */

void process_open(struct process *p);
void process_close(struct process *p);
/* False: there is no /proc. */
bool process_read(const struct process *p, struct process_figures *figures);

#endif
