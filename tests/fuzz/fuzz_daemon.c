/*
 * A libFuzzer target: the daemon's side of connections. A server with real shards, sockets, rings
 * and state_dir runs in a thread; an input is what up to three clients do to it: messages, valid or
 * not, bytes, descriptors, wake-ups, words in their rings.
 *
 * The daemon answers every query, closes a connection after an invalid packet, and still serves a
 * witness, at the right positions. No session is left over.
 *
 * An input is: failures (fail.h), then a byte for the client and its action, and the arguments,
 * again and again.
 */
#include "daemon/catalog/catalog.h"
#include "daemon/control/control.h"
#include "proto/ring.h"
#include "tests/fuzz/packet.h"
#include "tests/fuzz/scratch.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { CLIENTS = 3, ACTIONS = 24, ANSWER_MS = 5000, QUIET_MS = 2, AGAIN_MS = 50 };
enum { USER_UID = 12345, STRANGER_UID = 23456 }; /* the first is in allow_uids: */
enum { LAST_NUMBER = 255 };			 /* in a message: the last request's */

struct client {
	int fd; /* -1: closed */
	struct wire reply;
	char packet[LIMIT_PACKET_BYTES];
	uint8_t cursor[LIMIT_CURSOR_BYTES]; /* of the last feed */
	size_t cursor_bytes;
	uint8_t *data; /* its ring; NULL: not attached */
	size_t data_bytes;
};

static struct client clients[CLIENTS], witness;
static uint64_t last_number; /* of the last request that anybody heard of */
static char path[64];	     /* of the socket */
static struct reading reading = {.depth = 64, .sessions = 64};
static struct reload_kept kept = {.memfd = -1, .listener = {.fd = -1, .lock_fd = -1}};
static _Atomic uint64_t rereads;
static struct server_options server = {.kept = &kept, .reading = &reading, .rereads = &rereads};

static void *serve(void *none)
{
	server_run(&server);
	return none;
}

/* With shards, a socket and a state_dir below /dev/shm. */
static bool start(void)
{
	static const char text[] =
		"memory: 2MiB\nstate_dir: state\nallow_uids: [12345]\nstreams:\n"
		"  train:\n    seed: 1\n    seq_len: 4\n    datasets:\n"
		"      - {name: web, path: a.bin, dtype: u16, format: flat, weight: 0.7}\n"
		"      - {name: code, path: b.bin, dtype: u16, format: flat, weight: 0.3}\n"
		"  short:\n    seed: 1\n    seq_len: 4\n    samples: 9\n    datasets:\n"
		"      - {name: web, path: a.bin, dtype: u16, format: flat}\n";
	static const uint16_t tokens[1002];
	const struct reader_options options = {.io = CONFIG_IO_PREAD,
		.depth = 64,
		.files = 16,
		.streams = 2,
		.largest_window_bytes = 64};
	struct fault fault;
	char note[256];
	pthread_t thread;

	scratch_put("a.bin", tokens, sizeof(tokens));
	scratch_put("b.bin", tokens, sizeof(tokens) / 2);
	snprintf(path, sizeof(path), "%s/s", scratch);
	struct config *config = config_load(scratch_put("t.yaml", text, strlen(text)), &fault);

	server.catalog = config ? catalog_open(config, NULL, NULL, NULL, &fault) : NULL;
	reading.reader = reader_open(&options, note, sizeof(note), &fault);
	reading.memory_bytes = reader_memory(&options);
	server.state_dir = config ? config->state_dir : NULL;
	return server.catalog && reading.reader && listener_open(&kept.listener, path, &fault) &&
	       pthread_create(&thread, NULL, serve, NULL) == 0;
}

/* ---- packets ---- */

static void client_close(struct client *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	if (c->data)
		munmap(c->data, c->data_bytes);
	c->data = NULL;
}

static void take_ring(struct client *c, struct msghdr *message)
{
	struct cmsghdr *head = CMSG_FIRSTHDR(message);
	int fd[2];

	if (!head)
		return;
	memcpy(fd, CMSG_DATA(head), sizeof(fd));
	if (c->data)
		munmap(c->data, c->data_bytes);
	c->data_bytes = wire_number(&c->reply, WIRE_DATA_BYTES);
	do /* the input's failure may be this one */
		c->data = mmap(NULL, c->data_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd[1], 0);
	while (c->data == MAP_FAILED);
	close(fd[0]);
	close(fd[1]);
}

