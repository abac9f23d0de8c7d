/*
 * Writes one file of `tokctl pack`, piece by piece. It is then read back with the daemon's code;
 * its digest must equal that of the tokens read from the inputs. A file that is there already is
 * only compared: then all of this is done, but nothing is written.
 */
#include "client/ctl/offline/shards.h"
#include "daemon/shard/format.h"

#define XXH_INLINE_ALL
#define ZSTD_STATIC_LINKING_ONLY
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>

enum {
	FOOTER_BYTES = 9, /* of a zstd seek table */
	FRAMES_MOST = 0x8000000,
	SEQUENCE_MOST = INT32_MAX, /* tokens of a document in Megatron's format */
};

/* An entry of the seek table in its format on disk. */
struct frame {
	uint32_t packed, bytes, checksum;
};

struct out {
	const struct pack_how *how;
	const char *path;
	char part[PATH_MAX]; /* its name until it is complete */
	char side[PATH_MAX]; /* likewise of its side file; "": none */
	FILE *file;	     /* NULL: it is only compared */
	FILE *side_file;     /* or NULL */
	struct pack_reader reader;
	void *piece; /* tokens that are not written yet; without --fit, room for pack_read() */
	uint64_t room, used; /* in the piece; room: whole pieces of the digest, and frames */
	uint64_t tokens;     /* written, or to be compared */
	struct pack_result *result;

	/* zstd */
	ZSTD_CCtx *zstd;
	void *packed; /* a frame */
	size_t packed_room;
	struct frame *frame;
	size_t frames;

	/* Megatron, --fit: the documents of the inputs, which Megatron's are */
	uint32_t *at;	       /* their ends in a piece */
	uint64_t *end;	       /* [result->documents] their ends */
	uint64_t *bound;       /* [bounds] of --fit: where documents, their parts and padding end */
	size_t bounds, pieces; /* pieces: those that are not padding */
};

bool pack_side_path(const struct pack_how *how, const char *path, char *side)
{
	const char *ending = how->row_tokens		    ? BOUNDS_ENDING
			     : how->format == PACK_MEGATRON ? ".idx"
							    : NULL;

	if (ending && !bytes_side_path(path, ".bin", ending, side, PATH_MAX))
		assert(!"the command line or the format's ending makes it end in .bin");
	return ending;
}

bool pack_fail(struct fault *fault, const char *path, int error)
{
	return fault_errno(fault, error, "", "%s: %s%s", path, strerror(error),
		error == ENOSPC ? "; free some space and repeat the command, which continues "
				  "after the last complete files"
				: "");
}

static bool put(struct out *o, const void *from, size_t n, struct fault *fault)
{
	o->result->bytes += n;
	return fwrite(from, 1, n, o->file) == n || pack_fail(fault, o->part, errno);
}

/* ---- zstd: frames, then a table of them ---- */

/* Uses the level's parameters for large files. Those for files as small as a frame take longer, and
 * save too little space. */
static bool begin_zstd(struct out *o)
{
	ZSTD_parameters large = ZSTD_getParams(o->how->level, 0, 0);
	ZSTD_CCtx_params *set = ZSTD_createCCtxParams();
	bool fine;

	large.fParams.checksumFlag = 1;
	o->packed_room = ZSTD_compressBound(o->how->frame_bytes);
	o->packed = malloc(o->packed_room);
	o->zstd = ZSTD_createCCtx();
	fine = set && o->packed && o->zstd &&
	       !ZSTD_isError(ZSTD_CCtxParams_init_advanced(set, large)) &&
	       !ZSTD_isError(ZSTD_CCtx_setParametersUsingCCtxParams(o->zstd, set));
	ZSTD_freeCCtxParams(set);
	return fine;
}

static bool put_frames(struct out *o, const void *bytes, size_t n, struct fault *fault)
{
	const char *from = bytes;

	for (size_t some; n > 0; from += some, n -= some) {
		some = n < o->how->frame_bytes ? n : o->how->frame_bytes;

		size_t packed = ZSTD_compress2(o->zstd, o->packed, o->packed_room, from, some);

		if (ZSTD_isError(packed))
			return fault_set(fault, FAULT_DATA, "", "%s: zstd: %s", o->part,
				ZSTD_getErrorName(packed));
		if (!ctl_grow((void **)&o->frame, o->frames, sizeof(*o->frame)))
			return fault_memory(fault);
		o->frame[o->frames++] = (struct frame){htole32((uint32_t)packed),
			htole32((uint32_t)some), htole32((uint32_t)XXH64(from, some, 0))};
		if (!put(o, o->packed, packed, fault))
			return false;
	}
	return true;
}

