#include "daemon/control/errand.h"

#include "daemon/control/log.h"
#include "daemon/control/server.h"

#include <inttypes.h>

void errand_send(struct connection *c, struct errand *errand)
{
	errand->connection = c;
	errand->job.uid = c->uid;
	c->errand = errand;
	keeper_give(c->server->keeper, &errand->job);
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
	if (!c->errand)
		return;
	keeper_drop(c->server->keeper, &c->errand->job);
	c->errand->connection = NULL;
	c->errand = NULL;
}

void errand_clock(struct connection *c)
{
	struct refusal why;

	if (!c->errand || keeper_clock() - c->errand->job.since_ms < KEEPER_DEADLINE_MS)
		return;
	errand_forget(c);
	if (c->session && c->session->fed) {
		log_client(c->uid, LOG_ERROR,
			"pid %d: its snapshot is not saved: state_dir has not answered for %d s",
			(int)c->pid, KEEPER_DEADLINE_MS / 1000);
		refuse(&why, "checkpoint", "state_dir",
			"has not answered for %d s, nothing is known to be saved: save again once "
			"it does",
			KEEPER_DEADLINE_MS / 1000);
		connection_error(c, why.code, why.field, why.text);
		return;
	}
	refuse_passing(&why, "state_dir", "tag",
		"state_dir has not answered for %d s: look at its file system",
		KEEPER_DEADLINE_MS / 1000);
	connection_refuse_with(c, &why);
}

void errand_watch(struct server *server)
{
	uint64_t busy = keeper_busy_ms(server->keeper);
	bool stalled = busy >= KEEPER_DEADLINE_MS;

	if (stalled && !server->state_stalled)
		log_line(LOG_WARNING,
			"state_dir %s has not answered for %" PRIu64
			" s: saves fail, and mix logs are written later; training goes on",
			server->options->catalog->config->state_dir, busy / 1000);
	if (!stalled && server->state_stalled)
		log_line(LOG_NOTE, "state_dir %s answers again",
			server->options->catalog->config->state_dir);
	server->state_stalled = stalled;
}