/* Receives a message within @ms. False: none came, or the connection was closed. */
static bool receive(struct client *c, int ms)
{
	char control[CMSG_SPACE(2 * sizeof(int))];
	struct iovec part = {c->packet, sizeof(c->packet)};
	struct msghdr message = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	struct pollfd p = {.fd = c->fd, .events = POLLIN};
	struct fault fault;

	while (c->fd >= 0) {
		int ready = poll(&p, 1, ms);

		if (ready == 0)
			return false;
		if (ready < 0) /* libFuzzer's timer */
			continue;
		message.msg_controllen = sizeof(control);
		ssize_t n = recvmsg(c->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

		if (n < 0 && (errno == EAGAIN || errno == ECONNRESET)) /* the last packets follow */
			continue;
		if (n <= 0) {
			client_close(c);
			return false;
		}
		if (n == 1) /* a wake-up */
			continue;
		assert(wire_decode(&c->reply, c->packet, (size_t)n, &fault));
		struct wire_bytes cursor = wire_bytes(&c->reply, WIRE_CURSOR);

		if (c->reply.op == WIRE_FEED) {
			take_ring(c, &message);
			memcpy(c->cursor, cursor.at, cursor.n);
			c->cursor_bytes = cursor.n;
		}
		if (wire_has(&c->reply, WIRE_NUMBER))
			last_number = wire_number(&c->reply, WIRE_NUMBER);
		return true;
	}
	return false;
}

static void send_bytes(struct client *c, const void *bytes, size_t n)
{
	if (c->fd >= 0 && send(c->fd, bytes, n, MSG_NOSIGNAL) < 0)
		receive(c, 0); /* its last words */
}

/* Sends a message. @answered: and waits for one, which must come. */
static void send_wire(struct client *c, const struct wire *w, bool answered)
{
	static char packet[LIMIT_PACKET_BYTES];
	size_t n = wire_encode(w, packet);

	if (n == 0)
		return;
	send_bytes(c, packet, n);
	if (c->fd >= 0 && !receive(c, answered ? ANSWER_MS : QUIET_MS))
		assert(c->fd < 0 || !answered);
}

/* Connects as user @uid, if the process may: credentials are the thread's. */
static void connect_as(struct client *c, uid_t uid)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};

	memcpy(to.sun_path, path, strlen(path));
	c->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	syscall(SYS_setresuid, -1, uid, -1);
	assert(c->fd >= 0 && connect(c->fd, (void *)&to, sizeof(to)) == 0);
	syscall(SYS_setresuid, -1, getuid(), -1);
}

enum { ANOTHER_VERSION = 255, STRANGER = 254, USER = 64 };

static void client_open(struct client *c, bool greet, uint8_t how)
{
	struct wire hello = {.op = WIRE_HELLO};

	client_close(c);
	connect_as(c, how == STRANGER ? STRANGER_UID : how & USER ? USER_UID : getuid());
	if (!greet)
		return;
	wire_set(&hello, WIRE_VERSION_KEY, how == ANOTHER_VERSION ? 2 : WIRE_VERSION);
	wire_set_text(&hello, WIRE_HOST, "fuzz");
	wire_set(&hello, WIRE_PROCESS, how % 8);
	send_wire(c, &hello, true);
}

/* ---- actions ---- */

/* A packet of the input; if it is a query, the daemon must answer. */
static void send_packet(struct client *c, struct input *in)
{
	static const uint64_t queries = 1 << WIRE_ATTACH | 1 << WIRE_CHECKPOINT |
					1 << WIRE_PENDING | 1 << WIRE_DESCRIBE | 1 << WIRE_STATUS |
					1 << WIRE_REQUEST | 1 << WIRE_CANCEL;
	static const char too_long[LIMIT_PACKET_BYTES + 1];
	struct input packet;
	struct wire w;

	if (packet_take(in, &packet, &w, c->cursor, c->cursor_bytes)) {
		if (wire_has(&w, WIRE_NUMBER) && wire_number(&w, WIRE_NUMBER) == LAST_NUMBER)
			wire_set(&w, WIRE_NUMBER, last_number);
		send_wire(c, &w, queries >> w.op & 1);
		return;
	}
	send_bytes(c, packet.n ? (const void *)packet.at : too_long,
		packet.n ? packet.n : sizeof(too_long));
	receive(c, QUIET_MS);
}

