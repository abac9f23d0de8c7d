/*
 * tokctl start: has a daemon serve a config. tokctl stop: ends one that nobody reads from.
 *
 * A private daemon is one per config and user, for configs that no other daemon serves. A lock file
 * next to its socket decides who starts it. The process that takes the lock passes it to the daemon
 * at start, and the daemon keeps it until it ends, also by a kill. So no second daemon starts while
 * one starts, serves or ends. When the daemon ends it removes lock and log; after a kill the next
 * daemon uses them.
 */
#include "client/ctl/online/talk.h"
#include "client/lib/tokend.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	PAUSE_MS = 10, /* between two tries */
	STARTS = 5,    /* of daemons that end before they answer */
	LINE_BYTES = 4096,
	STOP_MS = 20000, /* a daemon gives up on hung storage after 7 s */
};

/* The config, its private daemon's socket (of the link), and the daemon that this process started.
 */
struct service {
	char config[PATH_MAX]; /* absolute */
	char program[PATH_MAX];
	pid_t pid; /* 0: none */
	unsigned starts;
	int log; /* descriptor */
	struct ctl_link link;
};

/* ---- its files ---- */

/* Makes the socket's directory, or checks that only this user may write there. */
static bool make_directory(const struct service *s)
{
	const char *slash = strrchr(s->link.socket, '/');
	char directory[WIRE_SOCKET_BYTES];
	struct stat st = {0};

	if (s->link.socket[0] != '/' || slash == s->link.socket)
		return ctl_error(
			"--socket: %s is not an absolute path in a directory", s->link.socket);
	memcpy(directory, s->link.socket, (size_t)(slash - s->link.socket));
	directory[slash - s->link.socket] = 0;
	do {
		if (mkdir(directory, 0700) < 0 && errno != EEXIST)
			return ctl_error("config: %s: %s; set XDG_RUNTIME_DIR to a directory of "
					 "yours, for the daemon's socket",
				directory, strerror(errno));
	} while (lstat(directory, &st) < 0 && errno == ENOENT); /* its last daemon removed it */
	if (S_ISDIR(st.st_mode) && st.st_uid == getuid() && (st.st_mode & 077) == 0)
		return true;
	return ctl_error(
		"config: %s is not a directory of uid %u with mode 0700; remove it, or set "
		"XDG_RUNTIME_DIR to a directory of yours",
		directory, (unsigned)getuid());
}

/* Takes the lock, for the daemon to inherit. Returns a descriptor; -1 if another process has it; -2
 * after an error. */
static int take_lock(const struct service *s)
{
	char lock[WIRE_SOCKET_BYTES + 8];
	struct stat ours, now;

	snprintf(lock, sizeof(lock), "%s.lock", s->link.socket);
	for (;;) {
		if (!make_directory(s))
			return -2;
		int fd = open(lock, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);

		if (fd < 0 && errno == ENOENT)
			continue; /* the last daemon has removed the directory */
		if (fd < 0) {
			ctl_fail("config: cannot create %s: %s", lock, strerror(errno));
			return -2;
		}
		if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
			close(fd);
			return -1;
		}
		if (fstat(fd, &ours) == 0 && stat(lock, &now) == 0 && ours.st_ino == now.st_ino &&
			ours.st_dev == now.st_dev)
			return fd;
		close(fd); /* a daemon has removed the lock file that we opened */
	}
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
	close_range(STDERR_FILENO + 1, ~0u, 0);
}

/* These belong to a systemd service, not to its children. */
static void leave_service(void)
{
	static const char *const names[] = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID",
		"LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID", "JOURNAL_STREAM", "STATE_DIRECTORY"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unsetenv(names[i]);
}

