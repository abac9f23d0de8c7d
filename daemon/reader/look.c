/*
 * A look checks that an open file is unchanged and still has a name. A file may be overwritten in
 * place, or truncated and written again, while its descriptor stays valid; then a trainer would get
 * bytes that no other run ever sees. So the daemon looks after bytes were read and before they are
 * served.
 */
#include "daemon/reader/internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/sysmacros.h>

struct stat stat_of(const struct statx *found)
{
	return (struct stat){
		.st_dev = makedev(found->stx_dev_major, found->stx_dev_minor),
		.st_ino = found->stx_ino,
		.st_mode = found->stx_mode,
		.st_nlink = found->stx_nlink,
		.st_uid = found->stx_uid,
		.st_gid = found->stx_gid,
		.st_size = (off_t)found->stx_size,
		.st_blksize = found->stx_blksize,
		.st_blocks = (blkcnt_t)found->stx_blocks,
		.st_mtim = {.tv_sec = found->stx_mtime.tv_sec, .tv_nsec = found->stx_mtime.tv_nsec},
		.st_ctim = {.tv_sec = found->stx_ctime.tv_sec, .tv_nsec = found->stx_ctime.tv_nsec},
	};
}

void look_begin(struct look *look, int fd, const char *what, const struct statx *found)
{
	*look = (struct look){
		.fd = fd,
		.device = makedev(found->stx_dev_major, found->stx_dev_minor),
		.inode = found->stx_ino,
		.bytes = found->stx_size,
		.mtime_ns =
			(uint64_t)found->stx_mtime.tv_sec * 1000000000 + found->stx_mtime.tv_nsec,
		.named = found->stx_nlink > 0,
		.what = what,
	};
}

static bool differs(const struct look *was, const struct look *now, struct fault *fault)
{
	const struct {
		const char *what;
		uint64_t was, is;
	} facts[] = {
		{"size", was->bytes, now->bytes},
		{"inode", was->inode, now->inode},
		{"mtime (ns)", was->mtime_ns, now->mtime_ns},
	};

	for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
		if (facts[i].was == facts[i].is)
			continue;
		fault_set(fault, FAULT_CHANGED, "",
			"was written to while it was open: %s%s%s was %" PRIu64
			" when it was opened and is %" PRIu64 " now",
			was->what, now->bytes < was->bytes ? "it was truncated: " : "",
			facts[i].what, facts[i].was, facts[i].is);
		return true;
	}
	if (was->named && !now->named) {
		fault_set(fault, FAULT_CHANGED, "",
			"%sit was removed or replaced while it was open", was->what);
		return true;
	}
	return false;
}

bool look_again(const struct file *file, struct fault *fault)
{
	struct statx found;
	struct look now;

	for (unsigned i = 0; i < file->looks; i++) {
		const struct look *was = &file->look[i];

		assert(was->fd >= 0);
		if (statx(was->fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &found) < 0) {
			int error = errno;

			return fault_errno(fault, error, "", "%s", strerror(error));
		}
		look_begin(&now, was->fd, was->what, &found);
		if (differs(was, &now, fault))
			return false;
	}
	return true;
}

bool look_by_name(const struct file *file, struct fault *fault)
{
	const struct look *was = &file->look[0];
	struct statx now;

	/* Nothing follows from a name that cannot be looked up now. */
	if (statx(AT_FDCWD, file->path, 0, STATX_INO, &now) == 0
			? now.stx_ino == was->inode &&
				  makedev(now.stx_dev_major, now.stx_dev_minor) == was->device
			: errno != ENOENT && errno != ENOTDIR)
		return true;
	return fault_set(fault, FAULT_CHANGED, "",
		"its name no longer leads to the file that is open: it was replaced, moved or "
		"removed");
}
