/*
 * tokend: reads its configuration, opens all datasets, and serves until SIGTERM or SIGINT.
 */
#include "daemon/catalog/catalog.h"
#include "daemon/config/options.h"
#include "daemon/control/log.h"
#include "daemon/control/notify.h"
#include "daemon/control/place.h"
#include "daemon/control/plan.h"
#include "daemon/control/reading.h"
#include "daemon/control/server.h"
#include "daemon/control/state.h"
#include "daemon/shard/reread.h"
#include "daemon/store/store.h"
#include "proto/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	BACKOFF_S = 5,		   /* pause after a failed start, under systemd */
	START_PATIENCE_MS = 60000, /* how long a start waits for a store that does not answer */
};

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

static int serve(const struct catalog *catalog, struct stores *stores, const struct options *a,
	struct listener *listener, struct cgroup *cgroup, const _Atomic uint64_t *rereads)
{
	const struct config *config = catalog->config;
	struct reading reading = reading_plan(catalog, stores);
	char note[LIMIT_TEXT_BYTES];
	struct fault fault;
	struct reader *reader = reading_fits_stores(catalog, &fault)
					? reader_open(&reading.options, note, sizeof(note), &fault)
					: NULL;

	if (!reader)
		return notify_failed_start(fault.text);
	store_patience(stores, 0);
	if (note[0])
		log_line(LOG_NOTE, "%s", note);
	for (uint32_t i = 0; i < config->streams; i++)
		plan_log(&catalog->stream[i]);
	signal(SIGPIPE, SIG_IGN);
	return server_run(&(struct server_options){
		.catalog = catalog,
		.listener = listener,
		.reader = reader,
		.reading = &reading.options,
		.depth = reading.options.depth,
		.connections = reading.sessions,
		.staging_bytes = reading_memory(&reading),
		.stores = stores,
		.store_queues = reading.store_queues,
		.store_depth = reading.store_depth,
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
 * has no terminal ignores it until the server handles it. With a terminal it may mean that the
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

/* Any thread. */
static void log_store(void *none, const char *line)
{
	(void)none;
	log_line(LOG_WARNING, "%s", line);
}

static struct stores *open_stores(const struct config *config, bool check, struct fault *fault)
{
	return store_open(
		&(struct store_options){
			.config = config,
			.memory_bytes = reading_store_bytes(config),
			.patience_ms = START_PATIENCE_MS,
			.cache = !check,
			.log = log_store,
		},
		fault);
}

/* In the thread that reads. Shards do not know their paths. */
static void on_reread(void *context, int fd, uint64_t at, uint64_t n, const char *why)
{
	_Atomic uint64_t *rereads = context;
	char link[40], path[PATH_MAX] = "";

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (readlink(link, path, sizeof(path) - 1) < 0)
		snprintf(path, sizeof(path), "(name unknown: %s)", strerror(errno));
	atomic_fetch_add(rereads, 1);
	log_client(getuid(), LOG_WARNING,
		"shard %s: bytes %" PRIu64 " to %" PRIu64
		" were damaged when read (%s), and intact when read again; no data was lost; check "
		"this node's memory and disk",
		path, at, at + n, why);
}

static int run(const struct options *a, struct listener *listener)
{
	_Atomic uint64_t rereads = 0;

	reread_tell(on_reread, &rereads);

	struct fault fault;
	struct config *config = reading_descriptors(&fault) ? config_load(a->config, &fault) : NULL;
	struct cgroup *cgroup = config && !a->check ? cgroup_find("") : NULL;

	if (cgroup)
		cap_memory(config, cgroup);

	bool listens = config && (a->check || listen_at(listener, a, config, &fault));
	struct stores *stores = listens ? open_stores(config, a->check, &fault) : NULL;
	struct catalog *catalog = stores ? catalog_open(config, stores, &fault) : NULL;
	int code = 0;

	if (!catalog)
		code = notify_failed_start(fault_line(fault.text));
	else if (!state_place(config, listener->handed))
		code = notify_failed_start("out of memory");
	else if (a->check)
		code = check_run(catalog, stores);
	else
		code = serve(catalog, stores, a, listener, cgroup, &rereads);
	catalog_free(catalog);
	store_close(stores);
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
	log_start();
	code = run(&a, &listener);
	listener_close(&listener);
	if (code != 0 && !a.check)
		back_off();
	log_flush();
	return code;
}
