/*
 * Figures of the daemon's own process, from /proc. The files are opened once, at the start, so that
 * the loop opens none.
 */
#ifndef TOKEND_PROCESS_H
#define TOKEND_PROCESS_H

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>

struct process {
	int stat; /* -1: no /proc */
	DIR *fds;
	double start_s; /* Unix time */
};

struct process_figures {
	uint64_t resident_bytes, virtual_bytes, threads, descriptors, descriptors_most;
};

void process_open(struct process *p);
void process_close(struct process *p);
/* False: there is no /proc. */
bool process_read(const struct process *p, struct process_figures *figures);

#endif
