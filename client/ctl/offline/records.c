#include "client/ctl/offline/records.h"

#include "client/ctl/common/error.h"
#include "client/ctl/common/grow.h"
#include "client/ctl/offline/record_tape.h"
#include "client/ctl/offline/records_judge.h"
#include "proto/phrases.h"
#include "proto/wire.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool no_memory(void)
{
	ctl_fail(PHRASE_MEMORY);
	return false;
}

/* ---- files ---- */

static bool add_file(struct records *r, const char *path)
{
	struct stat st;

	if (stat(path, &st) != 0) {
		ctl_fail("%s: %s", path, strerror(errno));
		return false;
	}
	if (!S_ISREG(st.st_mode)) {
		ctl_fail("%s: not a regular file, so not a record", path);
		return false;
	}
	if (!ctl_grow((void **)&r->file, r->files, sizeof(*r->file)))
		return false;

	char *copy = strdup(path);

	if (!copy)
		return no_memory();
	r->file[r->files++] = (struct record_file){copy, st.st_dev, st.st_ino};
	return true;
}

static int is_record(const struct dirent *e)
{
	size_t n = strlen(e->d_name);

	return e->d_name[0] != '.' && n > 7 && strcmp(e->d_name + n - 7, ".record") == 0;
}

static bool add_directory(struct records *r, const char *path)
{
	struct dirent **entry = NULL;
	int n = scandir(path, &entry, is_record, alphasort);
	bool done = n > 0;

	if (n < 0)
		ctl_fail("%s: %s", path, strerror(errno));
	else if (n == 0)
		ctl_fail("%s: contains no *.record files", path);
	for (int i = 0; i < n; i++) {
		char *whole = NULL;

		if (done && asprintf(&whole, "%s/%s", path, entry[i]->d_name) < 0)
			done = no_memory();
		else if (done)
			done = add_file(r, whole);
		free(whole);
		free(entry[i]);
	}
	free(entry);
	return done;
}

bool records_add(struct records *r, const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? add_directory(r, path)
							   : add_file(r, path);
}

static int by_inode(const void *a, const void *b)
{
	const struct record_file *x = a, *y = b;

	if (x->device != y->device)
		return x->device < y->device ? -1 : 1;
	return x->inode < y->inode ? -1 : x->inode > y->inode;
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct record_file *)a)->path, ((const struct record_file *)b)->path);
}

/* Drops files that were named twice, and sorts the files by path. */
static void drop_repeated(struct records *r)
{
	size_t kept = 0;

	qsort(r->file, r->files, sizeof(*r->file), by_inode);
	for (size_t i = 0; i < r->files; i++)
		if (kept > 0 && by_inode(&r->file[kept - 1], &r->file[i]) == 0)
			free(r->file[i].path);
		else
			r->file[kept++] = r->file[i];
	r->files = kept;
	qsort(r->file, r->files, sizeof(*r->file), by_path);
}

/* Cuts ".NUMBER-NUMBER" off the end of @name. */
static bool cut_numbers(char *name)
{
	static const char digits[] = "0123456789";
	char *dot = strrchr(name, '.');
	size_t first = dot ? strspn(dot + 1, digits) : 0;

	if (first == 0 || dot[1 + first] != '-')
		return false;

	const char *second = dot + 2 + first;
	size_t n = strspn(second, digits);

	*dot = 0;
	return n > 0 && !second[n];
}

bool records_run(const struct records *r, char run[LIMIT_NAME_BYTES + 1])
{
	for (size_t i = 0; i < r->files; i++) {
		const char *slash = strrchr(r->file[i].path, '/');
		char name[NAME_MAX + 1], *end;

		snprintf(name, sizeof(name), "%s", slash ? slash + 1 : r->file[i].path);
		end = strrchr(name, '.');
		if (!end || strcmp(end, ".record") != 0)
			return false;
		*end = 0;
		if (!cut_numbers(name) || !cut_numbers(name) || !wire_name_ok(name) ||
			(i > 0 && strcmp(name, run) != 0))
			return false;
		memcpy(run, name, strlen(name) + 1);
	}
	return r->files > 0;
}

/* ---- a file's sections ---- */

/* The state of the scan of a file. */
struct scan {
	struct records *records;
	const char *path, *stream;
	uint64_t identity;
	uint32_t file;
	size_t before;			 /* number of sections of the files before it */
	uint64_t word[2 * RECORD_WORDS]; /* a beginning */
	size_t words;			 /* how many entries of it are still to come */
	uint64_t latest;		 /* time of the last beginning */
	bool again;			 /* it begins another pass */
	bool begun;			 /* there was a beginning */
	bool fresh; /* the last section is, or counts as, the first of its process */
};

static struct record_section *last_section(const struct scan *s)
{
	struct records *r = s->records;

	return r->sections > s->before ? &r->section[r->sections - 1] : NULL;
}

/* The position of the ranks after @s, unless a finite stream ended there. */
static uint64_t section_end(const struct record_section *s)
{
	const struct record_begin *b = &s->begin;

	return b->position +
	       (s->rows + b->micro_batch - 1) / b->micro_batch * b->micro_batch * b->world;
}