static void send_descriptor(struct client *c, struct input *in)
{
	struct input bytes = input_part(in, 1 + input_byte(in) % 8);
	const int fd = STDIN_FILENO;

	if (c->fd < 0 || packet_send(c->fd, bytes.at, bytes.n, &fd, 1, 0) <= 0)
		return;
	while (receive(c, ANSWER_MS)) /* an error is the last message */
		;
	assert(c->fd < 0);
}

static void write_ring(struct client *c, struct input *in)
{
	uint64_t at = input_number(in, 2), value = input_any(in);
	uint8_t where = input_byte(in);

	if (!c->data)
		return;
	at = where % 4 == 0 ? at % (c->data_bytes - 8)
			    : c->data_bytes - RING_PAGE + 64 * (where % 3);
	memcpy(c->data + at, &value, sizeof(value));
	send_bytes(c, "w", 1);
}

static void act(struct client *c, unsigned action, struct input *in)
{
	switch (action) {
	case 0:
		client_open(c, true, input_byte(in));
		return;
	case 1:
		client_open(c, false, 0);
		return;
	case 2:
		send_descriptor(c, in);
		return;
	case 3:
		write_ring(c, in);
		return;
	case 4:
		client_close(c);
		return;
	default:
		send_packet(c, in);
	}
}

/* ---- the witness ---- */

/* The daemon refuses it while it is still closing the connections of the inputs before. */
static void witness_open(void)
{
	for (int ms = 0; ms < ANSWER_MS; ms += AGAIN_MS) {
		client_open(&witness, true, 0);
		if (witness.fd >= 0 && witness.reply.op != WIRE_ERROR)
			return;
		usleep(AGAIN_MS * 1000);
	}
}

/* How many sessions there are, as the daemon says. */
static uint64_t count_sessions(void)
{
	struct wire w = {.op = WIRE_STATUS};
	uint64_t n = 0;

	wire_set(&w, WIRE_AFTER, 0);
	do {
		send_wire(&witness, &w, true);
		struct wire_bytes args = wire_bytes(&witness.reply, WIRE_ARGS);

		for (const char *at = args.at, *end = at + args.n;
			at && (at = memmem(at, (size_t)(end - at), "{\"sessions\":", 12)); at++)
			n++;
		wire_set(&w, WIRE_AFTER, wire_number(&witness.reply, WIRE_AFTER));
	} while (witness.fd >= 0 && wire_number(&w, WIRE_AFTER) != 0);
	struct wire_bytes text = wire_bytes(&witness.reply, WIRE_TEXT);

	if (witness.fd < 0 || witness.reply.op != WIRE_STATUS)
		fprintf(stderr, "the last reply was %s: %.*s\n", wire_op_name(witness.reply.op),
			(int)text.n, text.n ? text.at : "");
	assert(witness.fd >= 0 && witness.reply.op == WIRE_STATUS);
	return n;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc, (void)argv;
	signal(SIGPIPE, SIG_IGN);
	scratch_open();
	if (chmod(scratch, 0755) != 0 || !start())
		exit(2);
	for (int i = 0; i < CLIENTS; i++)
		clients[i].fd = -1;
	witness.fd = -1;
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};

	input_fail(&in);
	for (int i = 0; i < ACTIONS && in.n > 0; i++) {
		uint8_t byte = input_byte(&in);

		act(&clients[byte / 16 % CLIENTS], byte % 8, &in);
	}
	fail_end();
	for (int i = 0; i < CLIENTS; i++)
		client_close(&clients[i]);
	witness_open();
	for (int tries = 0; count_sessions() > 0; tries++) {
		assert(tries < ANSWER_MS);
		usleep(1000);
	}
	client_close(&witness);
	return 0;
}
