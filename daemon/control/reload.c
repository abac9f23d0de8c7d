/*
 * A reload is a check of the config in libuv's pool, then an execve() of this program when nothing
 * is read or written (ARCHITECTURE.md). A config that is refused, storage that does not answer, or
 * execve() that fails changes nothing. /proc/self/exe is this version, also if its package was
 * replaced, so struct reload_kept and the datasets in the memfd have the same types in both images.
 */
#include "daemon/control/control.h"

#include "daemon/io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

extern char **environ;

#define KEPT "TOKEND_KEPT" /* the number of a memfd */

enum { PAUSE_MS = 5000, POLL_MS = 5 };

/* ---- the check, in the pool ---- */

static bool same_text(const char *a, const char *b)
{
	return a == b || (a && b && strcmp(a, b) == 0);
}

/* Whether all that changes is what a reload can change. */
static bool keeps_places(const struct config *is, const struct config *was, struct fault *fault)
{
	bool socket = same_text(is->socket, was->socket);

	return (socket && same_text(is->state_dir, was->state_dir)) ||
	       fault_set(fault, FAULT_ARGUMENT, "",
		       "%s: %s needs a restart; restart tokend, or put the former value back",
		       is->path, socket ? "state_dir:" : "socket:");
}

/* The datasets and the config's text, for the next process. */
static bool save(struct reload *r)
{
	const struct config *config = r->config;
	int fd = memfd_create("tokend-reload", MFD_CLOEXEC);

	r->saved = fd < 0 ? NULL : fdopen(fd, "w");
	bool saved = r->saved && fseek(r->saved, sizeof(struct reload_kept), SEEK_SET) == 0 &&
		     catalog_save(r->catalog, r->saved) && (r->text_at = ftell(r->saved)) >= 0 &&
		     fwrite(config->text, 1, config->text_bytes, r->saved) == config->text_bytes &&
		     fflush(r->saved) == 0;
	int error = errno;

	if (fd >= 0 && !r->saved)
		close(fd);
	return saved || fault_errno(&r->fault, error, "",
				"%s: cannot write a memfd for the next process: %s", config->path,
				strerror(error));
}

/* All that may make a start with the config fail. Also tries the cache's disk: a thread that it
 * does not answer would hold up execve(). */
static bool check(struct reload *r)
{
	const struct config *was = r->control->config;
	struct reading reading;

	r->config = config_load(was->path, &r->fault);
	if (!r->config || !keeps_places(r->config, was, &r->fault))
		return false;
	reading_cap_memory(r->config, r->control->options->cgroup);
	bool other = !same_text(r->config->cache_dir, was->cache_dir);

	if (!other && !reading_fits_cache(r->config, &r->fault))
		return false;
	r->stores = reading_stores(r->config, other, &r->fault);
	r->catalog = r->stores ? catalog_open(r->config, r->stores, NULL, NULL, &r->fault) : NULL;
	if (!r->catalog || !reading_open(r->catalog, r->stores, &reading, &r->fault))
		return false;
	r->staging_bytes = reading.memory_bytes;
	reader_close(reading.reader);
	return save(r);
}

static void reload_work(uv_work_t *work)
{
	struct reload *r = work->data;

	r->checked = check(r);
}

/* ---- on the loop ---- */

static bool same_shards(const struct session *s, const struct stream *now, struct fault *why)
{
	const struct cursor *cursor = feed_cursor(s->feed);
	struct wire_shards was[LIMIT_DATASETS], is[LIMIT_DATASETS];

	attach_shards(s->stream, cursor, was);
	attach_shards(now, cursor, is);

	uint32_t n = cursor->datasets, d = wire_shards_differ(was, n, is, n);

	return d == n || fault_set(why, FAULT_CURSOR, "shards",
				 "dataset %s: names and lengths are as before, but tokens, "
				 "documents or masks are not, or a file was written again",
				 cursor->dataset[d].name);
}

