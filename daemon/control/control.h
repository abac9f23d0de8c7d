/*
 * The room's own header, a section for each file; struct control has all parts, which server.c
 * creates and destroys. Everything is the loop's, unless it says otherwise.
 */
#ifndef TOKEND_CONTROL_H
#define TOKEND_CONTROL_H

#include "daemon/catalog/catalog.h"
#include "daemon/config/config.h"
#include "daemon/control/host.h"
#include "daemon/engine/engine.h"
#include "daemon/reader/reader.h"
#include "daemon/store/store.h"
#include "proto/limits.h"

#include <jansson.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <uv.h>

struct control;
struct session;

/* ---- reload.c: the config is read again ---- */

/* What a daemon keeps when it executes itself: a memfd passes it, the datasets and the config. */
struct reload_kept {
	pid_t pid;
	int memfd;     /* -1: it did not */
	long text_at;  /* of the config in memfd, after the datasets */
	bool terminal; /* it had one at its start */
	struct listener listener;
	uint64_t reloads, refused; /* so far, for metrics */
};

struct reload {
	uv_work_t work;
	uv_timer_t timer;
	bool running;
	uint64_t since_ms; /* when the last one began */
	struct control *control;

	struct config *config; /* that was checked, and what it names */
	struct stores *stores;
	struct catalog *catalog;
	FILE *saved; /* the memfd */
	long text_at;
	uint64_t staging_bytes;
	bool checked;
	struct fault fault;		/* unless checked */
	bool blocked;			/* signals are */
	uint64_t paused_ms;		/* when reading was paused; 0: it is not */
	char refused[LIMIT_TEXT_BYTES]; /* why the last one failed: an older config is in use; "" */
};

/* Begins a reload, or notes that another one is to follow the present one. */
void reload_begin(struct reload *reload);
void reload_stop(struct reload *reload); /* the daemon stops */
/* Whether this process has executed itself. True: fills @kept, whose descriptors are ours again. */
bool reload_taken(struct reload_kept *kept);
/* The config at @path and its catalog, or what the former image passes. NULL: @fault. */
struct config *reload_config(const struct reload_kept *kept, const char *path, struct fault *fault);
struct catalog *reload_catalog(const struct reload_kept *kept, const struct config *config,
	struct stores *stores, struct fault *fault);

/* ---- state.c: state_dir and runs ---- */

/*
 * Calls on state_dir may hang, so they are jobs: one at a time in libuv's pool, in the order in
 * which they were given. Only a client that waits for a job notices, until STATE_DEADLINE_MS have
 * passed.
 */
enum { STATE_DEADLINE_MS = 20000 };

struct state_job {
	TAILQ_ENTRY(state_job) others;
	struct state *state;
	uv_work_t pool;
	struct connection *connection;	     /* that waits for it, as its `errand`; or NULL */
	uint64_t serial;		     /* of its query */
	uint64_t since_ms;		     /* when it was given */
	void (*work)(struct state_job *job); /* in the pool; may block */
	/* Always called; frees the job. @connection waits for a reply, unless it is NULL. */
	void (*done)(struct state_job *job);
};

struct state {
	uv_loop_t *loop;
	TAILQ_HEAD(, state_job) waiting;
	struct state_job *running;
	uint64_t begun_ms; /* when that began */
	unsigned jobs;	   /* waiting or running */
	const char *dir;
	bool durable; /* it is, and its parents are; used by jobs */
};

/* Its work and done are set; serial, too, if @c is to wait for it. */
void state_give(struct state *state, struct connection *c, struct state_job *job);
/* The connection closes, or has its reply: its job ends now, unless it has begun. */
void state_forget(struct connection *c);
/* How long the present job has been running; 0: none. */
uint64_t state_busy_ms(const struct state *state);

/* Names a run in a job. */
struct state_run {
	struct state *state;
	char stream[LIMIT_NAME_BYTES + 1], name[LIMIT_NAME_BYTES + 1];
};

void state_init(struct state *state, uv_loop_t *loop, const char *dir);
/*
 * The config's state_dir; $STATE_DIRECTORY (from systemd) if the config names none; a directory of
 * this config and user, if the config names none and @private is set, or if this user may not write
 * there. @private: a private daemon. Owned by the caller. NULL: out of memory.
 */