/* Starts the daemon, unless another process starts one, or becomes it. */
static bool launch(struct service *s, bool become)
{
	int lock = take_lock(s), error;
	char number[16], log[WIRE_SOCKET_BYTES + 8];
	char *argv[] = {s->program, "-c", s->config, "--socket", s->link.socket, "--private",
		number, become ? NULL : "--linger", "60", NULL};

	snprintf(number, sizeof(number), "%d", lock);
	snprintf(log, sizeof(log), "%s.log", s->link.socket);
	if (lock == -1 && become)
		return ctl_error(
			"%s: its private daemon already runs, at %s; tokctl stop -c %s ends it",
			s->config, s->link.socket, s->config);
	if (lock < 0)
		return lock == -1;
	if (become) {
		execv(s->program, argv);
		return ctl_error("cannot run %s: %s", s->program, strerror(errno));
	}
	s->log = open(log, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (s->log < 0)
		return ctl_error("config: cannot create %s: %s", log, strerror(errno));
	error = process_start(&s->pid, argv, s->log);
	s->starts++;
	close(lock);
	return !error || ctl_error("config: cannot run %s: %s", s->program, strerror(error));
}

/* Prints the last line that the daemon wrote, and how it ended unless that says so. */
static void print_last(const struct service *s, int status)
{
	char text[LINE_BYTES + 1];
	off_t bytes = lseek(s->log, 0, SEEK_END);
	ssize_t n = pread(s->log, text, LINE_BYTES, bytes > LINE_BYTES ? bytes - LINE_BYTES : 0);

	while (n > 0 && text[n - 1] == '\n')
		n--;
	text[n > 0 ? n : 0] = 0;

	const char *newline = strrchr(text, '\n'), *line = newline ? newline + 1 : text;

	line += strncmp(line, "tokend: ", 8) == 0 ? 8 : 0;
	if (*line && WIFEXITED(status))
		ctl_fail("%s", line);
	else
		ctl_fail("config: tokend %s %d at the last of %u starts, and its log ends with: %s",
			WIFEXITED(status) ? "exited with status" : "was killed by signal",
			WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), s->starts,
			line);
}

/* False if the daemon has failed. One that was killed, or that nobody used, is replaced a few
 * times. */
static bool look_after(struct service *s)
{
	int status;

	if (!s->pid || waitpid(s->pid, &status, WNOHANG) != s->pid)
		return true;
	bool failed = (WIFEXITED(status) && WEXITSTATUS(status) != 0) || s->starts == STARTS;

	if (failed)
		print_last(s, status);
	close(s->log);
	s->pid = 0;
	return !failed;
}

/*
 * Waits until the daemon answers, or until stdout is a pipe that nobody reads any more. A daemon
 * that is opening its shards accepts nobody, so a connection is kept until it answers or ends:
 * others would fill its queue.
 */
static int serve(struct service *s)
{
	struct pollfd reader = {STDOUT_FILENO, 0, 0};
	struct fault fault;

	while (poll(&reader, 1, 0) == 0) {
		enum ctl_heard heard = CTL_LOST;

		s->link.fd = link_open(s->link.socket, LINK_OPERATOR, s->link.packet.bytes, &fault);
		if (s->link.fd >= 0)
			heard = ctl_hear(&s->link, INT_MAX, reader);
		else if (fault.code == FAULT_PERMISSION)
			return ctl_fail("%s: %s", fault.field, fault.text);
		ctl_disconnect(&s->link);
		if (heard == CTL_MESSAGE && s->link.packet.wire.op == WIRE_HELLO)
			return CTL_OK;
		if (!look_after(s) || (!s->pid && !launch(s, false)))
			return CTL_FAILED;
		poll(NULL, 0, PAUSE_MS);
	}
	return CTL_FAILED;
}

/* ---- tokctl start ---- */

static const struct ctl_option start_options[] = {
	{CTL_CONFIG_NEEDED},
	{OPTION_TEXT("socket", "PATH",
		"start the private daemon there; default: a name made from the file's path and "
		"text, and from what is mounted at the paths of its datasets")},
	{OPTION_FLAG("foreground", "become the private daemon, which then serves until Ctrl-C")},
	{CTL_JSON_OPTION},
};

/* Prints the socket before the daemon answers: a client may connect meanwhile. */
static int print(bool private, const char *socket, bool json)
{
	struct emit e = {.json = json};

	emit_bool(&e, "private", NULL, private);
	emit_text(&e, "socket", NULL, socket);
	if (!json) /* byte for byte: libtokend reads it */
		printf("%s %s\n", private ? "private" : "shared", socket);
	return emit_end(&e, CTL_OK);
}

