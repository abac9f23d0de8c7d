/*
 * tokend: reads its configuration, opens all datasets, and serves until SIGTERM or SIGINT.
 */
#include "daemon/catalog/catalog.h"
#include "daemon/config/options.h"
#include "daemon/control/control.h"
#include "daemon/shard/bytes.h"
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
	BACKOFF_S = 5, /* pause after a failed start, under systemd */
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

static _Atomic uint64_t rereads;

/* In the thread that reads. Shards do not know their paths. */
static void on_reread(int fd, uint64_t at, uint64_t n, const char *why)
{
	char link[40], path[PATH_MAX] = "";

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (readlink(link, path, sizeof(path) - 1) < 0)
		snprintf(path, sizeof(path), "(name unknown: %s)", strerror(errno));
	atomic_fetch_add(&rereads, 1);
	log_client(getuid(), LOG_WARNING,
		"shard %s: bytes %" PRIu64 " to %" PRIu64
		" were damaged when read (%s), and intact when read again; no data was lost; check "
		"this node's memory and disk",
		path, at, at + n, why);
}

static int serve(const struct catalog *catalog, struct stores *stores, const struct options *a,
	struct reload_kept *kept, struct cgroup *cgroup, const char *state_dir)
{
	struct reading reading;
	struct fault fault;

	if (!reading_open(catalog, stores, &reading, &fault))
		return notify_failed_start(fault.text);
	store_patience(stores, 0);
	if (reading.note[0])
		log_line(LOG_NOTE, "%s", reading.note);
	warn_log(catalog);
	signal(SIGPIPE, SIG_IGN);
	return server_run(&(struct server_options){
		.catalog = catalog,
		.reading = &reading,
		.kept = kept,
		.argv = a->argv,
		.state_dir = state_dir,
		.stores = stores,
		.rereads = &rereads,
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
 * has no terminal blocks it until the server handles it. With a terminal it may mean that the
 * terminal is gone; nohup ignores that.
 */
static bool block_hangup(void)
{
	struct sigaction now;
	sigset_t hangup;

	if (server_terminal() && sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler != SIG_IGN)
		return true;
	sigemptyset(&hangup);
	sigaddset(&hangup, SIGHUP);
	sigprocmask(SIG_BLOCK, &hangup, NULL);
	return false;
}

/*
 * Handles SIGTERM and SIGINT until the server does: removes the socket and the files next to it,
 * and ends the process with 0.
 */
static void end_on_signals(const struct listener *listener)
{
	const struct sigaction action = {.sa_handler = on_signal};
	sigset_t set;

	starting = listener;
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	sigfillset(&set); /* blocked since before a reload */
	sigdelset(&set, SIGHUP);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
}

/* Listens. Called before the shards are opened: see listener_open(). */
static bool listen_at(struct reload_kept *kept, const struct options *a,
	const struct config *config, struct fault *fault)
{
	char own[WIRE_SOCKET_BYTES];
	const char *socket = a->socket;
	struct listener *listener = &kept->listener;

	if (listener->fd >= 0) { /* since before a reload */
		end_on_signals(listener);
		return true;
	}
	if (!socket)
		socket = notify_listen_fd() >= 0 ? config->socket
						 : listener_place(config, own, fault);
	if (!socket)
		return false;
	end_on_signals(listener);
	kept->terminal = block_hangup();
	return listener_open(listener, socket, fault);
}

static int run(const struct options *a, struct reload_kept *kept)
{
	struct fault fault;
	struct config *config =
		reading_descriptors(&fault) ? reload_config(kept, a->config, &fault) : NULL;
	struct cgroup *cgroup = config && !a->check ? cgroup_find("") : NULL;

	if (config && !a->check)
		reading_cap_memory(config, cgroup);

	bool listens = config && (a->check || listen_at(kept, a, config, &fault));
	struct stores *stores = listens ? reading_stores(config, !a->check, &fault) : NULL;
	struct catalog *catalog = stores ? reload_catalog(kept, config, stores, &fault) : NULL;
	char *state_dir = catalog ? state_place(config, kept->listener.handed) : NULL;
	int code = 0;

	if (!catalog)
		code = notify_failed_start(fault_line(fault.text));
	else if (!state_dir)
		code = notify_failed_start("out of memory");
	else if (a->check)
		code = check_run(catalog, stores, state_dir);
	else
		code = serve(catalog, stores, a, kept, cgroup, state_dir);
	free(state_dir);
	catalog_free(catalog);
	store_close(stores);
	free(cgroup);
	config_free(config);
	return code;
}

int main(int argc, char **argv)
{
	struct options a;
	struct reload_kept kept;
	struct fault fault;
	int code;
	bool again = reload_taken(&kept);

	if (!again)
		kept = (struct reload_kept){.memfd = -1, .listener = {.fd = -1, .lock_fd = -1}};
	if (!options_parse(&a, argc, argv, &code))
		return code;
	a.argv = argv;
	if (!again && a.private_lock >= 0 &&
		!listener_take(&kept.listener, a.socket, a.private_lock, &fault)) {
		fprintf(stderr, "tokend: %s\n", fault.text);
		return 1;
	}
	reread_told = on_reread;
	log_start();
	notify_starting(true);
	code = run(&a, &kept);
	listener_close(&kept.listener);
	if (code != 0 && !a.check)
		back_off();
	log_flush();
	return code;
}
