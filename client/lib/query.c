#include "client/lib/query.h"

#include "client/lib/message.h"
#include "client/lib/revive.h"
#include "client/lib/wait.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

/* Is the message in t->packet the answer to a question that was interrupted? All are answered once.
 */
static bool late_answer(struct tokend *t)
{
	const struct wire *w = &t->packet->wire;
	struct wire_bytes code = wire_bytes(w, WIRE_CODE);
	bool unsaved =
		w->op == WIRE_ERROR && code.n == 10 && memcmp(code.at, "checkpoint", 10) == 0;

	if (t->late == 0 || (w->op != WIRE_SAVED && w->op != WIRE_REQUEST &&
				    w->op != WIRE_DESCRIBED && !unsaved))
		return false;
	t->late--;
	return true;
}

int query_listen(struct tokend *t)
{
	for (;;) {
		switch (link_receive(t->fd, t->packet)) {
		case LINK_NOTHING:
			return 0;
		case LINK_WAKE:
			break;
		case LINK_CLOSED:
			handle_lose(t);
			return 0;
		case LINK_FAULT:
			return handle_latch(t, message_invalid(t));
		case LINK_MESSAGE:
			if (!message_warning(t) && !late_answer(t) &&
				t->packet->wire.op == WIRE_ERROR)
				return handle_latch(t, message_refused(t));
			break;
		}
	}
}

static int tell(struct tokend *t, const struct wire *wire)
{
	for (;;) {
		int error = link_send(t->fd, wire, t->out);

		if (error == 0)
			return 1;
		if (error == -EMSGSIZE)
			return handle_fail(t, TOKEND_EARGUMENT, "message", "longer than %d bytes",
				LIMIT_PACKET_BYTES);
		if (error != -EAGAIN) {
			handle_lose(t);
			return 0;
		}

		int r = wait_ready(t, t->fd, POLLOUT, wait_now() + WAIT_SLICE_MS * WAIT_MS);

		if (r < 0)
			return r;
	}
}

static bool answers(const struct wire *question, const struct wire *w, enum wire_op answer)
{
	struct wire_bytes asked = wire_bytes(question, WIRE_TAG), got = wire_bytes(w, WIRE_TAG);

	return w->op == answer &&
	       (!wire_has(question, WIRE_TAG) ||
		       (asked.n == got.n && memcmp(asked.at, got.at, got.n) == 0));
}

/*
 * 1: it is in t->packet, 0: the daemon is lost, or an error. Without a @question: until those that
 * were interrupted are answered, for an answer does not say which question of its kind it is to.
 */
static int await(struct tokend *t, const struct wire *question, enum wire_op answer)
{
	while (question || t->late > 0) {
		int r = wait_ready(t, t->fd, POLLIN, wait_now() + WAIT_SLICE_MS * WAIT_MS);

		if (r < 0)
			return r;
		switch (link_receive(t->fd, t->packet)) {
		case LINK_NOTHING:
		case LINK_WAKE:
			continue;
		case LINK_CLOSED:
			handle_lose(t);
			return 0;
		case LINK_FAULT:
			return handle_latch(t, message_invalid(t));
		case LINK_MESSAGE:
			break;
		}
		if (message_warning(t) || late_answer(t))
			continue;
		if (question && answers(question, &t->packet->wire, answer))
			return 1;
		if (t->packet->wire.op == WIRE_ERROR) {
			r = message_refused(t);
			return r == TOKEND_EDATA ? handle_latch(t, r) : r;
		}
	}
	return 1;
}

int query(struct tokend *t, const struct wire *question, enum wire_op answer)
{
	for (;;) {
		int r = t->fd < 0 ? revive(t, true) : 1;

		if (r == 1)
			r = await(t, NULL, answer);
		if (r == 1)
			r = tell(t, question);
		if (r == 1) {
			r = await(t, question, answer);
			t->late += r == TOKEND_EAGAIN;
		}
		if (r != 0)
			return r == 1 ? 0 : r;
	}
}
