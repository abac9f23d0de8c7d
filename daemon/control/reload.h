/*
 * Reading the config again. libuv's pool reads the file and opens all datasets; then the loop
 * switches: new sessions get the new generation (generation.h). A config that is refused changes
 * nothing. Keys that cannot change while the daemon runs keep their values, and are logged.
 *
 * systemd's protocol: RELOADING=1 with the time, then READY=1. It suits Type=notify and
 * Type=notify-reload.
 */
#ifndef TOKEND_RELOAD_H
#define TOKEND_RELOAD_H

#include "daemon/catalog/catalog.h"
#include "daemon/reader/reader.h"

#include <uv.h>

struct control;

struct reload {
	uv_work_t work;
	bool running;
	bool again;   /* asked for while it was running */
	bool stopped; /* the daemon is stopping: nothing is done with the outcome */
	bool indexed; /* memory for indexes was reserved since the start */
	bool late;    /* it has taken long, and that was logged */
	uint64_t since_ms;
	struct control *control;
	const struct config *began; /* the config at the start: keys that cannot change */
	/* How the reader was opened; NULL: unknown, and nothing is checked. */
	const struct reader_options *reading;
	/* The new config uses other users. */
	void (*on_config)(void *context, const struct config *config);
	void *context;
	/* The outcome of the work. */
	struct config *config;
	struct catalog *catalog;
	struct fault fault;

	/* ---- for status ---- */
	char refused[LIMIT_TEXT_BYTES]; /* why the last one failed; "": it did not */
};

/* Begins a reload, or notes that another one is to follow the present one. */
void reload_begin(struct reload *reload);
/* Call once a second: logs a reload that hangs. */
void reload_clock(struct reload *reload);

#endif
