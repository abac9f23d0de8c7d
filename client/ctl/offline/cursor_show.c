/*
 * tokctl cursor show: prints a cursor file, or the cursors in a checkpoint. These are found by
 * their first bytes: as they are, as the text of a pickle (their bytes as UTF-8), or in hex.
 */
#include "client/ctl/offline/offline.h"
#include "proto/phrases.h"

#include <errno.h>
#include <fts.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A cursor in a checkpoint, and the first place where it was found. */
struct found {
	struct cursor cursor;
	uint64_t sum; /* the checksum in its bytes */
	char *path;
	uint64_t offset; /* in the file */
	uint64_t places; /* that have this cursor */
};

struct search {
	struct found *found; /* [n], in the order of files and offsets */
	size_t n;
	uint64_t files, bytes; /* searched */
	uint64_t damaged;      /* places that begin like a cursor, with a wrong checksum */
	bool failed;	       /* an error was printed */

	const char *path; /* of the file that is mapped */
	const unsigned char *from, *end;
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

static size_t from_hex(const unsigned char *from, size_t n, unsigned char *to, size_t most)
{
	static const char digits[] = "0123456789abcdef";
	size_t used = 0;

	for (; 2 * used + 1 < n && used < most; used++) {
		const char *high = memchr(digits, from[2 * used], 16),
			   *low = memchr(digits, from[2 * used + 1], 16);

		if (!high || !low)
			break;
		to[used] = (unsigned char)((high - digits) << 4 | (low - digits));
	}
	return used;
}

/* ---- searching ---- */

/* Takes ownership of @cursor, whose bytes are in s->unpacked. */
static void keep(struct search *s, struct cursor *cursor, uint64_t offset)
{
	struct found found = {.cursor = *cursor, .offset = offset, .places = 1};

	memcpy(&found.sum, s->unpacked + 8, sizeof(found.sum));
	for (size_t i = 0; i < s->n; i++)
		if (s->found[i].sum == found.sum) {
			s->found[i].places++;
			cursor_free(cursor);
			return;
		}
	found.path = strdup(s->path);
	if (!found.path) {
		ctl_fail(PHRASE_MEMORY);
	} else if (ctl_grow((void **)&s->found, s->n, sizeof(found))) {
		s->found[s->n++] = found;
		return;
	}
	free(found.path);
	cursor_free(cursor);
	s->failed = true;
}

enum verdict { NONE, DAMAGED, FOUND };

/* Keeps the cursor that is at @at in this form. The magic alone is common in some files, and to
 * unpack all is slow. */
static enum verdict look(struct search *s, unpack_form *unpack, const unsigned char *at)
{
	size_t left = (size_t)(s->end - at), n = unpack(at, left, s->unpacked, CURSOR_HEAD_BYTES);
	struct cursor cursor;
	struct fault fault;