/* The table is a skippable frame of its own. */
static bool put_seek_table(struct out *o, struct fault *fault)
{
	uint64_t bytes = o->frames * sizeof(struct frame);
	uint32_t head[] = {htole32(0x184d2a5e), htole32((uint32_t)(bytes + FOOTER_BYTES))},
		 count = htole32((uint32_t)o->frames), magic = htole32(0x8f92eab1);
	uint8_t foot[FOOTER_BYTES] = {[4] = 0x80}; /* there are checksums */

	if (bytes + FOOTER_BYTES > UINT32_MAX || o->frames > FRAMES_MOST)
		return fault_set(fault, FAULT_ARGUMENT, "frame",
			"%s: %zu frames do not fit into a seek table (at most %d); give a larger "
			"--frame, or more --shards",
			o->part, o->frames, FRAMES_MOST);
	memcpy(foot, &count, sizeof(count));
	memcpy(foot + 5, &magic, sizeof(magic));
	return put(o, head, sizeof(head), fault) && put(o, o->frame, bytes, fault) &&
	       put(o, foot, sizeof(foot), fault);
}

/* ---- Megatron: the .idx has the lengths of the sequences, where they begin, and documents ---- */

static bool put_idx(const struct out *o, struct fault *fault)
{
	uint64_t n = o->result->documents, header[] = {htole64(n), htole64(n + 1)}, at = 0;
	uint32_t width = o->how->token_bytes;
	FILE *idx = o->side_file;

	for (uint64_t i = 0; i < n; at = o->end[i++])
		if (o->end[i] - at > SEQUENCE_MOST)
			return fault_set(fault, FAULT_ARGUMENT, "eos",
				"%s: a document of %" PRIu64
				" tokens is too long for Megatron (at most %d); give --eos, or "
				"more --shards",
				o->path, o->end[i] - at, SEQUENCE_MOST);
	if (!idx)
		return true;
	fwrite("MMIDIDX\0\0\1\0\0\0\0\0\0\0", 1, 17, idx);
	fputc(width == 2 ? 8 : 4, idx); /* u16, i32 */
	fwrite(header, sizeof(header), 1, idx);
	at = 0;
	for (uint64_t i = 0; i < n; at = o->end[i++])
		fwrite(&(uint32_t){htole32((uint32_t)(o->end[i] - at))}, 4, 1, idx);
	at = 0;
	for (uint64_t i = 0; i < n; at = o->end[i++])
		fwrite(&(uint64_t){htole64(at * width)}, 8, 1, idx);
	for (uint64_t i = 0; i <= n; i++)
		fwrite(&(uint64_t){htole64(i)}, 8, 1, idx);
	return true; /* faults of writing are found at the end */
}

/* ---- tokens ---- */

/* Writes the piece. */
static bool flush(struct out *o, struct fault *fault)
{
	uint64_t n = o->used, at = o->result->bytes;
	uint32_t width = o->how->token_bytes;

	o->result->digest += ctl_digest(o->piece, n, width, o->tokens / CTL_DIGEST_TOKENS);
	o->tokens += n;
	o->used = 0;
	if (!o->file)
		return true;
	if (!(o->zstd ? put_frames : put)(o, o->piece, n * width, fault))
		return false;
	/* Starts writing to the disk early, because fsync() waits for all of it at the end. */
	(void)sync_file_range(
		fileno(o->file), (off_t)at, (off_t)(o->result->bytes - at), SYNC_FILE_RANGE_WRITE);
	return true;
}

static bool add_end(uint64_t **list, uint64_t n, uint64_t end, struct fault *fault)
{
	if (!ctl_grow((void **)list, n, sizeof(**list)))
		return fault_memory(fault);
	(*list)[n] = end;
	return true;
}

/* Reads the next @n tokens of the inputs from @begin + @from on into @to, and the ends of
 * documents. */
