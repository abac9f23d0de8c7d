/*
 * Is an open file still what it was when it was opened? A file may be overwritten in place, or
 * truncated and written again, while its descriptor stays valid: then a trainer would get bytes
 * that no other run will ever see. So the daemon looks once more after bytes were read and before
 * anybody gets them: inode, size, mtime and ctime must be the same. Every write changes the ctime
 * before it changes a byte, and nobody can set it back.
 *
 * The ctime also changes with the mode, the owner, the number of links and the name. If it alone
 * differs, blocks that were sampled before are compared; if they are equal, the new ctime counts.
 *
 * Not detected: writers through a mapping, because the kernel changes the times when it likes to;
 * writes that a network file system's cache hides; a part that was overwritten between the sampled
 * blocks and whose mtime was then set back.
 *
 * A sample counts once a look that began after it found the file unchanged. The first sample is of
 * bytes that were just read, so it does not wait for the device. Every further look adds one, up to
 * LOOK_SAMPLES. So opening a file costs no reads of its own.
 */
#ifndef TOKEND_READER_LOOK_H
#define TOKEND_READER_LOOK_H

#include "proto/fault.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

enum { LOOK_SAMPLES = 16, LOOK_SAMPLE_BYTES = 512 };

struct look_state {
	uint64_t inode, bytes, mtime_ns, ctime_ns;
};

/* An open file, and what it was like then. */
struct look {
	int fd;		 /* borrowed */
	bool direct;	 /* O_DIRECT */
	uint8_t samples; /* that count */
	uint8_t taken;	 /* ≥ samples: with those that the next look decides on */
	struct look_state was;
	const char *what; /* "" or "its index: ": begins its faults' texts */
	struct {
		uint64_t at, hash;
	} sample[LOOK_SAMPLES];
};

enum look_result {
	LOOK_SAME,
	LOOK_TOUCHED, /* its ctime differs, nothing else that statx() tells */
	LOOK_FAULT,   /* it changed (FAULT_CHANGED), or could not be looked at */
};

void look_begin(struct look *look, int fd, const char *what, const struct statx *found);

enum look_sampled {
	LOOK_SAMPLED,	/* or there are enough */
	LOOK_UNSAMPLED, /* these bytes cannot be read now */
	LOOK_MUST_WAIT, /* reading them would block */
};

/* Samples @at, or where the next sample should be: SIZE_MAX. @wait: it may block. */
enum look_sampled look_sample(struct look *look, uint64_t at, bool wait);
/* The first sample, from @n bytes of the file that are at hand and begin @at, a multiple of 4096.
 */
void look_keep(struct look *look, uint64_t at, const char *bytes, uint64_t n);
/* Looks again, with one statx(). TOUCHED: look_compare() decides, with @now. */
enum look_result look_again(struct look *look, struct look_state *now, struct fault *fault);
/*
 * Reads the samples anew. If they are equal, the file's state is @now from here on: TOUCHED. If
 * there is no sample to decide by, the fault's error is ESTALE. Blocks.
 */
enum look_result look_compare(struct look *look, const struct look_state *now, struct fault *fault);

#endif
