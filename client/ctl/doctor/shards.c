/*
 * Shards are opened by a child as the daemon's user. It also measures: windows at random places,
 * read past the page cache by several threads.
 */
#include "client/ctl/doctor/report.h"
#include "daemon/catalog/catalog.h"
#include "proto/order.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <pthread.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	THREADS = 8,
	MEASURE_MS = 300,
	BLOCK = 4096, /* O_DIRECT needs whole blocks */
	FILES = 64,   /* of a dataset, at most */
	CHILD_FAILED = 255,
	PATIENCE_MS = 60000,
	STORE_BYTES = 64 << 20,
};

struct files {
	int fd[FILES];
	uint64_t bytes[FILES];
	unsigned n;
	bool direct;
	size_t window; /* bytes of a read, whole blocks */
	int64_t until;
};

struct reads {
	const struct files *files;
	uint64_t number, bytes;
	int error;
};

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void *read_windows(void *context)
{
	struct reads *r = context;
	const struct files *f = r->files;
	void *to = aligned_alloc(BLOCK, f->window);

	for (uint64_t i = 0; to && now_ms() < f->until; i++) {
		uint64_t chance = order_mix64(i * THREADS + r->number);
		unsigned file = (unsigned)(chance % f->n);
		uint64_t bytes = f->bytes[file], last = bytes > f->window ? bytes - f->window : 0;
		off_t at = (off_t)(order_mix64(chance) % (last / BLOCK + 1) * BLOCK);
		ssize_t n = pread(f->fd[file], to, f->window, at);

		if (n < 0) {
			r->error = errno;
			break;
		}
		r->bytes += (uint64_t)n;
	}
	free(to);
	return NULL;
}

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
		if (fd < 0 || fstat(fd, &st) < 0)
			continue;
		posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
		f->bytes[f->n] = (uint64_t)st.st_size;
		f->fd[f->n++] = fd;
	}
}

/* Returns how many windows are read per second; 0 and errno after a failure. */
static uint64_t measure(struct files *f)
{
	struct reads reads[THREADS];
	pthread_t thread[THREADS];
	unsigned started = 0;
	uint64_t sum = 0;
	int error = 0;

	f->until = now_ms() + MEASURE_MS;
	for (; started < THREADS; started++) {
		reads[started] = (struct reads){.files = f, .number = started};
		if (pthread_create(&thread[started], NULL, read_windows, &reads[started]) != 0)
			break;
	}
	for (unsigned i = 0; i < started; i++) {
		pthread_join(thread[i], NULL);
		sum += reads[i].bytes;
		error = reads[i].error ? reads[i].error : error;
	}
	errno = error;
	return error ? 0 : sum / f->window * 1000 / MEASURE_MS;
}

static void check_speed(struct doctor *d, const struct stream *s, const struct dataset *set)
{
	uint64_t window = s->config->seq_len * set->token_bytes, reads, tokens;
	struct files *f = calloc(1, sizeof(*f));
	const char *whom = d->measured ? "the trainers take" : "8 trainers may take";
	char text[LIMIT_TEXT_BYTES];

	if (!f)
		return;
	f->window = (window + BLOCK - 1) / BLOCK * BLOCK;
	open_files(f, set);
	reads = f->n ? measure(f) : 0;
	tokens = reads * s->config->seq_len;
	snprintf(text, sizeof(text),
		"%s: %" PRIu64 " random windows/s of %zu KiB%s, %.1f M tokens/s; %s %.1f M",
		set->config->name, reads, f->window >> 10,
		f->direct ? "" : " (through the page cache: no O_DIRECT here)",
		(double)tokens / 1e6, whom, (double)d->tokens_needed / 1e6);
	if (reads == 0)
		doctor_fix(d, "disk", "look at the file system", "%s: cannot read: %s",
			set->config->name, strerror(errno));
	else if (tokens < d->tokens_needed)
		doctor_fix(d, "disk",
			"use a faster disk, or set shuffle: block so that readahead helps", "%s",
			text);
	else
		doctor_ok(d, "disk", "%s", text);
	for (unsigned i = 0; i < f->n; i++)
		close(f->fd[i]);
	free(f);
}

/* Reads the first window of a dataset in a store. */
static void check_store(
	struct doctor *d, struct stores *stores, const struct stream *s, const struct dataset *set)
{
	uint64_t window = s->config->seq_len * set->token_bytes;
	int64_t begin = now_ms();
	struct object object;
	struct fault fault;

	dataset_object(set, 0, &object);
	object.piece = 0; /* only the daemon uses the cache */
	size_t n = window < object.size ? window : object.size;
	char *to = malloc(n + 1);

	if (!to)
		return;
	if (store_read(stores, &object, 0, to, n, &fault))
		doctor_ok(d, "store", "%s: the first window of %s took %" PRId64 " ms",
			set->config->name, dataset_shard_name(set, 0), now_ms() - begin);
	else
		doctor_fix(d, "store", "look at the store, or write the manifest again",
			"%s: %s: %s", set->config->name, dataset_shard_name(set, 0), fault.text);
	free(to);
}

/* Opens all streams, as the daemon does at its start. */
static void check_datasets(struct doctor *d, struct stores *stores)
{
	struct fault fault;
	struct catalog *catalog = catalog_open(d->config, stores, &fault);

	if (!catalog) {
		doctor_fix(d, "shards", "mend that, or let the daemon's user read it: groups, ACLs",
			"as %s: %s", d->user_name, fault.text);
		return;
	}
	for (uint32_t i = 0; i < d->config->streams; i++) {
		const struct stream *s = &catalog->stream[i];

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
	catalog_free(catalog);
}

static void check_all(struct doctor *d)
{
	struct fault fault;
	struct stores *stores = store_open(
		&(struct store_options){
			.config = d->config,
			.memory_bytes = STORE_BYTES,
			.patience_ms = PATIENCE_MS,
		},
		&fault);

	if (!stores) {
		doctor_fix(d, "shards", "mend that", "%s", fault.text);
		return;
	}
	check_datasets(d, stores);
	store_stop(stores);
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
	ctl_finish(&d->out, 0);
	child = fork();
	if (child == 0) {
		d->fixes = 0;
		if (become(d))
			check_all(d);
		else
			doctor_fix(d, "shards", "run this again as that user",
				"cannot act as %s: %s", d->user_name,
				errno ? strerror(errno) : "it has no entry in the user database");
		_exit(ctl_finish(&d->out, 0) != 0 ? CHILD_FAILED : d->fixes > 0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) ||
		WEXITSTATUS(status) == CHILD_FAILED)
		doctor_fix(d, "shards", "report this as a bug of tokend",
			"the check ended before its result");
	else
		d->fixes += (unsigned)WEXITSTATUS(status);
}
