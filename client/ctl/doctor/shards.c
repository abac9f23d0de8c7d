/*
 * Shards are opened by a child as the daemon's user. It also measures: windows at random places,
 * read past the page cache by several threads.
 */
#include "client/ctl/common/ctl.h"
#include "client/ctl/doctor/doctor.h"
#include "daemon/catalog/catalog.h"
#include "daemon/catalog/parallel_for.h"
#include "proto/order.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	THREADS = 8,
	MEASURE_MS = 300,
	BLOCK = 4096, /* O_DIRECT needs whole blocks */
	FILES = 64,   /* of a dataset, at most */
	CHILD_FAILED = 255,
	TOKENS_NEEDED = 8 * 90000, /* a second, of 8 trainers */
	PATIENCE_MS = 60000,
	STORE_BYTES = 64 << 20,
};

struct files {
	int fd[FILES];
	uint64_t bytes[FILES];
	unsigned n;
	bool direct;
	size_t window; /* bytes of a read, whole blocks */
	char *to;      /* [THREADS][window] */
	uint64_t until_ms;
};

/* Reads a window at a random place; false, without a fault, when the time is over. */
static bool read_window(const struct parallel *p, struct fault *fault)
{
	const struct files *f = p->context;
	uint64_t chance = order_mix64(p->i);
	unsigned file = (unsigned)(chance % f->n);
	uint64_t places = (f->bytes[file] - f->window) / BLOCK + 1;
	off_t at = (off_t)(order_mix64(chance) % places * BLOCK);

	fault->code = FAULT_NONE;
	if (ctl_clock_ms() >= f->until_ms)
		return false;
	return pread(f->fd[file], f->to + p->thread * f->window, f->window, at) >= 0 ||
	       fault_errno(fault, errno, "", "%s", strerror(errno));
}

/* Opens shards that are not smaller than a window of whole blocks. */
static void open_files(struct files *f, const struct dataset *d)
{
	char path[4096];
	struct stat st;

	f->direct = true;
	for (uint64_t i = 0; f->n < FILES && i < d->table.shards; i++) {
		uint64_t shard = d->table.shards <= FILES ? i : order_mix64(i) % d->table.shards;

		dataset_shard_path(d, shard, path, sizeof(path));

		int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);

		if (fd < 0 && errno == EINVAL) {
			f->direct = false;
			fd = open(path, O_RDONLY | O_CLOEXEC);
		}
		if (fd < 0 || fstat(fd, &st) < 0 || (uint64_t)st.st_size < f->window) {
			if (fd >= 0)
				close(fd);
			continue;
		}
		posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
		f->bytes[f->n] = (uint64_t)st.st_size;
		f->fd[f->n++] = fd;
	}
}

static void check_speed(struct doctor *d, const struct stream *s, const struct dataset *set)
{
	uint64_t window = s->config->seq_len * set->token_bytes, reads, tokens;
	struct files f = {.window = (window + BLOCK - 1) / BLOCK * BLOCK};
	const char *name = set->config->name;
	char text[LIMIT_TEXT_BYTES];
	struct fault fault = {.code = FAULT_NONE};

	open_files(&f, set);
	f.to = aligned_alloc(BLOCK, THREADS * f.window);
	f.until_ms = ctl_clock_ms() + MEASURE_MS;
	reads = f.n && f.to ? parallel_for(UINT64_MAX, THREADS, read_window, &f, &fault) : 0;
	reads = reads * 1000 / MEASURE_MS;
	tokens = reads * s->config->seq_len;
	snprintf(text, sizeof(text),
		"%s: %" PRIu64 " random windows/s of %zu KiB%s, %.1f M tokens/s; 8 trainers may "
		"take %.1f M",
		name, reads, f.window >> 10,
		f.direct ? "" : " (through the page cache: no O_DIRECT here)", (double)tokens / 1e6,
		(double)TOKENS_NEEDED / 1e6);
	if (f.n == 0)
		doctor_skip(d, "disk", "%s: its shards are too small to be measured", name);
	else if (fault.code != FAULT_NONE)
		doctor_fix(d, "disk", "look at the file system", "%s: cannot read: %s", name,
			fault.text);
	else if (tokens < TOKENS_NEEDED)
		doctor_fix(d, "disk",
			"use a faster disk, or set shuffle: block so that readahead helps", "%s",
			text);
	else
		doctor_ok(d, "disk", "%s", text);
	for (unsigned i = 0; i < f.n; i++)
		close(f.fd[i]);
	free(f.to);
}

