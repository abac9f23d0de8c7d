#include "client/ctl/offline/cursor_scan.h"

#include "client/ctl/common/error.h"
#include "client/ctl/common/grow.h"
#include "proto/phrases.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FOUND_MOST = 65536 }; /* cursors that are kept */

struct search {
	struct cursor_scan *scan;
	const char *path;
	const unsigned char *bytes; /* [n] the file, mapped */
	size_t n;
	unsigned char unpacked[LIMIT_CURSOR_BYTES];
};

/* ---- the forms of a cursor ---- */

/* Each decodes the bytes at @from, up to a byte that does not belong to the form, to @to
 * ([@most]). Returns their number. */
typedef size_t unpack_form(const unsigned char *from, size_t n, unsigned char *to, size_t most);

static size_t as_it_is(const unsigned char *from, size_t n, unsigned char *to, size_t most)
{
	n = n < most ? n : most;
	memcpy(to, from, n);
	return n;
}

/* pickle's protocol 2 stores bytes as a text of U+0000 to U+00FF. */
static size_t from_utf8(const unsigned char *from, size_t n, unsigned char *to, size_t most)
{
	size_t used = 0;

	for (size_t i = 0; i < n && used < most; i++) {
		if (from[i] < 0x80) {
			to[used++] = from[i];
			continue;
		}
		if (i + 1 == n || (from[i] & 0xfe) != 0xc2 || (from[i + 1] & 0xc0) != 0x80)
			break;
		to[used++] = (unsigned char)(from[i] << 6 | (from[i + 1] & 0x3f));
		i++;
	}
	return used;
}

static int digit(unsigned char c, const char *digits)
{
	const char *at = c ? strchr(digits, c) : NULL;

	return at ? (int)(at - digits) : -1;
}

static size_t from_hex(const unsigned char *from, size_t n, unsigned char *to, size_t most)
{
	static const char digits[] = "0123456789abcdef";
	size_t used = 0;

	for (size_t i = 0; i + 1 < n && used < most; i += 2) {
		int high = digit(from[i], digits), low = digit(from[i + 1], digits);

		if (high < 0 || low < 0)
			break;
		to[used++] = (unsigned char)(high << 4 | low);
	}
	return used;
}

static size_t from_base64(const unsigned char *from, size_t n, unsigned char *to, size_t most)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	unsigned bits = 0, have = 0;
	size_t used = 0;

	for (size_t i = 0; i < n && used < most; i++) {
		int value = digit(from[i], digits);

		if (value < 0)
			break;
		bits = bits << 6 | (unsigned)value;
		have += 6;
		if (have >= 8) {
			have -= 8;
			to[used++] = (unsigned char)(bits >> have);
		}
	}
	return used;
}

static const struct form {
	const char *begin; /* the magic, and what is common to all versions */
	size_t n;
	unpack_form *unpack;
} forms[] = {
	{"tkdc", 4, as_it_is},
	{"tkdc", 4, from_utf8},
	{"746b6463", 8, from_hex},
	{"dGtkY", 5, from_base64},
};

enum { FORMS = sizeof(forms) / sizeof(forms[0]) };

/* ---- what was found ---- */

static bool keep(struct search *s, struct cursor *cursor, size_t n, uint64_t offset)
{
	struct cursor_scan *scan = s->scan;
	struct cursor_found found = {.n = n, .offset = offset};

	for (unsigned i = 0; i < scan->n; i++)
		if (scan->found[i].n == n && memcmp(scan->found[i].bytes, s->unpacked, n) == 0) {
			scan->found[i].more++;
			cursor_free(cursor);
			return true;
		}
	if (scan->n == FOUND_MOST) {
		cursor_free(cursor);
		return true;
	}
	found.bytes = malloc(n);
	found.path = strdup(s->path);
	if (!found.bytes || !found.path ||
		!ctl_grow((void **)&scan->found, scan->n, sizeof(*scan->found))) {
		free(found.bytes);
		free(found.path);
		cursor_free(cursor);
		return ctl_fail(PHRASE_MEMORY) == CTL_OK;
	}
	memcpy(found.bytes, s->unpacked, n);
	found.cursor = *cursor;
	scan->found[scan->n++] = found;
	return true;
}

enum verdict { NONE, DAMAGED, FOUND, FAILED };