static bool read_piece(
	struct out *o, uint64_t begin, uint64_t from, uint64_t n, void *to, struct fault *fault)
{
	uint64_t ends = 0;
	bool fine = pack_read(&o->reader, begin + from, n, to, o->at, &ends, fault);

	for (uint64_t i = 0; fine && i < ends; i++)
		fine = add_end(&o->end, o->result->documents++, from + o->at[i], fault);
	if (fine)
		ctl_progress_add(o->how->progress, n);
	return fine;
}

/* Writes tokens [begin, end) of the inputs. */
static bool put_inputs(struct out *o, uint64_t begin, uint64_t end, struct fault *fault)
{
	while (o->tokens < end - begin) {
		uint64_t left = end - begin - o->tokens;

		o->used = left < o->room ? left : o->room;
		if (!read_piece(o, begin, o->tokens, o->used, o->piece, fault) || !flush(o, fault))
			return false;
	}
	return true;
}

/*
 * ---- best-fit packing of documents into rows: largest first, each into the fullest row that it
 * fits (Ding et al. 2024, "Fewer Truncations Improve Language Modeling"). The result depends only
 * on the documents' lengths. ----
 */

/* A document, or a part of one, in a row. */
struct pack_piece {
	uint32_t at; /* its first token */
	uint32_t tokens : 31;
	uint32_t last : 1; /* of its row; the rest of that is padding */
};

#define NONE UINT32_MAX

/* ---- a set of numbers up to a row's length: a binary tree, whose leaves are the numbers ---- */

struct set {
	uint8_t *node; /* [2 * leaves] is a number below it in the set? 1: the root */
	uint32_t leaves;
};

static bool set_new(struct set *s, uint32_t most)
{
	for (s->leaves = 1; s->leaves <= most;)
		s->leaves *= 2;
	s->node = calloc(s->leaves, 2);
	return s->node;
}

static void set_put(struct set *s, uint32_t i, bool in)
{
	i += s->leaves;
	for (s->node[i] = in; i > 1; i /= 2)
		s->node[i / 2] = s->node[i] | s->node[i ^ 1];
}

/* The least member from @i on, or NONE. */
static uint32_t set_next(const struct set *s, uint32_t i)
{
	for (i += s->leaves; !s->node[i]; i++) {
		while (i % 2 == 1) /* a right child: what is right of it is right of its parent */
			i /= 2;
		if (i == 0) /* the root was the last */
			return NONE;
	}
	while (i < s->leaves)
		i = 2 * i + !s->node[2 * i];
	return i - s->leaves;
}

/* ---- rows of rests: of what is left of documents after full rows ---- */

struct fit {
	const uint64_t *end;
	uint32_t documents, row_tokens;
	struct set free;  /* the numbers of free tokens that some row has */
	uint32_t *head;	  /* [row_tokens + 1] the last row with so many free tokens */
	uint32_t *next;	  /* by row: the one before it with as many; then its first document */
	uint32_t *with;	  /* [row_tokens + 1] the first document with such a rest */
	uint32_t *after;  /* [documents] the next one with as long a rest; then in its row */
	uint32_t *row_of; /* [documents] the row of its rest */
};

static uint32_t rest_of(const struct fit *f, uint32_t d)
{
	return (uint32_t)((f->end[d] - (d ? f->end[d - 1] : 0)) % f->row_tokens);
}

/* The row with the least free tokens ≥ @n loses them; a new one, @rows, if there is none. */
static uint32_t fill(struct fit *f, uint32_t n, uint32_t rows)
{
	uint32_t left = set_next(&f->free, n), row = rows;

	if (left == NONE) {
		left = f->row_tokens;
	} else {
		row = f->head[left];
		f->head[left] = f->next[row];
		if (f->head[left] == NONE)
			set_put(&f->free, left, false);
	}
	left -= n;
	if (left > 0 && f->head[left] == NONE)
		set_put(&f->free, left, true);
	f->next[row] = f->head[left];
	f->head[left] = row;
	return row;
}