/* Whether the run of @s goes on where it is. Datasets that it had before may leave the config. */
static bool fits_session(struct reload *r, const struct session *s)
{
	const char *name = s->stream->config->name;
	const struct stream *now = catalog_stream(r->catalog, name);
	struct cursor here = *feed_cursor(s->feed); /* borrowed */
	struct fault why;

	here.next = session_position(s);
	if (!now)
		fault_set(&why, FAULT_CURSOR, "", "the stream is removed");
	else if (s->stream->config->documents && !now->config->documents)
		fault_set(&why, FAULT_CURSOR, "documents", "is no longer true");
	else if (s->stream->config->loss_mask != now->config->loss_mask)
		fault_set(&why, FAULT_CURSOR, "loss_mask", "is no longer %s",
			now->config->loss_mask ? "false" : "true");
	else if (cursor_belongs(&here, &now->begin, &why) && same_shards(s, now, &why))
		return true;
	return fault_set(&r->fault, FAULT_CURSOR, "",
		"%s: pid %d reads stream %s (run %s), and could not go on: %.600s%s%.600s; end it, "
		"or put the former config and shards back",
		r->config->path, (int)s->connection->pid, name, s->run, why.field,
		why.field[0] ? ": " : "", why.text);
}

static bool fits_sessions(struct reload *r)
{
	const struct session *s;
	uint64_t rings = 0;
	struct ring_geometry g;

	for (SESSIONS(s, r->control, NULL, NULL)) {
		uint64_t slots = s->slots; /* as many as now */

		if (s->left)
			continue;
		if (!fits_session(r, s))
			return false;
		if (!session_ring(catalog_stream(r->catalog, s->stream->config->name),
			    s->micro_batch, &slots, &g, &r->fault))
			return fault_prefix(&r->fault,
				"%s: a session of stream %s: ", r->config->path,
				s->stream->config->name);
		rings += g.meta_bytes + g.data_bytes;
	}
	if (rings == 0 || rings + r->staging_bytes <= r->config->memory_bytes)
		return true;
	return fault_set(&r->fault, FAULT_ARGUMENT, "memory",
		"%s: memory: %" PRIu64 " bytes, but rings of live sessions need %" PRIu64
		" and the reader %" PRIu64 "; end some sessions, or set more",
		r->config->path, r->config->memory_bytes, rings, r->staging_bytes);
}

static void give_up(struct reload *r)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_UNBLOCK, &all, NULL);
	uv_timer_stop(&r->timer);
	data_thread_pause(r->control->data_thread, false);
	if (r->saved)
		fclose(r->saved);
	catalog_free(r->catalog);
	store_close(r->stores);
	config_free(r->config);
	r->saved = NULL;
	r->catalog = NULL;
	r->stores = NULL;
	r->config = NULL;
	r->paused_ms = 0;
	r->running = r->blocked = false;
}

static void refuse(struct reload *r)
{
	give_up(r);
	snprintf(r->refused, sizeof(r->refused), "%s", fault_line(r->fault.text));
	r->control->options->kept->refused++;
	log_line(LOG_ERROR, "%s; the daemon keeps the config that it has", r->refused);
	status_notify(r->control, true);
}

/* ---- the next process ---- */

/* Whether descriptors survive execve(). */
static void keep_open(const struct reload_kept *kept, bool keep)
{
	const int fd[] = {kept->listener.fd, kept->listener.lock_fd, kept->memfd};

	for (int i = 0; i < 3; i++)
		if (fd[i] >= 0)
			fcntl(fd[i], F_SETFD, keep ? 0 : FD_CLOEXEC);
}

/* Returns only if it fails, with r->fault. */
static void execute(struct reload *r)
{
	struct reload_kept kept = *r->control->options->kept;
	char number[16];
	int error;

	kept.pid = getpid();
	kept.memfd = fileno(r->saved);
	kept.text_at = r->text_at;
	kept.reloads++;
	snprintf(number, sizeof(number), "%d", kept.memfd);
	if (pwrite(kept.memfd, &kept, sizeof(kept), 0) == sizeof(kept) &&
		setenv(KEPT, number, 1) == 0) {
		log_line(LOG_NOTE,
			"%s was read again: digest %016" PRIx64 "; starting again with it",
			r->config->path, r->config->digest);
		log_flush();
		keep_open(&kept, true);
		execve("/proc/self/exe", r->control->options->argv, environ);
	}
	error = errno;
	keep_open(&kept, false);
	unsetenv(KEPT);
	fault_errno(&r->fault, error, "", "tokend cannot execute itself: %s; restart it",
		strerror(error));
}

