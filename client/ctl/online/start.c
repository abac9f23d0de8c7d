/* tokctl start: has a daemon serve a config. */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/error.h"
#include "client/ctl/common/out.h"
#include "client/ctl/online/commands.h"
#include "client/ctl/online/private.h"
#include "client/ctl/online/socket.h"
#include "client/lib/tokend.h"
#include "daemon/config/config.h"
#include "proto/phrases.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	BACKOFF_MS = 50, /* longest pause between two tries */
	STARTS = 5,	 /* of daemons that end before they answer */
	LINE_BYTES = 4096,
};

extern char **environ;

/* The daemon that this process started. */
struct child {
	pid_t pid; /* 0: none */
	unsigned starts;
	int log;     /* descriptor */
	off_t begin; /* of its lines, after those of one that was killed */
};

/* The config, its socket, and the daemon that serves it. */
struct service {
	char *config; /* absolute */
	char socket[WIRE_SOCKET_BYTES];
	char program[PATH_MAX];
	struct child child;
};

/* ---- the daemon at the config's socket ---- */

/* Finds the daemon of this file at the places where clients look. Prints nothing about a file that
 * is wrong: the private daemon does. */
static bool find_shared(struct service *s)
{
	struct ctl_candidates c = {.n = 0};
	char why[LIMIT_TEXT_BYTES];
	struct fault fault;
	struct config *config = config_load(s->config, &fault);
	enum private_answer answer = PRIVATE_NONE;

	if (config)
		ctl_candidates(&c, config);
	for (unsigned i = 0; i < c.n && answer != PRIVATE_SERVES; i++) {
		const char *path = c.place[i].path;

		if (!place_may_use(&c.place[i], why))
			continue;
		answer = private_ask(path, s->config, PRIVATE_ASK_MS, -1, &fault);
		if (answer == PRIVATE_UNTRUSTED)
			ctl_note("%s: %s; until then a private daemon serves %s", fault.field,
				fault.text, s->config);
		if (answer == PRIVATE_SERVES)
			snprintf(s->socket, sizeof(s->socket), "%s", path);
	}
	config_free(config);
	return answer == PRIVATE_SERVES;
}

/* ---- starting ---- */

/*
 * The caller may have left any descriptor open, and the daemon would keep it as long as it lives.
 * Or it has closed 0, 1 or 2: then the lock would have that number, which the daemon uses itself.
 */
static void settle_descriptors(void)
{
	for (int fd = 0; fd >= 0 && fd <= STDERR_FILENO;)
		fd = open("/dev/null", O_RDONLY);

	DIR *all = opendir("/proc/self/fd");

	for (struct dirent *e; all && (e = readdir(all));) {
		int fd = atoi(e->d_name);

		if (fd > 2 && fd != dirfd(all))
			close(fd);
	}
	if (all)
		closedir(all);
}

/* These belong to a systemd service, not to its children. */
static void leave_service(void)
{
	static const char *const names[] = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID",
		"LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID", "JOURNAL_STREAM", "STATE_DIRECTORY"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unsetenv(names[i]);
}

static int spawn(struct service *s, char *const argv[])
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	sigset_t none;

	sigemptyset(&none);
	posix_spawn_file_actions_init(&files);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setsigmask(&attributes, &none);
	/* Neither Ctrl-C nor the end of the trainer stops it. */
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
	posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&files, s->child.log, 1);
	posix_spawn_file_actions_adddup2(&files, s->child.log, 2);

	int error = posix_spawn(&s->child.pid, s->program, &files, &attributes, argv, environ);

	posix_spawn_file_actions_destroy(&files);
	posix_spawnattr_destroy(&attributes);
	if (error)
		s->child.pid = 0;
	return error;
}

