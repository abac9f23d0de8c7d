/*
 * Whose each run is. A run belongs to the first user other than root and admin_uids who attached to
 * it or saved in it; root and admin_uids may do everything, everybody else may not attach to it,
 * save its snapshots or change it. state_dir holds the truth (run_dir.h), and whatever is written
 * there is checked against it. What the loop decides by is a copy in memory, read when the daemon
 * starts: no attach waits for state_dir.
 *
 * A run that was not given a name is called "default". If that belongs to somebody else, it is
 * called default@UID.
 */
#ifndef TOKEND_RUNS_H
#define TOKEND_RUNS_H

#include "daemon/control/mix_log.h"
#include "daemon/control/run_dir.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config;
struct connection;
struct keeper;
struct refusal;
struct server;
struct session;
struct stream;

struct runs;

/* Reads the owners of all runs in state_dir, for which it waits a moment. NULL: out of memory. */
struct runs *runs_start(struct server *server);
void runs_free(struct runs *runs);

/* May this user do everything? */
bool runs_privileged(const struct config *config, uid_t uid);
/* May the user of @s attach to its run? Changes the name of an unnamed one that belongs to somebody
 * else. */
bool runs_enter(struct session *s, struct refusal *r);
/* The name by which this user's unnamed run goes, if @run is unnamed; @run has room for any name.
 */
void runs_rename(const struct connection *c, const struct stream *stream, char *run);
/* Its attach is about to begin: may this user begin another run, and write its log of mixes? */
bool runs_begin(struct session *s, struct refusal *r);
/* @s is attached: its user, unless privileged, becomes the owner if there is none. False: somebody
 * was faster, also in another daemon with this state_dir, which @noted says. */
bool runs_claim(struct session *s, const struct mix_log_noted *noted, struct refusal *r);
/* May the user of @c change this run? */
bool runs_may_change(const struct connection *c, const struct stream *stream, const char *run);

/* Fills what a job says about a run. */
void runs_place(struct server *server, uid_t uid, const char *stream, const char *name,
	struct run_place *place);
/* On the loop, in a job's done(): the job has opened the run's directory, and so left nothing over
 * there. */
void runs_cleaned(struct server *server, const struct run_place *place);
/* state_dir says that @owner has the run; RUN_NOBODY: nothing. Sessions of others end, they may
 * attach again.
 */
void runs_found(struct server *server, const char *stream, const char *run, uid_t owner);

/*
 * In libuv's pool: adds the cursor that a session attaches with to the run's log of mixes. Waits a
 * moment for that, and not at all while state_dir does not answer; then it is added later. What is
 * known by then.
 */
struct mix_log_noted runs_note(struct server *server, const struct run_place *place,
	uint64_t checksum, const void *bytes, size_t n);
/* On the loop: adds the cursor that @s, which is fed, attached with once more. It is written later.
 */
void runs_note_again(const struct session *s);

#endif
