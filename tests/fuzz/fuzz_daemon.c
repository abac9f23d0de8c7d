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
#include "tests/fuzz/daemon_thread.h"
#include "tests/fuzz/input.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { CLIENTS = 3, ACTIONS = 24, ANSWER_MS = 5000, QUIET_MS = 2, AGAIN_MS = 50 };

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

	memcpy(to.sun_path, daemon_socket(), strlen(daemon_socket()));
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
	connect_as(c, how == STRANGER ? DAEMON_STRANGER : how & USER ? DAEMON_USER : getuid());
	if (!greet)
		return;
	wire_set(&hello, WIRE_VERSION_KEY, how == ANOTHER_VERSION ? 2 : WIRE_VERSION);
	wire_set_text(&hello, WIRE_HOST, "fuzz");
	wire_set(&hello, WIRE_PROCESS, how % 8);
	send_wire(c, &hello, true);
}

/* ---- messages ---- */

/* One of @texts, or one from the input. */
static void set_text(struct wire *w, enum wire_key key, struct input *in, const char *const *texts)
{
	uint8_t which = input_byte(in);
	unsigned n = 0;

	while (texts[n])
		n++;
	if (which < 240) {
		wire_set_text(w, key, texts[which % n]);
	} else {
		struct input part = input_sized(in);

		wire_set_bytes(w, key, part.at, part.n);
	}
}

static const char *const streams[] = {"train", "train", "short", "train", "none", "", NULL};
static const char *const runs[] = {"run", "run", "default", "other", "", "a/b", NULL};
static const char *const tags[] = {"a", "b", "run/a", "a.former", "", "..", NULL};
static const char *const kinds[] = {"mix", "seek", "skip", "drain", "stop", "add", "", NULL};
static const char *const texts[] = {"{\"at\":1}", "web=1", "", "{}", "line\nline", NULL};

/* The client's last cursor, or with one byte changed and the checksum repaired. */
static void set_cursor(struct wire *w, const struct client *c, struct input *in)
{
	static uint8_t changed[LIMIT_CURSOR_BYTES];
	uint8_t how = input_byte(in);
	size_t n = c->cursor_bytes;

	memcpy(changed, c->cursor, n);
	if (how % 2 && n > 16) {
		uint64_t at = input_number(in, 2);

		input_change_cursor(changed, n, at, input_byte(in));
	}
	wire_set_bytes(w, WIRE_CURSOR, changed, how % 16 == 15 ? n / 2 : n);
}

static void attach(struct client *c, struct input *in)
{
	struct wire w = {.op = WIRE_ATTACH};
	uint8_t shape = input_byte(in), more = input_byte(in);
	uint64_t world = 1 + shape / 4 % 4;

	set_text(&w, WIRE_STREAM, in, streams);
	set_text(&w, WIRE_RUN, in, runs);
	wire_set(&w, WIRE_WORLD, more == 255 ? input_any(in) : world);
	wire_set(&w, WIRE_RANK, more == 254 ? input_any(in) : shape % 4 % world);
	wire_set(&w, WIRE_MICRO, more == 253 ? input_any(in) : 1 + (uint64_t)(shape / 16 % 4));
	wire_set(&w, WIRE_PEER, shape / 64 % 2);
	wire_set(&w, WIRE_SLOTS, more == 252 ? input_any(in) : 1 + (uint64_t)(shape / 64));
	if (more & 4)
		wire_set(&w, WIRE_HELPER, more >> 3 & 1);
	if (more & 16)
		wire_set(&w, WIRE_REPLACES, input_byte(in) % 4);
	if (more & 32)
		wire_set(&w, WIRE_STRICT, 1);
	if (more & 64)
		wire_set(&w, WIRE_NODE, input_any(in));
	wire_set(&w, WIRE_SERIAL, more);
	if (more % 4 == 0)
		wire_set(&w, WIRE_BEGIN, 1);
	else if (more % 4 == 1)
		wire_set(&w, WIRE_POSITION, input_any(in));
	else if (more % 4 == 2)
		set_text(&w, WIRE_TAG, in, tags);
	else
		set_cursor(&w, c, in);
	send_wire(c, &w, true);
}

static void checkpoint(struct client *c, struct input *in)
{
	struct wire w = {.op = WIRE_CHECKPOINT};

	set_text(&w, WIRE_TAG, in, tags);
	set_cursor(&w, c, in);
	wire_set(&w, WIRE_SERIAL, 1 + (uint64_t)input_byte(in));
	send_wire(c, &w, true);
}