/* Finds the daemon of this file at the places where clients look, and sets s->link.socket to it. */
static bool find_shared(struct service *s, const struct config *config)
{
	struct ctl_daemons found;
	bool serves = false;

	s->link.quiet = true;
	ctl_daemons_look(&s->link, &found, config, s->config);
	for (unsigned i = 0; i < found.shared && !serves; i++) {
		serves = ctl_daemon_has(&s->link, &found, i, s->config, NULL, NULL);
		if (serves && s->link.edited)
			ctl_note(EDITED, s->config, s->link.socket);
		if (!serves && s->link.untrusted)
			ctl_note("%s; until then a private daemon serves %s", s->link.why,
				s->config);
	}
	return serves;
}

static int start(const struct ctl_arguments *a)
{
	bool socket = ctl_given(a, "socket"), foreground = ctl_given(a, "foreground"), shared;
	struct service s = {.pid = 0};
	struct config *config;
	struct fault fault;
	int status;

	if (!config_whole(ctl_text(a, "config"), s.config))
		snprintf(s.config, sizeof(s.config), "%s", ctl_text(a, "config"));
	settle_descriptors();
	if (tokend_program("tokend", s.program, sizeof(s.program)) != 0)
		return ctl_fail("config: tokend is neither near tokctl nor on PATH; install it, or "
				"set TOKEND_BIN to its directory");
	config = config_load(s.config, &fault);
	if (!config)
		return ctl_fail("%s", fault.text);
	shared = !socket && !foreground && find_shared(&s, config);
	if (!shared && !socket)
		ctl_private_socket(config, s.config, false, s.link.socket);
	config_free(config);
	if (shared)
		return print(false, s.link.socket, ctl_given(a, "json"));
	if (socket && !ctl_choose(&s.link, a, NULL, NULL))
		return CTL_FAILED;
	/* Before a client connects: only this user's daemon can listen in it. */
	if (!make_directory(&s))
		return CTL_FAILED;
	if (foreground)
		return launch(&s, true) ? CTL_OK : CTL_FAILED;
	if (chdir("/") < 0)
		return ctl_fail("/: %s", strerror(errno));
	leave_service();
	status = print(true, s.link.socket, ctl_given(a, "json"));
	return status == CTL_OK ? serve(&s) : status;
}

const struct ctl_command ctl_start = {
	.name = "start",
	.help = "have a daemon serve a config, for this user",
	OPTIONS_ARE(start_options),
	.run = start,
};

/* ---- tokctl stop ---- */

static const struct ctl_option stop_options[] = {
	{CTL_CONFIG_OPTION},
	{CTL_SOCKET_OPTION},
};

static int stop(const struct ctl_arguments *a)
{
	struct ctl_link link = {0};
	struct ucred peer = {0};
	socklen_t n = sizeof(peer);
	enum ctl_heard heard = CTL_MESSAGE;

	if (!ctl_choose(&link, a, NULL, NULL) || !ctl_open(&link, link.socket))
		return CTL_FAILED;
	json_t *status = ctl_ask_status(&link, false), *daemon = json_object_get(status, "daemon");
	uint64_t sessions = status_number(daemon, "sessions");
	bool is_peer = getsockopt(link.fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0 &&
		       status_number(daemon, "pid") == (uint64_t)peer.pid;

	json_decref(status);
	if (!status)
		return CTL_FAILED;
	if (sessions > 0)
		return ctl_fail("%s: %" PRIu64 " session%s of trainers read from it; end "
				"them first: tokctl drain, or tokctl status for their pids",
			link.socket, sessions, sessions == 1 ? "" : "s");
	if (!is_peer) /* systemd listens, or the daemon is in another PID namespace */
		return ctl_fail("%s: is a service, or in another PID namespace; stop it there: "
				"systemctl stop tokend.socket tokend",
			link.socket);
	if (kill(peer.pid, SIGTERM) < 0)
		return ctl_fail("%s: cannot stop pid %d: %s; its owner or root can", link.socket,
			(int)peer.pid, strerror(errno));
	while (heard == CTL_MESSAGE)
		heard = ctl_hear(&link, STOP_MS, (struct pollfd){-1, 0, 0});
	if (heard != CTL_LOST)
		return ctl_fail("%s: pid %d has not ended within %d s; look at its log",
			link.socket, (int)peer.pid, STOP_MS / 1000);
	printf("stopped pid %d\n", (int)peer.pid);
	return CTL_OK;
}

const struct ctl_command ctl_stop = {
	.name = "stop",
	.help = "end a daemon, like the private one of a config",
	OPTIONS_ARE(stop_options),
	.run = stop,
};
