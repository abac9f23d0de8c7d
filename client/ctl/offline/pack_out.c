/*
 * Writes one file of `tokctl pack`, piece by piece. It is then read back with the daemon's code;
 * its digest must equal that of the tokens read from the inputs. A file that is there already is
 * only compared: then all of this is done, but nothing is written.
 */
#include "client/ctl/offline/shards.h"

#define XXH_INLINE_ALL
#define ZSTD_STATIC_LINKING_ONLY
#include <endian.h>
#include <errno.h>
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
	FOOTER_BYTES = 9,	   /* of a zstd seek table */
	SEQUENCE_MOST = INT32_MAX, /* tokens of a document in Megatron's format */
};

/* An entry of the seek table in its format on disk. */
struct frame {
	uint32_t packed, bytes, checksum;
};

struct out {
	struct pack *p;
	struct pack_file *f;
	uint32_t width;	     /* of a token in the file */
	char part[PATH_MAX]; /* its name until it is complete */
	char side[PATH_MAX]; /* likewise of its side file; "": none */
	FILE *file;	     /* NULL: it is only compared */
	FILE *side_file;     /* or NULL */
	uint32_t *piece;     /* tokens that are not written yet */
	uint64_t room, used; /* in the piece; room: whole pieces of the digest */
	uint64_t tokens;     /* written, or to be compared */

	/* of the inputs */
	uint64_t taken;	  /* tokens */
	bool has_eos;	  /* --eos ends one of them */
	uint32_t *window; /* --fit: all of them */

	uint64_t *end; /* [ends] where documents end; in rows, where parts of them and padding do */
	size_t ends, pieces; /* pieces: of documents in rows */

	/* zstd */
	ZSTD_CCtx *zstd;
	void *packed; /* a frame */
	size_t packed_room;
	struct frame *frame;
	size_t frames;
};

bool pack_side_path(const struct pack *p, const char *path, char side[PATH_MAX])
{
	const char *ending = p->row_tokens		  ? BOUNDS_ENDING
			     : p->format == PACK_MEGATRON ? ".idx"
							  : NULL;

	return ending && bytes_side_path(path, ".bin", ending, side, PATH_MAX);
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
	return fwrite(from, 1, n, o->file) == n || pack_fail(fault, o->part, errno);
}

/* ---- zstd: frames, then a table of them ---- */

/* Uses the level's parameters for large files. Those for files as small as a frame take longer, and
 * save too little space. */
static bool begin_zstd(struct out *o)
{
	ZSTD_compressionParameters large = ZSTD_getCParams(o->p->level, 0, 0);

	o->packed_room = ZSTD_compressBound(o->p->frame_bytes);
	o->packed = malloc(o->packed_room);
	o->zstd = ZSTD_createCCtx();
	return o->packed && o->zstd && !ZSTD_isError(ZSTD_CCtx_setCParams(o->zstd, large)) &&
	       !ZSTD_isError(ZSTD_CCtx_setParameter(o->zstd, ZSTD_c_checksumFlag, 1));
}

