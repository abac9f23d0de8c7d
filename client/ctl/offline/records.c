/*
 * Reading records, and the rules of which rows count.
 */
#include "client/ctl/offline/records.h"

#include "client/ctl/common/error.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool no_memory(void)
{
	ctl_fail("out of memory");
	return false;
}

/* Room for one more in an array that grows by doubling. */
static bool grow(void **array, size_t n, size_t bytes)
{
	void *more = *array;

	if ((n & (n - 1)) == 0) /* 0, 1, 2, 4, … are full */
		more = realloc(*array, (n ? 2 * n : 1) * bytes);
	if (!more)
		return no_memory();
	*array = more;
	return true;
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
		ctl_fail("%s: is no regular file, so no record", path);
		return false;
	}
	if (!grow((void **)&r->file, r->files, sizeof(*r->file)))
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
		ctl_fail("%s: holds no *.record", path);
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

static int compare(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

static int by_inode(const void *a, const void *b)
{
	const struct record_file *x = a, *y = b;
	int c = compare(x->device, y->device);

	return c ? c : compare(x->inode, y->inode);
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct record_file *)a)->path, ((const struct record_file *)b)->path);
}

/* A file named twice holds each row once. */
static void name_once(struct records *r)
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

/* ---- entries ---- */

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
				n < 0 ? strerror(errno) : "was cut meanwhile");
			return false;
		}
		got += (size_t)n;
	}
	tape->at += got;
	tape->have = got / RECORD_ENTRY_BYTES;
	tape->next = 0;
	return true;
}

int record_tape_next(struct record_tape *tape, uint64_t *first, uint64_t *second)
{
	if (tape->next == tape->have) {
		if (tape->at == tape->end)
			return 0;
		if (!tape_fill(tape))
			return -1;
	}
	*first = le64toh(tape->entry[2 * tape->next]);
	*second = le64toh(tape->entry[2 * tape->next + 1]);
	tape->next++;
	return 1;
}

bool record_tape_section(struct record_tape *tape, const struct record_section *section)
{
	return tape_seek(tape, section->file, section->entry, section->rows);
}

/* ---- a file's sections ---- */

/* What a scan of a file has come to. */
struct scan {
	struct records *records;
	const char *path, *stream;
	uint64_t identity;
	uint32_t file;
	size_t before;			 /* sections of the files before it */
	uint64_t word[2 * RECORD_WORDS]; /* of a beginning */
	size_t words;			 /* of them that are to come */
	uint64_t latest;		 /* time of the last beginning */
	bool again;			 /* it is that of another pass */
	bool begun;			 /* there was one */
	bool fresh; /* the last section is the first of its process, or stands for it */
};

static struct record_section *last_section(const struct scan *s)
{
	struct records *r = s->records;

	return r->sections > s->before ? &r->section[r->sections - 1] : NULL;
}

/* Where the ranks are after @s, unless a finite stream ended there. */
static uint64_t section_end(const struct record_section *s)
{
	const struct record_begin *b = &s->begin;

	return b->position +
	       (s->rows + b->micro_batch - 1) / b->micro_batch * b->micro_batch * b->world;
}

/* Is @b the first of a process? Otherwise it is of the last one's, in another world at the same
 * place. */
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
 * Another process follows, or nothing: drops what the last one said and then took no row for. A
 * process that took none leaves nothing; of one that did, a move backwards at its end goes.
 */
static void end_process(struct scan *s)
{
	const struct record_section *last = last_section(s);

	if (last && last->rows == 0 && (s->fresh || last->begin.left >= last->begin.position))
		s->records->sections--;
	s->fresh = false;
}

/* Where @b goes on from a place where its process took nothing, it is as if it had begun here. */
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

/* The beginning in s->word, whose last entry is number @entry. */
static bool add_section(struct scan *s, uint64_t entry)
{
	struct records *r = s->records;
	struct record_section section = {.file = s->file, .entry = entry + 1, .again = s->again};
	struct record_begin *b = &section.begin;

	memcpy(b, s->word, sizeof(*b));
	if (b->world < 1 || b->world > LIMIT_WORLD || b->rank >= b->world || b->micro_batch < 1 ||
		b->micro_batch > LIMIT_MICRO_BATCH) {
		ctl_fail("%s: is damaged: the beginning before entry %" PRIu64 " cannot be",
			s->path, entry + 1);
		return false;
	}
	if (b->identity != s->identity) {
		ctl_fail("%s: is of another stream than %s, or of another seed, seq_len, extra or "
			 "stride",
			s->path, s->stream);
		return false;
	}
	if (b->time_ns < s->latest) /* a clock that was set back */
		b->time_ns = s->latest;
	s->latest = b->time_ns;
	follow(s, b);
	if (!grow((void **)&r->section, r->sections, sizeof(section)))
		return false;
	r->section[r->sections++] = section;
	s->begun = true;
	return true;
}