	if (!cursor_begins(s->unpacked, n))
		return NONE;
	n = unpack(at, left, s->unpacked, LIMIT_CURSOR_BYTES);
	n = cursor_length(s->unpacked, n);
	if (n == 0)
		return NONE;
	if (!cursor_decode(&cursor, s->unpacked, n, &fault))
		return DAMAGED;
	keep(s, &cursor, (uint64_t)(at - s->from));
	return FOUND;
}

static const unsigned char *next(const struct search *s, const void *at, const char *magic)
{
	return s->failed ? NULL
			 : memmem(at, (size_t)(s->end - (const unsigned char *)at), magic,
				   strlen(magic));
}

static void search_file(struct search *s, const char *path)
{
	size_t n;

	s->path = path;
	s->from = ctl_map(path, &n);
	s->failed = !s->from;
	if (s->failed)
		return;
	s->end = s->from + n;
	for (const unsigned char *at = s->from; (at = next(s, at, "tkdc")); at++) {
		enum verdict verdict = look(s, as_it_is, at);

		if (verdict != FOUND && look(s, from_utf8, at) != FOUND)
			s->damaged += verdict == DAMAGED;
	}
	for (const unsigned char *at = s->from; (at = next(s, at, "746b6463")); at++)
		look(s, from_hex, at);
	ctl_unmap(s->from, n);
	s->files++;
	s->bytes += n;
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* Searches the file @path, or all files below the directory @path. */
static void search(struct search *s, char *path)
{
	FTS *tree = fts_open(
		(char *[]){path, NULL}, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name);

	s->failed = !tree && ctl_fail("%s: %s", path, strerror(errno));
	for (FTSENT *e; !s->failed && (e = fts_read(tree));)
		if (e->fts_info == FTS_F)
			search_file(s, e->fts_accpath);
		else if (e->fts_info == FTS_ERR || e->fts_info == FTS_DNR || e->fts_info == FTS_NS)
			s->failed = ctl_fail("%s: %s", e->fts_path, strerror(e->fts_errno));
	if (tree)
		fts_close(tree);
}

/* ---- printing ---- */

static void show_datasets(struct emit *e, const struct cursor *c)
{
	char text[ORDER_PART_BYTES];

	emit_table(e);
	for (uint32_t d = 0; d < c->datasets; d++) {
		const struct cursor_dataset *dataset = &c->dataset[d];
		uint64_t ends_at = 0, unserved = 0;
		bool ends = cursor_unserved(c, d, &ends_at, &unserved);

		emit_text(e, NULL, "dataset", dataset->name);
		emit_number(e, NULL, "windows", c->order[d].windows);
		emit_cell(e, "digest", "%016" PRIx64, dataset->digest);
		emit_optional(e, NULL, "max_epochs", dataset->max_epochs, dataset->max_epochs > 0);
		emit_optional(e, NULL, "ends at", ends_at, ends);
		emit_optional(e, NULL, "never served", unserved, ends);
		emit_text(e, NULL, "part", order_part_text(dataset->lo, dataset->hi, text));
		emit_row(e);
	}
}

static void show_mixes(struct emit *e, const struct cursor *c)
{
	uint32_t now = cursor_past(c);
	char text[CTL_MIX_BYTES];

	emit_table(e);
	for (uint32_t i = 0; i < c->segments; i++) {
		emit_text(e, NULL, "mix", i < now ? "past" : i == now ? "current" : "pending");
		emit_number(e, NULL, "from", c->segment[i]->start);
		emit_text(e, NULL, "shares", ctl_mix_text(c, c->segment[i], text));
		emit_row(e);
	}
	if (c->segment[0]->start > 0)
		emit_line(e, "mixes before position %" PRIu64 " had no room", c->segment[0]->start);
}

static void show_fields(struct emit *e, const struct cursor *c)
{
	bool finite = c->epochs || c->samples;

	emit_text(e, NULL, "stream", c->stream);
	emit_number(e, NULL, "seed", c->seed);
	emit_cell(e, "window", "%" PRIu64 " + %" PRIu64 " tokens, stride %" PRIu64, c->seq_len,
		c->extra, c->stride);
	emit_number(e, NULL, "next", c->next);
	emit_optional(e, NULL, "end", cursor_end(c), finite);
	if (c->epochs)
		emit_number(e, NULL, "epochs", c->epochs);
}

/* @found: where it was found; NULL: in a file of its own. False after an error was printed. */
static bool show(struct emit *e, const struct cursor *c, const struct found *found)
{
	char *json = e->json ? malloc(CURSOR_JSON_BYTES) : NULL;
	bool good = !e->json || (json && cursor_json(c, json, CURSOR_JSON_BYTES) > 0);

	if (good && json)
		emit_members(e, json);
	free(json);
	if (!good)
		return ctl_error(PHRASE_MEMORY);
	emit_fields(e);
	if (found) {
		emit_text(e, "file", "file", found->path);
		emit_number(e, "offset", "byte", found->offset);
		emit_json(e, "compressed", "false");
		emit_number(e, "places", "places", found->places);
	}
	if (!e->json) {
		show_fields(e, c);
		emit_line(e, "%s", "");
		show_datasets(e, c);
		emit_line(e, "%s", "");
		show_mixes(e, c);
	}
	emit_row(e);
	return true;
}

static bool show_checkpoint(struct emit *e, char *path)
{
	struct search *s = calloc(1, sizeof(*s));
	bool good = s || ctl_error(PHRASE_MEMORY);

	if (good)
		search(s, path);
	good = good && !s->failed;
	for (size_t i = 0; good && i < s->n; i++) {
		if (i > 0)
			emit_line(e, "%s", "");
		good = show(e, &s->found[i].cursor, &s->found[i]);
	}
	if (good && s->damaged > 0)
		ctl_note("%s: %" PRIu64 " cursors in it are damaged", path, s->damaged);
	if (good && s->n == 0)
		good = ctl_error("%s: contains no cursor (%" PRIu64 " bytes in %" PRIu64
				 " file%s); a checkpoint has one if it stores a Loader's "
				 "state_dict(), and is not compressed",
			path, s->bytes, s->files, s->files == 1 ? "" : "s");
	for (size_t i = 0; s && i < s->n; i++) {
		cursor_free(&s->found[i].cursor);
		free(s->found[i].path);
	}
	if (s)
		free(s->found);
	free(s);
	return good;
}

/* A directory, or a file that does not begin like a cursor. */
static bool is_checkpoint(const char *path)
{
	char bytes[4] = "";
	struct stat st;
	FILE *file;
	size_t n;

	if (stat(path, &st) != 0)
		return false;
	if (!S_ISREG(st.st_mode))
		return S_ISDIR(st.st_mode);
	file = fopen(path, "re");
	if (!file)
		return false;
	n = fread(bytes, 1, sizeof(bytes), file);
	fclose(file);
	return n > 0 && memcmp(bytes, "tkdc", n) != 0;
}

enum { JSON };

static const struct ctl_option options[] = {[JSON] = {CTL_JSON_OPTION}};

static int run(const struct ctl_arguments *a)
{
	struct emit e = {.json = ctl_given(a, JSON)};
	struct cursor c = {0};
	bool good = is_checkpoint(a->argument[0])
			    ? show_checkpoint(&e, a->argument[0])
			    : ctl_cursor_read(&c, a->argument[0], NULL) && show(&e, &c, NULL);

	cursor_free(&c);
	return emit_end(&e, good ? CTL_OK : CTL_FAILED);
}

const struct ctl_command ctl_cursor_show = {
	.name = "cursor show",
	.arguments = "FILE",
	.help = "print a cursor, or those in a checkpoint",
	OPTIONS_ARE(options),
	.run = run,
};
