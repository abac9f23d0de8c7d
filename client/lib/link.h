/*
 * The link to a daemon, for libtokend and tokctl: where it may listen, connecting, checking the
 * peer, sending and receiving packets. Nothing here waits.
 */
#ifndef TOKEND_LINK_H
#define TOKEND_LINK_H

#include "proto/place.h"
#include "proto/wire.h"

#include <sys/types.h>

enum link_event {
	LINK_NOTHING, /* no packet is waiting */
	LINK_WAKE,    /* a wake-up byte */
	LINK_MESSAGE, /* packet->wire */
	LINK_CLOSED,  /* the daemon closed the connection */
	LINK_FAULT,   /* packet->fault. FAULT_PROTOCOL: not a packet of our protocol;
			 FAULT_DESCRIPTORS: this process could not receive its descriptors */
};

struct packet {
	struct wire wire;
	struct fault fault;
	int fd[2]; /* received with the message. Set those that you keep to -1 */
	unsigned fds;
	uint8_t bytes[LIMIT_PACKET_BYTES];
};

enum { LINK_WHY_BYTES = 256 };

enum link_peer { LINK_OPERATOR, LINK_TRAINER };

/*
 * Connects to the daemon at @path, checks that its user can be trusted, and sends hello: a
 * trainer's contains its host and its process. @buffer has LIMIT_PACKET_BYTES. Returns a
 * non-blocking descriptor, or -1 with @fault: FAULT_PERMISSION if an untrusted user listens there,
 * otherwise FAULT_IO with the errno (ENAMETOOLONG: the path is too long for a socket). A daemon
 * that closes the connection at once does not make it fail: its reason can still be received.
 */
int link_open(const char *path, enum link_peer as, void *buffer, struct fault *fault);
/* Writes why a connect to @path failed with @error: for EACCES, which directory, or the socket,
 * refuses which user. Returns @text. */
const char *link_why(const char *path, int error, char text[LINK_WHY_BYTES]);
/* A random number of this process, forked children included, which tells the daemon that two
 * sessions belong to one process. PIDs cannot: client and daemon may be in different PID
 * namespaces. 0: no random bytes were available. */
uint64_t process_number(void);
/* Starts @argv with its output to @fd, in a session that no Ctrl-C reaches, with no signal blocked
 * or ignored. Returns an errno; then *@pid is 0. */
int process_start(pid_t *pid, char *const argv[], int fd);
/* Receives the next packet, after closing the former one's descriptors that were not kept. */
enum link_event link_receive(int fd, struct packet *packet);
/* Ends a connection, also if a forked child has it too. @fd -1: nothing. */
void link_close(int fd);
/* Closes the descriptors that were not kept. */
void packet_close(struct packet *packet);
/*
 * Sends a message; @buffer has LIMIT_PACKET_BYTES. On failure returns false and sets @fault with
 * the errno: EMSGSIZE (FAULT_ARGUMENT) if the message is too long, EAGAIN (passing) if the socket's
 * queue is full.
 */
bool link_send(int fd, const struct wire *wire, void *buffer, struct fault *fault);
/* True if sending failed because the peer closed. Its reason can still be received. */
bool link_closed(const struct fault *fault);
/* Sends a wake-up byte. Failures are ignored: a full queue wakes the daemon too, and a dead daemon
 * is noticed by the next read. */
void link_wake(int fd);

/* ---- where daemons may listen, see proto/place.h ---- */

/* Lists the sockets at which a client looks. @option and @config: those that were named, or NULL.
 */
void places_read(struct places *places, const char *option, const char *config);
/*
 * True if the socket at @place may be used: somebody named it, or it is the default, or its
 * directory belongs to this user, and no other may write to it. Otherwise false, and @why says why
 * not.
 */
bool place_may_use(const struct place *place, char why[LIMIT_TEXT_BYTES]);
/* True if a process listens at @path, or if that cannot be found out. Otherwise false, and *@error
 * is the errno. */
bool place_is_live(const char *path, int *error);
/*
 * The socket to use: the first usable place where somebody listens. If nobody listens anywhere, the
 * first usable one that exists, because a killed daemon leaves its socket and may come back.
 */
const char *places_choose(const struct places *places);
/* Writes each of @n places and why it is of no use: "PATH (No such file or directory), PATH (…)".
 */
void places_tell(const struct place *place, unsigned n, char text[LIMIT_TEXT_BYTES]);

#endif
