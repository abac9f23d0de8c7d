/*
 * A batch is returned only after its entries are in the file. So after a kill the record may
 * contain a batch that was never returned, but no batch was returned without a record. In a session
 * that commits, entries are kept in memory until their batch is committed, and written before that.
 */
#include "client/lib/handle.h"
#include "proto/phrases.h"
#include "proto/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The position of the session according to the entries up to some point. */
struct state {
	bool rows;   /* this process took a row: later seeks forwards are skips */
	bool begun;  /* the members below are set */
	uint64_t at; /* position after the last step of all ranks, or after the last move */
	uint64_t rank, world, micro_batch;
	uint64_t mixes; /* the checksum of the cursor in the last beginning */
};

/* The kept entries of a batch or of a skip. */
struct part {
	size_t entries; /* up to its end, from the first kept one on */
	uint64_t next;	/* the entries are written when this position is committed */
	struct state state;
};

struct recording {
	char *path; /* for error messages */
	int fd;
	uint64_t size; /* bytes of complete entries in the file; a torn end may follow */
	bool again;    /* the next beginning is that of another pass */
	struct state state, written;
	uint64_t mixes;	 /* the checksum of the session's cursor as a beginning has it */
	uint64_t from;	 /* target of the last seek; positions from there to `taken` were skipped
			    by request */
	uint64_t *entry; /* [room][2], not written yet */
	size_t room, entries;
	struct part *part;
	size_t part_room, parts;
};

/* ---- writing ---- */

static void put(struct recording *r, uint64_t first, uint64_t second)
{
	r->entry[2 * r->entries] = first;
	r->entry[2 * r->entries + 1] = second;
	r->entries++;
}

/* Reserves room for @rows entries, two beginnings if @moves, and a part. */
static bool make_room(struct recording *r, size_t rows, bool moves)
{
	size_t room =
		r->entries + rows + (moves ? 2 * record_begin_entries(LIMIT_CURSOR_BYTES) : 0);

	if (room > r->room) {
		size_t more = 2 * r->room > room ? 2 * r->room : room;
		uint64_t *entry = realloc(r->entry, more * RECORD_ENTRY_BYTES);

		if (!entry)
			return false;
		r->entry = entry;
		r->room = more;
	}
	if (r->parts == r->part_room) {
		size_t more = r->part_room ? 2 * r->part_room : 4;
		struct part *part = realloc(r->part, more * sizeof(*part));

		if (!part)
			return false;
		r->part = part;
		r->part_room = more;
	}
	return true;
}

/*
 * Writes the first @entries, all or none: a part that was written is cut off, or overwritten by the
 * next try.
 */
static int write_entries(struct tokend *t, struct recording *r, size_t entries)
{
	size_t bytes = entries * RECORD_ENTRY_BYTES, done = 0;

	while (done < bytes) {
		ssize_t n = pwrite(
			r->fd, (char *)r->entry + done, bytes - done, (off_t)(r->size + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			int error = n < 0 ? errno : ENOSPC;
			int cut = ftruncate(r->fd, (off_t)r->size);

			(void)cut; /* the next try overwrites it; readers detect a torn end */
			return handle_fail(t, TOKEND_EARGUMENT, "record",
				"%s: cannot write: %s; nothing was %s; make room and call "
				"again, or end the record",
				r->path, strerror(error), t->committing ? "committed" : "taken");
		}
		done += (size_t)n;
	}
	r->size += bytes;
	return 0;
}

/* Writes the first @parts parts. */
static int write_parts(struct tokend *t, struct recording *r, size_t parts)
{
	const struct part *last = parts > 0 ? &r->part[parts - 1] : NULL;
	int status = last ? write_entries(t, r, last->entries) : 0;

	if (!last || status < 0)
		return status;

	size_t written = last->entries;

	r->written = last->state;
	r->entries -= written;
	memmove(r->entry, r->entry + 2 * written, r->entries * RECORD_ENTRY_BYTES);
	r->parts -= parts;
	memmove(r->part, r->part + parts, r->parts * sizeof(*r->part));
	for (size_t i = 0; i < r->parts; i++)
		r->part[i].entries -= written;
	return 0;
}

static bool is_elsewhere(const struct tokend *t)
{
	const struct recording *r = t->record;
	const struct state *state = &r->state;

	return !state->begun || state->at != t->taken || state->at != r->from ||
	       state->rank != t->rank || state->world != t->world ||
	       state->micro_batch != t->micro_batch || state->mixes != r->mixes;
}

void recording_origin(struct tokend *t)
{
	if (t->record)
		t->record->mixes = order_checksum(
			t->bytes, cursor_encode_mixes(&t->origin, t->bytes, LIMIT_CURSOR_BYTES));
}

static void put_beginning(
	struct tokend *t, struct recording *r, unsigned kind, uint64_t left, uint64_t position)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);

	const struct record_begin begin = {
		.time_ns = (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec,
		.position = position,
		.left = left,
		.rank = t->rank,
		.world = t->world,
		.micro_batch = t->micro_batch,
		.peer = t->options.peer,
		.cursor_bytes = cursor_encode_mixes(&t->origin, t->bytes, LIMIT_CURSOR_BYTES),
	};

	record_put_beginning(r->entry + 2 * r->entries, kind, &begin, t->bytes);
	r->entries += record_begin_entries(begin.cursor_bytes);
}

