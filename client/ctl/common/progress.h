/*
 * A progress bar on stderr for long work on many bytes. Shown only on a terminal.
 */
#ifndef TOKEND_CTL_PROGRESS_H
#define TOKEND_CTL_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ctl_progress {
	const char *what;
	uint64_t total;
	uint64_t began_ns;
	_Atomic uint64_t done;
	_Atomic uint64_t next_ns; /* when to draw it next */
	bool shown;
};

/* @total bytes of work; @what, "packing", is borrowed. */
void ctl_progress_begin(struct ctl_progress *p, const char *what, uint64_t total);
/* From any thread. */
void ctl_progress_add(struct ctl_progress *p, uint64_t bytes);
/* Removes the bar. */
void ctl_progress_end(struct ctl_progress *p);

#endif
