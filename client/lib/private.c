#include "client/lib/private.h"

#include "client/lib/program.h"
#include "client/lib/wait.h"
#include "proto/wire.h"

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

enum { LOOK_MS = 50 }; /* between two looks whether tokctl has ended */

extern char **environ;

/* A process of tokctl. */
struct starter {
	pid_t pid; /* 0: reaped */
	int fd;	   /* what it prints on stdout and stderr */
	bool named, private;
	char socket[WIRE_SOCKET_BYTES];
	size_t n;
	char text[LIMIT_TEXT_BYTES]; /* a line that is not complete yet */
	char last[LIMIT_TEXT_BYTES]; /* the last message; "": none */
};

/* ---- the process ---- */

/* Starts @argv with its output to @fd, in a session that no Ctrl-C reaches, with no signal blocked
 * or ignored. Returns an errno. */
static int spawn(pid_t *pid, char *const argv[], int fd)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	sigset_t none, all;
	int error = posix_spawn_file_actions_init(&files);

	if (error)
		return error;
	error = posix_spawnattr_init(&attributes);
	if (error) {
		posix_spawn_file_actions_destroy(&files);
		return error;
	}
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawnattr_setflags(
		&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	if (!(error = posix_spawn_file_actions_adddup2(&files, fd, 1)) &&
		!(error = posix_spawn_file_actions_adddup2(&files, 1, 2)) &&
		!(error = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0)))
		error = posix_spawn(pid, argv[0], &files, &attributes, argv, environ);
	posix_spawn_file_actions_destroy(&files);
	posix_spawnattr_destroy(&attributes);
	return error;
}

/* Runs tokctl start. @socket: where to start the daemon; NULL: tokctl finds that out. */
static int start(struct tokend *t, const char *config, const char *socket)
{
	char program[PATH_MAX];
	char *argv[] = {program, "start", "-c", (char *)config, socket ? "--socket" : NULL,
		(char *)socket, NULL};
	struct starter *s;
	int ends[2], error;

	if (!program_find("tokctl", program, sizeof(program)))
		return handle_fail(t, TOKEND_ESTART, "config",
			"tokctl is neither near the library nor on PATH; install tokend, or set "
			"TOKEND_BIN to the directory of its programs");
	s = calloc(1, sizeof(*s));
	if (!s)
		return handle_memory(t);
	if (pipe2(ends, O_CLOEXEC) < 0) {
		free(s);
		return handle_fail_errno(t, TOKEND_EMEMORY, errno, "config", "cannot run %s: %s",
			program, strerror(errno));
	}
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	error = spawn(&s->pid, argv, ends[1]);
	close(ends[1]);
	if (error) {
		close(ends[0]);
		free(s);
		return handle_fail_errno(t, TOKEND_ESTART, error, "config", "cannot run %s: %s",
			program, strerror(error));
	}
	s->fd = ends[0];
	t->starter = s;
	return 0;
}

/* Takes a complete line. */
static void take_line(struct starter *s, const char *line)
{
	bool private = strncmp(line, "private ", 8) == 0;
	const char *path = line + (private ? 8 : 7);

	if (!s->named && (private || strncmp(line, "shared ", 7) == 0) &&
		strlen(path) < sizeof(s->socket)) {
		memcpy(s->socket, path, strlen(path) + 1);
		s->private = private;
		s->named = true;
	} else if (*line) {
		bool own = strncmp(line, "tokctl: ", 8) == 0 || strncmp(line, "tokend: ", 8) == 0;

		snprintf(s->last, sizeof(s->last), "%s", line + (own ? 8 : 0));
	}
}

/* Reads what tokctl has printed. False if nothing more will come. */
static bool receive(struct starter *s)
{
	for (;;) {
		ssize_t n = read(s->fd, s->text + s->n, sizeof(s->text) - 1 - s->n);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 && errno == EAGAIN;
		s->n += (size_t)n;
		s->text[s->n] = 0;
		for (char *end; (end = strchr(s->text, '\n'));) {
			*end = 0;
			take_line(s, s->text);
			s->n -= (size_t)(end + 1 - s->text);
			memmove(s->text, end + 1, s->n + 1);
		}
		if (s->n == sizeof(s->text) - 1) { /* a line that is too long is cut */
			take_line(s, s->text);
			s->n = 0;
		}
	}
}

/*
 * Has tokctl ended? A fork of this process may keep the pipe open, and another thread may have
 * reaped the process, so neither is waited for alone.
 */
static bool has_ended(struct starter *s)
{
	bool open = receive(s);
	pid_t pid;

	if (s->pid == 0)
		return true;
	do
		pid = waitpid(s->pid, NULL, open ? WNOHANG : 0);
	while (pid < 0 && errno == EINTR);
	if (pid == 0)
		return false;
	s->pid = 0;
	receive(s);
	return true;
}

void private_end(struct tokend *t)
{
	struct starter *s = t->starter;

	if (!s)
		return;
	t->starter = NULL;
	if (!has_ended(s) && kill(s->pid, SIGKILL) == 0)
		while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR)
			;
	close(s->fd);
	free(s);
}

/* The failure that tokctl, which has ended, reported. */
static int report(struct tokend *t)
{
	char line[LIMIT_TEXT_BYTES];

	snprintf(line, sizeof(line), "%s",
		t->starter->last[0] ? t->starter->last
				    : "config: tokctl start ended without a message");
	private_end(t);
	return handle_fail(t, TOKEND_ESTART, "", "%s", line);
}

/* ---- the daemon of a config ---- */

/* A message that came before the socket's line: a warning. */
static void warn(struct tokend *t)
{
	struct starter *s = t->starter;

	if (s->last[0] && t->call.notice)
		t->call.notice(t->call.context, s->last);
	else if (s->last[0] && t->call.warn)
		t->call.warn(t->call.warn_context, s->last);
	s->last[0] = 0;
}

/* Waits until tokctl has printed the socket. */
static int wait_named(struct tokend *t, const char *config, uint32_t ms)
{
	struct starter *s = t->starter;
	int64_t until = wait_now() + ms * WAIT_MS;

	while (!has_ended(s) && !s->named) {
		int64_t now = wait_now();

		if (now >= until)
			return handle_fail(t, TOKEND_ECONNECT, "config",
				"tokctl start has not found the daemon of %s within %g s; try "
				"tokctl status -c with this file",
				config, ms / 1e3);

		int r = wait_ready(t, s->fd, POLLIN, wait_earlier(until, now + LOOK_MS * WAIT_MS));

		if (r < 0)
			return r;
	}
	return s->named ? 0 : report(t);
}

int private_join(struct tokend *t, const char *config)
{
	t->config = realpath(config, NULL);
	if (!t->config && errno != ENOMEM)
		t->config = strdup(config); /* tokctl says what is wrong with it */
	return t->config ? 0 : handle_memory(t);
}

int private_find(struct tokend *t, const char *config, uint32_t ms)
{
	int r = private_join(t, config);

	if (r == 0)
		r = start(t, t->config, NULL);
	if (r == 0)
		r = wait_named(t, t->config, ms);
	if (r < 0)
		return r;
	warn(t);
	free(t->socket);
	t->socket = strdup(t->starter->socket);
	if (!t->starter->private) {
		free(t->config);
		t->config = NULL;
	}
	return t->socket ? 0 : handle_memory(t);
}

int private_absent(struct tokend *t)
{
	if (t->starter && !has_ended(t->starter))
		return 0;
	if (t->starter && t->starter->last[0])
		return report(t);
	private_end(t);
	return start(t, t->config, t->socket);
}
