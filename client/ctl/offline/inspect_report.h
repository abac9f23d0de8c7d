/* What `tokctl inspect` says about one file. */
#ifndef TOKEND_CTL_INSPECT_REPORT_H
#define TOKEND_CTL_INSPECT_REPORT_H

#include "client/ctl/common/out.h"
#include "daemon/config/config.h"
#include "daemon/shard/shard.h"

#include <limits.h>

enum { REPORT_PROBLEMS = 4 }; /* more are left out */

struct report {
	const char *path;
	const char *format; /* NULL: it could not be opened */
	struct shard_facts facts;
	const struct config_stream *stream; /* NULL: no dataset of a config lists it */
	uint64_t windows, unserved;
	bool scanned;
	uint64_t most;	 /* the largest id; scanned */
	bool has_mask;	 /* something says which tokens may be no labels: */
	uint64_t masked; /* so many; scanned */
	unsigned problems;
	char problem[REPORT_PROBLEMS][PATH_MAX + 512];
};

__attribute__((format(printf, 2, 3))) void report_problem(struct report *r, const char *text, ...);
void report_put_text(struct ctl_out *out, const struct report *r);
void report_put_json(struct ctl_out *out, const struct report *r);

#endif
