#include "daemon/reader/look.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BLOCK = 4096 /* O_DIRECT can read it on all common devices */ };

static uint64_t ns_of(const struct statx_timestamp *t)
{
	return (uint64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

static struct look_state state_of(const struct statx *found)
{
	return (struct look_state){
		.device = makedev(found->stx_dev_major, found->stx_dev_minor),
		.inode = found->stx_ino,
		.bytes = found->stx_size,
		.mtime_ns = ns_of(&found->stx_mtime),
		.ctime_ns = ns_of(&found->stx_ctime),
		.names = found->stx_nlink,
	};
}

void look_begin(struct look *look, int fd, const char *what, const struct statx *found)
{
	look->fd = fd;
	look->direct = false;
	look->samples = look->taken = 0;
	look->was = state_of(found);
	look->what = what;
}

/* ---- samples ---- */

static uint64_t hash_of(const void *bytes)
{
	uint64_t word[LOOK_SAMPLE_BYTES / sizeof(uint64_t)], hash = 0;

	memcpy(word, bytes, sizeof(word));
	for (size_t i = 0; i < sizeof(word) / sizeof(*word); i++) {
		hash = (hash ^ word[i]) * UINT64_C(0x9e3779b97f4a7c15);
		hash ^= hash >> 32;
	}
	return hash;
}

/* Returns 0 and *@hash, or an errno. */
static int read_sample(const struct look *look, uint64_t at, bool wait, uint64_t *hash)
{
	char block[BLOCK] __attribute__((aligned(BLOCK)));
	struct iovec to = {.iov_base = block, .iov_len = look->direct ? BLOCK : LOOK_SAMPLE_BYTES};
	ssize_t n;

	memset(block, 0, LOOK_SAMPLE_BYTES);
	do
		n = wait ? pread(look->fd, block, to.iov_len, (off_t)at)
			 : preadv2(look->fd, &to, 1, (off_t)at, RWF_NOWAIT);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno;
	*hash = hash_of(block);
	return 0;
}

/* Offset of the @n-th sample: the middle, both ends, then quarters, … */
static uint64_t place_of(const struct look *look, unsigned n)
{
	static const uint8_t sixteenth[LOOK_SAMPLES] = {
		8, 0, 16, 4, 12, 2, 6, 10, 14, 1, 3, 5, 7, 9, 11, 13};
	uint64_t last = look->was.bytes > 0 ? (look->was.bytes - 1) / BLOCK : 0;

	return (last / 16 * sixteenth[n] + last % 16 * sixteenth[n] / 16) * BLOCK;
}

enum look_sampled look_sample(struct look *look, uint64_t at, bool wait)
{
	assert(look->samples <= look->taken && look->taken <= LOOK_SAMPLES);
	if (look->taken == LOOK_SAMPLES)
		return LOOK_SAMPLED;
	if (at == SIZE_MAX)
		at = place_of(look, look->taken);
	int error = read_sample(look, at, wait, &look->sample[look->taken].hash);

	if (error != 0)
		return error == EAGAIN ? LOOK_MUST_WAIT : LOOK_UNSAMPLED;
	look->sample[look->taken++].at = at;
	return LOOK_SAMPLED;
}

void look_keep(struct look *look, uint64_t at, const char *bytes, uint64_t n)
{
	if (look->taken > 0 || n < LOOK_SAMPLE_BYTES)
		return;
	uint64_t from =
		(n - LOOK_SAMPLE_BYTES) / BLOCK * BLOCK; /* a header may be at the beginning */

	look->sample[0].at = at + from;
	look->sample[0].hash = hash_of(bytes + from);
	look->taken = 1;
}

/* ---- looking ---- */

static enum look_result changed(struct fault *fault)
{
	fault_prefix(fault, "was written to while it was open: ");
	return LOOK_FAULT;
}

static enum look_result failed(struct fault *fault, int error)
{
	fault_errno(fault, error, "", "%s", strerror(error));
	return LOOK_FAULT;
}

static enum look_result differs(
	const struct look *look, const struct look_state *now, struct fault *fault)
{
	const struct {
		const char *what;
		uint64_t was, is;
	} facts[] = {
		{"size", look->was.bytes, now->bytes},
		{"inode", look->was.inode, now->inode},
		{"mtime (ns)", look->was.mtime_ns, now->mtime_ns},
	};

	for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
		if (facts[i].was == facts[i].is)
			continue;
		fault_set(fault, FAULT_CHANGED, "",
			"%s%s%s was %" PRIu64 " when it was opened and is %" PRIu64 " now",
			look->what, now->bytes < look->was.bytes ? "it was truncated: " : "",
			facts[i].what, facts[i].was, facts[i].is);
		return changed(fault);
	}
	if (now->names == 0 && look->was.names > 0) {
		fault_set(fault, FAULT_CHANGED, "",
			"%sit was removed or replaced while it was open", look->what);
		return LOOK_FAULT;
	}
	return LOOK_TOUCHED;
}

enum look_result look_again(struct look *look, struct look_state *now, struct fault *fault)
{
	struct statx found;

	assert(look->fd >= 0);
	if (statx(look->fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &found) < 0)
		return failed(fault, errno);
	*now = state_of(&found);
	if (memcmp(now, &look->was, sizeof(*now)) == 0) {
		look->samples = look->taken;
		return LOOK_SAME;
	}
	look->taken = look->samples;
	return differs(look, now, fault);
}

enum look_result look_compare(struct look *look, const struct look_state *now, struct fault *fault)
{
	assert(look->taken == look->samples);
	if (look->samples == 0)
		return failed(fault, ESTALE);
	for (unsigned i = 0; i < look->samples; i++) {
		uint64_t hash = 0, at = look->sample[i].at;
		int error = read_sample(look, at, true, &hash);

		if (error)
			return failed(fault, error);
		if (hash == look->sample[i].hash)
			continue;
		fault_set(fault, FAULT_CHANGED, "",
			"%sit was overwritten at byte %" PRIu64
			", and its size and mtime are unchanged",
			look->what, at);
		return changed(fault);
	}
	look->was = *now;
	return LOOK_TOUCHED;
}