static bool scan_entry(struct scan *s, uint64_t number, uint64_t first, uint64_t second)
{
	if (first == RECORD_BEGIN && (second == RECORD_VERSION || second == RECORD_PASS)) {
		s->words = RECORD_WORDS; /* also within a beginning, which then is torn */
		s->again = second == RECORD_PASS;
		return true;
	}
	if (first == RECORD_BEGIN || (!s->begun && s->words == 0)) {
		ctl_fail("%s: is no record of a version that this tokctl reads, or damaged at "
			 "entry %" PRIu64,
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
	struct stat st;
	uint64_t first, second, number = 0;
	int got = -1;

	record_tape_init(&tape, r);
	if (tape_open(&tape, file) && fstat(tape.fd, &st) == 0 &&
		tape_seek(&tape, file, 0, (uint64_t)st.st_size / RECORD_ENTRY_BYTES))
		while ((got = record_tape_next(&tape, &first, &second)) == 1)
			if (!scan_entry(&s, number++, first, second)) {
				got = -1;
				break;
			}
	record_tape_close(&tape);
	end_process(&s);
	return got == 0;
}

/* ---- which rows count ---- */

static int by_time(const void *a, const void *b)
{
	const struct record_section *x = a, *y = b;
	int c = compare(x->begin.peer, y->begin.peer);

	if (c == 0)
		c = compare(x->begin.time_ns, y->begin.time_ns);
	if (c == 0)
		c = compare(x->file, y->file);
	return c ? c : compare(x->entry, y->entry);
}

static int by_rank(const void *a, const void *b)
{
	const struct record_section *x = a, *y = b;
	int c = compare(x->generation, y->generation);

	if (c == 0)
		c = compare(x->begin.rank, y->begin.rank);
	return c ? c : by_time(a, b);
}

static int by_place(const void *a, const void *b)
{
	const struct record_section *x = a, *y = b;
	int c = compare(x->file, y->file);

	return c ? c : compare(x->entry, y->entry);
}

static bool on_grid(const struct record_generation *g, const struct record_begin *b)
{
	uint64_t apart =
		b->position > g->position ? b->position - g->position : g->position - b->position;

	return g->world == b->world && g->micro_batch == b->micro_batch &&
	       apart % (g->world * g->micro_batch) == 0;
}

/* Is rank @rank in generation @g, by the first @n sections? */
static bool is_member(const struct record_peer *p, size_t n, size_t g, uint64_t rank)
{
	for (size_t i = 0; i < n; i++)
		if (p->section[i].generation == g && p->section[i].begin.rank == rank)
			return true;
	return false;
}

/* The older generation that section @i is a late member of, or their number. */
static size_t find_late(const struct record_peer *p, size_t i)
{
	const struct record_begin *b = &p->section[i].begin;

	for (size_t g = p->generations; g-- > 0;)
		if (p->generation[g].world == b->world &&
			p->generation[g].micro_batch == b->micro_batch &&
			p->generation[g].position == b->position)
			return is_member(p, i, g, b->rank) ? p->generations : g;
	return p->generations;
}

/*
 * Section @i opens a generation at @b's place. Who came there since the newest one was opened, and
 * was taken for a late member of an older one because that lacked its rank, has come for this one.
 */
static void gather_early(struct record_peer *p, size_t i, const struct record_begin *b)
{
	size_t newest = p->generations - 1;

	for (size_t s = i; p->generations > 0 && s-- > p->generation[newest].opener + 1;) {
		const struct record_begin *early = &p->section[s].begin;

		if (p->section[s].generation != newest && early->position == b->position &&
			early->world == b->world && early->micro_batch == b->micro_batch)
			p->section[s].generation = (uint32_t)p->generations;
	}
}

/* Gives section @i, all before which have theirs, its generation. */
static bool place_section(struct record_peer *p, size_t i)
{
	const struct record_begin *b = &p->section[i].begin;
	struct record_generation *newest =
		p->generations ? &p->generation[p->generations - 1] : NULL;
	size_t g;

	if (newest && on_grid(newest, b)) {
		p->section[i].generation = (uint32_t)(p->generations - 1);
		if (b->position < newest->position)
			newest->position = b->position;
		return true;
	}
	g = find_late(p, i);
	p->section[i].generation = (uint32_t)g;
	if (g < p->generations)
		return true;
	if (!grow((void **)&p->generation, p->generations, sizeof(*p->generation)))
		return false;
	gather_early(p, i, b);
	p->generation[p->generations++] = (struct record_generation){.position = b->position,
		.world = b->world,
		.micro_batch = b->micro_batch,
		.opener = i};
	return true;
}

/* From where on the rows of each section are void. */
static void set_limits(struct record_peer *p)
{
	uint64_t limit = UINT64_MAX;

	for (size_t g = p->generations; g-- > 0;) {
		p->generation[g].limit = limit;
		if (p->generation[g].position < limit)
			limit = p->generation[g].position;
	}
	qsort(p->section, p->sections, sizeof(*p->section), by_rank);
	for (size_t i = p->sections; i-- > 0;) {
		struct record_section *s = &p->section[i], *later = s + 1;

		s->limit = p->generation[s->generation].limit;
		if (i + 1 == p->sections || later->generation != s->generation ||
			later->begin.rank != s->begin.rank)
			continue;
		if (later->limit < s->limit)
			s->limit = later->limit;
		if (later->begin.position < s->limit)
			s->limit = later->begin.position;
	}
}

static bool find_last(const struct records *r, struct record_section *s)
{
	struct record_tape tape;
	uint64_t position, checksum;
	int got = -1;

	if (s->top <= s->limit) {
		s->last = s->top;
		return true;
	}
	record_tape_init(&tape, r);
	if (record_tape_section(&tape, s))
		while ((got = record_tape_next(&tape, &position, &checksum)) == 1)
			if (position < s->limit && position >= s->last)
				s->last = position + 1;
	record_tape_close(&tape);
	return got == 0;
}

/* Sections come by time. */
static bool judge(const struct records *r, struct record_peer *p)
{
	for (size_t i = 0; i < p->sections; i++)
		if (!place_section(p, i))
			return false;
	set_limits(p);
	qsort(p->section, p->sections, sizeof(*p->section), by_place);
	for (size_t i = 0; i < p->sections; i++)
		if (!find_last(r, &p->section[i]))
			return false;
	return true;
}

static int by_pass(const void *a, const void *b)
{
	const struct record_section *x = a, *y = b;
	int c = compare(x->begin.peer, y->begin.peer);

	if (c == 0)
		c = compare(x->pass, y->pass);
	return c ? c : by_time(a, b);
}

/*
 * Sections come by time, for each peer. A section that follows in its file stays in that file's
 * pass, or begins the next one. One that comes with a new process joins the last pass that all
 * ranks have begun.
 */
static bool number_passes(struct records *r)
{
	uint64_t *of_file = calloc(
		r->files + 1, sizeof(*of_file)); /* the pass that it is in, plus one; 0: none */
	uint64_t common = 0, joined = 0;

	if (!of_file)
		return no_memory();
	for (size_t i = 0; i < r->sections; i++) {
		struct record_section *s = &r->section[i];

		if (i > 0 && s->begin.peer != s[-1].begin.peer) {
			common = joined = 0;
			memset(of_file, 0, r->files * sizeof(*of_file));
		}
		s->pass = (of_file[s->file] ? of_file[s->file] - 1 : common) + s->again;
		of_file[s->file] = s->pass + 1;
		if (s->again && s->pass > common && ++joined >= s->begin.world) {
			common = s->pass;
			joined = 0;
		}
		if (s->pass >= r->passes)
			r->passes = s->pass + 1;
	}
	free(of_file);
	return true;
}

static bool split_peers(struct records *r)
{
	qsort(r->section, r->sections, sizeof(*r->section), by_time);
	if (!number_passes(r))
		return false;
	qsort(r->section, r->sections, sizeof(*r->section), by_pass);
	for (size_t i = 0; i < r->sections; i++) {
		struct record_section *s = &r->section[i];
		const struct record_peer *last = r->peers ? &r->peer[r->peers - 1] : NULL;

		if (!last || last->peer != s->begin.peer || last->pass != s->pass) {
			if (!grow((void **)&r->peer, r->peers, sizeof(*r->peer)))
				return false;
			r->peer[r->peers++] = (struct record_peer){
				.peer = s->begin.peer, .pass = s->pass, .section = s};
		}
		r->peer[r->peers - 1].sections++;
	}
	return true;
}

bool records_read(struct records *r, uint64_t identity, const char *stream)
{
	name_once(r);
	for (size_t i = 0; i < r->files; i++)
		if (!scan_file(r, (uint32_t)i, identity, stream))
			return false;
	if (r->sections == 0) {
		ctl_fail("%s%s: nothing was recorded", r->file[0].path,
			r->files > 1 ? " and others" : "");
		return false;
	}
	if (!split_peers(r))
		return false;
	for (size_t i = 0; i < r->peers; i++)
		if (!judge(r, &r->peer[i]))
			return false;
	return true;
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
