/*
 * Limits per user. All on the loop.
 *
 * Connections and ring memory: a quarter of all connections and an eighth of all ring memory are
 * divided equally among the users in allow_uids and admin_uids. A user's share is reserved, even
 * while it is unused. The rest goes to the users who ask first, so a single user may take all of
 * it. A few connections are reserved for root and the daemon's own user, who have no limits.
 *
 * state_dir: a user may write 256 files at once and then 10 a second. It may begin 64 runs at once
 * and then one every two seconds, 16,384 in all. A run has at most 16,384 snapshots
 * (snapshot_file.h).
 */
#ifndef TOKEND_QUOTA_H
#define TOKEND_QUOTA_H

#include "proto/fault.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct config;
struct quotas;
struct quota; /* of one user */

/* @connections: how many the daemon serves. NULL: out of memory. */
struct quotas *quotas_new(const struct config *config, unsigned connections);
/* Lists the users of another config. Users who are no longer listed keep their counts. False: too
 * many are new. */
bool quotas_list(struct quotas *quotas, const struct config *config);
void quotas_free(struct quotas *quotas);
/* The quota of user @uid. NULL: this user may not connect. */
struct quota *quota_of(struct quotas *quotas, uid_t uid);

/* Counts a new connection of the user; @connected: all users' connections, including this one.
 * False: too many; it is counted too, until quota_disconnect(). */
bool quota_connect(
	const struct quotas *quotas, struct quota *quota, unsigned connected, struct fault *fault);
void quota_disconnect(struct quota *quota);

/* May the user take @need more bytes of @total, of which @used are in use? */
bool quota_memory(const struct quotas *quotas, const struct quota *quota, uint64_t need,
	uint64_t used, uint64_t total, struct fault *fault);
void quota_take(struct quota *quota, uint64_t bytes);
void quota_return(struct quota *quota, uint64_t bytes);

/* May the user begin another run, or write another file? Call quota_begun() and quota_written()
 * afterwards. */
bool quota_may_begin(struct quota *quota, uint64_t now_ms, struct fault *fault);
void quota_begun(struct quota *quota);
/* Counts a run that the user owns. */
void quota_has_run(struct quota *quota);
bool quota_may_write(
	struct quota *quota, uint64_t now_ms, enum fault_code code, struct fault *fault);
void quota_written(struct quota *quota, unsigned files);

#endif