/* Adds the move from r->state to the position taken. If a skip followed a seek, adds both. */
static void put_moves(struct tokend *t, struct recording *r)
{
	unsigned kind = (r->again ? RECORD_PASS : 0) | (r->state.rows ? 0 : RECORD_FIRST);
	bool skipped = r->from != t->taken;

	if (skipped && r->from != r->state.at) {
		put_beginning(t, r, kind, r->state.at, r->from);
		kind = 0;
	}
	put_beginning(t, r, kind, skipped ? r->from : r->state.at, t->taken);
}

/*
 * The entries from @entries on end at position @at, with rows or a skip that are committed with
 * @next. Writes them now, unless they must be committed first.
 */
static int finish(struct tokend *t, struct recording *r, size_t entries, bool rows, uint64_t at,
	uint64_t next)
{
	const struct state state = {.rows = rows || r->state.rows,
		.begun = true,
		.at = at,
		.rank = t->rank,
		.world = t->world,
		.micro_batch = t->micro_batch,
		.mixes = r->mixes};

	r->part[r->parts++] = (struct part){r->entries, next, state};

	int status = t->committing && next > t->committed ? 0 : write_parts(t, r, r->parts);

	if (status < 0) {
		r->parts--;
		r->entries = entries;
		return status;
	}
	r->state = state;
	r->again = false;
	r->from = at;
	return 0;
}

int recording_rows(struct tokend *t, const struct tokend_row *row, uint32_t rows,
	const void *tokens, size_t row_bytes, uint64_t next)
{
	struct recording *r = t->record;
	size_t entries = r->entries;
	bool moved = is_elsewhere(t);

	if (!make_room(r, rows, moved))
		return handle_memory(t);
	if (moved)
		put_moves(t, r);
	for (uint32_t i = 0; i < rows; i++)
		put(r, row[i].position,
			record_checksum(
				row[i].position, (const char *)tokens + i * row_bytes, row_bytes));
	return finish(t, r, entries, true, next, next);
}

/*
 * A skip is written at once, because the process may save a checkpoint after it and be killed
 * before its next row. All other moves matter only if a row follows, and are written with it.
 */
static int write_skip(struct tokend *t)
{
	struct recording *r = t->record;
	/* Another pass begins where the seek went. */
	uint64_t at = r->again ? r->from : r->state.at;
	size_t entries = r->entries;

	if (at >= t->taken || (r->from != at && r->from != t->taken))
		return 0;
	if (!make_room(r, 0, true))
		return handle_memory(t);
	put_moves(t, r);
	return finish(t, r, entries, false, t->taken, at);
}

int recording_moved(struct tokend *t)
{
	struct recording *r = t->record;

	if (!r)
		return 0;
	r->from = t->taken;
	if (!r->state.rows) { /* it begins here, or, with another pass, where that was begun from */
		r->state.at = r->again ? r->state.at : t->taken;
		r->state.begun = false;
	}
	return write_skip(t);
}

int recording_skipped(struct tokend *t)
{
	return t->record ? write_skip(t) : 0;
}

int recording_commit(struct tokend *t, uint64_t next)
{
	struct recording *r = t->record;
	size_t parts = 0;

	while (r && parts < r->parts && r->part[parts].next <= next)
		parts++;
	return r ? write_parts(t, r, parts) : 0;
}

void recording_drop(struct tokend *t)
{
	struct recording *r = t->record;

	if (!r || r->parts == 0)
		return;
	r->entries = r->parts = 0;
	r->state = r->written;
}

void recording_pass(struct tokend *t, bool again)
{
	if (t->record)
		t->record->again = again;
}

/* ---- opening and closing ---- */

static void recording_free(struct recording *r)
{
	free(r->path);
	free(r->entry);
	free(r->part);
	free(r);
}

/* Reads @bytes of the file at @at. */
static bool read_at(int fd, void *to, size_t bytes, uint64_t at, struct fault *fault)
{
	ssize_t n = pread(fd, to, bytes, (off_t)at);

	if (n < 0)
		return fault_errno(fault, errno, "record", "%s", strerror(errno));
	return (size_t)n == bytes ||
	       fault_set(fault, FAULT_CHANGED, "record", "became shorter while it was read");
}

