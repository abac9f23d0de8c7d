/* The HTML page of `tokctl report`: one file that needs nothing else. */
#ifndef TOKEND_CTL_REPORT_PAGE_H
#define TOKEND_CTL_REPORT_PAGE_H

#include "client/ctl/offline/proof.h"
#include "client/ctl/offline/report_count.h"

#include <stdio.h>

struct report_page {
	FILE *to;
	const struct ctl_stream *s;
	const struct ctl_history *history;
	bool records; /* some were given */
	uint64_t end; /* after the last position that was taken */
};

void report_page_begin(const struct report_page *p);
/* A pass of a peer, proven and counted. @verdict is one line. False: out of memory. */
bool report_page_pass(const struct report_page *p, const struct proof *proof,
	const struct report_count *count, const char *verdict);
/* The mixes, and the end of the page. */
void report_page_end(const struct report_page *p);

#endif
