#include "client/ctl/online/request.h"

#include "client/ctl/common/error.h"
#include "proto/fault.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const outcomes[] = {"waiting", "noted", "done", "failed", "gone"};

static struct participant *participant_of(struct request *r, uint64_t rank, uint64_t peer)
{
	for (size_t i = 0; i < r->participants; i++)
		if (r->participant[i].rank == rank && r->participant[i].peer == peer)
			return &r->participant[i];

	struct participant *list = realloc(r->participant, (r->participants + 1) * sizeof(*list));

	if (!list)
		return NULL;
	r->participant = list;
	list[r->participants] = (struct participant){.rank = rank, .peer = peer};
	return &list[r->participants++];
}

struct participant *participant_seen(struct request *r, const struct wire *w)
{
	struct participant *a =
		participant_of(r, wire_number(w, WIRE_RANK), wire_number(w, WIRE_PEER));

	if (!a)
		return NULL;
	a->pid = wire_number(w, WIRE_PID);
	a->world = wire_number(w, WIRE_WORLD);
	a->micro_batch = wire_number(w, WIRE_MICRO);
	if (!wire_text(w, WIRE_HOST, a->host, sizeof(a->host)))
		a->host[0] = 0;
	return a;
}

const char *participant_name(const struct participant *a, char *to, size_t room)
{
	char peer[32] = "";

	if (a->peer)
		snprintf(peer, sizeof(peer), ", peer %" PRIu64, a->peer);
	snprintf(to, room, "rank %" PRIu64 "%s (pid %" PRIu64 " on %s)", a->rank, peer, a->pid,
		a->host[0] ? a->host : "?");
	return to;
}

static void put_answer(struct request *r, const struct participant *a)
{
	struct ctl_out *out = &r->out;
	char name[160];

	if (!r->json) {
		ctl_put_left(out, participant_name(a, name, sizeof(name)), 0);
		ctl_put(out, a->outcome == WIRE_NOTED  ? ": has seen it"
			     : a->outcome == WIRE_GONE ? ": ended without an answer"
						       : ": ");
		ctl_put(out, a->outcome == WIRE_DONE && !a->text[0] ? "done" : "");
		ctl_put_left(out, a->text, 0);
		ctl_put(out, "\n");
		ctl_finish(out, CTL_OK);
		return;
	}
	ctl_put(out, "{");
	ctl_put_pair(out, "request", r->number);
	ctl_put(out, ",\"outcome\":");
	ctl_put_string(out, outcomes[a->outcome]);
	const struct {
		const char *key;
		uint64_t value;
	} pairs[] = {{"rank", a->rank}, {"world", a->world}, {"micro", a->micro_batch},
		{"peer", a->peer}, {"pid", a->pid}, {"waiting", r->waiting}};

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		ctl_put(out, ",");
		ctl_put_pair(out, pairs[i].key, pairs[i].value);
	}
	ctl_put(out, ",\"host\":");
	ctl_put_string(out, a->host);
	ctl_put(out, ",\"text\":");
	ctl_put_string(out, a->text);
	ctl_put(out, "}\n");
	ctl_finish(out, CTL_OK);
}

bool request_answered(struct request *r, const struct wire *w)
{
	struct wire_bytes cursor = wire_bytes(w, WIRE_CURSOR);
	uint64_t outcome = wire_number(w, WIRE_OUTCOME);
	struct participant *a = participant_seen(r, w);
	struct fault fault;

	if (!a) {
		ctl_fail(PHRASE_MEMORY);
		return false;
	}
	if (wire_number(w, WIRE_SERIAL) != r->serial || wire_number(w, WIRE_NUMBER) != r->number ||
		outcome < WIRE_NOTED || outcome > WIRE_GONE || a->world == 0 ||
		a->world > LIMIT_WORLD || a->micro_batch == 0 ||
		a->micro_batch > LIMIT_MICRO_BATCH) {
		ctl_fail("the daemon sent an answer to another request; " PHRASE_RELEASE);
		return false;
	}
	a->outcome = (enum wire_outcome)outcome;
	a->same = !wire_has(w, WIRE_SAME) || wire_number(w, WIRE_SAME);
	if (!wire_text(w, WIRE_TEXT, a->text, sizeof(a->text)))
		a->text[0] = 0;
	fault_line(a->text);
	r->waiting = wire_number(w, WIRE_WAITING);
	put_answer(r, a);
	if (outcome != WIRE_DONE || r->has_cursor || !wire_has(w, WIRE_CURSOR))
		return true;
	if (!cursor_decode(&r->cursor, cursor.at, cursor.n, &fault)) {
		ctl_fail("cursor in the answer: %s: %s", fault.field, fault.text);
		return false;
	}
	r->has_cursor = true;
	r->has_acts_from = wire_has(w, WIRE_ACTS_FROM);
	r->from = wire_number(w, WIRE_FROM);
	r->acts_from = wire_number(w, WIRE_ACTS_FROM);
	r->world_before = a->world;
	r->micro_batch_before = a->micro_batch;
	return true;
}

size_t participants_name(const struct request *r, unsigned which, char *to, size_t room)
{
	size_t n = 0, length = 0;
	char one[160];

	to[0] = 0;
	for (size_t i = 0; i < r->participants; i++) {
		if (!(which >> r->participant[i].outcome & 1))
			continue;
		if (++n > REQUEST_NAMED)
			continue;
		length += (size_t)snprintf(to + length, room - length, "%s%s", n > 1 ? ", " : "",
			participant_name(&r->participant[i], one, sizeof(one)));
	}
	if (n > REQUEST_NAMED)
		snprintf(to + length, room - length, " and %zu others", n - REQUEST_NAMED);
	return n;
}