/* Reads the first window of a dataset in a store. */
static void check_store(
	struct doctor *d, struct stores *stores, const struct stream *s, const struct dataset *set)
{
	uint64_t window = s->config->seq_len * set->token_bytes;
	uint64_t begin = ctl_clock_ms();
	struct object object;
	struct fault fault;

	dataset_object(set, 0, &object);
	object.piece = 0; /* only the daemon uses the cache */
	size_t n = window < object.size ? window : object.size;
	char *to = malloc(n + 1);

	if (!to)
		return;
	if (store_read(stores, &object, 0, to, n, &fault))
		doctor_ok(d, "store", "%s: the first window of %s took %" PRIu64 " ms",
			set->config->name, dataset_shard_name(set, 0), ctl_clock_ms() - begin);
	else
		doctor_fix(d, "store", "look at the store, or write the manifest again",
			"%s: %s: %s", set->config->name, dataset_shard_name(set, 0), fault.text);
	free(to);
}

static void check_datasets(struct doctor *d, struct stores *stores, const struct stream *s)
{
	for (uint32_t k = 0; k < s->config->datasets; k++) {
		const struct dataset *set = &s->dataset[k];

		doctor_ok(d, "shards", "%s of stream %s: %s can read %" PRIu64 " shard%s",
			set->config->name, s->config->name, d->user_name, set->table.shards,
			set->table.shards == 1 ? "" : "s");
		if (set->objects)
			check_store(d, stores, s, set);
		else
			check_speed(d, s, set);
	}
}

/* Opens all streams, as the daemon does at its start. */
static void check_all(struct doctor *d)
{
	struct store_options options = {
		.config = d->config, .memory_bytes = STORE_BYTES, .patience_ms = PATIENCE_MS};
	struct fault fault;
	struct stores *stores = store_open(&options, &fault);
	struct catalog *catalog = stores ? catalog_open(d->config, stores, &fault) : NULL;

	if (!catalog)
		doctor_fix(d, "shards", "mend that, or let the daemon's user read it: groups, ACLs",
			"as %s: %s", d->user_name, fault.text);
	for (uint32_t i = 0; catalog && i < d->config->streams; i++)
		check_datasets(d, stores, &catalog->stream[i]);
	catalog_free(catalog);
	if (stores) {
		store_stop(stores);
		store_close(stores);
	}
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

void doctor_shards(struct doctor *d)
{
	int status = 0;
	pid_t child;

	if (!d->config) {
		doctor_skip(d, "shards", "no config is known; name it with -c");
		return;
	}
	if (geteuid() != 0 && geteuid() != d->user) {
		doctor_skip(d, "shards", "the daemon runs as %s; run this as root%s%s",
			d->user_name, d->user ? ", or as " : "", d->user ? d->user_name : "");
		return;
	}
	child = fork();
	if (child == 0) {
		d->fixes = 0;
		if (become(d))
			check_all(d);
		else
			doctor_fix(d, "shards", "run this again as that user",
				"cannot act as %s: %s", d->user_name,
				errno ? strerror(errno) : "it has no entry in the user database");
		_exit(d->e.failed ? CHILD_FAILED : d->fixes > 0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) ||
		WEXITSTATUS(status) == CHILD_FAILED)
		doctor_fix(d, "shards", "report this as a bug of tokend",
			"the check ended before its result");
	else
		d->fixes += (unsigned)WEXITSTATUS(status);
}