char *state_place(const struct config *config, bool private);
/* These block: only jobs call them. Load returns the length in @bytes, of LIMIT_CURSOR_BYTES, or 0;
 * the contents are not checked. */
bool state_save(const struct state_run *run, const char *tag, const void *bytes, size_t n,
	struct fault *fault);
size_t state_load(const struct state_run *run, const char *tag, void *bytes, struct fault *fault);
/* Saves the cursor as the run's, unless that has the same mixes. */
bool state_note(const struct state_run *run, const void *bytes, size_t n, bool *written,
	struct fault *fault);
struct state_run state_run(const struct session *s);
/* A session attaches at this cursor, or goes on at it: saves it as the run's, soon. */
void state_attached(const struct session *s, const void *bytes, size_t n);

/* Is @uid root, the daemon's own user or in admin_uids? Such users may use each run. */
bool runs_privileged(const struct config *config, uid_t uid);
bool runs_may(const struct config *config, uid_t uid, const char *run);
/* Adds @UID to @run, as @uid calls it, unless the user is privileged. False: FAULT_ATTACH, the name
 * is too long, or another user's. */
bool runs_name(const struct config *config, uid_t uid, char run[LIMIT_NAME_BYTES + 1],
	struct fault *fault);

/* ---- counts.c: counters for metrics, since the start or the last reload ---- */

/* Each has one writer, the data thread or the control thread. Others may read it at any time, so no
 * read-modify-write and no lock is needed. */
enum { COUNTS_BUCKETS = 17, COUNTS_KINDS = 6 };

struct histogram {
	_Atomic uint64_t bucket[COUNTS_BUCKETS + 1]; /* not cumulative; the last has no limit */
	_Atomic uint64_t sum_ns;
};

extern const uint64_t histogram_most_ns[COUNTS_BUCKETS];

static inline uint64_t count_of(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

static inline void count_add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_store_explicit(counter, count_of(counter) + n, memory_order_relaxed);
}

void histogram_add(struct histogram *h, uint64_t ns);

struct stream_counts {
	/* the data thread's */
	struct histogram waits; /* of trainers for a batch, from about 20 µs on */
	struct histogram reads; /* from the plan of a row to its last byte in the ring */
	_Atomic uint64_t read_bytes;
	_Atomic uint64_t read_faults[FAULT_CODES];

	/* the control thread's */
	uint64_t attaches, attaches_again;
	uint64_t published, released; /* batches of sessions that have ended */
	uint64_t snapshots, snapshots_failed;
	int64_t snapshot_s, snapshot_failed_s; /* when that happened last, Unix time; 0: never */
};

enum counts_outcome { COUNTS_DONE, COUNTS_FAILED, COUNTS_REFUSED, COUNTS_CANCELLED };

/* The control thread's, except as said. */
struct counts {
	struct stream_counts *streams; /* of each */
	_Atomic uint64_t *samples;     /* of each dataset, read into rings; the data thread's */
	uint64_t requests[COUNTS_KINDS][COUNTS_CANCELLED + 1]; /* kinds: counts_kind[] */
	int64_t begun_s; /* when the config in use was loaded, Unix time */
};

/* The kinds of requests; the last is "other". */
extern const char *const counts_kind[COUNTS_KINDS];

/* Connects the streams and datasets of @catalog with their counters. False: out of memory; call
 * counts_free() in any case. */
bool counts_join(struct counts *counts, const struct catalog *catalog);
void counts_free(struct counts *counts);
void counts_request(struct counts *counts, const char *kind, enum counts_outcome outcome);

/* ---- data_thread.c: owns the engine and the reader ---- */

/* The control thread and it talk by a set of flags per session and direction. These cannot
 * overflow, and two kicks in a row count as one. */
enum { /* orders about a session */
	/* It gets the feed, and the socket for wake-up bytes, until DATA_THREAD_GONE. */
	DATA_THREAD_ATTACH = 1,
	DATA_THREAD_KICK = 2, /* the client has released slots, or waits */
	/* DATA_THREAD_GONE follows once no read into the ring is in flight. */
	DATA_THREAD_DETACH = 4,
};
enum {				 /* its news about a session */
	DATA_THREAD_FAILED = 1,	 /* the stream stopped, because of session->failure */
	DATA_THREAD_HOSTILE = 2, /* the client wrote values out of range into its ring */
	DATA_THREAD_GONE = 4,	 /* the feed is the caller's again; its socket is unused */
};

