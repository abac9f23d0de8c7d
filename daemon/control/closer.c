#include "daemon/control/closer.h"

#include "daemon/control/log.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

enum {
	HANGS_MS = 100,
	PATIENCE_MS = 1000,
};

struct job {
	struct keeper_job job; /* first member */
	int fd;
};

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

static void work(struct keeper_job *job)
{
	close(((struct job *)job)->fd);
}

static void done(struct keeper_job *job)
{
	free(job);
}

/* NULL: there is none. */
static struct keeper *choose(struct closers *all)
{
	struct fault fault;

	for (unsigned i = 0; i < all->n; i++)
		if (keeper_busy_ms(all->keeper[i]) < HANGS_MS)
			return all->keeper[i];
	if (all->n < CLOSERS_MOST) {
		struct keeper *another = keeper_start(all->loop, &fault);

		if (another)
			return all->keeper[all->n++] = another;
	}
	log_client(0, LOG_WARNING,
		"sockets of clients cannot be closed, because files that clients sent do not "
		"answer; their descriptors stay in use until a restart; Linux 6.16 prevents that");
	return all->n > 0 ? all->keeper[0] : NULL;
}

void closer_close(struct closers *all, int fd)
{
	struct keeper *keeper;
	struct job *job;

	if (closer_refuses(fd)) {
		close(fd);
		return;
	}
	keeper = choose(all);
	job = keeper ? calloc(1, sizeof(*job)) : NULL;
	if (!job)
		return;
	*job = (struct job){{.work = work, .done = done}, fd};
	keeper_give(keeper, &job->job);
}

void closers_stop(struct closers *all)
{
	for (unsigned i = 0; i < all->n; i++)
		keeper_close(all->keeper[i]);
}

bool closers_end(struct closers *all)
{
	bool ended = true;
	unsigned left;

	for (unsigned i = 0; i < all->n; i++)
		ended = keeper_stop(all->keeper[i], ended ? PATIENCE_MS : 0, &left) && ended;
	return ended;
}