static void fill_rows(struct fit *f)
{
	size_t lengths = (f->row_tokens + UINT64_C(1)) * sizeof(uint32_t);
	uint32_t rows = 0;

	memset(f->head, 0xff, lengths);
	memset(f->with, 0xff, lengths);
	for (uint32_t d = f->documents; d-- > 0;) {
		f->after[d] = f->with[rest_of(f, d)];
		f->with[rest_of(f, d)] = d;
	}
	for (uint32_t n = f->row_tokens; n-- > 1;)
		for (uint32_t d = f->with[n]; d != NONE; d = f->after[d]) {
			f->row_of[d] = fill(f, n, rows);
			rows += f->row_of[d] == rows;
		}
	memset(f->next, 0xff, f->documents * sizeof(*f->next));
	for (uint32_t d = f->documents; d-- > 0;)
		if (rest_of(f, d) > 0) {
			f->after[d] = f->next[f->row_of[d]];
			f->next[f->row_of[d]] = d;
		}
}

/* Writes the pieces of all rows, in the order of their first documents. Returns their number. */
static size_t list_pieces(const struct fit *f, struct pack_piece *to)
{
	uint32_t row = f->row_tokens;
	uint64_t at = 0;
	size_t n = 0;

	for (uint32_t d = 0; d < f->documents; at = f->end[d++]) {
		for (; f->end[d] - at >= row; at += row)
			to[n++] = (struct pack_piece){(uint32_t)at, row, true};
		if (at == f->end[d] || f->next[f->row_of[d]] != d)
			continue;
		for (uint32_t e = d; e != NONE; e = f->after[e])
			to[n++] = (struct pack_piece){(uint32_t)f->end[e] - rest_of(f, e),
				rest_of(f, e), f->after[e] == NONE};
	}
	return n;
}

/* Document d has tokens [end[d - 1], end[d]), and is not empty. One longer than a row becomes full
 * rows, and a rest. Returns the pieces in the order of the rows; the caller frees them. NULL: out
 * of memory. */
static struct pack_piece *pack_fit(
	const uint64_t *end, uint32_t documents, uint32_t row_tokens, size_t *pieces)
{
	size_t lengths = row_tokens + UINT64_C(1),
	       most = documents + end[documents - 1] / row_tokens;
	struct fit f = {.end = end,
		.documents = documents,
		.row_tokens = row_tokens,
		.head = calloc(lengths, sizeof(uint32_t)),
		.with = calloc(lengths, sizeof(uint32_t)),
		.next = calloc(documents, sizeof(uint32_t)),
		.after = calloc(documents, sizeof(uint32_t)),
		.row_of = calloc(documents, sizeof(uint32_t))};
	struct pack_piece *piece = NULL;

	if (set_new(&f.free, row_tokens) && f.head && f.with && f.next && f.after && f.row_of) {
		fill_rows(&f);
		piece = calloc(most, sizeof(*piece));
	}
	if (piece)
		*pieces = list_pieces(&f, piece);
	free(f.free.node);
	free(f.head);
	free(f.with);
	free(f.next);
	free(f.after);
	free(f.row_of);
	return piece;
}

/* ---- rows of --fit, and the list of their documents ---- */

/*
 * The end of a row is padding, which repeats its last token. The file's list of document bounds, a
 * .csv.gz, leaves it out, so a loss mask excludes it.
 */

/* A wrong --eos would make each input one document. */
static bool check_eos(
	const struct out *o, const void *window, uint64_t begin, uint64_t end, struct fault *fault)
{
	const struct pack_in *in = o->reader.in;
	bool found = !in->has_eos || in->has[PACK_UNINDEXED].sources < in->sources;

	for (uint64_t d = 0; d < o->result->documents && !found; d++)
		found = tokens_value(window, o->end[d] - 1, o->how->token_bytes) == in->eos;
	return found ||
	       fault_set(fault, FAULT_ARGUMENT, "eos",
		       "--eos %" PRIu64 ": does not occur in tokens %" PRIu64 " to %" PRIu64
		       " of the inputs, so there are no documents to pack; give the token "
		       "that ends one",
		       in->eos, begin, end);
}

/* Counts documents longer than a row, and those that plain concatenation would cut. */
static void count_documents(struct out *o, uint64_t begin)
{
	uint64_t row = o->how->row_tokens, at = begin;

	for (uint64_t d = 0; d < o->result->documents; at = begin + o->end[d++]) {
		uint64_t last = begin + o->end[d] - 1;

		o->result->split += at / row != last / row;
		o->result->cut += last + 1 - at > row;
	}
}

