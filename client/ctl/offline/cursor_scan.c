#include "client/ctl/offline/cursor_scan.h"

#include "client/ctl/common/error.h"
#include "proto/phrases.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

enum {
	LONGEST = 2 * LIMIT_CURSOR_BYTES, /* of a cursor in hex, the longest of its forms */
	PIECE = 4 << 20,
	FOUND_MOST = 65536, /* cursors that are kept */
};

/* The last pieces of a stream of bytes. */
struct sieve {
	unsigned char *bytes; /* [LONGEST + PIECE] */
	size_t n;
	uint64_t base; /* offset of its first byte in the stream */
};

struct search {
	struct cursor_scan *scan;
	const char *path;
	struct sieve raw, frame; /* the file; what is decompressed of it */
	ZSTD_DStream *zstd;
	bool in_frame;
	uint64_t frame_at;	 /* offset of the frame in the file */
	unsigned char *unpacked; /* [LIMIT_CURSOR_BYTES] */
	bool failed;		 /* an error was printed */
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

static bool out_of_memory(struct search *s)
{
	ctl_fail(PHRASE_MEMORY);
	s->failed = true;
	return false;
}

static bool keep(struct search *s, struct cursor *cursor, size_t n, uint64_t offset, bool framed)
{
	struct cursor_scan *scan = s->scan;
	struct cursor_found *more, found = {.n = n, .offset = offset, .compressed = framed};

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
	more = realloc(scan->found, (scan->n + 1) * sizeof(*more));
	scan->found = more ? more : scan->found;
	found.bytes = malloc(n);
	found.path = strdup(s->path);
	if (!more || !found.bytes || !found.path) {
		free(found.bytes);
		free(found.path);
		cursor_free(cursor);
		return out_of_memory(s);
	}
	memcpy(found.bytes, s->unpacked, n);
	found.cursor = *cursor;
	scan->found[scan->n++] = found;
	return true;
}

/* Takes the cursor at @from, if it is one in this form. */
static bool try_form(
	struct search *s, const struct form *form, const struct sieve *sieve, size_t at)
{
	bool framed = sieve == &s->frame;
	const unsigned char *from = sieve->bytes + at;
	size_t n = form->unpack(from, sieve->n - at, s->unpacked, CURSOR_HEAD_BYTES);
	struct cursor cursor;
	struct fault fault;

	/* The magic alone is common in some files, and to unpack all is slow. */
	if (!cursor_begins(s->unpacked, n))
		return false;
	n = form->unpack(from, sieve->n - at, s->unpacked, LIMIT_CURSOR_BYTES);
	n = cursor_length(s->unpacked, n);
	if (n == 0)
		return false;
	if (cursor_decode(&cursor, s->unpacked, n, &fault))
		return keep(s, &cursor, n, framed ? s->frame_at : sieve->base + at, framed);
	cursor_free(&cursor);
	return false;
}

/* Does the sieve have a beginning of a cursor at @at that no form can decode? */
static void count_damaged(struct search *s, const struct sieve *sieve, size_t at)
{
	size_t n = as_it_is(sieve->bytes + at, sieve->n - at, s->unpacked, CURSOR_HEAD_BYTES);

	if (!cursor_begins(s->unpacked, n))
		return;
	n = as_it_is(sieve->bytes + at, sieve->n - at, s->unpacked, LIMIT_CURSOR_BYTES);
	s->scan->damaged += cursor_length(s->unpacked, n) > 0;
}

/* ---- streams ---- */

/* Searches for cursors that begin before @to. */
static void search_sieve(struct search *s, const struct sieve *sieve, size_t to)
{
	for (unsigned f = 0; f < FORMS; f++) {
		const struct form *form = &forms[f];
		const unsigned char *at = sieve->bytes, *end = sieve->bytes + sieve->n;

		if (form->unpack == from_utf8) /* it begins like the first form */
			continue;
		while (!s->failed && (at = memmem(at, (size_t)(end - at), form->begin, form->n))) {
			size_t i = (size_t)(at - sieve->bytes);

			if (i >= to)
				break;
			if (!try_form(s, form, sieve, i) && !s->failed && f == 0 &&
				!try_form(s, &forms[1], sieve, i) && !s->failed)
				count_damaged(s, sieve, i);
			at++;
		}
	}
}

/* Takes the next bytes of a stream. @last: none follow. */
static void pour(struct search *s, struct sieve *sieve, const void *bytes, size_t n, bool last)
{
	size_t kept = sieve->n < LONGEST ? sieve->n : LONGEST, to;

	memmove(sieve->bytes, sieve->bytes + sieve->n - kept, kept);
	sieve->base += sieve->n - kept;
	memcpy(sieve->bytes + kept, bytes, n);
	sieve->n = kept + n;
	/* A cursor in the last LONGEST bytes may go on in the next ones. */
	to = last ? sieve->n : sieve->n > LONGEST ? sieve->n - LONGEST : 0;
	search_sieve(s, sieve, to);
}

/* ---- frames ---- */

static void end_frame(struct search *s)
{
	pour(s, &s->frame, "", 0, true);
	s->frame.n = 0;
	s->frame.base = 0;
	s->in_frame = false;
}

/* Decompresses the frame's part of @in. A frame that is damaged, or is none, ends there. */
static void read_frame(struct search *s, ZSTD_inBuffer *in, unsigned char *room)
{
	while (s->in_frame && !s->failed) {
		ZSTD_outBuffer out = {room, PIECE, 0};
		size_t before = in->pos, left = ZSTD_decompressStream(s->zstd, &out, in);

		if (!ZSTD_isError(left))
			pour(s, &s->frame, room, out.pos, false);
		if (ZSTD_isError(left) || left == 0)
			end_frame(s);
		else if (in->pos == in->size && out.pos < out.size)
			return;
		else if (in->pos == before && out.pos == 0)
			end_frame(s);
	}
}

/* Follows the zstd frames of a piece of the file, which begins at offset @at. */
static void read_frames(
	struct search *s, const unsigned char *piece, size_t n, uint64_t at, unsigned char *room)
{
	static const unsigned char magic[] = {0x28, 0xb5, 0x2f, 0xfd};
	ZSTD_inBuffer in = {piece, n, 0};
	size_t least = 0;

