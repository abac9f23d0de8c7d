/*
 * A libFuzzer target: libtokend with a daemon that sends anything. A thread listens; for each of
 * up to three connections it sends the packets of the input, feeds with rings included, and closes.
 * Meanwhile the input calls the functions of tokend.h.
 *
 * Every call returns. An error has a line of text, and a batch is inside its ring.
 *
 * An input is: failures (fail.h), for each connection its packets with their length, then calls.
 */
#include "client/lib/tokend.h"
#include "proto/cursor.h"
#include "proto/ring.h"
#include "proto/wire.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/scratch.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { CONNECTIONS = 3, CALLS = 16, HELD = 8, DEADLINE_MS = 2 };

static char path[64];
static int listener;
static uint8_t good_cursor[LIMIT_CURSOR_BYTES];
static size_t good_bytes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct input script[CONNECTIONS]; /* under the lock */
static unsigned connections;

/* ---- the daemon ---- */

static void send_packet(int to, const void *bytes, size_t n, const int *fds, unsigned fd_count)
{
	char control[CMSG_SPACE(3 * sizeof(int))] = {0};
	struct iovec part = {(void *)bytes, n};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

	if (fd_count > 0) {
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
		struct cmsghdr *head = CMSG_FIRSTHDR(&message);

		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
		memcpy(CMSG_DATA(head), fds, fd_count * sizeof(int));
	}
	sendmsg(to, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void send_wire(int to, const struct wire *w, const int *fds, unsigned fd_count)
{
	static char packet[LIMIT_PACKET_BYTES];
	size_t n = wire_encode(w, packet);

	if (n > 0)
		send_packet(to, packet, n, fds, fd_count);
}

static int memory(uint64_t bytes, unsigned seals)
{
	int fd = memfd_create("ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
	if (seals)
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
	return fd;
}

/* The memories of a ring whose words, slots and rows are the input's. */
static bool make_ring(struct input *in, uint8_t how, struct ring_geometry *g, int fd[2])
{
	struct fault fault;
	uint8_t shape = input_byte(in);
	uint64_t extra = input_byte(in) == 255 ? RING_PAGE : 0;
	struct ring ring;

	if (!ring_geometry(g, 1 + shape % 4, 1 + shape / 4 % 4, 5 + shape / 128,
		    2 + shape / 64 % 2 * 2, shape / 16 % 4, &fault))
		return false;
	fd[0] = memory(g->meta_bytes + extra, how & 1 ? 0 : 1);
	fd[1] = memory(g->data_bytes, how & 2 ? 0 : 1);
	void *meta = mmap(NULL, g->meta_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd[0], 0);
	void *data = mmap(NULL, g->data_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd[1], 0);

	if (meta != MAP_FAILED && data != MAP_FAILED) { /* otherwise it is the input's failure */
		ring_format(&ring, g, meta, data);
		atomic_store(&ring.header->published, input_byte(in) % 8);
		atomic_store(&ring.header->end, how & 4 ? input_any(in) : RING_ENDLESS);
		atomic_store(&ring.header->wake_at, input_byte(in) % 4);
		atomic_store(&ring.header->request, input_byte(in));
		for (uint8_t n = input_byte(in) % 16; n > 0; n--)
			((uint8_t *)meta)[input_number(in, 2) % g->meta_bytes] = input_byte(in);
	}
	if (meta != MAP_FAILED)
		munmap(meta, g->meta_bytes);
	if (data != MAP_FAILED)
		munmap(data, g->data_bytes);
	return true;
}

static void send_feed(int to, struct input *in)
{
	static uint8_t cursor[LIMIT_CURSOR_BYTES];
	struct wire w = {.op = WIRE_FEED};
	struct ring_geometry g;
	uint8_t how = input_byte(in), more = input_byte(in);
	uint64_t at = input_byte(in);
	int fd[3] = {-1, -1, STDIN_FILENO};

	if (!make_ring(in, how, &g, fd))
		return;
	memcpy(cursor, good_cursor, good_bytes);
	if (how & 8)
		input_change_cursor(cursor, good_bytes, at, input_byte(in));
	wire_set_bytes(&w, WIRE_CURSOR, cursor, how & 16 ? at % good_bytes : good_bytes);
	wire_set(&w, WIRE_CONTENTS, at);
	wire_set(&w, WIRE_END, how & 32 ? input_any(in) : RING_ENDLESS);
	wire_set(&w, WIRE_META_BYTES, how & 64 ? input_any(in) : g.meta_bytes);
	wire_set(&w, WIRE_DATA_BYTES, how & 128 ? input_any(in) : g.data_bytes);
	if (more & 1)
		wire_set(&w, WIRE_SERIAL, more & 2 ? 1 : input_byte(in));
	if (more & 4)
		wire_set(&w, WIRE_ID, input_byte(in));
	if (more & 8)
		wire_set_text(&w, WIRE_RUN, more & 16 ? "other" : "a/b");
	send_wire(to, &w, fd, more < 240 ? 2 : more % 4);
	close(fd[0]);
	close(fd[1]);
}

static void send_reply(int to, struct input *in)
{
	static const enum wire_op ops[] = {WIRE_HELLO, WIRE_SAVED, WIRE_REQUEST, WIRE_DESCRIBED,
		WIRE_ERROR, WIRE_WARNING, WIRE_ASKED, WIRE_ANSWER};
	static const char *const kinds[] = {"mix", "skip", "drain", "checkpoint"};
	struct wire w = {.op = ops[input_byte(in) % 8]};
	uint8_t how = input_byte(in), serial = input_byte(in);

	wire_set(&w, WIRE_VERSION_KEY, how == 255 ? 2 : 1);
	wire_set(&w, WIRE_NUMBER, how);
	wire_set(&w, WIRE_DIGEST, how);
	wire_set_text(&w, WIRE_TAG, how & 1 ? "tag" : "other");
	wire_set_text(&w, WIRE_PATH, how & 2 ? "/path" : "");
	wire_set_text(&w, WIRE_KIND, how & 128 ? "a kind that is far too long" : kinds[how % 4]);
	wire_set_text(&w, WIRE_ARGS, how & 4 ? "weight 0.5 web\nat 4096\n" : "samples x\n");
	wire_set_bytes(&w, WIRE_CURSOR, good_cursor, how & 8 ? good_bytes / 2 : good_bytes);
	wire_set_text(&w, WIRE_FIELD, how & 16 ? "rank" : "line\n");
	wire_set_text(&w, WIRE_TEXT, how & 32 ? "no" : "");
	wire_set_code(&w, 1 + how % (FAULT_CODES - 1));
	if (how & 64)
		wire_set(&w, WIRE_PASSING, 1);
	if (serial)
		wire_set(&w, WIRE_SERIAL, serial);
	send_wire(to, &w, NULL, 0);
}

static void play(int to, struct input *in)
{
	struct input part;

	for (int i = 0; i < 24 && in->n > 0; i++)
		switch (input_byte(in) % 6) {
		case 0:
		case 1:
			send_feed(to, in);
			break;
		case 2:
		case 3:
			send_reply(to, in);
			break;
		case 4:
			send_packet(to, "w", 1, NULL, 0);
			break;
		default:
			part = input_sized(in);
			send_packet(to, part.at, part.n, NULL, 0);
		}
}

/* Ends each connection after its packets: half, so that the client can still receive them. */
static void *serve(void *none)
{
	int before = -1;

	for (;;) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		unsigned n;

		if (before >= 0)
			close(before);
		before = fd;
		if (fd < 0)
			continue;
		pthread_mutex_lock(&lock);
		n = connections++;
		if (n < CONNECTIONS)
			play(fd, &script[n]);
		pthread_mutex_unlock(&lock);
		shutdown(fd, SHUT_WR);
	}
	return none;
}

/* ---- the caller ---- */

struct caller {
	struct tokend *t;
	struct tokend_batch held[HELD];
	unsigned n;
};

static int check_result(const struct caller *c, int r)
{
	if (r < 0) {
		assert(r >= TOKEND_EAGAIN && (r == TOKEND_EAGAIN || tokend_why(c->t)[0]));
		assert(!strchr(tokend_why(c->t), '\n') && tokend_field(c->t));
	}
	return r;
}

/* Reads a batch, as a trainer does. */
static void read_batch(const struct caller *c, const struct tokend_batch *b)
{
	static int64_t wide[2][64 * 64];
	struct tokend_shape shape;
	uint32_t count = 0, n = b->rows * b->window_tokens;

	tokend_shape(c->t, &shape);
	assert(n <= 64 * 64);
	tokend_widen_pair(wide[0], wide[1], b->tokens, n > 1 ? n - 1 : n, b->token_bytes);
	for (uint32_t r = 0; r < b->rows; r++) {
		const uint32_t *start = tokend_documents(c->t, b, r, &count);
		const uint8_t *mask = tokend_loss_mask(c->t, b, r);

		for (uint32_t i = 0; start && i < count && i < b->window_tokens; i++)
			wide[0][0] += start[i];
		for (uint32_t i = 0; mask && i < b->window_tokens; i++)
			wide[0][0] += mask[i];
		tokend_dataset(c->t, b->row[r].dataset);
	}
}

static void take(struct caller *c, bool wait)
{
	struct tokend_batch *b = &c->held[c->n];

	if (c->n == HELD)
		return;
	if (check_result(c, wait ? tokend_next(c->t, b) : tokend_try_next(c->t, b)) == 1) {
		read_batch(c, b);
		c->n++;
	}
}

static void release(struct caller *c, uint8_t which)
{
	if (c->n == 0)
		return;
	tokend_release(c->t, &c->held[which % c->n]);
	c->held[which % c->n] = c->held[c->n - 1];
	c->n--;
}

static void ask(struct caller *c, struct input *in)
{
	static uint8_t cursor[LIMIT_CURSOR_BYTES];
	static struct tokend_request request;
	const double weights[] = {0.5};
	const char *names[] = {"web"};
	uint64_t from;
	char text[64];
	int64_t n;

	switch (input_byte(in) % 10) {
	case 0:
		check_result(c, tokend_checkpoint(c->t, "tag", text, sizeof(text)));
		return;
	case 1:
		check_result(c, tokend_commit(c->t, input_any(in)));
		return;
	case 2:
		n = tokend_cursor(c->t, cursor, sizeof(cursor));
		if (n > 0)
			check_result(c,
				tokend_seek(c->t, cursor, (size_t)n, 0, 1, 1 + input_byte(in) % 4));
		return;
	case 3:
		check_result(c, (int)tokend_stream(c->t, cursor, sizeof(cursor)));
		return;
	case 4:
		if (check_result(c, tokend_request(c->t, &request)) >= 0 && request.number > 0)
			check_result(c, tokend_obey(c->t, request.kind, request.args, &from));
		return;
	case 5:
		check_result(
			c, tokend_answer(c->t, request.number, 1 + input_byte(in) % 3, "text"));
		return;
	case 6:
		check_result(c, tokend_set_mix(c->t, names, weights, 1, &from));
		return;
	case 7:
		check_result(c, tokend_undo(c->t));
		return;
	case 8:
		check_result(c, tokend_attend(c->t));
		return;
	default:
		tokend_request_number(c->t);
		tokend_fingerprint(c->t);
	}
}

static void use(struct caller *c, struct input *in)
{
	for (int i = 0; i < CALLS && in->n > 0; i++) {
		uint8_t call = input_byte(in);

		if (call % 4 == 0)
			take(c, true);
		else if (call % 4 == 1)
			take(c, false);
		else if (call % 4 == 2)
			release(c, call / 4);
		else
			ask(c, in);
	}
}

static int interrupt(void *calls)
{
	return ++*(unsigned *)calls > 50;
}

/* Another beginning, or an argument that is not allowed. */
static void choose(struct tokend_options *o, uint8_t how)
{
	static char long_path[200];

	memset(long_path, 'x', sizeof(long_path) - 1);
	o->tag = how % 16 == 1 ? "tag" : NULL;
	o->start_at_position = how % 16 == 2;
	o->world = how % 16 == 3 ? 0 : how % 16 == 4 ? UINT64_MAX : 1;
	o->rank = how % 16 == 5 ? 9 : 0;
	o->micro_batch = how % 16 == 6 ? 0 : o->micro_batch;
	o->socket = how % 16 == 7 ? long_path : how % 16 == 8 ? "/nowhere/s" : o->socket;
	o->stream = how % 16 == 9 ? "a/b" : o->stream;
	o->cursor_bytes = how % 16 == 10 && o->cursor ? 9 : o->cursor_bytes;
}

static void attach(struct input *in)
{
	static char why[256];
	struct caller c = {0};
	unsigned calls = 0;
	uint8_t how = input_byte(in);
	struct tokend_options options = {.size = sizeof(options),
		.socket = path,
		.stream = "train",
		.world = 1,
		.micro_batch = 1 + how % 4,
		.slots = how / 4 % 4,
		.deadline_ms = DEADLINE_MS,
		.connect_ms = DEADLINE_MS,
		.cursor = how & 64 ? good_cursor : NULL,
		.cursor_bytes = how & 64 ? good_bytes : 0,
		.helper = how >> 4 & 1,
		.strict = how >> 5 & 1,
		.idle = interrupt,
		.context = &calls};
	choose(&options, input_byte(in));
	int r = tokend_attach(&c.t, &options, why, sizeof(why));

	if (r < 0) {
		assert(!c.t && why[0] && !strchr(why, '\n'));
		return;
	}
	use(&c, in);
	if (how & 128)
		while (c.n > 0)
			release(&c, 0);
	tokend_detach(c.t);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	struct cursor identity = {.stream = "train",
			      .seed = 1,
			      .seq_len = 4,
			      .extra = 1,
			      .stride = 4},
		      cursor;
	struct cursor_source source = {"web", 1, 100, 7, 1, 1, ORDER_GLOBAL, false, 0, 0, 0};
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	struct fault fault;
	pthread_t thread;

	(void)argc, (void)argv;
	signal(SIGPIPE, SIG_IGN);
	scratch_open();
	if (!cursor_begin(&cursor, &identity, &source, 1, NULL, 0, &fault))
		exit(2);
	good_bytes = cursor_encode(&cursor, good_cursor, sizeof(good_cursor));
	cursor_free(&cursor);
	snprintf(path, sizeof(path), "%s/s", scratch);
	memcpy(at.sun_path, path, strlen(path));
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (bind(listener, (void *)&at, sizeof(at)) != 0 || listen(listener, 16) != 0 ||
		pthread_create(&thread, NULL, serve, NULL) != 0)
		exit(2);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	uint8_t plan[FAIL_BYTES] = {input_byte(&in), input_byte(&in)};

	pthread_mutex_lock(&lock);
	for (int i = 0; i < CONNECTIONS; i++)
		script[i] = input_sized(&in);
	connections = 0;
	pthread_mutex_unlock(&lock);
	fail_plan(plan);
	attach(&in);
	fail_end();
	pthread_mutex_lock(&lock); /* the daemon no longer reads the input */
	connections = CONNECTIONS;
	pthread_mutex_unlock(&lock);
	return 0;
}
