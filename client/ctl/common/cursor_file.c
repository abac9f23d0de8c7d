#include "client/ctl/common/cursor_file.h"

#include "client/ctl/common/error.h"
#include "client/ctl/common/file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

bool ctl_cursor_read(struct cursor *cursor, const char *path, const struct cursor *begin)
{
	char bytes[LIMIT_CURSOR_BYTES + 1];
	struct fault fault;
	FILE *file = fopen(path, "re");

	memset(cursor, 0, sizeof(*cursor));
	if (!file) {
		ctl_fail("%s: %s", path, strerror(errno));
		return false;
	}
	size_t n = fread(bytes, 1, sizeof(bytes), file);
	int error = ferror(file) ? errno : 0;

	fclose(file);
	if (error)
		ctl_fail("%s: %s", path, strerror(error));
	else if (!cursor_decode(cursor, bytes, n, &fault))
		ctl_fail("%s: %s: %s", path, fault.field, fault.text);
	else if (begin && !cursor_belongs(cursor, begin, &fault))
		ctl_fail("%s: is not a cursor of stream %s: %s: %s", path, begin->stream,
			fault.field, fault.text);
	else
		return true;
	return false;
}

bool ctl_cursor_write(const struct cursor *cursor, const char *path)
{
	char bytes[LIMIT_CURSOR_BYTES];
	size_t n = cursor_encode(cursor, bytes, sizeof(bytes));
	struct ctl_file file;

	if (n == 0) {
		ctl_fail("%s: the cursor is longer than %d bytes", path, LIMIT_CURSOR_BYTES);
		return false;
	}
	if (!ctl_file_begin(&file, path))
		return false;
	fwrite(bytes, 1, n, file.to);
	return ctl_file_end(&file, true);
}