/* Is @b the first beginning of a process? Otherwise the same process goes on in another world at
 * the same position. */
static bool is_first(const struct scan *s, const struct record_begin *b)
{
	const struct record_section *last = last_section(s);

	if (b->left != b->position)
		return false;
	return !last || s->fresh || section_end(last) != b->position ||
	       (last->begin.rank == b->rank && last->begin.world == b->world &&
		       last->begin.micro_batch == b->micro_batch);
}

/*
 * Called when the last process has ended: drops its last section if that has no rows. A process
 * that took no rows thus leaves no section. If it took some, its last move stays if it was
 * backwards.
 */
static void end_process(struct scan *s)
{
	const struct record_section *last = last_section(s);

	if (last && last->rows == 0 && (s->fresh || last->begin.left >= last->begin.position))
		s->records->sections--;
	s->fresh = false;
}

/* Merges @b with a previous section of its process that has no rows: the process then counts as
 * begun at @b. */
static void follow(struct scan *s, struct record_begin *b)
{
	const struct record_section *last = last_section(s);

	if (last && s->fresh && last->rows == 0 && last->begin.peer == b->peer &&
		last->begin.position == b->left) {
		b->left = b->position;
		s->records->sections--;
		return;
	}
	if (s->fresh && last && last->rows > 0)
		s->fresh = false;
	if (!is_first(s, b))
		return;
	end_process(s);
	s->fresh = true;
}

/* Adds the section of the beginning in s->word, whose last entry is number @entry. */
static bool add_section(struct scan *s, uint64_t entry)
{
	struct records *r = s->records;
	struct record_section section = {.file = s->file, .entry = entry + 1, .again = s->again};
	struct record_begin *b = &section.begin;

	memcpy(b, s->word, sizeof(*b));
	if (b->world < 1 || b->world > LIMIT_WORLD || b->rank >= b->world || b->micro_batch < 1 ||
		b->micro_batch > LIMIT_MICRO_BATCH) {
		ctl_fail(
			"%s: damaged: invalid beginning before entry %" PRIu64, s->path, entry + 1);
		return false;
	}
	if (b->identity != s->identity) {
		ctl_fail("%s: recorded from another stream than %s, or with another seed, seq_len, "
			 "extra or stride",
			s->path, s->stream);
		return false;
	}
	if (b->time_ns < s->latest) /* a clock that was set back */
		b->time_ns = s->latest;
	s->latest = b->time_ns;
	follow(s, b);
	if (!ctl_grow((void **)&r->section, r->sections, sizeof(section)))
		return false;
	r->section[r->sections++] = section;
	s->begun = true;
	return true;
}

static bool scan_entry(struct scan *s, uint64_t number, uint64_t first, uint64_t second)
{
	if (first == RECORD_BEGIN && (second == RECORD_VERSION || second == RECORD_PASS)) {
		s->words = RECORD_WORDS; /* also within a beginning, which is then incomplete */
		s->again = second == RECORD_PASS;
		return true;
	}
	if (first == RECORD_BEGIN || (!s->begun && s->words == 0)) {
		ctl_fail("%s: not a record, of a newer version of tokend, or damaged at entry "
			 "%" PRIu64,
			s->path, number);
		return false;
	}
	if (s->words > 0) {
		size_t i = RECORD_WORDS - s->words--;

		s->word[2 * i] = first;
		s->word[2 * i + 1] = second;
		return s->words > 0 || add_section(s, number);
	}

	struct record_section *section = &s->records->section[s->records->sections - 1];

	section->rows++;
	if (first >= section->top)
		section->top = first + 1;
	return true;
}

static bool scan_file(struct records *r, uint32_t file, uint64_t identity, const char *stream)
{
	struct scan s = {.records = r,
		.path = r->file[file].path,
		.stream = stream,
		.identity = identity,
		.file = file,
		.before = r->sections};
	struct record_tape tape;
	uint64_t first, second, number = 0;
	int got = -1;

	record_tape_init(&tape, r);
	if (record_tape_file(&tape, file))
		while ((got = record_tape_next(&tape, &first, &second)) == 1)
			if (!scan_entry(&s, number++, first, second)) {
				got = -1;
				break;
			}
	record_tape_close(&tape);
	end_process(&s);
	return got == 0;
}

bool records_read(struct records *r, uint64_t identity, const char *stream)
{
	drop_repeated(r);
	for (size_t i = 0; i < r->files; i++)
		if (!scan_file(r, (uint32_t)i, identity, stream))
			return false;
	if (r->sections == 0) {
		ctl_fail("%s%s: nothing was recorded", r->file[0].path,
			r->files > 1 ? " and the other records" : "");
		return false;
	}
	return records_judge(r);
}

void records_free(struct records *r)
{
	for (size_t i = 0; i < r->files; i++)
		free(r->file[i].path);
	for (size_t i = 0; i < r->peers; i++)
		free(r->peer[i].generation);
	free(r->file);
	free(r->section);
	free(r->peer);
	*r = (struct records){0};
}