static bool put_frames(struct out *o, const void *bytes, size_t n, struct fault *fault)
{
	const char *from = bytes;

	for (size_t some; n > 0; from += some, n -= some) {
		some = n < o->p->frame_bytes ? n : o->p->frame_bytes;

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

/* The table is a skippable frame of its own. One of too many frames is found when it is read back.
 */
static bool put_seek_table(struct out *o, struct fault *fault)
{
	uint64_t bytes = o->frames * sizeof(struct frame);
	uint32_t head[] = {htole32(0x184d2a5e), htole32((uint32_t)(bytes + FOOTER_BYTES))},
		 count = htole32((uint32_t)o->frames), magic = htole32(0x8f92eab1);
	uint8_t foot[FOOTER_BYTES] = {[4] = 0x80}; /* there are checksums */

	memcpy(foot, &count, sizeof(count));
	memcpy(foot + 5, &magic, sizeof(magic));
	return put(o, head, sizeof(head), fault) && put(o, o->frame, bytes, fault) &&
	       put(o, foot, sizeof(foot), fault);
}

/* ---- Megatron: the .idx has the lengths of the sequences, where they begin, and documents ---- */

static bool put_idx(const struct out *o, struct fault *fault)
{
	uint64_t n = o->ends, header[] = {htole64(n), htole64(n + 1)}, at = 0;
	FILE *idx = o->side_file;

	fwrite("MMIDIDX\0\0\1\0\0\0\0\0\0\0", 1, 17, idx);
	fputc(o->width == 2 ? 8 : 4, idx); /* u16, i32 */
	fwrite(header, sizeof(header), 1, idx);
	for (uint64_t i = 0; i < n; at = o->end[i++]) {
		if (o->end[i] - at > SEQUENCE_MOST)
			return fault_set(fault, FAULT_ARGUMENT, "eos",
				"%s: a document of %" PRIu64
				" tokens is too long for Megatron (at most %d); give --eos, or "
				"more --shards",
				o->f->path, o->end[i] - at, SEQUENCE_MOST);
		fwrite(&(uint32_t){htole32((uint32_t)(o->end[i] - at))}, 4, 1, idx);
	}
	at = 0;
	for (uint64_t i = 0; i < n; at = o->end[i++])
		fwrite(&(uint64_t){htole64(at * o->width)}, 8, 1, idx);
	for (uint64_t i = 0; i <= n; i++)
		fwrite(&(uint64_t){htole64(i)}, 8, 1, idx);
	return true; /* faults of writing are found at the end */
}

/* ---- tokens ---- */

/* Writes the piece. */
static bool flush(struct out *o, struct fault *fault)
{
	uint64_t n = o->used;

	o->f->digest += ctl_digest(o->piece, n, o->tokens / CTL_DIGEST_TOKENS);
	o->tokens += n;
	o->used = 0;
	if (!o->file)
		return true;
	for (uint64_t i = 0; o->width == 2 && i < n; i++)
		memcpy((char *)o->piece + 2 * i, &(uint16_t){(uint16_t)o->piece[i]}, 2);
	return (o->zstd ? put_frames : put)(o, o->piece, n * o->width, fault);
}

static bool put_tokens(struct out *o, const uint32_t *from, uint64_t n, struct fault *fault)
{
	for (uint64_t some; n > 0; from += some, n -= some) {
		some = n < o->room - o->used ? n : o->room - o->used;
		memcpy(o->piece + o->used, from, some * sizeof(*from));
		o->used += some;
		if (o->used == o->room && !flush(o, fault))
			return false;
	}
	return true;
}

static bool add_end(struct out *o, uint64_t end, struct fault *fault)
{
	if (!ctl_grow((void **)&o->end, o->ends, sizeof(*o->end)))
		return fault_memory(fault);
	o->end[o->ends++] = end;
	return true;
}

/* Adds the end of a document of the inputs. Counts documents longer than a row, and those that
 * plain concatenation would cut. */
static bool add_document(struct out *o, uint64_t end, struct fault *fault)
{
	uint64_t begin = o->ends ? o->end[o->ends - 1] : 0, row = o->p->row_tokens;

	if (row) {
		o->f->cut += end - begin > row;
		o->f->split += (o->f->begin + begin) / row != (o->f->begin + end - 1) / row;
	}
	o->f->documents++;
	return add_end(o, end, fault);
}

/* Takes the next tokens of the inputs: to write them, or to pack their documents. */
static bool take(void *context, const uint32_t *tokens, uint64_t n, const uint32_t *end,
	uint64_t ends, struct fault *fault)
{
	struct out *o = context;
	uint64_t at = o->taken;

	o->taken += n;
	ctl_progress_add(n);
	for (uint64_t i = 0; i < ends; i++) {
		o->has_eos |= tokens[end[i] - 1] == o->p->eos;
		if (!add_document(o, at + end[i], fault))
			return false;
	}
	if (!o->window)
		return put_tokens(o, tokens, n, fault);
	memcpy(o->window + at, tokens, n * sizeof(*tokens));
	return true;
}

/*
 * ---- packing of documents into rows: largest first, each into the first row that it fits (Ding
 * et al. 2024, "Fewer Truncations Improve Language Modeling"). A longer document becomes full rows
 * and a rest. The result depends only on the documents' lengths. ----
 */

/* A document, or a part of one, in a row. */
struct piece {
	uint64_t key; /* it is sorted by; the lower half is the piece's first token */
	uint32_t tokens, row;
};

static int by_key(const void *a, const void *b)
{
	uint64_t x = ((const struct piece *)a)->key, y = ((const struct piece *)b)->key;

	return (x > y) - (x < y);
}

/* Cuts the documents into *@n pieces, the longest first. NULL: out of memory. */
static struct piece *list_pieces(const struct out *o, size_t *n)
{
	uint64_t row = o->p->row_tokens, at = 0, some;
	struct piece *piece = NULL;

	for (size_t d = 0; d < o->ends; d++)
		for (; at < o->end[d]; at += some) {
			some = o->end[d] - at < row ? o->end[d] - at : row;
			if (!ctl_grow((void **)&piece, *n, sizeof(*piece))) {
				free(piece);
				return NULL;
			}
			piece[(*n)++] = (struct piece){(row - some) << 32 | at, (uint32_t)some, 0};
		}
	qsort(piece, *n, sizeof(*piece), by_key);
	return piece;
}

/* Chooses rows for the pieces, and sorts those by the first tokens of their rows. */
static bool choose_rows(const struct out *o, struct piece *piece, size_t n)
{
	uint32_t row = o->p->row_tokens, *room, *first;
	/* Any two rows have more tokens than fit into one. */
	uint64_t most = 2 * o->taken / row + 1, leaves = 1, at;

	while (leaves < most && leaves < n)
		leaves *= 2;
	room = malloc(2 * leaves * sizeof(*room)); /* a tree of maxima; the leaves are the rows */
	if (!room)
		return false;
	for (at = 0; at < 2 * leaves; at++)
		room[at] = row;
	for (size_t i = 0; i < n; i++) {
		for (at = 1; at < leaves;)
			at = 2 * at + (room[2 * at] < piece[i].tokens);
		room[at] -= piece[i].tokens;
		piece[i].row = (uint32_t)(at - leaves);
		while (at /= 2)
			room[at] =
				room[2 * at] > room[2 * at + 1] ? room[2 * at] : room[2 * at + 1];
	}
	first = room; /* of each row; the tree is not needed any more */
	memset(first, 0xff, leaves * sizeof(*first));
	for (size_t i = 0; i < n; i++)
		if ((uint32_t)piece[i].key < first[piece[i].row])
			first[piece[i].row] = (uint32_t)piece[i].key;
	for (size_t i = 0; i < n; i++)
		piece[i].key = (uint64_t)first[piece[i].row] << 32 | (uint32_t)piece[i].key;
	qsort(piece, n, sizeof(*piece), by_key);
	free(room);
	return true;
}

/* ---- rows of --fit, and the list of their documents ---- */

/*
 * The end of a row is padding, which repeats its last token. The file's list of document bounds, a
 * .csv.gz, leaves it out, so a loss mask excludes it.
 */

/* A wrong --eos would make each input one document. */
static bool check_eos(const struct out *o, struct fault *fault)
{
	const struct pack *p = o->p;
	bool found = !p->has_eos || o->has_eos;

	for (size_t i = 0; i < p->sources && !found; i++)
		found = !p->source[i].has[PACK_UNINDEXED];
	return found ||
	       fault_set(fault, FAULT_ARGUMENT, "eos",
		       "--eos %" PRIu64 ": does not occur in tokens %" PRIu64 " to %" PRIu64
		       " of the inputs, so there are no documents to pack; give the token "
		       "that ends one",
		       p->eos, o->f->begin, o->f->end);
}

/* Writes a piece of the window, its bounds to @list, and if it is the @last of its row, padding. */
static bool put_piece(
	struct out *o, const struct piece *p, bool last, gzFile list, struct fault *fault)
{
	uint64_t at = o->tokens + o->used, end = at + p->tokens, row = o->p->row_tokens;
	const uint32_t *from = o->window + (uint32_t)p->key;

	if (list && gzprintf(list, "%" PRIu64 ",%" PRIu64 "\n", at, end) <= 0)
		return pack_fail(fault, o->side, errno);
	if (!put_tokens(o, from, p->tokens, fault) || !add_end(o, end, fault))
		return false;
	if (!last || end % row == 0)
		return true;
	for (; end % row != 0; end++)
		if (!put_tokens(o, from + p->tokens - 1, 1, fault))
			return false;
	return add_end(o, end, fault);
}

/* Opens the list. It begins with an empty gzip member, for the comment, which zlib does not write:
 * no time, so equal bytes; 3: Unix; an empty last block, and checksum and length of no bytes. */
static gzFile open_list(struct out *o)
{
	static const char head[] = "\x1f\x8b\x08\x10\0\0\0\0\0\3", empty[] = "\3\0\0\0\0\0\0\0\0";

	fwrite(head, sizeof(head) - 1, 1, o->side_file);
	fprintf(o->side_file, BOUNDS_ROWS, (uint64_t)o->p->row_tokens, o->f->padding);
	fputc(0, o->side_file);
	fwrite(empty, sizeof(empty), 1, o->side_file);
	return fflush(o->side_file) == 0 ? gzdopen(dup(fileno(o->side_file)), "wb1") : NULL;
}

/* Writes the rows that are packed from the documents in the window. */
static bool put_rows(struct out *o, struct fault *fault)
{
	size_t n = 0, rows = 0;
	struct piece *piece = list_pieces(o, &n);
	gzFile list = NULL;
	bool fine = (piece && choose_rows(o, piece, n)) || fault_memory(fault);

	for (size_t i = 0; fine && i < n; i++)
		rows += i == 0 || piece[i].row != piece[i - 1].row;
	o->f->padding = rows * o->p->row_tokens - o->taken;
	o->ends = 0;
	if (fine && o->file)
		fine = (list = open_list(o)) || pack_fail(fault, o->side, errno);
	for (size_t i = 0; fine && i < n; i++)
		fine = put_piece(
			o, &piece[i], i + 1 == n || piece[i + 1].row != piece[i].row, list, fault);
	if (list && gzclose(list) != Z_OK && fine)
		fine = pack_fail(fault, o->side, errno);
	free(piece);
	o->pieces = n;
	return fine;
}

/* ---- a file ---- */

static bool refuse_side(const char *side, struct fault *fault)
{
	return fault_set(fault, FAULT_ARGUMENT, "",
		"%s: exists, and nothing is overwritten; remove it, or give another name", side);
}

/* Opens the part, which no other process may be writing. One that was killed may have left it, and
 * the side file, @side; one that held it when it was opened here may have renamed it. */
static bool open_part(struct out *o, const char *side, struct fault *fault)
{
	struct stat mine, named;

	if (o->side[0] && lstat(side, &named) == 0 && lstat(o->part, &named) != 0)
		return refuse_side(side, fault);
	FILE *file = fopen(o->part, "ae"); /* "a": it is not cut yet */

	if (!file)
		return pack_fail(fault, o->part, errno);
	if (flock(fileno(file), LOCK_EX | LOCK_NB) != 0 || fstat(fileno(file), &mine) != 0 ||
		stat(o->part, &named) != 0 || mine.st_ino != named.st_ino) {
		fclose(file);
		return fault_set(fault, FAULT_ARGUMENT, "", "%s: another tokctl pack is writing it",
			o->part);
	}
	o->file = file;
	if (ftruncate(fileno(file), 0) != 0)
		return pack_fail(fault, o->part, errno);
	if (o->side[0])
		o->side_file = fopen(o->side, "we");
	return !o->side[0] || o->side_file || pack_fail(fault, o->side, errno);
}

static bool prepare(struct out *o, struct fault *fault)
{
	uint64_t frame_tokens = o->p->frame_bytes / o->width;

	while (o->room < frame_tokens || o->room == 0)
		o->room += CTL_DIGEST_TOKENS;
	o->piece = malloc(o->room * sizeof(*o->piece));
	if (o->p->row_tokens)
		o->window = malloc((o->f->end - o->f->begin) * sizeof(*o->window));
	return (o->piece && (o->window || !o->p->row_tokens) &&
		       (o->p->format != PACK_ZSTD || !o->file || begin_zstd(o))) ||
	       fault_memory(fault);
}

static bool is_durable(FILE *file)
{
	return fflush(file) == 0 && !ferror(file) && fsync(fileno(file)) == 0;
}

static bool put_all(struct out *o, struct fault *fault)
{
	if (!prepare(o, fault) ||
		!pack_read(o->p, o->f->source, o->f->begin, o->f->end, take, o, fault))
		return false;
	if ((o->ends > 0 && !check_eos(o, fault)) || (o->window && !put_rows(o, fault)))
		return false;
	if (!flush(o, fault) || (o->zstd && !put_seek_table(o, fault)) ||
		(o->side_file && !o->window && !put_idx(o, fault)))
		return false;
	if (o->side_file && !is_durable(o->side_file))
		return pack_fail(fault, o->side, errno);
	return !o->file || is_durable(o->file) || pack_fail(fault, o->part, errno);
}

/* ---- reading back ---- */

/* Whether the file's documents, and its padding, end where they should. */
static bool same_bounds(const struct out *o, const struct shard *shard)
{
	uint64_t documents = o->window ? o->pieces : o->ends ? o->ends : SHARD_UNKNOWN;
	bool same = shard->facts.documents == documents;

	for (uint64_t i = 0, at = 0; same && i < o->ends; at = o->end[i++])
		same = at < o->end[i] && o->end[i] <= shard->facts.tokens &&
		       shard_boundary(shard, at) == o->end[i];
	return same;
}

/* Compares the file's contents with what was written. The fault does not name the file. */
static bool compare(const struct out *o, const struct shard *shard, struct fault *fault)
{
	struct ctl_scan scan = {.digests = true};

	if (shard->facts.tokens != o->tokens || shard->facts.token_bytes != o->width)
		return fault_set(fault, FAULT_DATA, "",
			"has %" PRIu64 " tokens of %" PRIu32 " bytes; must be %" PRIu64
			" of %" PRIu32,
			shard->facts.tokens, shard->facts.token_bytes, o->tokens, o->width);
	if (!ctl_scan(&scan, shard, fault))
		return false;
	if (scan.digest != o->f->digest)
		return fault_set(fault, FAULT_DATA, "",
			"has tokens with digest %016" PRIx64 "; must be %016" PRIx64, scan.digest,
			o->f->digest);
	return same_bounds(o, shard) ||
	       fault_set(fault, FAULT_DATA, "", "has other document bounds");
}

/* Whether the file has what was written. Sets the result's bytes to its size. */
static bool verify(const struct out *o, struct fault *fault)
{
	const char *format = o->p->format == PACK_MEGATRON ? "megatron" : "flat";
	const struct shard_hint hint = {.type = o->width == 2 ? SHARD_U16 : SHARD_U32,
		.has_type = true,
		.documents = pack_keeps_documents(o->p),
		.loss_mask = o->p->row_tokens,
		.frames = o->p->input.hint.frames};
	struct shard *shard = shard_open(
		shard_format(format), o->file ? o->part : o->f->path, -1, &hint, true, fault);
	bool fine = shard && compare(o, shard, fault);

	if (fine)
		o->f->bytes = shard->bytes->stored;
	shard_close(shard);
	return fine || fault_prefix(fault, "%s: %s: ", o->file ? o->part : o->f->path,
			       o->file ? "reading it back failed"
				       : "exists, and nothing is overwritten; give another name");
}

/* ---- all of it ---- */

/* Whether a file is not there, or has the bytes of @other. */
static bool may_become(const char *path, const char *other)
{
	struct stat st;
	int x = 0, y = 0;

	if (lstat(path, &st) != 0)
		return errno == ENOENT;
	FILE *a = fopen(path, "re"), *b = fopen(other, "re");

	while (a && b && x == y && x != EOF) {
		x = getc(a);
		y = getc(b);
	}
	bool same = a && b && x == y && !ferror(a) && !ferror(b);

	if (a)
		fclose(a);
	if (b)
		fclose(b);
	return same;
}

/* Gives the file and its side file, @side, their names. The side file goes first: a shard without
 * one would be taken for a flat file. So one that is killed leaves a side file that is right. */
static bool publish(const struct out *o, const char *side, struct fault *fault)
{
	if (o->side[0] && !may_become(side, o->side))
		return refuse_side(side, fault);
	if (o->side[0] && rename(o->side, side) != 0)
		return pack_fail(fault, side, errno);
	if (rename(o->part, o->f->path) == 0)
		return ctl_file_sync_parent(o->f->path) || pack_fail(fault, o->f->path, errno);
	pack_fail(fault, o->f->path, errno);
	if (o->side[0])
		unlink(side);
	return false;
}

bool pack_write(struct pack *p, struct pack_file *f, struct fault *fault)
{
	struct out o = {.p = p, .f = f, .width = p->token_bytes};
	const char *name = bytes_name(f->path);
	char side[PATH_MAX];
	struct stat st;
	bool there = lstat(f->path, &st) == 0;

	snprintf(o.part, PATH_MAX, "%.*s" SHARD_UNFINISHED "%s", (int)(name - f->path), f->path,
		name);
	if (pack_side_path(p, f->path, side))
		pack_side_path(p, o.part, o.side);
	bool fine = (there || open_part(&o, side, fault)) && put_all(&o, fault) &&
		    verify(&o, fault) && (there || publish(&o, side, fault));

	if (!fine && o.file) {
		unlink(o.part);
		unlink(o.side);
	}
	if (o.side_file)
		fclose(o.side_file);
	if (o.file)
		fclose(o.file);
	ZSTD_freeCCtx(o.zstd);
	free(o.packed);
	free(o.frame);
	free(o.end);
	free(o.window);
	free(o.piece);
	return fine;
}
