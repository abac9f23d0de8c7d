#include "client/ctl/offline/proof_verdict.h"

#include <inttypes.h>
#include <stdio.h>

uint64_t proof_findings(const struct proof *p)
{
	return p->found[REPEATED] + p->found[LOST] + p->found[ALTERED];
}

void proof_verdict(const struct proof *p, bool mixes_given, char *text, size_t bytes)
{
	(void)mixes_given;
	if (proof_findings(p) > 0)
		snprintf(text, bytes,
			"not exact: of the samples from %" PRIu64 " to %" PRIu64 ", %" PRIu64
			" repeated, %" PRIu64 " lost, %" PRIu64 " altered",
			p->from, p->to - 1, p->found[REPEATED], p->found[LOST], p->found[ALTERED]);
	else if (p->skipped > 0)
		snprintf(text, bytes,
			"OK: every sample from %" PRIu64 " to %" PRIu64 " once, but %" PRIu64
			" skipped by request",
			p->from, p->to - 1, p->skipped);
	else
		snprintf(text, bytes, "OK: every sample from %" PRIu64 " to %" PRIu64 " once",
			p->from, p->to - 1);
}
