/* tokctl stop: ends a daemon that nobody reads from. */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/out.h"
#include "client/ctl/online/commands.h"
#include "client/ctl/online/talk.h"
#include "proto/wire.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { PATIENCE_MS = 20000 }; /* a daemon gives up on hung storage after 15 s */

enum { CONFIG, SOCKET };

static const struct ctl_option options[] = {
	[CONFIG] = CTL_CONFIG_OPTION,
	[SOCKET] = CTL_SOCKET_OPTION,
};

/* The process that listens, or 0: systemd does, or the daemon is in another PID namespace. */
static pid_t listener(const struct ctl_link *l, uint64_t pid)
{
	struct ucred peer = {0};
	socklen_t n = sizeof(peer);

	if (getsockopt(l->fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0 || (uint64_t)peer.pid != pid)
		return 0;
	return peer.pid;
}

static bool has_ended(struct ctl_link *l)
{
	enum ctl_heard heard;

	do
		heard = ctl_hear(l, PATIENCE_MS, -1);
	while (heard == CTL_MESSAGE);
	return heard == CTL_LOST;
}

static int stop_at(struct ctl_link *l)
{
	json_t *status = ctl_ask_status(l, false, NULL, NULL),
	       *daemon = json_object_get(status, "daemon");
	uint64_t sessions = status_number(daemon, "sessions");
	pid_t pid = listener(l, status_number(daemon, "pid"));
	char line[128];

	json_decref(status);
	if (!status)
		return CTL_FAILED;
	if (sessions > 0)
		return ctl_fail("%s: %" PRIu64 " session%s of trainers would start it again; end "
				"them first: tokctl drain, or tokctl status for their pids",
			l->socket, sessions, sessions == 1 ? "" : "s");
	if (pid == 0)
		return ctl_fail("%s: is a service, or in another PID namespace; stop it there: "
				"systemctl stop tokend.socket tokend",
			l->socket);
	if (kill(pid, SIGTERM) < 0)
		return ctl_fail("%s: cannot stop pid %d: %s; its owner or root can", l->socket,
			(int)pid, strerror(errno));
	if (!has_ended(l))
		return ctl_fail("%s: pid %d has not ended within %d s; look at its log", l->socket,
			(int)pid, PATIENCE_MS / 1000);
	snprintf(line, sizeof(line), "stopped pid %d\n", (int)pid);

	struct ctl_out out = {0};

	ctl_put(&out, line);
	return ctl_finish(&out, CTL_OK);
}

static int stop(const struct ctl_arguments *a)
{
	struct ctl_link link;

	if (!ctl_connect(&link, ctl_text(a, SOCKET), ctl_text(a, CONFIG)))
		return CTL_FAILED;

	int status = stop_at(&link);

	ctl_disconnect(&link);
	return status;
}

const struct ctl_command ctl_stop = {
	.name = "stop",
	.help = "end a daemon, like the private one of a config",
	.about = "Ends the daemon if no trainer reads from it, and waits until it has ended. A "
		 "private daemon ends by itself a minute after its last session. A trainer with "
		 "Loader(config=) starts a new one, which reads config and shards again.",
	.examples = CTL_EXAMPLES({"serve another config, and stop its daemon",
		"cp tokend.yaml other.yaml; tokctl start -c other.yaml; tokctl stop -c "
		"other.yaml"}),
	.options = options,
	.count = sizeof(options) / sizeof(options[0]),
	.run = stop,
};
