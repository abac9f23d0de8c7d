/* credential_process: a command of a profile that prints credentials. */
#include "daemon/store/providers_own.h"
#include "daemon/store/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OUTPUT_BYTES = 64 << 10, PATIENCE_MS = 30 * 1000, END_MS = 1000 };

extern char **environ;

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Starts the command in a process group of its own. Its standard error is dropped, because a log
 * must not repeat what it prints. Returns an error number. */
static int start(const char *command, int out, pid_t *pid)
{
	char *const arguments[] = {"sh", "-c", (char *)command, NULL};
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	sigset_t none, all;

	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&files, out, 1);
	posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
	posix_spawnattr_init(&attributes);
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawnattr_setflags(&attributes,
		POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	int error = posix_spawn(pid, "/bin/sh", &files, &attributes, arguments, environ);

	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&files);
	return error;
}

/* Reads until the end, the time limit, the size limit, or the stop. Returns the length, or -1. */
static long collect(int out, int stop, char *text, bool *too_long)
{
	int64_t end_ms = now_ms() + PATIENCE_MS;
	struct pollfd poll_for[] = {{.fd = out, .events = POLLIN}, {.fd = stop, .events = POLLIN}};
	size_t n = 0;

	for (;;) {
		int64_t left = end_ms - now_ms();
		int ready = left > 0 ? poll(poll_for, 2, (int)left) : 0;

		if (ready < 0 && errno == EINTR)
			continue;
		if (ready <= 0 || poll_for[1].revents)
			return -1;
		ssize_t got = read(out, text + n, OUTPUT_BYTES - n);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got == 0 ? (long)n : -1;
		n += (size_t)got;
		*too_long = n == OUTPUT_BYTES;
		if (*too_long)
			return -1;
	}
}

/* Returns the command's status. @done: it has closed its output, and may end by itself. */
static int end(pid_t pid, bool done)
{
	int64_t end_ms = now_ms() + (done ? END_MS : 0);
	int status = 0;
	pid_t ended = 0;

	while (ended == 0 && now_ms() < end_ms) {
		ended = waitpid(pid, &status, WNOHANG);
		if (ended == 0)
			poll(NULL, 0, 5);
	}
	kill(-pid, SIGKILL); /* it may have left processes */
	while (ended == 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}

static enum provided run(struct seek *search, const char *command, const char *profile, char *text)
{
	bool too_long = false;
	int pipe_fds[2], status;
	pid_t pid;

	if (pipe2(pipe_fds, O_CLOEXEC) < 0)
		return seek_later(search, "profile %s: no pipe for credential_process: %s", profile,
			strerror(errno));
	int error = start(command, pipe_fds[1], &pid);

	close(pipe_fds[1]);
	if (error) {
		close(pipe_fds[0]);
		return seek_later(search, "profile %s: credential_process cannot start: %s",
			profile, strerror(error));
	}
	long n = collect(pipe_fds[0], search->stop, text, &too_long);

	close(pipe_fds[0]);
	status = end(pid, n >= 0);
	if (too_long)
		return seek_later(search,
			"profile %s: credential_process printed more than %d bytes", profile,
			OUTPUT_BYTES);
	if (n < 0)
		return seek_later(search, "profile %s: credential_process did not end in %d s",
			profile, PATIENCE_MS / 1000);
	if (status != 0)
		return seek_later(search,
			"profile %s: credential_process ended with status %d; run it by hand",
			profile, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
	return provide_json(search, text, (size_t)n, "SessionToken", "credential_process");
}

enum provided provide_process(struct seek *search, const char *command, const char *profile)
{
	char *text = secret_new(OUTPUT_BYTES);
	enum provided result;

	if (!text)
		return seek_later(search, "out of memory");
	result = run(search, command, profile, text);
	secret_free(text, OUTPUT_BYTES);
	return result;
}