/* The length of the complete entries in the @n that end the file, without a torn beginning. */
static size_t whole_entries(const unsigned char *entry, size_t n)
{
	size_t at = n;

	while (at > 0 &&
		!record_is_beginning(entry + (at - 1) * RECORD_ENTRY_BYTES, RECORD_ENTRY_BYTES))
		at--;
	if (at == 0)
		return n;

	struct record_begin begin;
	size_t first = at - 1;

	if (n - at < RECORD_WORDS)
		return first;
	memcpy(&begin, entry + at * RECORD_ENTRY_BYTES, sizeof(begin));
	return begin.cursor_bytes > LIMIT_CURSOR_BYTES ||
			       n - first < record_begin_entries(begin.cursor_bytes)
		       ? first
		       : n;
}

/* *@end: the length of the complete entries in the file of @bytes, without a torn beginning. */
static bool find_end(int fd, uint64_t bytes, uint64_t *end, struct fault *fault)
{
	unsigned char head[RECORD_ENTRY_BYTES];
	uint64_t whole = bytes / RECORD_ENTRY_BYTES,
		 most = record_begin_entries(LIMIT_CURSOR_BYTES);
	size_t first = bytes < sizeof(head) ? (size_t)bytes : sizeof(head),
	       last = whole < most ? (size_t)whole : (size_t)most;
	unsigned char *tail = malloc((last + 1) * RECORD_ENTRY_BYTES);
	bool done = tail && read_at(fd, head, first, 0, fault) &&
		    read_at(fd, tail, last * RECORD_ENTRY_BYTES,
			    (whole - last) * RECORD_ENTRY_BYTES, fault);

	if (done && !record_is_beginning(head, first))
		done = fault_set(fault, FAULT_DATA, "record", "is not a record of this version");
	else if (done)
		*end = (whole - last + whole_entries(tail, last)) * RECORD_ENTRY_BYTES;
	else if (!tail)
		fault_memory(fault);
	free(tail);
	return done;
}

static int open_file(struct tokend *t, struct recording *r)
{
	struct fault fault;
	struct stat st;

	r->fd = open(r->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
	if (r->fd < 0 || fstat(r->fd, &st) != 0)
		return handle_fail(
			t, TOKEND_EARGUMENT, "record", "%s: %s", r->path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return handle_fail(t, TOKEND_EARGUMENT, "record",
			"%s " PHRASE_NOT_FILE "; choose another path", r->path);
	if (!find_end(r->fd, (uint64_t)st.st_size, &r->size, &fault))
		return handle_fail(t, TOKEND_EARGUMENT, "record", "%s: %s; choose another path",
			r->path, fault.text);
	if (r->size < (uint64_t)st.st_size && ftruncate(r->fd, (off_t)r->size) != 0)
		return handle_fail(t, TOKEND_EARGUMENT, "record",
			"%s: cannot cut off an incomplete entry: %s", r->path, strerror(errno));
	return 0;
}

static int begin_record(struct tokend *t, const char *path)
{
	struct recording *r = calloc(1, sizeof(*r)), *old = t->record;
	char *copy = strdup(path);

	if (!r || !copy) {
		free(r);
		free(copy);
		return handle_memory(t);
	}
	r->path = copy;
	r->state.rows = t->number > 0 || (old && old->state.rows);
	r->again = old && old->again;
	r->state.at = r->from = t->taken;
	r->written = r->state;

	int status = open_file(t, r);

	if (status == 0) {
		t->record = r;
		recording_origin(t);
		return 0;
	}
	if (r->fd >= 0)
		close(r->fd);
	recording_free(r);
	return status;
}

/* Returns @status, or the error of close(). */
static int end_record(struct tokend *t, struct recording *r, int status)
{
	if (close(r->fd) != 0 && errno != EINTR && status == 0)
		status = handle_fail(t, TOKEND_EARGUMENT, "record",
			"%s: %s; the last entries may be lost", r->path, strerror(errno));
	recording_free(r);
	return status;
}

int tokend_record(struct tokend *t, const char *path)
{
	int status = handle_usable(t);
	struct recording *old = t->record;

	if (status < 0)
		return status;
	if (path && !*path)
		return handle_fail(t, TOKEND_EARGUMENT, "record", "the path is empty");
	/* The new record may be the same file, so the old one is written first. */
	status = recording_commit(t, UINT64_MAX);
	if (status == 0)
		status = recording_skipped(t);
	if (path && status == 0)
		status = begin_record(t, path);
	if (path && status < 0)
		return status;
	if (!path)
		t->record = NULL;
	return old ? end_record(t, old, status) : status;
}

void recording_end(struct tokend *t, bool ours)
{
	struct recording *r = t->record;

	if (!r)
		return;
	if (ours) {
		/* Callers that want errors end the record before they detach. */
		end_record(t, r, r->parts > 0 ? 0 : recording_skipped(t));
	} else {
		recording_free(r);
	}
	t->record = NULL;
}