/* Takes over the reader of control->options->reading, and sends control->news when sessions have
 * news. NULL with @fault: the reader is the caller's. */
struct data_thread *data_thread_start(struct control *control, struct fault *fault);
/* Ends the thread and closes the reader. Every feed must be gone. */
void data_thread_stop(struct data_thread *data_thread);
void data_thread_tell(struct session *s, unsigned what);
/* Begins no more reads, or goes on. */
void data_thread_pause(struct data_thread *data_thread, bool pause);
/* In a pause: may a local read be in flight? True: *@flying is it, or is not known yet. */
bool data_thread_busy(struct data_thread *data_thread, struct reader_hang *flying);
/* As of the last tick: reader_hang(). */
struct reader_hang data_thread_hang(struct data_thread *data_thread, uint32_t stream);
/* The path of its shard, or the name if that is too long. */
void hang_shard(const struct reader_hang *hang, char *path, size_t path_bytes);
/* The number of turns that it has made. Wakes it, so that it soon makes another. */
uint64_t data_thread_turns(struct data_thread *data_thread);

/* ---- users.c: caps and rates of each user ---- */

/* The packets that a file in state_dir counts as. A connection counts as one, and so does each KiB
 * of a packet or a reply, and each MiB of a ring. */
enum { USER_FILE = 1000 };

struct user {
	SLIST_ENTRY(user) others;
	struct users *all;
	uid_t uid;
	unsigned connected;
	uint64_t bytes;	 /* of rings */
	unsigned notes;	 /* cursors of its attaches that wait for state_dir */
	int64_t used_us; /* until then, its tokens are used */
};

struct users {
	const struct config *config;
	unsigned connections; /* at most */
	SLIST_HEAD(, user) known;
	unsigned present; /* users with connections */
	uid_t web_uid;	  /* of tokend-web; -1: there is no such user */
};

/* Looks for the user of tokend-web.service, who may only ask for the status. */
void users_find_web(struct users *users);
void users_free(struct users *users);
/* NULL: out of memory. */
struct user *user_of(struct users *users, uid_t uid);
/* Counts a new connection; @connected: of all users, including this one. False: too many. */
bool user_connect(struct user *user, unsigned connected, struct fault *fault);
void user_disconnect(struct user *user);
/* May the user have @need more bytes of @total for rings? The caller counts them in ->bytes. */
bool user_may_take(const struct user *user, uint64_t need, uint64_t total, struct fault *fault);
/* Is a token left? And takes so many. */
bool user_may(struct user *user, uint64_t now_ms);
void user_charge(struct user *user, uint64_t packets);

/* ---- connection.c: the sockets of clients ---- */
struct connections {
	uv_poll_t listening;
	uv_timer_t again;				  /* runs while one waits */
	bool full;					  /* out of descriptors: clients wait */
	TAILQ_HEAD(connection_queue, connection) waiting; /* their users have no tokens */
	unsigned waiting_n;
	LIST_HEAD(, connection) open;
	unsigned n;
	char incoming[LIMIT_PACKET_BYTES]; /* the packet that is being handled */
	char outgoing[LIMIT_PACKET_BYTES];
};

struct connection {
	struct control *control;
	LIST_ENTRY(connection) others;
	int fd;
	pid_t pid; /* 0: in a PID namespace that we cannot see */
	uid_t uid;
	uv_poll_t poll;
	uv_poll_t process; /* polls pidfd, if there is one */
	int pidfd;	   /* the client's process; -1: unknown */
	unsigned handles;  /* open in libuv */
	unsigned jobs;	   /* in libuv's pool: it is not freed before they return */
	bool closing;
	struct user *user;
	bool waiting; /* for a token of its user */
	TAILQ_ENTRY(connection) waits;
	uint64_t since_ms; /* when the last message arrived */

	bool greeted;
	char host[LIMIT_NAME_BYTES + 1];
	uint64_t token; /* random number of its process, from the hello; 0: none sent */
	struct session *session;
	struct state_job *errand; /* that it waits for, or NULL */
	struct request *request;  /* the operator's request whose answers it waits for, or NULL */
};

