#include "client/ctl/common/cursor_file.h"

#include "client/ctl/common/error.h"
#include "client/ctl/common/file.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

bool ctl_cursor_read(struct cursor *cursor, const char *path, const struct cursor *begin)
{
	char bytes[LIMIT_CURSOR_BYTES + 1];
	struct fault fault;
	FILE *file = fopen(path, "re");
	size_t n = file ? fread(bytes, 1, sizeof(bytes), file) : 0;
	bool read = file && !ferror(file);

	memset(cursor, 0, sizeof(*cursor));
	if (!read)
		ctl_fail("%s: %s", path, strerror(errno));
	if (file)
		fclose(file);
	if (!read)
		return false;
	if (!cursor_decode(cursor, bytes, n, &fault))
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

	assert(n > 0);
	if (!ctl_file_begin(&file, path))
		return false;
	fwrite(bytes, 1, n, file.to);
	return ctl_file_end(&file, true);
}
