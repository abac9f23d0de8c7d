/*
 * tokctl doctor: what a node needs for a daemon and its trainers, a line each, in the order in
 * which a reader should mend them. For the last one, shards, it becomes the daemon's user, and also
 * measures the disk: windows at random places, past the page cache, by several threads.
 */
#include "client/ctl/offline/shards.h"
#include "client/ctl/online/talk.h"
#include "daemon/catalog/parallel_for.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <linux/io_uring.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <unistd.h>

enum {
	THREADS = 8,
	MEASURE_MS = 300,
	BLOCK = 4096,		   /* O_DIRECT needs whole blocks */
	TOKENS_NEEDED = 8 * 90000, /* a second, of 8 trainers */
};

struct doctor {
	struct emit e;
	unsigned fixes; /* lines that ask for something */

	struct config *config; /* NULL: none is known */
	uid_t user;	       /* the daemon's */
	char user_name[64];
};

/* Prints the line of @check: "ok", "skip" with the reason in @text, or "fix" with the remedy. */
__attribute__((format(printf, 5, 6))) static void line(struct doctor *d, const char *result,
	const char *check, const char *fix, const char *text, ...)
{
	char said[2 * LIMIT_TEXT_BYTES];
	va_list arguments;

	va_start(arguments, text);
	vsnprintf(said, sizeof(said), text, arguments);
	va_end(arguments);
	emit_text(&d->e, "check", NULL, check);
	emit_text(&d->e, "result", NULL, result);
	emit_text(&d->e, "text", NULL, said);
	emit_text(&d->e, "fix", NULL, fix);
	emit_line(&d->e, "%-4s %-8s %s%s%s", result, check, said, fix ? "; " : "", fix ? fix : "");
	emit_end(&d->e, CTL_OK); /* a check may take long */
	d->fixes += fix != NULL;
}

#define ok(d, check, ...)	line(d, "ok", check, NULL, __VA_ARGS__)
#define skip(d, check, ...)	line(d, "skip", check, NULL, __VA_ARGS__)
#define fix(d, check, fix, ...) line(d, "fix", check, fix, __VA_ARGS__)

/* ---- the machine ---- */

/* By the system call: tokctl needs nothing else of liburing. */
static void check_io_uring(struct doctor *d)
{
	struct io_uring_params params = {0};
	int fd = (int)syscall(SYS_io_uring_setup, 8, &params);

	if (fd >= 0)
		ok(d, "io_uring", "this process may use it");
	else if (d->config && d->config->io == CONFIG_IO_PREAD)
		skip(d, "io_uring", "io: pread does not use it");
	else
		fix(d, "io_uring",
			"allow it with `sysctl kernel.io_uring_disabled=0`, or in the container's "
			"seccomp profile; or set io: pread",
			"%s: the daemon reads with threads instead, which costs more CPU",
			strerror(errno));
	if (fd >= 0)
		close(fd);
}

/* Records have the time of day: `tokctl verify` orders restarts by it. */
static void check_clock(struct doctor *d)
{
	struct timex clock = {.modes = 0};
	int state = adjtimex(&clock);

	if (state == -1)
		skip(d, "clock", "cannot ask the kernel: %s", strerror(errno));
	else if (state == TIME_ERROR)
		fix(d, "clock", "run chrony or systemd-timesyncd",
			"not synchronised; `tokctl verify` orders a job's restarts by it");
	else
		ok(d, "clock", "synchronised to within %ld ms", clock.maxerror / 1000);
}

/* ---- shards ---- */

struct disk {
	int fd; /* of a shard */
	uint64_t bytes;
	size_t window; /* bytes of a read, whole blocks */
	char *to;      /* [THREADS][window] */
	uint64_t until_ms;
};

/* Reads a window at a random place; false, without a fault, when the time is over. */
static bool read_window(const struct parallel *p, struct fault *fault)
{
	const struct disk *disk = p->context;
	uint64_t places = (disk->bytes - disk->window) / BLOCK + 1;
	off_t at = (off_t)(order_mix64(p->i) % places * BLOCK);

	fault->code = FAULT_NONE;
	if (ctl_clock_ms() >= disk->until_ms)
		return false;
	return pread(disk->fd, disk->to + p->thread * disk->window, disk->window, at) >= 0 ||
	       fault_errno(fault, errno, "", "%s", strerror(errno));
}