static bool put_tokens(struct out *o, const char *from, uint64_t n, struct fault *fault)
{
	uint32_t width = o->how->token_bytes;

	for (uint64_t some; n > 0; from += some * width, n -= some) {
		some = n < o->room - o->used ? n : o->room - o->used;
		memcpy((char *)o->piece + o->used * width, from, some * width);
		o->used += some;
		if (o->used == o->room && !flush(o, fault))
			return false;
	}
	return true;
}

/* Writes a piece of the window, its bounds to @list, and the padding after it. */
static bool put_piece(struct out *o, const char *window, const struct pack_piece *p, gzFile list,
	struct fault *fault)
{
	uint64_t at = o->tokens + o->used, end = at + p->tokens, row = o->how->row_tokens;
	uint32_t width = o->how->token_bytes;
	const char *from = window + (uint64_t)p->at * width;

	if (list && gzprintf(list, "%" PRIu64 ",%" PRIu64 "\n", at, end) <= 0)
		return pack_fail(fault, o->side, errno);
	if (!put_tokens(o, from, p->tokens, fault) || !add_end(&o->bound, o->bounds++, end, fault))
		return false;
	if (!p->last || end % row == 0)
		return true;
	for (; end % row != 0; end++)
		if (!put_tokens(o, from + (p->tokens - 1) * (uint64_t)width, 1, fault))
			return false;
	return add_end(&o->bound, o->bounds++, end, fault);
}

/* Opens the list. It begins with an empty gzip member, for the comment, which zlib does not write:
 * no time, so equal bytes; 3: Unix; an empty last block, and checksum and length of no bytes. */
static gzFile open_list(struct out *o)
{
	static const char head[] = "\x1f\x8b\x08\x10\0\0\0\0\0\3", empty[] = "\3\0\0\0\0\0\0\0\0";

	fwrite(head, sizeof(head) - 1, 1, o->side_file);
	fprintf(o->side_file, BOUNDS_ROWS, (uint64_t)o->how->row_tokens, o->result->padding);
	fputc(0, o->side_file);
	fwrite(empty, sizeof(empty), 1, o->side_file);
	return fflush(o->side_file) == 0 ? gzdopen(dup(fileno(o->side_file)), "wb1") : NULL;
}

/* Writes the rows that are packed from the @tokens in the window. */
static bool put_rows(struct out *o, const char *window, uint64_t tokens, struct fault *fault)
{
	uint64_t rows = 0;
	struct pack_piece *piece =
		pack_fit(o->end, (uint32_t)o->result->documents, o->how->row_tokens, &o->pieces);
	gzFile list = NULL;
	bool fine = piece || fault_memory(fault);

	for (size_t i = 0; fine && i < o->pieces; i++)
		rows += piece[i].last;
	o->result->padding = rows * o->how->row_tokens - tokens;
	if (fine && o->file)
		fine = (list = open_list(o)) || pack_fail(fault, o->side, errno);
	for (size_t i = 0; fine && i < o->pieces; i++)
		fine = put_piece(o, window, &piece[i], list, fault);
	if (list && gzclose(list) != Z_OK && fine)
		fine = pack_fail(fault, o->side, errno);
	free(piece);
	return fine && flush(o, fault);
}

/* Packs tokens [begin, end), which are whole documents, into rows. */
static bool fit_inputs(struct out *o, uint64_t begin, uint64_t end, struct fault *fault)
{
	uint64_t tokens = end - begin, n;
	uint32_t width = o->how->token_bytes;
	/* pack_read() needs 4 bytes a token while it reads. */
	char *window = malloc(tokens * width + o->room * sizeof(uint32_t));
	bool fine = window || fault_memory(fault);

	assert(tokens > 0 && tokens <= PACK_FIT_MOST);
	for (uint64_t from = 0; fine && from < tokens; from += n) {
		n = tokens - from < o->room ? tokens - from : o->room;
		fine = read_piece(o, begin, from, n, window + from * width, fault);
	}
	fine = fine && check_eos(o, window, begin, end, fault);
	if (fine) {
		count_documents(o, begin);
		fine = put_rows(o, window, tokens, fault);
	}
	free(window);
	return fine;
}

/* ---- a file ---- */

