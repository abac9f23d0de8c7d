/* An operator: asks a daemon for a change of a running job, waits for the answers, or gives up. */
#include "tests/sim/job.h"

#include "client/lib/link.h"

#include <errno.h>
#include <poll.h>
#include <time.h>

enum { OPERATORS = 4 };

struct operator
{
	struct proc *proc;
	struct job *job;
	struct node *node;
	struct packet packet;
	uint8_t out[LIMIT_PACKET_BYTES];
};

static struct operator* operators[OPERATORS];

int __wrap_ppoll(struct pollfd *p, nfds_t n, const struct timespec *t, const sigset_t *mask);
int __wrap_close(int fd);

static void ask_for(const struct job *job, struct wire *w, char *args)
{
	static const char *const kinds[] = {
		"mix", "mix", "mix", "skip", "skip", "checkpoint", "drain", "rescale"};
	const char *kind = kinds[draw(8)];
	struct mix mix;
	size_t n = 0;

	if (strcmp(kind, "mix") == 0) {
		mix_invent(job, &mix);
		for (unsigned i = 0; i < mix.n; i++)
			n += (size_t)snprintf(
				args + n, ARGS - n, "weight %g %s\n", mix.weight[i], mix.name[i]);
	} else if (strcmp(kind, "skip") == 0) {
		snprintf(args, ARGS, "samples %u\n", (unsigned)draw(3000));
	} else if (strcmp(kind, "rescale") == 0) {
		snprintf(args, ARGS, "world %u\ntag t0\n", 1 + (unsigned)draw(8));
	} else {
		snprintf(args, ARGS, "tag t1\n");
	}
	wire_set_text(w, WIRE_KIND, kind);
	wire_set_text(w, WIRE_ARGS, args);
}

/* False: the connection has ended, or the time is over. */
static bool receive(struct operator* o, int fd, int64_t until)
{
	for (;;) {
		struct pollfd p = {fd, POLLIN, 0};
		int64_t left = until - fiber_now;
		struct timespec t = {left > 0 ? left / SECOND : 0, left > 0 ? left % SECOND : 0};

		switch (link_receive(fd, &o->packet)) {
		case LINK_MESSAGE:
			return true;
		case LINK_NOTHING:
			break;
		case LINK_WAKE:
			continue;
		default:
			return false;
		}
		if (__wrap_ppoll(&p, 1, &t, NULL) == 0)
			return false;
	}
}

/* The request is for the operator's own run of that name. */
static void check_run(const struct operator* o, const struct wire *w)
{
	char run[LIMIT_NAME_BYTES + 1], own[LIMIT_NAME_BYTES + 16];

	snprintf(own, sizeof(own), "%s@%u", o->job->run, (unsigned)o->proc->uid);
	CHECK(wire_text(w, WIRE_RUN, run, sizeof(run)) && strcmp(run, own) == 0);
}

static void follow(struct operator* o, int fd)
{
	const struct wire *w = &o->packet.wire;
	int64_t until = fiber_now + (int64_t)draw(chance(2) ? 50 * MILLI : 60 * SECOND);
	uint64_t number = 0;

	while (receive(o, fd, until)) {
		if (w->op == WIRE_ERROR)
			return;
		if (w->op == WIRE_ASKED) {
			check_run(o, w);
			number = wire_number(w, WIRE_NUMBER);
			world_counts.requests++;
		}
		if (w->op != WIRE_ANSWER)
			continue;
		CHECK(wire_number(w, WIRE_NUMBER) == number);
		uint64_t outcome = wire_number(w, WIRE_OUTCOME);

		if (outcome == WIRE_DONE || outcome == WIRE_FAILED)
			CHECK(job_obeyed(o->job, number, outcome));
		if (wire_has(w, WIRE_SAME))
			CHECK(wire_number(w, WIRE_SAME) == 1);
		if (wire_number(w, WIRE_WAITING) == 0) {
			CHECK(outcome != WIRE_NOTED);
			return;
		}
	}
	if (number == 0 || fiber_now < until)
		return;

	struct wire cancel = {.op = WIRE_CANCEL};
	struct fault fault;

	wire_set(&cancel, WIRE_NUMBER, number);
	wire_set(&cancel, WIRE_SERIAL, 2);
	if (link_send(fd, &cancel, o->out, &fault) && receive(o, fd, fiber_now + 5 * SECOND) &&
		w->op == WIRE_CANCELLED)
		world_counts.cancelled += wire_number(w, WIRE_FETCHED) == 0;
}

