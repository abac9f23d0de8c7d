#include "client/ctl/online/hear.h"

enum ctl_heard ctl_hear_packet(int fd, struct packet *packet, int ms, struct pollfd other)
{
	struct pollfd p[] = {{fd, POLLIN, 0}, other};

	for (;;) {
		switch (link_receive(fd, packet)) {
		case LINK_MESSAGE:
			return CTL_MESSAGE;
		case LINK_CLOSED:
			return CTL_LOST;
		case LINK_FAULT:
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
