/*
 * A look checks that an open file is unchanged and still has a name. A file may be overwritten in
 * place, or truncated and written again, while its descriptor stays valid; then a trainer would get
 * bytes that no other run ever sees. So the daemon looks after bytes were read and before they are
 * served.
 */
#include "daemon/reader/internal.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

void look_begin(struct look *look, int fd, const char *what, const struct stat *found)
{
	*look = (struct look){
		.fd = fd,
		.device = found->st_dev,
		.inode = found->st_ino,
		.size = found->st_size,
		.id = bytes_id(found),
		.named = found->st_nlink > 0,
		.what = what,
	};
}

bool look_again(const struct file *file, struct fault *fault)
{
	struct stat now;

	for (unsigned i = 0; i < file->looks; i++) {
		const struct look *look = &file->look[i];

		assert(look->fd >= 0);
		if (fstat(look->fd, &now) < 0) {
			int error = errno;

			return fault_errno(fault, error, "", "%s", strerror(error));
		}
		if (!dataset_identical(look->id, bytes_id(&now), "it was opened", fault))
			return fault_prefix(fault, "was written to while it was open: %s%s",
				look->what, now.st_size < look->size ? "it was truncated: " : "");
		if (look->named && now.st_nlink == 0)
			return fault_set(fault, FAULT_CHANGED, "",
				"%sit was removed or replaced while it was open", look->what);
	}
	return true;
}

bool look_by_name(const struct file *file, struct fault *fault)
{
	const struct look *look = &file->look[0];
	struct stat now;

	/* Nothing follows from a name that cannot be looked up now. */
	if (stat(file->path, &now) == 0 ? now.st_ino == look->inode && now.st_dev == look->device
					: errno != ENOENT && errno != ENOTDIR)
		return true;
	return fault_set(fault, FAULT_CHANGED, "",
		"its name no longer leads to the file that is open: it was replaced, moved or "
		"removed");
}
