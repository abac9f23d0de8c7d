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
#include "daemon/control/request.h"
#include "daemon/control/session.h"
#include "daemon/control/state.h"
#include "daemon/control/status.h"
#include "daemon/control/users.h"

#include <dirent.h>

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
	const struct catalog *catalog;
	const struct config *config; /* the catalog's */
	struct reload reload;
	struct comparing comparing;
	struct reader *reader; /* the data thread's; only functions for any thread are called */
	struct cgroup *cgroup; /* or NULL */
	const _Atomic uint64_t *rereads; /* damaged reads that were intact when repeated */
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
	unsigned store_queues; /* of the engine */
	struct sessions sessions;
	struct requests requests;
	struct connections connections;
};

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
