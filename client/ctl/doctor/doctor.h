/*
 * tokctl doctor: what a node needs for a daemon and its trainers, a line each. A part of the
 * command adds its lines in the order in which a reader should mend them.
 */
#ifndef TOKEND_CTL_DOCTOR_H
#define TOKEND_CTL_DOCTOR_H

#include "client/ctl/common/ctl.h"
#include "daemon/config/config.h"

struct doctor {
	struct emit e;
	unsigned fixes; /* lines that ask for something */

	const struct config *config; /* NULL: none is known */
	uid_t user;		     /* the daemon's */
	char user_name[64];
};

/* Prints the line of @check: "ok", "skip" with the reason in @text, or "fix" with the remedy. */
__attribute__((format(printf, 5, 6))) void doctor_line(struct doctor *d, const char *result,
	const char *check, const char *fix, const char *text, ...);
#define doctor_ok(d, check, ...)       doctor_line(d, "ok", check, NULL, __VA_ARGS__)
#define doctor_skip(d, check, ...)     doctor_line(d, "skip", check, NULL, __VA_ARGS__)
#define doctor_fix(d, check, fix, ...) doctor_line(d, "fix", check, fix, __VA_ARGS__)

/* Kernel, io_uring, memory limits, clock. */
void doctor_machine(struct doctor *d);
/* Whether a GPU's driver can pin a ring. */
void doctor_gpu(struct doctor *d);
/* Whether the daemon's user can read the shards, and how fast they are read. */
void doctor_shards(struct doctor *d);

extern const struct ctl_command ctl_doctor;

#endif