/* Of the shard in the middle of the list. */
static void check_speed(struct doctor *d, const struct stream *s, const struct dataset *set)
{
	uint64_t window = s->config->seq_len * set->token_bytes, reads = 0, tokens;
	struct disk disk = {.window = (window + BLOCK - 1) / BLOCK * BLOCK};
	const char *name = set->config->name;
	char path[4096];
	struct fault fault = {.code = FAULT_NONE};

	shard_list_path(&set->list, set->table.shards / 2, path, sizeof(path));
	disk.fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
	disk.bytes = disk.fd < 0 ? 0 : (uint64_t)lseek(disk.fd, 0, SEEK_END);
	disk.to = aligned_alloc(BLOCK, THREADS * disk.window);
	disk.until_ms = ctl_clock_ms() + MEASURE_MS;
	if (disk.bytes >= disk.window && disk.to)
		reads = parallel_for(UINT64_MAX, THREADS, read_window, &disk, &fault);
	tokens = reads * s->config->seq_len * 1000 / MEASURE_MS;
	if (disk.bytes < disk.window)
		skip(d, "disk", "%s: %s is too small, or its file system has no O_DIRECT", name,
			path);
	else if (fault.code != FAULT_NONE)
		fix(d, "disk", "look at the file system", "%s: cannot read: %s", name, fault.text);
	else
		line(d, tokens < TOKENS_NEEDED ? "fix" : "ok", "disk",
			tokens < TOKENS_NEEDED
				? "use a faster disk, or set shuffle: block so that readahead helps"
				: NULL,
			"%s: %" PRIu64 " random windows/s of %zu KiB, %.1f M tokens/s; 8 trainers "
			"may take %.1f M",
			name, reads * 1000 / MEASURE_MS, disk.window >> 10, (double)tokens / 1e6,
			(double)TOKENS_NEEDED / 1e6);
	if (disk.fd >= 0)
		close(disk.fd);
	free(disk.to);
}

/* Reads the first window of a dataset in a store. */
static void check_store(
	struct doctor *d, struct stores *stores, const struct stream *s, const struct dataset *set)
{
	uint64_t window = s->config->seq_len * set->token_bytes, begin = ctl_clock_ms();
	const char *name = set->config->name, *shard = shard_list_name(&set->list, 0);
	struct object object = dataset_object(set, 0);
	struct fault fault;

	object.piece = 0; /* only the daemon uses the cache */
	size_t n = window < object.size ? window : object.size;
	char *to = malloc(n + 1);

	if (to && store_read(stores, &object, 0, to, n, &fault))
		ok(d, "store", "%s: the first window of %s took %" PRIu64 " ms", name, shard,
			ctl_clock_ms() - begin);
	else if (to)
		fix(d, "store", "look at the store, or write the manifest again", "%s: %s: %s",
			name, shard, fault.text);
	free(to);
}

/* Opens all streams, as the daemon does at its start. */
static void check_streams(struct doctor *d)
{
	struct fault fault;
	struct stores *stores = ctl_stores_open(d->config, &fault);
	struct catalog *catalog =
		stores ? catalog_open(d->config, stores, NULL, NULL, &fault) : NULL;

	if (!catalog)
		fix(d, "shards", "mend that, or let the daemon's user read it: groups, ACLs",
			"as %s: %s", d->user_name, fault.text);
	for (uint32_t i = 0; catalog && i < d->config->streams; i++) {
		const struct stream *s = &catalog->stream[i];

		for (uint32_t k = 0; k < s->config->datasets; k++) {
			const struct dataset *set = &s->dataset[k];

			ok(d, "shards", "%s of stream %s: %s can read %" PRIu64 " shard%s",
				set->config->name, s->config->name, d->user_name, set->table.shards,
				set->table.shards == 1 ? "" : "s");
			if (set->bucket)
				check_store(d, stores, s, set);
			else
				check_speed(d, s, set);
		}
	}
	catalog_free(catalog);
	store_close(stores);
}

