/*
 * tokend: reads its configuration, opens all datasets, and serves until SIGTERM or SIGINT.
 */
#include "daemon/catalog/catalog.h"
#include "daemon/config/options.h"
#include "daemon/control/log.h"
#include "daemon/control/notify.h"
#include "daemon/control/place.h"
#include "daemon/control/plan.h"
#include "daemon/control/rereads.h"
#include "daemon/control/server.h"
#include "proto/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
	OPEN_SHARDS_MOST = 1024,
	DESCRIPTORS_OWN = 40, /* the loop, the reader, the listener, metrics, files of the pool */
	DESCRIPTORS_A_SESSION = 4, /* socket, pidfd, and two memfds during the attach */
	BACKOFF_S = 5,		   /* pause after a failed start, under systemd */
	LATER_STREAMS = 32,
	INDEXES_SHARE = 16, /* 1/16 of memory: is for the indexes of shards */
};

static double percent(uint64_t part, uint64_t whole)
{
	return whole ? 100.0 * (double)part / (double)whole : 0;
}

static void print_plan(const struct stream *s, const char *text)
{
	(void)s;
	printf("  %s\n", text);
}

static void print_check(const struct catalog *catalog)
{
	for (uint32_t i = 0; i < catalog->config->streams; i++) {
		const struct stream *s = &catalog->stream[i];

		printf("stream %s: windows of %" PRIu64 " + %" PRIu64 " tokens every %" PRIu64
		       ", %" PRIu32 " bytes a token\n",
			s->config->name, s->config->seq_len, s->config->extra, s->config->stride,
			s->token_bytes);
		for (uint32_t d = 0; d < s->config->datasets; d++) {
			const struct table *t = &s->dataset[d].table;
			uint64_t unserved = table_unserved(t);

			printf("  %s: %" PRIu64 " shards, %" PRIu64 " tokens, %" PRIu64
			       " windows; never served in one epoch: %" PRIu64
			       " tokens, %.3f %%%s\n",
				s->config->dataset[d].name, t->shards, t->total_tokens, t->windows,
				unserved, percent(unserved, t->total_tokens),
				s->config->dataset[d].slide ? " (another part each epoch: slide)"
							    : "");
		}
		plan_tell(s, print_plan);
	}
}

/* Descriptors are divided at the start, so that shards can be opened however many clients attach.
 */
struct descriptors {
	unsigned files, sessions;
};

static struct descriptors share_descriptors(void)
{
	struct rlimit limit = {.rlim_cur = 256};

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
			getrlimit(RLIMIT_NOFILE, &limit);
	}
	uint64_t all = limit.rlim_cur, files = all / 4;
	uint64_t left = all > files + DESCRIPTORS_OWN ? all - files - DESCRIPTORS_OWN : 0;

	files = files < 1 ? 1 : files > OPEN_SHARDS_MOST ? OPEN_SHARDS_MOST : files;
	left /= DESCRIPTORS_A_SESSION;
	return (struct descriptors){
		.files = (unsigned)files,
		.sessions = left < 1		    ? 1
			    : left > LIMIT_SESSIONS ? LIMIT_SESSIONS
						    : (unsigned)left,
	};
}

static uint64_t largest_window(const struct catalog *catalog)
{
	uint64_t largest = 0;

	for (uint32_t i = 0; i < catalog->config->streams; i++) {
		const struct stream *s = &catalog->stream[i];
		uint64_t bytes = (s->config->seq_len + s->config->extra) * s->token_bytes;

		largest = bytes > largest ? bytes : largest;
	}
	return largest;
}

static bool any_dataset(const struct catalog *catalog, bool (*is)(const struct dataset *d))
{
	for (uint32_t i = 0; i < catalog->config->streams; i++)
		for (uint32_t d = 0; d < catalog->config->stream[i].datasets; d++)
			if (is(&catalog->stream[i].dataset[d]))
				return true;
	return false;
}

static bool is_compressed(const struct dataset *d)
{
	return d->frame_bytes > 0;
}

/* Do its shards keep an index file open? */
static bool is_indexed(const struct dataset *d)
{
	return !d->plain || d->marked;
}

/* Do its shards keep a mask file open? */
static bool is_masked(const struct dataset *d)
{
	return d->masks;
}

/*
 * Pauses after a failed start under systemd. The units restart tokend 200 ms after its end, because
 * trainers wait after a crash. systemd cannot distinguish a crash from a config that is refused.
 */
static void back_off(void)
{
	if (!getenv("NOTIFY_SOCKET"))
		return;
	log_line(LOG_ERROR, "not started; trainers wait until their timeout; next try in %d s",
		BACKOFF_S);
	sleep(BACKOFF_S);
}

/* Some more than the config has, for those that a reload adds. */
static unsigned room_for_streams(const struct config *config)
{
	unsigned room = 2 * config->streams + LATER_STREAMS;

	return room < LIMIT_STREAMS ? room : LIMIT_STREAMS;
}

static int serve(const struct catalog *catalog, const struct options *a, struct listener *listener,
	struct cgroup *cgroup, const struct rereads *rereads)
{
	const struct config *config = catalog->config;
	struct descriptors descriptors = share_descriptors();
	char note[LIMIT_TEXT_BYTES];
	struct fault fault;
	struct reader_options options = {
		.io = config->io,
		.direct = config->direct,
		.depth = LIMIT_READS / 2,
		.files = descriptors.files,
		.streams = room_for_streams(config),
		.largest_window_bytes = largest_window(catalog),
		.frames_bytes =
			any_dataset(catalog, is_compressed) ? dataset_frames_budget(config) : 0,
	};

