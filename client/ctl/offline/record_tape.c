#include "client/ctl/offline/record_tape.h"

#include "client/ctl/common/error.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void record_tape_init(struct record_tape *tape, const struct records *r)
{
	tape->records = r;
	tape->fd = -1;
	tape->at = tape->end = 0;
	tape->have = tape->next = 0;
}

void record_tape_close(struct record_tape *tape)
{
	if (tape->fd >= 0)
		close(tape->fd);
	tape->fd = -1;
}

static const char *tape_path(const struct record_tape *tape)
{
	return tape->records->file[tape->file].path;
}

static bool tape_open(struct record_tape *tape, uint32_t file)
{
	if (tape->fd >= 0 && tape->file == file)
		return true;
	record_tape_close(tape);
	tape->file = file;
	tape->fd = open(tape_path(tape), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (tape->fd < 0)
		ctl_fail("%s: %s", tape_path(tape), strerror(errno));
	return tape->fd >= 0;
}

/* Entries [@first, @first + @n) of @file are next. */
static bool tape_seek(struct record_tape *tape, uint32_t file, uint64_t first, uint64_t n)
{
	tape->at = first * RECORD_ENTRY_BYTES;
	tape->end = tape->at + n * RECORD_ENTRY_BYTES;
	tape->have = tape->next = 0;
	return tape_open(tape, file);
}

static bool tape_fill(struct record_tape *tape)
{
	uint64_t left = tape->end - tape->at;
	size_t want = left < sizeof(tape->entry) ? (size_t)left : sizeof(tape->entry), got = 0;

	while (got < want) {
		ssize_t n = pread(
			tape->fd, (char *)tape->entry + got, want - got, (off_t)(tape->at + got));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			ctl_fail("%s: %s", tape_path(tape),
				n < 0 ? strerror(errno) : "was truncated while it was read");
			return false;
		}
		got += (size_t)n;
	}
	tape->at += got;
	tape->have = got / RECORD_ENTRY_BYTES;
	tape->next = 0;
	return true;
}

int record_tape_next(struct record_tape *tape, uint64_t entry[2])
{
	if (tape->next == tape->have) {
		if (tape->at == tape->end)
			return 0;
		if (!tape_fill(tape))
			return -1;
	}
	memcpy(entry, tape->entry + 2 * tape->next++, RECORD_ENTRY_BYTES);
	return 1;
}

bool record_tape_file(struct record_tape *tape, uint32_t file)
{
	struct stat st;

	if (!tape_open(tape, file))
		return false;
	if (fstat(tape->fd, &st) == 0)
		return tape_seek(tape, file, 0, (uint64_t)st.st_size / RECORD_ENTRY_BYTES);
	ctl_fail("%s: %s", tape_path(tape), strerror(errno));
	return false;
}

bool record_tape_section(struct record_tape *tape, const struct record_section *section)
{
	return tape_seek(tape, section->file, section->entry, section->rows);
}
