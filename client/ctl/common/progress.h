/* A line of progress on stderr, if that is a terminal. */
#ifndef TOKEND_CTL_PROGRESS_H
#define TOKEND_CTL_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ctl_progress {
	const char *what;
	const char *unit;
	uint64_t total; /* 0: not known */
	uint64_t began_ns;
	_Atomic uint64_t done;
	_Atomic uint64_t next_ns; /* of the next redraw */
	bool shown;
};

/* @what: "packing", and @unit: "tokens", borrowed. @total 0: not known. */
void ctl_progress_begin(struct ctl_progress *p, const char *what, const char *unit, uint64_t total);
/* Adds finished units. Any thread may call it. */
void ctl_progress_add(struct ctl_progress *p, uint64_t done);
/* Removes the line. */
void ctl_progress_end(struct ctl_progress *p);

#endif
