#include "daemon/control/errand.h"

#include <assert.h>

void errand_send(struct keeper *keeper, struct connection *c, struct errand *errand)
{
	assert(!c->errand);
	errand->connection = c;
	errand->keeper = keeper;
	errand->job.uid = c->uid;
	c->errand = errand;
	keeper_give(keeper, &errand->job);
}

struct connection *errand_back(struct errand *errand)
{
	struct connection *c = errand->connection;

	if (c)
		c->errand = NULL;
	return c;
}

void errand_forget(struct connection *c)
{
	struct errand *errand = c->errand;

	if (!errand)
		return;
	keeper_drop(errand->keeper, &errand->job);
	errand->connection = NULL;
	c->errand = NULL;
}

void errand_clock(struct connection *c)
{
	const struct errand *errand = c->errand;

	if (!errand || keeper_clock() - errand->job.since_ms < KEEPER_DEADLINE_MS)
		return;
	errand_forget(c);
	errand->late(c, errand); /* still valid: done() frees it, on this thread */
}
