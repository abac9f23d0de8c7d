/*
 * A reload: libuv's pool reads the config and opens all that it names, as a start does. The loop
 * waits until nothing is read or written. If live sessions fit in, the process executes itself with
 * the listening and lock descriptors. Trainers attach again, as after a crash, and take
 * batches from their rings meanwhile. A config that is refused, storage that does not answer, or
 * execve() that fails changes nothing.
 *
 * /proc/self/exe is executed: the running version, also if its package was replaced. So both
 * images have the same types. A memfd passes struct reload_past, the datasets and the config's
 * text, so that what was checked is served, and no local shard is opened again.
 *
 * systemd's protocol: RELOADING=1 with the time, then READY=1 from the same process. It suits
 * Type=notify and Type=notify-reload.
 */
#ifndef TOKEND_RELOAD_H
#define TOKEND_RELOAD_H

#include "daemon/catalog/catalog.h"
#include "daemon/control/host.h"
#include "daemon/store/store.h"

#include <sys/types.h>
#include <uv.h>

struct control;

/* A process before it executed itself. */
struct reload_past {
	pid_t pid;
	int memfd;     /* -1: it did not */
	long text_at;  /* in memfd, after the datasets */
	bool terminal; /* it had one at its start */
	struct listener listener;
	uint64_t reloads, refused; /* so far, for metrics */
};

struct reload {
	uv_work_t work;
	uv_timer_t timer; /* initialized by the server */
	bool running, stopped;
	bool again;	   /* asked for while it was running */
	uint64_t since_ms; /* when the last one began */
	struct control *control;
	struct reload_past past; /* the next process's */
	char **argv;

	/* ---- the outcome of the check ---- */
	struct config *config;
	struct stores *stores;
	struct catalog *catalog;
	FILE *saved; /* the memfd */
	uint64_t staging_bytes;
	bool checked;
	struct fault fault; /* unless checked */
	bool blocked;	    /* signals are */
	uint64_t paused_ms; /* when reading was paused; 0: it is not */

	char refused[LIMIT_TEXT_BYTES]; /* why the last one failed; "": it did not */
};

/* Begins a reload, or notes that another one is to follow the present one. */
void reload_begin(struct reload *reload);
/* The daemon stops. */
void reload_stop(struct reload *reload);
/* Whether this process has executed itself. True: fills @past, whose descriptors are ours again. */
bool reload_taken(struct reload_past *past);
/* The config at @path and its catalog, or what the former image passes. NULL: @fault. */
struct config *reload_config(const struct reload_past *past, const char *path, struct fault *fault);
struct catalog *reload_catalog(const struct reload_past *past, const struct config *config,
	struct stores *stores, struct fault *fault);

#endif
