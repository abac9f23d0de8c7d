/*
 * Talking to a daemon: connect, ask, hear. What goes wrong is printed here, once.
 */
#include "client/ctl/online/talk.h"
#include "client/ctl/common/error.h"
#include "client/ctl/online/socket.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { ANSWER_MS = 5000 };

int ctl_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC);
}

enum ctl_heard ctl_hear(int fd, struct packet *packet, int ms, int other)
{
	struct pollfd p[] = {{fd, POLLIN, 0}, {other, POLLIN, 0}};

	for (;;) {
		switch (link_receive(fd, packet)) {
		case LINK_MESSAGE:
			return CTL_MESSAGE;
		case LINK_CLOSED:
			return CTL_LOST;
		case LINK_FAULT:
			ctl_fail("not a daemon that speaks our protocol: %s: %s",
				packet->fault.field, packet->fault.text);
			return CTL_BAD;
		case LINK_WAKE:
			continue;
		case LINK_NOTHING:
			break;
		}

		int n = poll(p, 2, ms);

		if (n > 0 && p[1].revents)
			return CTL_OTHER;
		if (n == 0)
			return CTL_TIMEOUT;
	}
}

bool ctl_receive(int fd, struct packet *packet)
{
	switch (ctl_hear(fd, packet, ANSWER_MS, -1)) {
	case CTL_MESSAGE:
		return true;
	case CTL_LOST:
		ctl_fail("the daemon closed the connection (it stopped or was killed): ask again "
			 "when it is "
			 "back");
		break;
	case CTL_TIMEOUT:
		ctl_fail("no answer within %d s", ANSWER_MS / 1000);
		break;
	default:
		break;
	}
	return false;
}

static bool refused(const struct packet *packet)
{
	struct wire_bytes text = wire_bytes(&packet->wire, WIRE_TEXT);

	if (packet->wire.op != WIRE_ERROR)
		return false;
	ctl_fail("refused: %.*s", (int)text.n, text.at);
	return true;
}

bool ctl_ask(int fd, const struct wire *question, struct packet *packet)
{
	int error = link_send(fd, question, packet->bytes);

	/* It may have said why before it closed. */
	if (error < 0 && error != -EPIPE && error != -ECONNRESET) {
		ctl_fail("cannot write to the daemon: %s", strerror(-error));
		return false;
	}
	return ctl_receive(fd, packet) && !refused(packet);
}

int ctl_connect(const char *given, const char *config, char **socket, struct packet *packet)
{
	struct fault fault;
	int fd;

	*socket = ctl_socket(given, config);
	if (!*socket)
		return -1;
	fd = link_open(*socket, LINK_OPERATOR, packet->bytes, &fault);
	if (fd < 0 && fault.code == FAULT_PERMISSION)
		ctl_fail("%s: %s", fault.field, fault.text);
	else if (fd < 0)
		ctl_fail("%s; start one with tokend -c FILE, or name its --socket", fault.text);
	else if (ctl_receive(fd, packet) && !refused(packet))
		return fd;
	if (fd >= 0)
		close(fd);
	free(*socket);
	*socket = NULL;
	return -1;
}

bool ctl_status_list(int fd, struct packet *packet,
	void (*each)(void *context, const struct wire *w), void *context)
{
	struct wire question = {.op = WIRE_STATUS};

	wire_set(&question, WIRE_AFTER, 0);
	do {
		if (!ctl_ask(fd, &question, packet))
			return false;
		while (packet->wire.op != WIRE_STATUS) {
			each(context, &packet->wire);
			if (!ctl_receive(fd, packet))
				return false;
		}
		wire_set(&question, WIRE_AFTER, wire_number(&packet->wire, WIRE_AFTER));
	} while (wire_number(&packet->wire, WIRE_AFTER) != 0);
	return true;
}
