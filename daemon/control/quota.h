/*
 * What one user may take, so that something is left for others.
 *
 * Connections and ring memory: a quarter of all connections and an eighth of all ring memory are
 * divided equally among the users in allow_uids and admin_uids. Nobody else gets a user's share,
 * even while it is free. The rest goes to the first that asks, so a single user may take all of it.
 * A few connections are kept for root and the daemon's own user, who have no limit themselves.
 *
 * state_dir: a user may write 256 files at once and then 10 a second, and begin 64 runs at once and
 * then one every two seconds; 16,384 in all. A run has at most 16,384 snapshots (snapshot_file.h).
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

/* @connections: all there are. NULL: out of memory. */
struct quotas *quotas_new(const struct config *config, unsigned connections);
void quotas_free(struct quotas *quotas);
/* NULL: this user may not connect. */
struct quota *quota_of(struct quotas *quotas, uid_t uid);

/* One connection more, of @connected with it, or less. Counted even if false: it is closed then. */
bool quota_connect(
	const struct quotas *quotas, struct quota *quota, unsigned connected, struct fault *fault);
void quota_disconnect(struct quota *quota);

/* May it take @need bytes more of @total, of which @used are in use? */
bool quota_memory(const struct quotas *quotas, const struct quota *quota, uint64_t need,
	uint64_t used, uint64_t total, struct fault *fault);
void quota_take(struct quota *quota, uint64_t bytes);
void quota_return(struct quota *quota, uint64_t bytes);

/* May it begin another run, or write another file, at @now_ms? What was done is counted afterwards.
 */
bool quota_may_begin(struct quota *quota, uint64_t now_ms, struct fault *fault);
void quota_begun(struct quota *quota);
/* A run of this user's is known. */
void quota_has_run(struct quota *quota);
bool quota_may_write(
	struct quota *quota, uint64_t now_ms, enum fault_code code, struct fault *fault);
void quota_written(struct quota *quota, unsigned files);

#endif