	for (;;) {
		read_frame(s, &in, room);
		if (s->in_frame || s->failed)
			return;
		/* zstd may take nothing of a frame that is damaged at its beginning. */
		in.pos = in.pos > least ? in.pos : least;

		const unsigned char *next =
			memmem(piece + in.pos, n - in.pos, magic, sizeof(magic));

		if (!next)
			return;
		in.pos = (size_t)(next - piece);
		least = in.pos + sizeof(magic);
		s->frame_at = at + in.pos;
		s->in_frame = true;
		ZSTD_initDStream(s->zstd);
	}
}

/* ---- files ---- */

static bool search_file(struct search *s, const char *path, unsigned char *piece)
{
	unsigned char *room = piece + PIECE;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	uint64_t at = 0;
	ssize_t n = 0;

	if (fd < 0)
		return ctl_fail("%s: %s", path, strerror(errno)) == CTL_OK;
	posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	s->path = path;
	s->raw.n = s->frame.n = 0;
	s->raw.base = s->frame.base = 0;
	s->in_frame = false;
	while (!s->failed && ((n = read(fd, piece, PIECE)) > 0 || (n < 0 && errno == EINTR))) {
		if (n < 0)
			continue;
		pour(s, &s->raw, piece, (size_t)n, false);
		read_frames(s, piece, (size_t)n, at, room);
		at += (uint64_t)n;
	}
	if (n < 0)
		s->failed = ctl_fail("%s: %s", path, strerror(errno)) != CTL_OK;
	if (s->in_frame)
		end_frame(s);
	pour(s, &s->raw, "", 0, true);
	close(fd);
	s->scan->files++;
	s->scan->bytes += at;
	return !s->failed;
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

static bool search_tree(struct search *s, const char *path, unsigned char *piece)
{
	char *copy = strdup(path), *paths[] = {copy, NULL};
	FTS *tree =
		copy ? fts_open(paths, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name) : NULL;
	bool done = tree;

	if (!tree)
		ctl_fail("%s: %s", path, strerror(errno));
	for (FTSENT *e; done && (e = fts_read(tree));) {
		if (e->fts_info == FTS_F)
			done = search_file(s, e->fts_accpath, piece);
		else if (e->fts_info == FTS_ERR || e->fts_info == FTS_DNR || e->fts_info == FTS_NS)
			done = ctl_fail("%s: %s", e->fts_path, strerror(e->fts_errno)) == CTL_OK;
	}
	if (tree)
		fts_close(tree);
	free(copy);
	return done;
}

bool cursor_scan(struct cursor_scan *scan, const char *path)
{
	struct search s = {.scan = scan, .zstd = ZSTD_createDStream()};
	unsigned char *piece = malloc(2 * (size_t)PIECE);
	bool done;

	*scan = (struct cursor_scan){0};
	s.raw.bytes = malloc(LONGEST + PIECE);
	s.frame.bytes = malloc(LONGEST + PIECE);
	s.unpacked = malloc(LIMIT_CURSOR_BYTES);
	done = s.zstd && piece && s.raw.bytes && s.frame.bytes && s.unpacked;
	done = done ? search_tree(&s, path, piece) : out_of_memory(&s);
	ZSTD_freeDStream(s.zstd);
	free(piece);
	free(s.raw.bytes);
	free(s.frame.bytes);
	free(s.unpacked);
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