/* Is there a cursor at @at in this form? The magic alone is common in some files, and to unpack all
 * is slow. FAILED: an error was printed. */
static enum verdict try_form(struct search *s, const struct form *form, size_t at)
{
	const unsigned char *from = s->bytes + at;
	size_t n = form->unpack(from, s->n - at, s->unpacked, CURSOR_HEAD_BYTES);
	struct cursor cursor;
	struct fault fault;

	if (!cursor_begins(s->unpacked, n))
		return NONE;
	n = form->unpack(from, s->n - at, s->unpacked, LIMIT_CURSOR_BYTES);
	n = cursor_length(s->unpacked, n);
	if (n == 0)
		return NONE;
	if (cursor_decode(&cursor, s->unpacked, n, &fault))
		return keep(s, &cursor, n, at) ? FOUND : FAILED;
	cursor_free(&cursor);
	return DAMAGED;
}

static bool search_bytes(struct search *s)
{
	for (unsigned f = 0; f < FORMS; f++) {
		const unsigned char *at = s->bytes, *end = s->bytes + s->n;

		if (forms[f].unpack == from_utf8) /* it begins like the first form */
			continue;
		for (; (at = memmem(at, (size_t)(end - at), forms[f].begin, forms[f].n)); at++) {
			size_t i = (size_t)(at - s->bytes);
			enum verdict is = try_form(s, &forms[f], i), text = NONE;

			if (f == 0 && is != FOUND && is != FAILED)
				text = try_form(s, &forms[1], i);
			if (is == FAILED || text == FAILED)
				return false;
			s->scan->damaged += f == 0 && is == DAMAGED && text != FOUND;
		}
	}
	return true;
}

/* ---- files ---- */

/* The name of the mapped file, for the handler of SIGBUS. */
static const char *mapped;

static void on_bus_error(int number)
{
	static const char text[] = ": became shorter, or cannot be read\n";

	(void)number;
	(void)!write(STDERR_FILENO, "tokctl: ", 8);
	(void)!write(STDERR_FILENO, mapped, strlen(mapped));
	(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
	_exit(CTL_FAILED);
}

static bool search_file(struct search *s, const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	void *bytes = MAP_FAILED;
	struct stat st;
	bool done = fd >= 0 && fstat(fd, &st) == 0;

	if (done && st.st_size > 0)
		bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (!done || (st.st_size > 0 && bytes == MAP_FAILED)) {
		ctl_fail("%s: %s", path, strerror(errno));
		done = false;
	} else if (st.st_size > 0) {
		madvise(bytes, (size_t)st.st_size, MADV_SEQUENTIAL);
		s->path = mapped = path;
		s->bytes = bytes;
		s->n = (size_t)st.st_size;
		done = search_bytes(s);
		munmap(bytes, (size_t)st.st_size);
	}
	if (fd >= 0)
		close(fd);
	s->scan->files++;
	s->scan->bytes += done ? (uint64_t)st.st_size : 0;
	return done;
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

bool cursor_scan(struct cursor_scan *scan, const char *path)
{
	struct search *s = calloc(1, sizeof(*s));
	char *copy = strdup(path), *paths[] = {copy, NULL};
	FTS *tree =
		copy ? fts_open(paths, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name) : NULL;
	bool done = s && tree;

	*scan = (struct cursor_scan){0};
	if (!done)
		ctl_fail("%s: %s", path, strerror(errno));
	else
		s->scan = scan;
	signal(SIGBUS, on_bus_error);
	for (FTSENT *e; done && (e = fts_read(tree));) {
		if (e->fts_info == FTS_F)
			done = search_file(s, e->fts_accpath);
		else if (e->fts_info == FTS_ERR || e->fts_info == FTS_DNR || e->fts_info == FTS_NS)
			done = ctl_fail("%s: %s", e->fts_path, strerror(e->fts_errno)) == CTL_OK;
	}
	if (tree)
		fts_close(tree);
	free(copy);
	free(s);
	return done;
}

void cursor_scan_free(struct cursor_scan *scan)
{
	for (unsigned i = 0; i < scan->n; i++) {
		cursor_free(&scan->found[i].cursor);
		free(scan->found[i].bytes);
		free(scan->found[i].path);
	}
	free(scan->found);
	*scan = (struct cursor_scan){0};
}