	unsigned each = 1 + any_dataset(catalog, is_indexed) + any_dataset(catalog, is_masked);

	options.files = (options.files + each - 1) / each;
	if (any_dataset(catalog, is_indexed))
		options.indexes_bytes = config->memory_bytes / INDEXES_SHARE;
	struct reader *reader = reader_open(&options, note, sizeof(note), &fault);

	if (!reader)
		return notify_failed_start(fault.text);
	if (note[0])
		log_line(LOG_NOTE, "%s", note);
	for (uint32_t i = 0; i < config->streams; i++)
		plan_log(&catalog->stream[i]);
	signal(SIGPIPE, SIG_IGN);
	return server_run(&(struct server_options){
		.catalog = catalog,
		.listener = listener,
		.reader = reader,
		.reading = &options,
		.depth = options.depth,
		.connections = descriptors.sessions,
		.staging_bytes = reader_memory(&options),
		.rereads = rereads,
		.linger_s = a->linger_s,
		.cgroup = cgroup,
	});
}

/* For on_signal(), which has no argument for it. */
static const struct listener *starting;

static void on_signal(int number)
{
	(void)number;
	listener_remove(starting);
	_exit(0);
}

/*
 * SIGHUP asks services to read their config again, and by default ends the process. A daemon that
 * has no terminal ignores it until the server explains why. With a terminal it says that the
 * terminal is gone.
 */
static void keep_at_hangup(void)
{
	int terminal = open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);

	if (terminal >= 0)
		close(terminal);
	else
		signal(SIGHUP, SIG_IGN);
}

/*
 * Handles SIGTERM and SIGINT until the server does: removes the socket and the files next to it,
 * and ends the process with 0.
 */
static void end_on_signals(const struct listener *listener)
{
	const struct sigaction action = {.sa_handler = on_signal};

	starting = listener;
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
}

/* Listens. Called before the shards are opened: see listener_open(). */
static bool listen_at(struct listener *listener, const struct options *a,
	const struct config *config, struct fault *fault)
{
	char own[WIRE_SOCKET_BYTES];
	const char *socket = a->socket;

	if (!socket)
		socket =
			notify_listen_fd() >= 0 ? config->socket : place_listen(config, own, fault);
	if (!socket)
		return false;
	end_on_signals(listener);
	keep_at_hangup();
	return listener_open(listener, socket, fault);
}

/*
 * Lowers memory: to what the cgroup allows. Beyond that, an attach would cause an OOM kill instead
 * of an error. Memory that other processes use now is ignored here: it may be rings of the previous
 * daemon, which trainers release when they attach again. Each attach checks what is left.
 */
static void cap_memory(struct config *config, const struct cgroup *cgroup)
{
	struct cgroup_room room;

	if (!cgroup_room(cgroup, &room) || room.limit - room.kept >= config->memory_bytes)
		return;
	log_line(LOG_WARNING,
		"memory: lowered to %" PRIu64 " bytes from %" PRIu64 ": cgroup %s may use %" PRIu64
		" bytes, of which %" PRIu64 " are reserved and %" PRIu64
		" are in use; raise its limit, or lower memory:",
		room.limit - room.kept, config->memory_bytes, room.path, room.limit, room.kept,
		room.used);
	config->memory_bytes = room.limit - room.kept;
	config->memory_capped = true;
}

/* A message about sampled token ids that may not be served, or NULL. */
static const char *refused_tokens(const struct catalog *catalog)
{
	for (uint32_t i = 0; i < catalog->config->streams; i++)
		for (uint32_t d = 0; d < catalog->config->stream[i].datasets; d++)
			if (catalog->stream[i].dataset[d].refused)
				return catalog->stream[i].dataset[d].refused;
	return NULL;
}

static int check(const struct catalog *catalog)
{
	const char *refused = refused_tokens(catalog);

	print_check(catalog);
	return refused ? notify_failed_start(refused) : 0;
}

static int run(const struct options *a, struct listener *listener)
{
	struct rereads rereads = {0};

	rereads_watch(&rereads);

	struct fault fault;
	struct config *config = config_load(a->config, &fault);
	struct cgroup *cgroup = config && !a->check ? cgroup_find("") : NULL;

	if (cgroup)
		cap_memory(config, cgroup);

	bool listens = config && (a->check || listen_at(listener, a, config, &fault));
	struct catalog *catalog = listens ? catalog_open(config, &fault) : NULL;
	int code = 0;

	if (!catalog)
		code = notify_failed_start(fault_line(fault.text));
	else if (a->check)
		code = check(catalog);
	else if (!place_state_dir(config, listener->handed))
		code = notify_failed_start("out of memory");
	else
		code = serve(catalog, a, listener, cgroup, &rereads);
	catalog_free(catalog);
	cgroup_free(cgroup);
	config_free(config);
	return code;
}

int main(int argc, char **argv)
{
	struct options a;
	struct listener listener = {.fd = -1, .lock_fd = -1};
	struct fault fault;
	int code;

	if (!options_parse(&a, argc, argv, &code))
		return code;
	if (a.private_lock >= 0 && !listener_take(&listener, a.socket, a.private_lock, &fault)) {
		fprintf(stderr, "tokend: %s\n", fault.text);
		return 1;
	}
	log_start(); /* without it, lines are written at once */
	code = run(&a, &listener);
	listener_close(&listener);
	if (code != 0 && !a.check)
		back_off();
	log_flush();
	return code;
}