/* Begins to accept clients; those for which there is no descriptor wait. */
void connections_start(struct control *control);
/* A connection has ended, or a second is over: accepts clients again, if no descriptor was left. */
void connections_retry(struct control *control);
/* Removes the listening socket, and closes all. */
void connections_stop(struct control *control);

/* These send a message. @serial: that of the query it replies to; 0: none. @fds stay the caller's.
 * A client that does not read its replies is disconnected. */
void connection_send(struct connection *c, uint64_t serial, struct wire *w);
void connection_send_fds(struct connection *c, uint64_t serial, struct wire *w, const int fds[2]);
void connection_warn(struct connection *c, const char *text);
void connection_error(struct connection *c, uint64_t serial, const struct fault *fault);
/* The same; also logs it, and closes. */
void connection_refuse(struct connection *c, uint64_t serial, const struct fault *fault);
/* Closes it. The loop frees it later, so a handler of a message may call it. */
void connection_close(struct connection *c);
/* Frees a closed connection that has no handle, job or session left. Call it when one ends. */
void connection_settle(struct connection *c);
/* The stream that message @w names. NULL: @fault of @code. */
const struct stream *connection_stream(const struct connection *c, const struct wire *w,
	enum fault_code code, struct fault *fault);

/* Handlers of messages. The first four are for attached connections. */
void state_checkpoint(struct connection *c, const struct wire *w);
void request_pending(struct connection *c, const struct wire *w);
void request_describe(struct connection *c, const struct wire *w);
void request_answer(struct connection *c, const struct wire *w);
void session_attach(struct connection *c, const struct wire *w);
void request_new(struct connection *c, const struct wire *w);
void request_cancel(struct connection *c, const struct wire *w);
void status_reply(struct connection *c, const struct wire *w);

/* ---- session.c: an attached process ---- */

/*
 * A session is the rank, world and so on from the attach message, a ring, and the feed that fills
 * it. It lives as long as its connection. To end one, its feed is requested back from the data
 * thread. When it is back, the session is freed, and then its connection.
 */
struct session_failure {
	const struct dataset *dataset;
	uint64_t shard, token;
	struct fault fault; /* as in struct reader_done */
};

struct session {
	struct control *control;
	struct connection *connection;
	const struct stream *stream;
	uint32_t id;
	uint64_t rank, world, micro_batch, peer, slots;
	char run[LIMIT_NAME_BYTES + 1];
	uint64_t bytes;		  /* of its ring, counted in memory: */
	struct session *replaces; /* which its client is about to leave for this one; or NULL */
	uint64_t lent;		  /* bytes that memory: does not count until that has ended */
	uint64_t outlived_ms;	  /* when a session that replaced it last ended before it, or 0 */
	struct ring_memory memory;
	struct feed *feed;
	bool fed;	       /* the data thread has the feed */
	_Atomic unsigned news; /* flags of the data thread, which were not handled */
	unsigned order;	       /* and those for it, under its mutex */
	bool process_ended;
	bool again;  /* the client was attached before, and lost its connection */
	bool helper; /* it gets no operators' requests */
	struct participant *participant; /* of the open request of its run, or NULL */
	bool strict;			 /* refuse it while another process reads for its rank */
	bool left;			 /* its client reads from the session that replaces it */
	bool twin_told;
	bool mix_told;	   /* that the config has other mixes or limits */
	uint64_t twins_ms; /* when to look for twins, after a seek; 0: that was done */
	uint64_t next;	   /* the position at which it attached */
	uint64_t attached_ms;
	uint64_t full_since_ms; /* since when its ring is full, and no slot is released; or 0 */
	uint64_t full_released; /* slots released by then */
	uv_work_t unmap;	/* the job that frees its memory */
	bool vacating;		/* its memory is being freed while reads are in flight */
	unsigned leaving_s;	/* how long it has been closed with reads in flight */

	/* ---- the data thread's, while the session is fed ---- */
	_Atomic uint64_t waits, waited_ns; /* of its trainer for batches: how often, how long */
	uint64_t idle_ns;		   /* when it last did not wait for sure */
	bool shows_store;		   /* its trainer is shown for which store it waits */
	struct session_failure failure;
};