static void operator_main(void *argument)
{
	struct operator* o = argument;
	struct wire w = {.op = WIRE_REQUEST};
	char args[ARGS];
	struct fault fault;
	int fd = link_open(o->node->socket, LINK_OPERATOR, o->out, &fault);

	wire_set_text(&w, WIRE_STREAM, o->job->stream->name);
	wire_set_text(&w, WIRE_RUN, o->job->run);
	wire_set(&w, WIRE_SERIAL, 1);
	ask_for(o->job, &w, args);
	if (fd >= 0) {
		if (link_send(fd, &w, o->out, &fault))
			follow(o, fd);
		packet_close(&o->packet);
		__wrap_close(fd);
	}
	proc_kill(o->proc);
}

/* Attaches. False: it was refused, which is counted, or no daemon answered. */
static bool is_admitted(const struct tokend_options *options, uint64_t *refused)
{
	struct tokend *t;
	int r = tokend_attach(&t, options, NULL, 0);

	*refused += r == TOKEND_EREFUSED;
	return r != TOKEND_EREFUSED && r != TOKEND_ECONNECT;
}

static void stranger_main(void *argument)
{
	struct operator* o = argument;
	const struct save *s = &o->job->save[draw(o->job->saves)];
	uint8_t bytes[8192];
	struct cursor cursor;
	struct fault fault;

	CHECK(cursor_decode(&cursor, s->bytes, s->n, &fault));
	cursor.seed ^= UINT64_C(1) << draw(64);

	struct tokend_options options = {.size = sizeof(options),
		.socket = o->node->socket,
		.stream = o->job->stream->name,
		.run = "stranger",
		.world = 1,
		.micro_batch = 1,
		.cursor = bytes,
		.cursor_bytes = cursor_encode(&cursor, bytes, sizeof(bytes))};

	cursor_free(&cursor);
	if (is_admitted(&options, &world_counts.strangers))
		CHECK(!"a cursor of another seed was accepted");
	proc_kill(o->proc);
}

static void foreigner_main(void *argument)
{
	struct operator* o = argument;
	struct job *job = o->job;
	const struct save *s = &job->save[draw(job->saves)];
	struct tokend_options options = {.size = sizeof(options),
		.socket = o->node->socket,
		.stream = job->stream->name,
		.run = job->run,
		.world = 1,
		.micro_batch = 1,
		.connect_ms = 1000,
		.deadline_ms = 1000,
		.cursor = s->bytes,
		.cursor_bytes = s->n};
	uint64_t refused = 0;

	o->proc->uid = 2001 - job->uid;
	/* It is another run, and the job does not notice it. */
	if (is_admitted(&options, &refused))
		world_counts.foreigners++;
	proc_kill(o->proc);
}

static void operator_ended(struct proc *p)
{
	for (unsigned i = 0; i < OPERATORS; i++)
		if (operators[i] == p->owner)
			operators[i] = NULL;
	__real_free(p->owner);
}

static void start(struct job *job, void (*main)(void *))
{
	unsigned i = 0;

	while (i < OPERATORS && operators[i])
		i++;
	if (i == OPERATORS)
		return;
	struct operator* o = __real_calloc(1, sizeof(*o));

	CHECK(o);
	o->job = job;
	o->node = &world_node[(job->first_node + draw(job->nodes)) % world_nodes];
	o->proc = proc_new("operator", chance(4) ? 1001 : job->uid, o->node);
	o->proc->owner = o;
	o->proc->ended = operator_ended;
	operators[i] = o;
	fiber_new(o->proc, main, o);
}

void operator_start(struct job *job)
{
	start(job, operator_main);
}

void stranger_start(struct job *job)
{
	if (job->saves > 0)
		start(job, stranger_main);
}

void foreigner_start(struct job *job)
{
	if (job->saves > 0)
		start(job, foreigner_main);
}

unsigned operators_alive(void)
{
	unsigned n = 0;

	for (unsigned i = 0; i < OPERATORS; i++)
		n += operators[i] != NULL;
	return n;
}

bool operator_kill(void)
{
	struct operator* o = operators[draw(OPERATORS)];

	if (o) {
		proc_kill(o->proc);
		world_counts.operator_kills++;
	}
	return o != NULL;
}