bool reload_taken(struct reload_kept *kept)
{
	const char *number = getenv(KEPT);
	int memfd = number ? atoi(number) : -1;
	bool ours = memfd > STDERR_FILENO &&
		    pread(memfd, kept, sizeof(*kept), 0) == sizeof(*kept) && kept->pid == getpid();

	unsetenv(KEPT);
	if (!ours)
		return false;
	keep_open(kept, false);
	prctl(PR_SET_NAME, "tokend"); /* not "exe" */
	return true;
}

struct config *reload_config(const struct reload_kept *kept, const char *path, struct fault *fault)
{
	if (kept->memfd < 0)
		return config_load(path, fault);
	lseek(kept->memfd, kept->text_at, SEEK_SET);
	return config_load_from(dup(kept->memfd), path, fault);
}

struct catalog *reload_catalog(const struct reload_kept *kept, const struct config *config,
	struct stores *stores, struct fault *fault)
{
	FILE *saved = kept->memfd < 0 ? NULL : fdopen(kept->memfd, "r");
	struct catalog *catalog;

	if (saved)
		fseek(saved, sizeof(*kept), SEEK_SET);
	catalog = catalog_open(config, stores, NULL, saved, fault);
	if (saved)
		fclose(saved);
	return catalog;
}

/* Polls, because jobs of clients begin and end meanwhile, and each may delay the end of another. */
static void on_pause(uv_timer_t *timer)
{
	struct reload *r = timer->data;
	struct reader_hang flying;
	bool idle = !data_thread_busy(r->control->data_thread, &flying) && !pool_busy(r->control);
	char path[LIMIT_TEXT_BYTES] = "a job of a client, or state_dir,";
	sigset_t set;

	if (idle && !r->blocked) {
		/* The loop handles those that have come. Later ones wait for the next process. */
		sigfillset(&set);
		pthread_sigmask(SIG_BLOCK, &set, NULL);
		r->blocked = true;
		return;
	} else if (idle) {
		if (fits_sessions(r)) /* now, because others may have attached */
			execute(r);
	} else if (uv_now(r->control->loop) - r->paused_ms < PAUSE_MS) {
		return;
	} else {
		if (flying.dataset)
			hang_shard(&flying, path, sizeof(path));
		fault_set(&r->fault, FAULT_IO, "",
			"%s has not ended for %d s, and a reload waits for all reads; check the "
			"storage, then reload again",
			path, PAUSE_MS / 1000);
	}
	refuse(r);
}

static void reload_done(uv_work_t *work, int status)
{
	struct reload *r = work->data;

	(void)status;
	if (r->control->stopping) {
		give_up(r);
	} else if (!r->checked) {
		refuse(r);
	} else {
		r->paused_ms = uv_now(r->control->loop);
		data_thread_pause(r->control->data_thread, true);
		uv_timer_start(&r->timer, on_pause, POLL_MS, POLL_MS);
	}
}

void reload_begin(struct reload *r)
{
	char state[64];
	sigset_t hangup;

	if (r->control->stopping)
		return;
	if (r->running) {
		raise(SIGHUP); /* for later: it is blocked */
		return;
	}
	sigemptyset(&hangup);
	sigaddset(&hangup, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &hangup, NULL);
	snprintf(state, sizeof(state), "RELOADING=1\nMONOTONIC_USEC=%" PRId64, io_now_ns() / 1000);
	notify(state);
	r->running = true;
	r->since_ms = uv_now(r->control->loop);
	r->work.data = r->timer.data = r;
	uv_queue_work(r->control->loop, &r->work, reload_work, reload_done);
}

void reload_stop(struct reload *r)
{
	if (r->paused_ms)
		give_up(r);
	uv_close((uv_handle_t *)&r->timer, NULL);
}