struct sessions {
	struct session *of[LIMIT_SESSIONS]; /* by id; NULL: free */
	uint32_t n;
	uint64_t staging_bytes; /* of the reader, included in memory_bytes */
	uint64_t memory_bytes;	/* rings and staging, in use or promised, as memory: counts them */
	uint64_t failures;	/* sessions stopped by a shard */
};

/* NULL: LIMIT_SESSIONS are in use, or out of memory. */
struct session *session_new(struct connection *c);
/* Frees one that was never fed; and in the pool, one that the data thread does not have, and whose
 * connection is closing. */
void session_free(struct session *s);
void session_end(struct session *s);
/* The connection closes: requests the feed back from the data thread, or ends the session. */
void session_leave(struct session *s);
/* Handles news of the data thread about the session. */
void session_news(struct session *s, unsigned news);
/* Is it fed and not closing? NULL: no. */
bool session_is_live(const struct session *s);
/* The next live session of the stream and run, from @id on, or NULL. @stream, @run NULL: any. */
struct session *session_next(
	const struct control *control, uint32_t id, const struct stream *stream, const char *run);
/* The three parts of a for() over them. */
#define SESSIONS(s, control, stream, run)                                                          \
	s = session_next(control, 0, stream, run);                                                 \
	s;                                                                                         \
	s = session_next(control, s->id + 1, stream, run)
void session_log_attach(const struct session *s);
/* The position of the next batch that its client releases. */
uint64_t session_position(const struct session *s);

/* ---- session_memory.c: rings count against `memory:` and each user's cap ---- */

/*
 * Computes the ring's @geometry from the attach message @w, and reserves its memory. Sets
 * s->replaces if the ring replaces another one of the same client. False: FAULT_ATTACH for an
 * invalid geometry; FAULT_MEMORY, passing if the ring will fit when other sessions have ended.
 */
bool session_reserve(struct session *s, const struct wire *w, struct ring_geometry *geometry,
	struct fault *fault);
void session_release(struct session *s);
/* The geometry of a ring of the stream. *@slots: 0 for the default, which is then set. */
bool session_ring(const struct stream *stream, uint64_t micro_batch, uint64_t *slots,
	struct ring_geometry *geometry, struct fault *fault);

/* ---- attach.c: compares a stream's shards with what their paths hold, before an attach ---- */
struct comparison {
	uv_work_t work;
	const struct stream *stream;
	bool running;
	unsigned ticks; /* since it began */
	STAILQ_HEAD(, attach_job) waiting;
	struct fault fault; /* unless @same */
	bool same;
	bool stopped; /* a changed shard stopped a session: restore it, or reload */
};

/*
 * Fills @out[cursor->datasets] with what is known of each; nothing of those that the config no
 * longer has. Returns a number that is equal on nodes that know the same of tokens, documents,
 * masks and vocab.
 */
uint64_t attach_shards(
	const struct stream *stream, const struct cursor *cursor, struct wire_shards *out);

/* ---- warn.c ---- */

void warn_log(const struct catalog *catalog); /* the remarks about all streams */
/* Sends the warnings of a session that was just attached at @c. May close connections. */
void warn_attached(struct session *s, const struct cursor *c);
/* False: @s is strict, and another process reads for its rank. */
bool twins_allow(const struct session *s, struct fault *fault);

/* ---- request.c: operators' changes of running jobs ---- */
struct participant {
	struct request *request;
	uint64_t rank, peer;
	enum wire_outcome outcome; /* 0: none yet */
};

struct request {
	LIST_ENTRY(request) others;
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
	LIST_HEAD(, request) open;
	uint64_t last; /* number of the newest one */
};

void requests_init(struct requests *requests);
void requests_free(struct requests *requests);
/* A session has attached: shows it the open request of its run, unless it has answered. */
void request_join(struct session *session);
void request_leave(struct session *session); /* it ends, and was fed */
/* A connection closes. If it is an operator's, its request is cancelled unless it was fetched. */
void request_abandon(struct connection *c);
/* Number of the request that this session has not answered, or 0. */
uint64_t request_number(const struct session *session);

/* ---- status.c: the state of the daemon as one JSON document ---- */
enum { STATUS_STORES = 64 }; /* buckets with rates, and in a status */
/* Counters of a bucket at two times, as of uv_now(); 0: none. */
struct store_report {
	uint64_t older_ms, newer_ms;
	struct store_status older, newer;
};

