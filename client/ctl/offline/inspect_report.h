/* The report of `tokctl inspect` about one file. */
#ifndef TOKEND_CTL_INSPECT_REPORT_H
#define TOKEND_CTL_INSPECT_REPORT_H

#include "client/ctl/common/out.h"
#include "daemon/config/config.h"
#include "daemon/shard/shard.h"

#include <limits.h>

enum { REPORT_PROBLEMS = 4 }; /* further ones are dropped */

struct report {
	const char *path;
	const char *format; /* NULL: the file could not be opened */
	struct shard_facts facts;
	const struct config_stream *stream; /* NULL: the file is in no dataset of a config */
	uint64_t windows, unserved;	    /* unserved: tokens in no window */
	bool scanned;
	uint64_t most;	 /* the largest token, if scanned */
	bool has_mask;	 /* there is a loss mask, or a list of bounds that leaves tokens out */
	uint64_t masked; /* number of tokens that may not be labels, if has_mask and scanned */
	unsigned problems;
	char problem[REPORT_PROBLEMS][PATH_MAX + 512];
};

__attribute__((format(printf, 2, 3))) void report_problem(struct report *r, const char *text, ...);
void report_put_text(struct ctl_out *out, const struct report *r);
void report_put_json(struct ctl_out *out, const struct report *r);

#endif