static bool become(const struct doctor *d)
{
	const struct passwd *entry;

	if (geteuid() == d->user)
		return true;
	errno = 0;
	entry = getpwuid(d->user);
	return entry && initgroups(entry->pw_name, entry->pw_gid) == 0 &&
	       setgid(entry->pw_gid) == 0 && setuid(d->user) == 0;
}

static void check_shards(struct doctor *d)
{
	if (!d->config)
		skip(d, "shards", "no config is known; name it with -c");
	else if (geteuid() != 0 && geteuid() != d->user)
		skip(d, "shards", "the daemon runs as %s; run this as root%s%s", d->user_name,
			d->user ? ", or as " : "", d->user ? d->user_name : "");
	else if (become(d))
		check_streams(d);
	else
		fix(d, "shards", "run this again as that user", "cannot act as %s: %s",
			d->user_name,
			errno ? strerror(errno) : "it has no entry in the user database");
}

/* ---- the command ---- */

static void take_user(struct doctor *d, uid_t user)
{
	const struct passwd *entry = getpwuid(user);

	d->user = user;
	if (entry)
		snprintf(d->user_name, sizeof(d->user_name), "%s", entry->pw_name);
	else
		snprintf(d->user_name, sizeof(d->user_name), "uid %u", (unsigned)user);
}

/* Takes the daemon's config if none was given. */
static void check_daemon(struct doctor *d, const struct ctl_arguments *a)
{
	struct ctl_link link = {.quiet = true};
	json_t *status = ctl_status_of(&link, a, false);
	char process[32];
	struct stat owner;
	struct fault fault;

	if (status) {
		const json_t *daemon = json_object_get(status, "daemon");
		uint64_t pid = status_number(daemon, "pid");

		snprintf(process, sizeof(process), "/proc/%" PRIu64, pid);
		if (stat(process, &owner) == 0)
			take_user(d, owner.st_uid);
		ok(d, "daemon", "%s answers: pid %" PRIu64 " of %s, %" PRIu64 " sessions",
			link.socket, pid, d->user_name, status_number(daemon, "sessions"));
		if (!d->config) /* NULL also if this user may not read it */
			d->config = config_load(status_text(daemon, "config"), &fault);
	} else if (link.absent && !ctl_given(a, "socket")) {
		skip(d, "daemon", "none runs yet");
	} else {
		fix(d, "daemon", "look at its log, and at the permissions of the socket", "%s",
			link.why);
	}
	json_decref(status);
}

static const struct ctl_option options[] = {
	{CTL_SOCKET_OPTION},
	{CTL_CONFIG_OPTION},
	{OPTION_TEXT("user", "NAME",
		"the daemon's user; default: that of the running daemon, otherwise yours")},
	{CTL_JSON_OPTION},
};

static int doctor(const struct ctl_arguments *a)
{
	const char *file = ctl_text(a, "config"), *user = ctl_text(a, "user");
	const struct passwd *entry = user ? getpwnam(user) : NULL;
	uid_t uid = entry ? entry->pw_uid : 0; /* the entry lasts until the next one */
	struct doctor d = {.e.json = ctl_given(a, "json")};
	struct fault fault;

	if (user && !entry)
		return ctl_usage(a->command, "--user: there is no user %s on this node", user);
	d.config = file ? config_load(file, &fault) : NULL;
	take_user(&d, geteuid());
	check_io_uring(&d);
	check_clock(&d);
	if (file && !d.config)
		fix(&d, "config", "mend it: a daemon cannot start with it", "%s", fault.text);
	check_daemon(&d, a);
	if (entry)
		take_user(&d, uid);
	check_shards(&d);
	config_free(d.config);
	return emit_end(&d.e, d.fixes ? CTL_FAILED : CTL_OK);
}

const struct ctl_command ctl_doctor = {
	.name = "doctor",
	.help = "check what a node needs, and say how to mend it",
	OPTIONS_ARE(options),
	.run = doctor,
};