/* Sends systemd the status line if it has changed. @ready: sends READY=1, too. */
void status_notify(struct control *control, bool ready);

/* ---- all parts ---- */
struct control {
	uv_loop_t *loop;
	const struct server_options *options; /* its reader is the data thread's */
	const struct catalog *catalog;
	const struct config *config; /* the catalog's */
	struct reload reload;
	uint64_t started_ms;
	char notified[LIMIT_TEXT_BYTES + 128]; /* systemd's status line */
	struct data_thread *data_thread;
	uint64_t turns, turned_ms; /* of the data thread: the number, and when it last changed */
	struct state state;
	struct users users;
	struct counts counts;
	struct comparison comparison[LIMIT_STREAMS];	  /* by slot */
	struct store_report store_reports[STATUS_STORES]; /* by the bucket's number */
	struct sessions sessions;
	struct requests requests;
	struct connections connections;

	/* ---- server.c's ---- */
	uv_signal_t signal[3];
	uv_timer_t second;
	uv_async_t news; /* from the data thread */
	bool stopping;
	uint64_t lonely_since_ms;
};

/* Has the pool a job that has not returned to the loop? libuv counts requests of all kinds, of
 * which we make no other. Its pages do not describe the member, so it is used only here. */
static inline bool pool_busy(const struct control *control)
{
	return control->loop->active_reqs.count > 0;
}

/* Milliseconds, as of the loop's present turn. */
static inline uint64_t connection_now(const struct connection *c)
{
	return uv_now(c->control->loop);
}

/* ---- reading.c: how the reader is opened for a config, and descriptors are divided ---- */
struct reading {
	struct reader *reader;
	char note[LIMIT_TEXT_BYTES]; /* as reader_open() */
	unsigned depth;		     /* as of engine_new() */
	unsigned store_depth;	     /* the same; 0: there are no stores */
	unsigned store_places;
	unsigned sessions;     /* clients at most; other descriptors are for shards */
	uint64_t memory_bytes; /* for reading, which count in memory: */
};

/* Raises the limit of open files as far as it goes. False: it is too small for the daemon. */
bool reading_descriptors(struct fault *fault);
/* The stores of @config's datasets, for a start. @cache: with its cache, for one process. */
struct stores *reading_stores(const struct config *config, bool cache, struct fault *fault);
/* Whether a daemon could use the config's cache, also if one does. Waits for its disk. */
bool reading_fits_cache(const struct config *config, struct fault *fault);
/* Fills @reading and opens its reader for @catalog, or fails. @stores: of its datasets. */
bool reading_open(const struct catalog *catalog, struct stores *stores, struct reading *reading,
	struct fault *fault);
/* Lowers memory: to what the cgroup allows, whatever is in use now: that may be rings of the
 * previous daemon, which trainers release when they attach. Each attach checks what is left. */
void reading_cap_memory(struct config *config, const struct cgroup *cgroup);

/* ---- check.c ---- */

/* tokend --check: tries what would fail later. Returns the exit code. */
int check_run(const struct catalog *catalog, struct stores *stores, const char *state_dir);

/* ---- server.c: one libuv loop with the socket, signals and timers ---- */
struct server_options {
	const struct catalog *catalog;
	const struct reading *reading;	 /* server_run() closes its reader */
	struct stores *stores;		 /* or NULL */
	struct cgroup *cgroup;		 /* or NULL */
	const _Atomic uint64_t *rereads; /* damaged reads that were intact when repeated */
	struct reload_kept *kept;	 /* its listener is open; server_run() closes it */
	char **argv;			 /* for a reload */
	const char *state_dir;
	unsigned linger_s; /* exit after so long without a session; 0: never */
};

/* Called once a second, the first three for each connection or session. They may close it. */
void state_clock(struct connection *c); /* refuses what it has waited for until the deadline */
void session_clock(struct session *s, uint64_t now_ms);
void twins_clock(struct session *s, uint64_t now_ms); /* looks for them after a seek */
void compare_clock(struct control *control);
void status_clock(struct control *control);
/* Asserts what is true between turns of the loop. */
void sessions_check(const struct sessions *sessions);

bool server_terminal(void); /* has the process one? */
/* Serves until SIGTERM or SIGINT. Returns the exit code; failures are logged. */
int server_run(const struct server_options *options);

#endif
