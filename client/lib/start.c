/*
 * The daemon of a config file: the one at the socket that the config names, otherwise a private
 * daemon. `tokctl start` finds it, or starts it, in a process of its own. So the library needs
 * neither the config's parser nor the lock that decides who starts a daemon, and no fork of the
 * trainer can keep that lock. It prints the socket, as "shared PATH" or "private PATH", after
 * warnings if there are any. It ends when the daemon answers, or with the message of one that
 * failed.
 */
#include "client/lib/handle.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- programs ---- */

/*
 * Where the programs are, seen from the file that contains this code: a program of tokend; the
 * library, below PREFIX/lib or in a build, or the package of pip --target; the package in a build,
 * or the library below PREFIX/lib/ARCH; the package in PREFIX/lib/tokend/python/tokend, or where
 * pip installs it, in PREFIX/lib/pythonX.Y/site-packages/tokend; the library there, in its lib.
 */
static const char *const places[] = {
	".", "../bin", "../../bin", "../../../../bin", "../../../../../bin"};

/* Writes @directory/@name if that is a program. */
static bool is_in(const char *directory, const char *name, char *path, size_t bytes)
{
	char whole[PATH_MAX];
	struct stat st;

	if (!realpath(directory, whole))
		return false;
	int n = snprintf(path, bytes, "%s/%s", whole, name);

	return n > 0 && (size_t)n < bytes && stat(path, &st) == 0 && S_ISREG(st.st_mode) &&
	       access(path, X_OK) == 0;
}

static bool is_near(const char *name, char *path, size_t bytes)
{
	char own[PATH_MAX], place[PATH_MAX + 32];
	Dl_info info;

	/* A program that was found in $PATH has no slash in its name. */
	if (dladdr(places, &info) && info.dli_fname && strchr(info.dli_fname, '/'))
		snprintf(own, sizeof(own), "%s", info.dli_fname);
	else if (!realpath("/proc/self/exe", own))
		return false;
	*strrchr(own, '/') = 0;
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		snprintf(place, sizeof(place), "%s/%s", own, places[i]);
		if (is_in(place, name, path, bytes))
			return true;
	}
	return false;
}

static bool is_on_path(const char *name, char *path, size_t bytes)
{
	char *list = strdup(getenv("PATH") ? getenv("PATH") : ""), *rest = list, *directory;
	bool found = false;

	while (!found && (directory = strsep(&rest, ":")))
		found = directory[0] && is_in(directory, name, path, bytes);
	free(list);
	return found;
}

int tokend_program(const char *name, char *path, size_t capacity)
{
	const char *named = getenv("TOKEND_BIN");

	if ((named && named[0] && is_in(named, name, path, capacity)) ||
		is_near(name, path, capacity) || is_on_path(name, path, capacity))
		return 0;
	return TOKEND_EARGUMENT;
}

/* ---- the daemon of a config ---- */

static int cannot_run(struct tokend *t, const char *program, int error)
{
	bool full = error == EMFILE || error == ENFILE || error == ENOMEM;

	return handle_fail(t, full ? TOKEND_EMEMORY : TOKEND_ESTART, "config", "cannot run %s: %s",
		program, strerror(error));
}

int start_begin(struct tokend *t)
{
	char program[PATH_MAX];
	bool named = t->socket[0];
	char *argv[] = {
		program, "start", "-c", t->config, named ? "--socket" : NULL, t->socket, NULL};
	struct starter *s = &t->starter;
	int ends[2], error;

	if (s->pid)
		return 0;
	if (tokend_program("tokctl", program, sizeof(program)) != 0)
		return handle_fail(t, TOKEND_ESTART, "config",
			"tokctl is neither near the library nor on PATH; install tokend, or set "
			"TOKEND_BIN to the directory of its programs");
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
		return cannot_run(t, program, errno);
	error = process_start(&s->pid, argv, ends[1]);
	close(ends[1]);
	if (error) {
		close(ends[0]);
		return cannot_run(t, program, error);
	}
	s->output = ends[0];
	s->ended = (int)syscall(SYS_pidfd_open, s->pid, 0);
	if (s->ended >= 0)
		return 0;
	error = errno;
	start_end(t);
	return cannot_run(t, program, error);
}

void start_end(struct tokend *t)
{
	struct starter *s = &t->starter;
	siginfo_t info;

	if (!s->pid)
		return;
	if (waitid(P_PID, (id_t)s->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
		info.si_pid == 0)
		kill(s->pid, SIGKILL);
	while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR)
		;
	if (s->ended >= 0)
		close(s->ended);
	close(s->output);
	s->pid = 0;
}

/* Takes the daemon's socket, or fails. */
static int take_output(struct tokend *t, char *text)
{
	const char *path = NULL, *last = "";
	bool private = false;

	for (char *line, *rest = text; (line = strsep(&rest, "\n"));) {
		bool is_private = strncmp(line, "private ", 8) == 0;

		if (!path && (is_private || strncmp(line, "shared ", 7) == 0)) {
			path = strchr(line, ' ') + 1;
			private = is_private;
			if (last[0])
				handle_tell(t, last);
			last = "";
		} else if (line[0]) {
			last = line + (strncmp(line, "tokctl: ", 8) == 0 ? 8 : 0);
		}
	}
	if (last[0] || !path || strlen(path) >= sizeof(t->socket))
		return handle_fail(t, TOKEND_ESTART, "", "%s",
			last[0] ? last : "config: tokctl start ended without a message");
	if (t->socket[0])
		return 0;
	strcpy(t->socket, path);
	if (!private) {
		free(t->config);
		t->config = NULL;
	}
	return 0;
}

int start_finish(struct tokend *t)
{
	char text[4 * LIMIT_TEXT_BYTES];
	ssize_t n;

	do
		n = read(t->starter.output, text, sizeof(text) - 1);
	while (n < 0 && errno == EINTR);
	text[n > 0 ? n : 0] = 0;
	start_end(t);
	return take_output(t, text);
}

int start_join(struct tokend *t, const char *config)
{
	char here[PATH_MAX];
	bool below = config[0] != '/' && getcwd(here, sizeof(here));

	/* A link stays one: relative paths in the config start at its directory. */
	if (asprintf(&t->config, "%s%s%s", below ? here : "", below ? "/" : "", config) >= 0)
		return 0;
	t->config = NULL;
	return handle_memory(t);
}

int start_find(struct tokend *t, const char *config, uint32_t ms)
{
	struct waiting w;
	int r = start_join(t, config);

	waiting_begin(&w, wait_now());
	if (r == 0)
		r = start_begin(t);
	while (r == 0) {
		int64_t end = w.since + ms * WAIT_MS;

		if (wait_now() >= end)
			return handle_fail(t, TOKEND_ECONNECT, "config",
				"the daemon of %s did not answer within %g s; try tokctl start -c "
				"with this file",
				config, ms / 1e3);
		r = waiting_say(t, &w, end, "config", "the daemon of %s to start", config);
		if (r == 0)
			r = wait_ready(
				t, t->starter.ended, POLLIN, wait_earlier(end, waiting_at(&w)));
	}
	return r == 1 ? start_finish(t) : r;
}
