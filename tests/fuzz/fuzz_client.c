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
#include "tests/fuzz/packet.h"
#include "tests/fuzz/scratch.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/un.h>

enum { CONNECTIONS = 3, PACKETS = 24, CALLS = 16, HELD = 8, DEADLINE_MS = 2 };

static char path[64];
static int listener;
static uint8_t good_cursor[LIMIT_CURSOR_BYTES];
static size_t good_bytes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct input script[CONNECTIONS]; /* under the lock */
static unsigned connections;

/* ---- the daemon ---- */

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

/* A packet of the input. With a feed goes a ring, and sizes of 0 in it stand for the ring's. */
static void send_packet(int to, struct input *in)
{
	static const struct wire_shards nothing; /* is known of the only dataset */
	static char encoded[LIMIT_PACKET_BYTES];
	struct input packet;
	struct wire w;
	struct ring_geometry g;
	uint8_t how = input_byte(in);
	int fd[PACKET_FDS] = {-1, -1, STDIN_FILENO};

	if (how == 255) { /* a wake-up */
		packet_send(to, "w", 1, NULL, 0, MSG_DONTWAIT);
		return;
	}
	if (!packet_take(in, &packet, &w, good_cursor, good_bytes)) {
		packet_send(to, packet.at, packet.n, NULL, 0, MSG_DONTWAIT);
		return;
	}
	if (w.op == WIRE_FEED && !make_ring(in, how, &g, fd))
		return;
	if (w.op == WIRE_FEED && wire_number(&w, WIRE_META_BYTES) == 0)
		wire_set(&w, WIRE_META_BYTES, g.meta_bytes);
	if (w.op == WIRE_FEED && wire_number(&w, WIRE_DATA_BYTES) == 0)
		wire_set(&w, WIRE_DATA_BYTES, g.data_bytes);
	if (w.op == WIRE_FEED && !wire_has(&w, WIRE_SHARDS))
		wire_set_bytes(&w, WIRE_SHARDS, &nothing, sizeof(nothing));
	size_t n = wire_encode(&w, encoded);

	if (n > 0)
		packet_send(to, encoded, n, fd,
			w.op != WIRE_FEED ? 0
			: how < 240	  ? 2
					  : how % 4,
			MSG_DONTWAIT);
	close(fd[0]);
	close(fd[1]);
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
		for (int i = 0; n < CONNECTIONS && i < PACKETS && script[n].n > 0; i++)
			send_packet(fd, &script[n]);
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
	static int64_t wide[64 * 64];
	struct tokend_shape shape;
	uint32_t count = 0, n = b->rows * b->window_tokens;

	tokend_shape(c->t, &shape);
	assert(n <= 64 * 64);
	tokend_widen(wide, b->tokens, n, b->token_bytes);
	for (uint32_t r = 0; r < b->rows; r++) {
		const uint32_t *start = tokend_documents(c->t, b, r, &count);
		const uint8_t *mask = tokend_loss_mask(c->t, b, r);

		for (uint32_t i = 0; start && i < count && i < b->window_tokens; i++)
			wide[0] += start[i];
		for (uint32_t i = 0; mask && i < b->window_tokens; i++)
			wide[0] += mask[i];
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

static void attach(struct input *in)
{
	static char why[256];
	struct caller c = {0};
	unsigned calls = 0;
	uint8_t how = input_byte(in);
	struct tokend_options options = {.size = sizeof(options),
		.socket = path,
		.stream = "train",
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
	uint8_t begin = input_byte(in) % 8;

	options.tag = begin == 1 ? "tag" : NULL;
	options.start_at_position = begin == 2;
	options.world = begin == 3 ? UINT64_MAX : 1;
	options.micro_batch = begin == 4 ? 0 : options.micro_batch;
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