/* Starts the daemon, which gets the lock @lock. */
static bool start_daemon(struct service *s, int lock)
{
	char number[16], log[WIRE_SOCKET_BYTES + 8];
	char *argv[] = {s->program, "-c", s->config, "--socket", s->socket, "--private", number,
		"--linger", "60", NULL};
	int error;

	snprintf(number, sizeof(number), "%d", lock);
	snprintf(log, sizeof(log), "%s.log", s->socket);
	s->child.log = open(log, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (s->child.log < 0) {
		ctl_fail("config: cannot create %s: %s", log, strerror(errno));
		return false;
	}
	s->child.begin = lseek(s->child.log, 0, SEEK_END);
	error = spawn(s, argv);
	s->child.starts++;
	if (!error)
		return true;
	ctl_fail("config: cannot run %s: %s", s->program, strerror(error));
	close(s->child.log);
	return false;
}

/* Starts the daemon, unless another process starts one. */
static bool try_start(struct service *s)
{
	int lock = private_lock(s->socket);

	if (lock < 0)
		return lock == -1;
	fcntl(lock, F_SETFD, 0);

	bool started = start_daemon(s, lock);

	close(lock);
	return started;
}

/* Prints the last line that the daemon wrote, and how it ended unless that says so. */
static void print_last(const struct child *c, int status)
{
	char how[100];
	bool failed = WIFEXITED(status) && WEXITSTATUS(status) != 0;

	char text[LINE_BYTES + 1];
	off_t end = lseek(c->log, 0, SEEK_END),
	      from = end - c->begin > LINE_BYTES ? end - LINE_BYTES : c->begin;
	ssize_t n = pread(c->log, text, LINE_BYTES, from);

	while (n > 0 && text[n - 1] == '\n')
		n--;
	if (WIFEXITED(status))
		snprintf(how, sizeof(how), "exited with status %d", WEXITSTATUS(status));
	else
		snprintf(how, sizeof(how), "was killed by signal %d (%s)", WTERMSIG(status),
			strsignal(WTERMSIG(status)));
	if (n <= 0) {
		ctl_fail("config: tokend %s without a message, at the last of %u starts", how,
			c->starts);
		return;
	}
	text[n] = 0;

	const char *line = strrchr(text, '\n');

	line = line ? line + 1 : text;
	line += strncmp(line, "tokend: ", 8) == 0 ? 8 : 0;
	if (failed)
		ctl_fail("%s", line);
	else
		ctl_fail("config: tokend %s at the last of %u starts, and its log ends with: %s",
			how, c->starts, line);
}

/* False if the daemon has failed. One that was killed, or that nobody used, is replaced a few
 * times. */
static bool look_after(struct child *c)
{
	int status;

	if (!c->pid || waitpid(c->pid, &status, WNOHANG) != c->pid)
		return true;
	bool failed = (WIFEXITED(status) && WEXITSTATUS(status) != 0) || c->starts == STARTS;

	if (failed)
		print_last(c, status);
	close(c->log);
	c->pid = 0;
	return !failed;
}

/* True if stdout is a pipe that nobody reads any more. */
static bool is_alone(void)
{
	struct pollfd p = {STDOUT_FILENO, 0, 0};

	return poll(&p, 1, 0) == 1 && (p.revents & POLLERR);
}

/*
 * Waits until the daemon answers. One that is opening its shards accepts nobody, so a connection is
 * kept until it answers or ends: others would fill its queue.
 */
static int serve(struct service *s)
{
	struct fault fault;

	for (int pause = 1; !is_alone(); pause = pause * 2 < BACKOFF_MS ? pause * 2 : BACKOFF_MS) {
		switch (private_ask(s->socket, NULL, INT_MAX, STDOUT_FILENO, &fault)) {
		case PRIVATE_SERVES:
		case PRIVATE_OTHER:
			return CTL_OK;
		case PRIVATE_UNTRUSTED:
			return ctl_fail("%s: %s", fault.field, fault.text);
		case PRIVATE_NONE:
			break;
		}
		if (!look_after(&s->child))
			return CTL_FAILED;
		if (!s->child.pid && !try_start(s))
			return CTL_FAILED;
		poll(NULL, 0, pause);
	}
	return CTL_FAILED;
}

/* Becomes the daemon. */
static int become(struct service *s)
{
	int lock = private_lock(s->socket);
	char number[16];
	char *argv[] = {
		s->program, "-c", s->config, "--socket", s->socket, "--private", number, NULL};

	if (lock == -1)
		return ctl_fail("%s: its private daemon already runs, at %s; tokctl stop -c "
				"%s ends it",
			s->config, s->socket, s->config);
	if (lock < 0)
		return CTL_FAILED;
	snprintf(number, sizeof(number), "%d", lock);
	fcntl(lock, F_SETFD, 0);
	execv(s->program, argv);
	return ctl_fail("cannot run %s: %s", s->program, strerror(errno));
}

/* ---- the command ---- */

enum { CONFIG, SOCKET, FOREGROUND, JSON };

static const struct ctl_option options[] = {
	[CONFIG] = CTL_CONFIG_NEEDED,
	[SOCKET] = {.name = "socket",
		.value = "PATH",
		.help = "start the private daemon there; default: a name made from the file's path "
			"and text"},
	[FOREGROUND] = {.name = "foreground",
		.kind = CTL_FLAG,
		.help = "become the private daemon, which then serves until Ctrl-C"},
	[JSON] = CTL_JSON_OPTION,
};

/* Prints the socket before the daemon answers: a client may connect meanwhile. */
static int print(const struct service *s, bool private, bool json)
{
	struct ctl_out out = {0};

	if (json) {
		ctl_put(&out, private ? "{\"private\":true" : "{\"private\":false");
		ctl_put(&out, ",\"socket\":");
		ctl_put_string(&out, s->socket);
		ctl_put(&out, "}\n");
	} else {
		ctl_put(&out, private ? "private " : "shared ");
		ctl_put(&out, s->socket);
		ctl_put(&out, "\n");
	}
	return ctl_finish(&out, CTL_OK);
}

static int start_private(struct service *s, const struct ctl_arguments *a)
{
	const char *given = ctl_text(a, SOCKET);

	if (given && strlen(given) >= sizeof(s->socket))
		return ctl_fail("--socket: %s has %zu bytes; a socket's path has at most %zu",
			given, strlen(given), sizeof(s->socket) - 1);
	if (given)
		memcpy(s->socket, given, strlen(given) + 1);
	/* Before a client connects: only this user's daemon can listen in it. */
	if (!private_directory(s->socket))
		return CTL_FAILED;
	if (ctl_given(a, FOREGROUND))
		return become(s);
	if (chdir("/") < 0)
		return ctl_fail("/: %s", strerror(errno));
	leave_service();

	int status = print(s, true, ctl_given(a, JSON));

	return status == CTL_OK ? serve(s) : status;
}

static int start(const struct ctl_arguments *a)
{
	struct service s = {.config = realpath(ctl_text(a, CONFIG), NULL)};
	int status = CTL_FAILED;

	if (!s.config)
		s.config = strdup(ctl_text(a, CONFIG));
	if (!s.config)
		return ctl_fail(PHRASE_MEMORY);
	settle_descriptors();
	if (tokend_program("tokend", s.program, sizeof(s.program)) != 0) {
		ctl_fail("config: tokend is neither near tokctl nor on PATH; install it, or set "
			 "TOKEND_BIN to its directory");
	} else if (private_socket(s.config, s.socket)) {
		bool alone = ctl_given(a, SOCKET) || ctl_given(a, FOREGROUND);

		status = !alone && find_shared(&s) ? print(&s, false, ctl_given(a, JSON))
						   : start_private(&s, a);
	}
	free(s.config);
	return status;
}

const struct ctl_command ctl_start = {
	.name = "start",
	.help = "have a daemon serve a config, for this user",
	.about = "Uses the daemon at the config's socket if it serves this file. Otherwise starts "
		 "the private daemon of this user and file, unless it runs: the one that "
		 "Loader(config=) starts too. It ends a minute after its last session.\n\n"
		 "Prints shared or private and the daemon's socket. Exits when the daemon answers, "
		 "or with the last line of its log if it fails.",
	.examples = CTL_EXAMPLES({"have tokend.yaml served before the first trainer",
		"tokctl start -c tokend.yaml"}),
	.options = options,
	.count = sizeof(options) / sizeof(options[0]),
	.run = start,
};
