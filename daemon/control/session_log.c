#include "daemon/control/session_log.h"

#include "daemon/control/control.h"

#include <inttypes.h>

struct log_subject session_subject(const struct session *s, const char *shard)
{
	return (struct log_subject){
		.stream = s->stream->config->name, .run = s->run, .rank = s->rank, .shard = shard};
}

void session_log_attach(const struct session *s)
{
	const struct connection *c = s->connection;
	struct log_subject subject = session_subject(s, NULL);

	log_session(c->uid, &subject, LOG_NOTE,
		"pid %d (uid %u) attached%s: stream %s, run %s, rank %" PRIu64 " of %" PRIu64
		", micro_batch %" PRIu64 ", from position %" PRIu64,
		(int)c->pid, (unsigned)c->uid, s->again ? " again" : "", subject.stream, s->run,
		s->rank, s->world, s->micro_batch, s->next);
}

void session_log_detach(const struct session *s)
{
	const struct connection *c = s->connection;
	struct log_subject subject = session_subject(s, NULL);
	struct feed_counters counters = feed_counters(s->feed);
	struct data_thread_waits waits = data_thread_waits(s->control->data_thread, s->id);
	double lived_s = (double)(connection_now(c) - s->attached_ms) / 1e3;

	log_session(c->uid, &subject, LOG_NOTE,
		"pid %d (uid %u) detached%s: stream %s, run %s, rank %" PRIu64 " of %" PRIu64
		": %" PRIu64 " samples in %.1f s, waited %.1f s in %" PRIu64 " waits",
		(int)c->pid, (unsigned)c->uid, s->process_ended ? ", its process ended" : "",
		subject.stream, s->run, s->rank, s->world, counters.released * s->micro_batch,
		lived_s, (double)waits.ns / 1e9, waits.times);
}