static void answer(struct client *c, struct input *in)
{
	struct wire w = {.op = WIRE_ANSWER};
	uint8_t how = input_byte(in);

	wire_set(&w, WIRE_NUMBER, how & 1 ? input_any(in) : last_number);
	wire_set(&w, WIRE_OUTCOME, how & 2 ? input_any(in) : 1 + (uint64_t)(how / 16 % 4));
	set_text(&w, WIRE_TEXT, in, texts);
	if (how & 4)
		set_cursor(&w, c, in);
	if (how & 8) {
		wire_set(&w, WIRE_FROM, input_any(in));
		wire_set(&w, WIRE_ACTS_FROM, input_any(in));
	}
	send_wire(c, &w, false);
}

static void request(struct client *c, struct input *in)
{
	struct wire w = {.op = WIRE_REQUEST};
	uint8_t how = input_byte(in);

	set_text(&w, WIRE_STREAM, in, streams);
	if (how & 1)
		set_text(&w, WIRE_RUN, in, runs);
	set_text(&w, WIRE_KIND, in, kinds);
	set_text(&w, WIRE_ARGS, in, texts);
	wire_set(&w, WIRE_SERIAL, how);
	send_wire(c, &w, true);
}

static void plain(struct client *c, enum wire_op op, enum wire_key key, uint64_t value)
{
	struct wire w = {.op = op};

	if (key != WIRE_KEYS)
		wire_set(&w, key, value);
	wire_set(&w, WIRE_SERIAL, 9);
	send_wire(c, &w, true);
}

/* Any message, with any keys. */
static void anything(struct client *c, struct input *in)
{
	struct wire w = {.op = input_byte(in) % WIRE_OPS};

	for (uint8_t n = input_byte(in) % 16; n > 0; n--) {
		enum wire_key key = input_byte(in) % WIRE_KEYS;
		struct input part;

		if (key < WIRE_NUMBERS) {
			wire_set(&w, key, input_any(in));
			continue;
		}
		part = input_sized(in);
		wire_set_bytes(&w, key, part.at, part.n);
	}
	send_wire(c, &w, false);
}

static void send_descriptor(struct client *c, struct input *in)
{
	char control[CMSG_SPACE(sizeof(int))] = {0};
	struct input bytes = input_part(in, 1 + input_byte(in) % 8);
	struct iovec part = {(void *)bytes.at, bytes.n};
	struct msghdr message = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	int fd = STDIN_FILENO;

	*head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)),
		.cmsg_level = SOL_SOCKET,
		.cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(head), &fd, sizeof(fd));
	if (c->fd >= 0 && sendmsg(c->fd, &message, MSG_NOSIGNAL) > 0 && bytes.n > 0) {
		while (receive(c, ANSWER_MS)) /* an error is the last message */
			;
		assert(c->fd < 0);
	}
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

static const char too_long[LIMIT_PACKET_BYTES + 1];

static void act(struct client *c, unsigned action, struct input *in)
{
	struct input part;

	switch (action) {
	case 0:
		client_open(c, true, input_byte(in));
		return;
	case 1:
		client_open(c, false, 0);
		return;
	case 2:
		part = input_sized(in);
		send_bytes(c, part.n ? (const void *)part.at : too_long,
			part.n ? part.n : sizeof(too_long));
		receive(c, QUIET_MS);
		return;
	case 3:
		anything(c, in);
		return;
	case 4:
	case 5:
		attach(c, in);
		return;
	case 6:
		checkpoint(c, in);
		return;
	case 7:
		plain(c, WIRE_PENDING, WIRE_KEYS, 0);
		return;
	case 8:
		plain(c, WIRE_DESCRIBE, WIRE_KEYS, 0);
		return;
	case 9:
		answer(c, in);
		return;
	case 10:
		plain(c, WIRE_STATUS, WIRE_AFTER, input_byte(in) < 200 ? 0 : input_any(in));
		return;
	case 11:
		request(c, in);
		return;
	case 12:
		plain(c, WIRE_CANCEL, WIRE_NUMBER,
			input_byte(in) % 2 ? last_number : input_any(in));
		return;
	case 13:
		send_descriptor(c, in);
		return;
	case 14:
		write_ring(c, in);
		return;
	default:
		client_close(c);
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
	send_wire(&witness, &w, true);
	while (witness.fd >= 0 && witness.reply.op == WIRE_SESSION) {
		n++;
		assert(receive(&witness, ANSWER_MS));
	}
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
	if (!daemon_start())
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

		act(&clients[byte / 16 % CLIENTS], byte % 16, &in);
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
