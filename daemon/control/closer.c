#include "daemon/control/host.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

enum { MOST = 64 };

static _Atomic unsigned closing; /* static, because these threads may outlive all else */

void closer_refuse(int fd)
{
	(void)!setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &(int){0}, sizeof(int));
}

bool closer_refuses(int fd)
{
	int passes = 1;
	socklen_t n = sizeof(passes);

	return getsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &passes, &n) == 0 && !passes;
}

/* Drops the packets that wait, up to one with descriptors. With SO_PASSCRED each packet has a
 * control message, which tells an empty packet from the end. */
static bool has_descriptors(int fd)
{
	char control[CMSG_SPACE(sizeof(struct ucred))], byte;

	shutdown(fd, SHUT_RDWR); /* no more will come */
	if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int)) < 0)
		return true;
	for (;;) {
		struct msghdr message = {.msg_control = control, .msg_controllen = sizeof(control)};
		ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_PEEK);

		if (n < 0 && errno == ECONNRESET) /* reported once */
			continue;
		if (n >= 0 && (message.msg_flags & MSG_CTRUNC))
			return true;
		if (n < 0 || message.msg_controllen == 0)
			return false;
		(void)!recv(fd, &byte, 1, MSG_DONTWAIT);
	}
}

static void *work(void *fd)
{
	close((int)(intptr_t)fd);
	atomic_fetch_sub(&closing, 1);
	return NULL;
}

void closer_close(int fd)
{
	pthread_t thread;

	if (closer_refuses(fd) || !has_descriptors(fd)) {
		close(fd);
		return;
	}
	if (atomic_fetch_add(&closing, 1) < MOST &&
		pthread_create(&thread, NULL, work, (void *)(intptr_t)fd) == 0) {
		pthread_detach(thread);
		return;
	}
	atomic_fetch_sub(&closing, 1);
	log_client(0, LOG_WARNING,
		"a client's socket cannot be closed, because files that clients sent do not "
		"answer; its descriptor stays in use until a restart; Linux 6.16 prevents that");
}