/* Opens the part, which no other process may be writing. One that was killed may have left it; one
 * that held it when it was opened here may have renamed it. */
static bool open_part(struct out *o, struct fault *fault)
{
	int fd = open(o->part, O_WRONLY | O_CREAT | O_CLOEXEC, 0666), error;
	struct stat mine = {0}, named = {0};

	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) {
		if (fstat(fd, &mine) != 0 || stat(o->part, &named) != 0 ||
			mine.st_ino != named.st_ino)
			errno = EWOULDBLOCK;
		else if (ftruncate(fd, 0) == 0)
			o->file = fdopen(fd, "w");
	}
	error = errno;
	if (!o->file && fd >= 0)
		close(fd);
	if (!o->file && error == EWOULDBLOCK)
		return fault_set(fault, FAULT_ARGUMENT, "", "%s: another tokctl pack is writing it",
			o->part);
	if (!o->file)
		return pack_fail(fault, o->part, error);
	setvbuf(o->file, NULL, _IONBF, 0);
	return true;
}

static bool prepare(struct out *o, struct fault *fault)
{
	bool documents = o->how->row_tokens || o->how->format == PACK_MEGATRON;
	uint64_t frame_tokens = o->how->frame_bytes / o->how->token_bytes;

	while (o->room < frame_tokens || o->room == 0)
		o->room += CTL_DIGEST_TOKENS;
	o->piece = malloc(o->room * sizeof(uint32_t));
	if (documents)
		o->at = malloc(o->room * sizeof(*o->at));
	return (o->piece && (o->at || !documents) &&
		       (o->how->format != PACK_ZSTD || !o->file || begin_zstd(o))) ||
	       fault_memory(fault);
}

static bool is_durable(FILE *file)
{
	return fflush(file) == 0 && !ferror(file) && fsync(fileno(file)) == 0;
}

static bool put_all(struct out *o, uint64_t begin, uint64_t end, struct fault *fault)
{
	if (!prepare(o, fault) ||
		!(o->how->row_tokens ? fit_inputs : put_inputs)(o, begin, end, fault) ||
		!pack_read_end(&o->reader, fault))
		return false;
	if (o->zstd && !put_seek_table(o, fault))
		return false;
	if (o->how->format == PACK_MEGATRON && !put_idx(o, fault))
		return false;
	if (o->side_file && !is_durable(o->side_file))
		return pack_fail(fault, o->side, errno);
	return !o->file || is_durable(o->file) || pack_fail(fault, o->part, errno);
}

/* ---- reading back ---- */

/* Whether the file's documents, and its padding, end at the @n bounds. */
static bool same_bounds(const struct shard *shard, const uint64_t *bound, uint64_t n)
{
	bool same = true;

	for (uint64_t i = 0, at = 0; same && i < n; at = bound[i++])
		same = at < bound[i] && bound[i] <= shard->facts.tokens &&
		       shard_boundary(shard, at) == bound[i];
	return same;
}

/* Compares the file's contents with what was written. The fault does not name the file. */
static bool compare(const struct out *o, const struct shard *shard, struct fault *fault)
{
	struct ctl_scan scan = {.digests = true};
	bool fit = o->how->row_tokens;
	uint64_t documents = fit ? o->pieces : o->at ? o->result->documents : SHARD_UNKNOWN;

	if (!ctl_scan(&scan, shard, fault))
		return false;
	if (scan.digest != o->result->digest)
		return fault_set(fault, FAULT_DATA, "",
			"has tokens with digest %016" PRIx64 "; must be %016" PRIx64, scan.digest,
			o->result->digest);
	return (shard->facts.documents == documents &&
		       (!o->at || same_bounds(shard, fit ? o->bound : o->end,
					  fit ? o->bounds : o->result->documents))) ||
	       fault_set(fault, FAULT_DATA, "", "has other document bounds");
}

