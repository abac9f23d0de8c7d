/*
 * A look checks that an open file is unchanged and still has a name. A file may be overwritten in
 * place, or truncated and written again, while its descriptor stays valid; then a trainer would get
 * bytes that no other run ever sees. So the daemon looks after bytes were read and before they are
 * served: inode, size, mtime and ctime must be the same. Every write changes the ctime before it
 * changes a byte, and no program can set it back.
 *
 * The ctime also changes with the mode, the owner, the number of links and the name. If only the
 * ctime differs, blocks that were sampled earlier are compared; if they are equal, the new ctime is
 * accepted.
 *
 * Not detected: writes through a mapping, because the kernel updates the times late; writes that a
 * network file system's cache hides; a part that was overwritten between the sampled blocks and
 * whose mtime was then set back.
 *
 * A sample counts once a look that began after it finds the file unchanged. The first sample is of
 * bytes that were just read, so it does not wait for the device. Every further look adds one, up to
 * LOOK_SAMPLES. So opening a file needs no reads for samples.
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
	uint64_t device, inode, bytes, mtime_ns, ctime_ns;
	uint64_t names; /* links */
};

/* An open file, and its state when it was opened. */
struct look {
	int fd;		 /* borrowed */
	bool direct;	 /* O_DIRECT */
	uint8_t samples; /* samples that count */
	uint8_t taken;	 /* ≥ samples: the next look decides whether the others count */
	struct look_state was;
	const char *what; /* "", or "its index: " and the like: begins the texts of faults */
	struct {
		uint64_t at, hash;
	} sample[LOOK_SAMPLES];
};

enum look_result {
	LOOK_SAME,
	LOOK_TOUCHED, /* only its ctime differs */
	LOOK_FAULT,   /* it changed (FAULT_CHANGED), or a system call failed */
};

void look_begin(struct look *look, int fd, const char *what, const struct statx *found);

enum look_sampled {
	LOOK_SAMPLED,	/* a sample was taken, or there are enough */
	LOOK_UNSAMPLED, /* these bytes cannot be read now */
	LOOK_MUST_WAIT, /* reading them would block */
};

/* Takes a sample at byte @at; SIZE_MAX: at the next place of its own choice. @wait: may block. */
enum look_sampled look_sample(struct look *look, uint64_t at, bool wait);
/* Takes the first sample from @bytes, the @n bytes of the file at @at, a multiple of 4096. */
void look_keep(struct look *look, uint64_t at, const char *bytes, uint64_t n);
/* Looks, with one statx(). TOUCHED: look_compare() decides, with @now. */
enum look_result look_again(struct look *look, struct look_state *now, struct fault *fault);
/*
 * Reads the samples again. TOUCHED: they are equal, and @now is the file's state from here on.
 * FAULT with error ESTALE: there is no sample yet. Blocks.
 */
enum look_result look_compare(struct look *look, const struct look_state *now, struct fault *fault);

#endif
