/* Packets of an input, and descriptors that go with them. */
#ifndef TOKEND_FUZZ_PACKET_H
#define TOKEND_FUZZ_PACKET_H

#include "proto/wire.h"
#include "tests/fuzz/input.h"

#include <sys/socket.h>

enum { PACKET_FDS = 3, PACKET_CURSOR = 16 };

static inline ssize_t packet_send(
	int to, const void *bytes, size_t n, const int *fds, unsigned fd_count, int flags)
{
	char control[CMSG_SPACE(PACKET_FDS * sizeof(int))] = {0};
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
	return sendmsg(to, &message, flags | MSG_NOSIGNAL);
}

/*
 * Takes a packet. True: it is the message @w. A cursor of less than PACKET_CURSOR bytes stands for
 * the @n bytes of @cursor, of which three such bytes change one: where, two bytes, and to what;
 * four of them mean its first half.
 */
static inline bool packet_take(
	struct input *in, struct input *packet, struct wire *w, const uint8_t *cursor, size_t n)
{
	static uint8_t changed[LIMIT_CURSOR_BYTES];
	struct fault fault;

	*packet = input_sized(in);
	if (!wire_decode(w, packet->at, packet->n, &fault))
		return false;
	struct wire_bytes given = wire_bytes(w, WIRE_CURSOR);

	if (!wire_has(w, WIRE_CURSOR) || given.n >= PACKET_CURSOR)
		return true;
	memcpy(changed, cursor, n);
	if (given.n == 3 && n > PACKET_CURSOR)
		input_change_cursor(changed, n,
			(uint64_t)(uint8_t)given.at[0] << 8 | (uint8_t)given.at[1],
			(uint8_t)given.at[2]);
	wire_set_bytes(w, WIRE_CURSOR, changed, given.n == 4 ? n / 2 : n);
	return true;
}

#endif