/* Whether the file has what was written. Sets the result's bytes to its size. */
static bool verify(struct out *o, struct fault *fault)
{
	struct ctl_input input = {
		.format = shard_format(o->how->format == PACK_MEGATRON ? "megatron" : "flat"),
		.hint = {.type = o->how->token_bytes == 2 ? SHARD_U16 : SHARD_U32,
			.has_type = true,
			.documents = o->at,
			.loss_mask = o->how->row_tokens,
			.frames = o->reader.in->input.hint.frames}};
	int fd;
	struct shard *shard = ctl_input_open(&input, o->file ? o->part : o->path, &fd, fault);
	struct stat st = {0};
	bool fine = shard;

	if (fine && (shard->facts.tokens != o->tokens ||
			    shard->facts.token_bytes != o->how->token_bytes))
		fine = fault_set(fault, FAULT_DATA, "",
			"has %" PRIu64 " tokens of %" PRIu32 " bytes; must be %" PRIu64
			" of %" PRIu32,
			shard->facts.tokens, shard->facts.token_bytes, o->tokens,
			o->how->token_bytes);
	fine = fine && compare(o, shard, fault);
	if (fine && fstat(fd, &st) == 0)
		o->result->bytes = (uint64_t)st.st_size;
	ctl_input_close(shard, fd);
	return fine || (o->file ? fault_prefix(fault, "%s: reading it back failed: ", o->part)
				: fault_prefix(fault,
					  "%s: exists, and nothing is overwritten; give another "
					  "name: ",
					  o->path));
}

/* ---- all of it ---- */

static bool name_part(struct out *o, struct fault *fault)
{
	const char *name = bytes_name(o->path);
	int n = snprintf(
		o->part, PATH_MAX, "%.*s" PACK_PART "%s", (int)(name - o->path), o->path, name);

	if (n < 0 || n >= PATH_MAX)
		return pack_fail(fault, o->path, ENAMETOOLONG);
	pack_side_path(o->how, o->part, o->side);
	return true;
}

static bool move(const char *from, const char *to, struct fault *fault)
{
	if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
		return true;
	/* Not every file system has RENAME_NOREPLACE. */
	if (errno == EINVAL && access(to, F_OK) != 0 && rename(from, to) == 0)
		return true;
	return pack_fail(fault, to, errno == EINVAL ? EEXIST : errno);
}

/* Gives the file and its side file their names. The side file goes first: a shard without one would
 * be taken for a flat file. */
static bool publish(const struct out *o, struct fault *fault)
{
	char side[PATH_MAX];
	bool has_side = pack_side_path(o->how, o->path, side);

	if (has_side && !move(o->side, side, fault))
		return false;
	if (!move(o->part, o->path, fault)) {
		if (has_side)
			unlink(side);
		return false;
	}
	return ctl_file_sync_parent(o->path) || pack_fail(fault, o->path, errno);
}

static bool write_part(struct out *o, uint64_t begin, uint64_t end, struct fault *fault)
{
	char side[PATH_MAX];
	struct stat st;

	if (pack_side_path(o->how, o->path, side) && lstat(side, &st) == 0)
		return fault_set(fault, FAULT_ARGUMENT, "",
			"%s: exists, and nothing is overwritten; remove it, or give another name",
			side);
	if (!open_part(o, fault))
		return false;
	bool fine = !o->side[0] || (o->side_file = fopen(o->side, "we")) ||
		    pack_fail(fault, o->side, errno);

	fine = fine && put_all(o, begin, end, fault) && verify(o, fault) && publish(o, fault);
	if (o->side_file)
		fclose(o->side_file);
	if (!fine)
		unlink(o->part);
	if (!fine && o->side[0])
		unlink(o->side);
	fclose(o->file);
	return fine;
}

static void free_buffers(struct out *o)
{
	pack_read_end(&o->reader, NULL);
	ZSTD_freeCCtx(o->zstd);
	free(o->packed);
	free(o->frame);
	free(o->at);
	free(o->end);
	free(o->bound);
	free(o->piece);
}

bool pack_out(const struct pack_in *in, const struct pack_how *how, uint64_t begin, uint64_t end,
	const char *path, struct pack_result *result, struct fault *fault)
{
	struct out o = {
		.how = how, .path = path, .reader = {.in = in, .how = how}, .result = result};
	struct stat st;
	bool fine = name_part(&o, fault);

	*result = (struct pack_result){0};
	if (fine && lstat(path, &st) == 0)
		fine = put_all(&o, begin, end, fault) && verify(&o, fault);
	else
		fine = fine && write_part(&o, begin, end, fault);
	free_buffers(&o);
	return fine;
}
