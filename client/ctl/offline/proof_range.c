#include "client/ctl/offline/proof_range.h"

#include "client/ctl/common/error.h"

#include <inttypes.h>
#include <unistd.h>

static uint64_t least_begin(const struct records *r, uint64_t pass)
{
	uint64_t least = UINT64_MAX;

	for (size_t i = 0; i < r->sections; i++)
		if (r->section[i].pass == pass && r->section[i].begin.position < least)
			least = r->section[i].begin.position;
	return least;
}

static uint64_t highest_row(const struct records *r, uint64_t pass)
{
	uint64_t last = 0;

	for (size_t i = 0; i < r->sections; i++)
		if (r->section[i].pass == pass && r->section[i].last > last)
			last = r->section[i].last;
	return last;
}

bool proof_range_reached(const struct proof_range *q, const struct records *r, uint64_t pass)
{
	return r->passes <= 1 || !q->has_from || highest_row(r, pass) > q->from;
}

/* The last of several passes may still be going on, so its range ends at its last row. */
bool proof_range_set(struct proof_range *q, const struct records *r, const struct record_peer *peer)
{
	const struct order *oldest = &r->order[peer->force[0].order].order;
	uint64_t end = oldest->end ? oldest->end : UINT64_MAX, first = oldest->segment[0]->start;
	uint64_t pass = peer->pass, last_row = highest_row(r, pass);
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	if (!q->has_from)
		q->from = least_begin(r, pass);
	if (!q->has_to) {
		q->to = last_row;
		if (q->to > end)
			q->to = end;
	}
	if (r->passes > 1 && pass + 1 == r->passes && last_row > q->from && last_row < q->to)
		q->to = last_row;
	if (q->to > end)
		ctl_fail("--to %" PRIu64 ": the stream ends at position %" PRIu64, q->to, end);
	else if (!q->has_to && q->to <= q->from)
		ctl_fail("no rows were recorded from position %" PRIu64 " on", q->from);
	else if (q->to <= q->from)
		ctl_fail("--to %" PRIu64 ": must be above --from, %" PRIu64, q->to, q->from);
	else if (q->from < first)
		ctl_fail("the range begins at position %" PRIu64 ", but the mixes before %" PRIu64
			 " are unknown; give --from, or a cursor saved earlier with --cursor",
			q->from, first);
	else if ((q->to - q->from) / 8 > memory)
		ctl_fail("positions %" PRIu64 " to %" PRIu64
			 " need more memory than there is, a bit each; give --from and --to",
			q->from, q->to);
	else
		return true;
	return false;
}
