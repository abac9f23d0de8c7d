/*
 * tokctl doctor: what a node needs for a daemon and its trainers, a line each. A part of the
 * command adds its lines in the order in which a reader should mend them.
 */
#ifndef TOKEND_CTL_DOCTOR_REPORT_H
#define TOKEND_CTL_DOCTOR_REPORT_H

#include "client/ctl/common/out.h"
#include "daemon/config/config.h"

struct doctor {
	struct ctl_out out;
	bool json;
	unsigned fixes; /* lines that ask for something */

	const struct config *config; /* NULL: none is known */
	uid_t user;		     /* the daemon's */
	char user_name[64];
	uint64_t tokens_needed; /* a second, of all trainers of this node */
	bool measured;		/* tokens_needed is what they take now */
};

/* The line of @check: fine, or skipped with the reason. */
__attribute__((format(printf, 3, 4))) void doctor_ok(
	struct doctor *d, const char *check, const char *text, ...);
__attribute__((format(printf, 3, 4))) void doctor_skip(
	struct doctor *d, const char *check, const char *text, ...);
/* A line with its remedy. */
__attribute__((format(printf, 4, 5))) void doctor_fix(
	struct doctor *d, const char *check, const char *fix, const char *text, ...);

/* Kernel, io_uring, memory limits, clock. */
void doctor_machine(struct doctor *d);
/* Whether a GPU's driver can pin a ring. */
void doctor_gpu(struct doctor *d);
/* Whether the daemon's user can read the shards, and how fast they are read. */
void doctor_shards(struct doctor *d);

#endif
