/* A daemon's server in a thread, with shards, a socket and a state_dir below /dev/shm. */
#ifndef TOKEND_FUZZ_DAEMON_THREAD_H
#define TOKEND_FUZZ_DAEMON_THREAD_H

#include "daemon/catalog/catalog.h"
#include "daemon/control/server.h"
#include "proto/ring.h"
#include "proto/wire.h"
#include "tests/fuzz/scratch.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DAEMON_USER = 12345, DAEMON_STRANGER = 23456 }; /* the first is in allow_uids: */

struct daemon_thread {
	char socket[64];
	struct config *config;
	struct catalog *catalog;
	struct reader *reader;
	struct listener listener;
	struct rereads rereads;
	uint64_t staging;
};

static struct daemon_thread daemon_thread = {.listener = {.fd = -1, .lock_fd = -1}};

static inline const char *daemon_socket(void)
{
	return daemon_thread.socket;
}

static void *daemon_serve(void *none)
{
	struct daemon_thread *d = &daemon_thread;

	(void)none;
	server_run(&(struct server_options){.catalog = d->catalog,
		.listener = &d->listener,
		.reader = d->reader,
		.depth = 64,
		.connections = 64,
		.staging_bytes = d->staging,
		.rereads = &d->rereads});
	return NULL;
}

static bool daemon_open(struct daemon_thread *d)
{
	struct reader_options options = {.io = CONFIG_IO_PREAD,
		.depth = 64,
		.files = 16,
		.streams = 2,
		.largest_window_bytes = 64};
	struct fault fault;
	char path[96], note[256];

	snprintf(path, sizeof(path), "%s/t.yaml", scratch);
	snprintf(d->socket, sizeof(d->socket), "%s/s", scratch);
	d->config = config_load(path, &fault);
	d->catalog = d->config ? catalog_open(d->config, NULL, &fault) : NULL;
	d->reader = d->catalog ? reader_open(&options, note, sizeof(note), &fault) : NULL;
	d->staging = reader_memory(&options);
	if (d->reader && listener_open(&d->listener, d->socket, &fault))
		return true;
	fprintf(stderr, "%s\n", fault.text);
	return false;
}

/* Serves from now on. False: it failed. */
static inline bool daemon_start(void)
{
	static const char text[] =
		"memory: 2MiB\nstate_dir: state\nallow_uids: [12345]\nstreams:\n"
		"  train:\n    seed: 1\n    seq_len: 4\n    datasets:\n"
		"      - {name: web, path: a.bin, dtype: u16, format: flat, weight: 0.7}\n"
		"      - {name: code, path: b.bin, dtype: u16, format: flat, weight: 0.3}\n"
		"  short:\n    seed: 1\n    seq_len: 4\n    samples: 9\n    datasets:\n"
		"      - {name: web, path: a.bin, dtype: u16, format: flat}\n";
	static uint16_t tokens[1002];
	pthread_t thread;

	scratch_open();
	if (chmod(scratch, 0755) != 0)
		return false;
	scratch_put("t.yaml", text, strlen(text));
	scratch_put("a.bin", tokens, sizeof(tokens));
	scratch_put("b.bin", tokens, sizeof(tokens) / 2);
	signal(SIGPIPE, SIG_IGN);
	return daemon_open(&daemon_thread) &&
	       pthread_create(&thread, NULL, daemon_serve, NULL) == 0;
}

#endif
