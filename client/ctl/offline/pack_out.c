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
	LOAD_TOKENS = 1 << 18,
	LIST_BYTES = 64 << 10,
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
	uint64_t tokens, bytes, digest; /* written, or to be compared */

	/* zstd */
	ZSTD_CCtx *zstd;
	void *packed; /* a frame */
	size_t packed_room;
	struct frame *frame;
	size_t frames;

	/* Megatron: the lengths of its sequences, of which each is a document */
	uint32_t *ends; /* in a piece */
	int32_t *length;
	size_t sequences;
	uint64_t open_tokens; /* of the sequence that has not ended yet */

	/* --fit: a window of whole documents */
	char *window;
	uint32_t *end; /* of each document */
	uint64_t documents;
	struct pack_piece *row_piece;
	size_t pieces; /* documents in the file */
	uint64_t padding, cut, split;
	gzFile list; /* the documents' bounds */
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
	o->bytes += n;
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

static bool add_sequence(struct out *o, uint64_t tokens, struct fault *fault)
{
	if (tokens > SEQUENCE_MOST)
		return fault_set(fault, FAULT_ARGUMENT, "eos",
			"%s: a document of %" PRIu64
			" tokens is too long for Megatron (at most %d); give --eos, or more "
			"--shards",
			o->path, tokens, SEQUENCE_MOST);
	if (!ctl_grow((void **)&o->length, o->sequences, sizeof(*o->length)))
		return fault_memory(fault);
	o->length[o->sequences++] = (int32_t)tokens;
	return true;
}

/* Adds the sequences of a piece of @n tokens, in which @count end, at o->ends. */
static bool add_sequences(struct out *o, uint64_t n, uint64_t count, struct fault *fault)
{
	uint64_t at = 0;

	for (uint64_t i = 0; i < count; at = o->ends[i++]) {
		if (!add_sequence(o, o->open_tokens + o->ends[i] - at, fault))
			return false;
		o->open_tokens = 0;
	}
	o->open_tokens += n - at;
	return true;
}

/* Faults of writing are found at the end. */
static void put_idx(const struct out *o)
{
	uint64_t header[] = {htole64(o->sequences), htole64(o->sequences + 1)}, at = 0;
	uint32_t width = o->how->token_bytes;
	FILE *idx = o->side_file;

	fwrite("MMIDIDX\0\0\1\0\0\0\0\0\0\0", 1, 17, idx);
	fputc(width == 2 ? 8 : 4, idx); /* u16, i32 */
	fwrite(header, sizeof(header), 1, idx);
	for (size_t i = 0; i < o->sequences; i++)
		fwrite(&(uint32_t){htole32((uint32_t)o->length[i])}, 4, 1, idx);
	for (size_t i = 0; i < o->sequences; at += (uint64_t)o->length[i++] * width)
		fwrite(&(uint64_t){htole64(at)}, 8, 1, idx);
	for (uint64_t i = 0; i <= o->sequences; i++)
		fwrite(&(uint64_t){htole64(i)}, 8, 1, idx);
}

/* ---- tokens ---- */

/* Writes the piece. */
static bool flush(struct out *o, struct fault *fault)
{
	uint64_t n = o->used, at = o->bytes;
	uint32_t width = o->how->token_bytes;

	o->digest += ctl_digest(o->piece, n, width, o->tokens / CTL_DIGEST_TOKENS);
	o->tokens += n;
	o->used = 0;
	if (!o->file)
		return true;
	if (!(o->zstd ? put_frames : put)(o, o->piece, n * width, fault))
		return false;
	/* Starts writing to the disk early, because fsync() waits for all of it at the end. */
	(void)sync_file_range(
		fileno(o->file), (off_t)at, (off_t)(o->bytes - at), SYNC_FILE_RANGE_WRITE);
	return true;
}

/* Writes tokens [begin, end) of the inputs. */
static bool put_inputs(struct out *o, uint64_t begin, uint64_t end, struct fault *fault)
{
	for (; begin < end; begin += o->room) {
		uint64_t n = end - begin < o->room ? end - begin : o->room, count = 0;

		if (!pack_read(&o->reader, begin, n, o->piece, o->ends, &count, fault) ||
			(o->ends && !add_sequences(o, n, count, fault)))
			return false;
		o->used = n;
		if (!flush(o, fault))
			return false;
		ctl_progress_add(o->how->progress, n);
	}
	if (o->open_tokens > 0 && !add_sequence(o, o->open_tokens, fault))
		return false;
	return pack_read_end(&o->reader, fault);
}

/* ---- rows of --fit, and the list of their documents ---- */

/*
 * The end of a row is padding, which repeats its last token. The file's list of document bounds, a
 * .csv.gz, leaves it out, so a loss mask excludes it.
 */

/* Reads the window [begin, end) and the ends of its documents. */
static bool load(struct out *o, uint64_t begin, uint64_t end, struct fault *fault)
{
	uint32_t *at = malloc(LOAD_TOKENS * sizeof(*at)), width = o->how->token_bytes;
	uint64_t tokens = end - begin;
	bool fine;

	/* pack_read() needs 4 bytes a token while it reads. */
	o->window = malloc(tokens * width + LOAD_TOKENS * sizeof(uint32_t));
	fine = (at && o->window) || fault_memory(fault);
	for (uint64_t from = 0; fine && from < tokens; from += LOAD_TOKENS) {
		uint64_t n = tokens - from < LOAD_TOKENS ? tokens - from : LOAD_TOKENS, ends = 0;

		fine = pack_read(&o->reader, begin + from, n,
			(uint32_t *)(o->window + from * width), at, &ends, fault);
		for (uint64_t i = 0; fine && i < ends; i++) {
			fine = ctl_grow((void **)&o->end, o->documents, sizeof(*o->end)) ||
			       fault_memory(fault);
			if (fine)
				o->end[o->documents++] = (uint32_t)from + at[i];
		}
		if (fine)
			ctl_progress_add(o->how->progress, n);
	}
	free(at);
	return fine && pack_read_end(&o->reader, fault);
}

/* A wrong --eos would make each input one document. */
static bool check_eos(const struct out *o, uint64_t begin, uint64_t end, struct fault *fault)
{
	const struct pack_in *in = o->reader.in;
	bool found = !in->has_eos || in->has[PACK_UNINDEXED].sources < in->sources;

	for (uint64_t d = 0; d < o->documents && !found; d++)
		found = tokens_value(o->window, o->end[d] - 1, o->how->token_bytes) == in->eos;
	return found ||
	       fault_set(fault, FAULT_ARGUMENT, "eos",
		       "--eos %" PRIu64 ": does not occur in tokens %" PRIu64 " to %" PRIu64
		       " of the inputs, so there are no documents to pack; give the token "
		       "that ends one",
		       in->eos, begin, end);
}

/* Counts padding, documents longer than a row, and those that plain concatenation would cut. */
static void count(struct out *o, uint64_t begin, uint64_t end)
{
	uint64_t row = o->how->row_tokens, rows = 0, at = begin;

	for (size_t i = 0; i < o->pieces; i++)
		rows += o->row_piece[i].last;
	o->padding = rows * row - (end - begin);
	for (uint64_t d = 0; d < o->documents; at = begin + o->end[d++]) {
		uint64_t last = begin + o->end[d] - 1;

		o->split += at / row != last / row;
		o->cut += last + 1 - at > row;
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

/* Writes a piece and its bounds, and the padding after it. */
static bool put_piece(struct out *o, const struct pack_piece *p, struct fault *fault)
{
	uint64_t at = o->tokens + o->used, end = at + p->tokens, row = o->how->row_tokens;
	uint32_t width = o->how->token_bytes;
	const char *from = o->window + (uint64_t)p->at * width;

	if (o->list && gzprintf(o->list, "%" PRIu64 ",%" PRIu64 "\n", at, end) <= 0)
		return pack_fail(fault, o->side, errno);
	if (!put_tokens(o, from, p->tokens, fault))
		return false;
	for (; p->last && end % row != 0; end++)
		if (!put_tokens(o, from + (p->tokens - 1) * (uint64_t)width, 1, fault))
			return false;
	return true;
}

/* Opens the list. It begins with an empty gzip member, for the comment, which zlib does not write:
 * no time, so equal bytes; 3: Unix; an empty last block, and checksum and length of no bytes. */
static bool open_list(struct out *o)
{
	static const char head[] = "\x1f\x8b\x08\x10\0\0\0\0\0\3", empty[] = "\3\0\0\0\0\0\0\0\0";

	fwrite(head, sizeof(head) - 1, 1, o->side_file);
	fprintf(o->side_file, BOUNDS_ROWS, (uint64_t)o->how->row_tokens, o->padding);
	fputc(0, o->side_file);
	fwrite(empty, sizeof(empty), 1, o->side_file);
	if (fflush(o->side_file) == 0)
		o->list = gzdopen(dup(fileno(o->side_file)), "wb1");
	return o->list && gzbuffer(o->list, LIST_BYTES) == 0;
}

/* Packs tokens [begin, end), which are whole documents, into rows. */
static bool put_rows(struct out *o, uint64_t begin, uint64_t end, struct fault *fault)
{
	bool fine;

	assert(end > begin && end - begin <= PACK_FIT_MOST);
	if (!load(o, begin, end, fault) || !check_eos(o, begin, end, fault))
		return false;
	assert(o->documents > 0 && o->end[o->documents - 1] == end - begin);
	o->row_piece = pack_fit(o->end, (uint32_t)o->documents, o->how->row_tokens, &o->pieces);
	if (!o->row_piece)
		return fault_memory(fault);
	count(o, begin, end);
	fine = !o->file || open_list(o) || pack_fail(fault, o->side, errno);
	for (size_t i = 0; fine && i < o->pieces; i++)
		fine = put_piece(o, &o->row_piece[i], fault);
	if (o->list && gzclose(o->list) != Z_OK && fine)
		fine = pack_fail(fault, o->side, errno);
	return fine && flush(o, fault);
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
	uint64_t frame_tokens = o->how->frame_bytes / o->how->token_bytes;

	while (o->room < frame_tokens || o->room == 0)
		o->room += CTL_DIGEST_TOKENS;
	o->piece = malloc(o->room * (o->how->row_tokens ? o->how->token_bytes : sizeof(uint32_t)));
	if (o->how->format == PACK_MEGATRON)
		o->ends = malloc(o->room * sizeof(*o->ends));
	return (o->piece && (o->ends || o->how->format != PACK_MEGATRON) &&
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
		!(o->how->row_tokens ? put_rows : put_inputs)(o, begin, end, fault))
		return false;
	if (o->zstd && !put_seek_table(o, fault))
		return false;
	if (o->side_file && o->ends)
		put_idx(o);
	if (o->side_file && !is_durable(o->side_file))
		return pack_fail(fault, o->side, errno);
	return !o->file || is_durable(o->file) || pack_fail(fault, o->part, errno);
}

/* ---- reading back ---- */

/* Whether what begins at *@at in the file ends at @end. Moves *@at there. */
static bool ends_at(const struct shard *shard, uint64_t *at, uint64_t end)
{
	bool same = *at < end && end <= shard->facts.tokens && shard_boundary(shard, *at) == end;

	*at = end;
	return same;
}

/* Whether the file's documents, and its padding, end where they should. */
static bool same_bounds(const struct out *o, const struct shard *shard)
{
	uint64_t at = 0, row = o->how->row_tokens;
	bool same = true;

	for (size_t i = 0; same && i < o->sequences; i++)
		same = ends_at(shard, &at, at + (uint64_t)o->length[i]);
	for (size_t i = 0; same && i < o->pieces; i++) {
		const struct pack_piece *p = &o->row_piece[i];

		same = ends_at(shard, &at, at + p->tokens);
		if (same && p->last && at % row > 0)
			same = ends_at(shard, &at, at + row - at % row);
	}
	return same;
}

/* Compares the file's contents with what was written. The fault does not name the file. */
static bool compare(const struct out *o, const struct shard *shard, struct fault *fault)
{
	struct ctl_scan scan = {.digests = true};
	uint64_t documents = o->how->row_tokens		       ? o->pieces
			     : o->how->format == PACK_MEGATRON ? o->sequences
							       : SHARD_UNKNOWN;

	if (!ctl_scan(&scan, shard, fault))
		return false;
	if (scan.digest != o->digest)
		return fault_set(fault, FAULT_DATA, "",
			"has tokens with digest %016" PRIx64 "; must be %016" PRIx64, scan.digest,
			o->digest);
	if (shard->facts.documents != documents)
		return fault_set(fault, FAULT_DATA, "",
			"has %" PRIu64 " documents; must be %" PRIu64, shard->facts.documents,
			documents);
	return same_bounds(o, shard) ||
	       fault_set(fault, FAULT_DATA, "", "has other document bounds");
}

/* Whether the file has @tokens, and with @all, what was written. Sets o->bytes to its size. */
static bool verify(struct out *o, uint64_t tokens, bool all, struct fault *fault)
{
	struct ctl_input input = {
		.format = shard_format(o->how->format == PACK_MEGATRON ? "megatron" : "flat"),
		.hint = {.type = o->how->token_bytes == 2 ? SHARD_U16 : SHARD_U32,
			.has_type = true,
			.documents = o->how->row_tokens || o->ends,
			.loss_mask = o->how->row_tokens,
			.frames = o->reader.in->input.hint.frames}};
	int fd;
	struct shard *shard = ctl_input_open(&input, o->file ? o->part : o->path, &fd, fault);
	struct stat st = {0};
	bool fine = shard;

	if (fine &&
		(shard->facts.tokens != tokens || shard->facts.token_bytes != o->how->token_bytes))
		fine = fault_set(fault, FAULT_DATA, "",
			"has %" PRIu64 " tokens of %" PRIu32 " bytes; must be %" PRIu64
			" of %" PRIu32,
			shard->facts.tokens, shard->facts.token_bytes, tokens, o->how->token_bytes);
	fine = fine && (!all || compare(o, shard, fault));
	if (fine && fstat(fd, &st) == 0)
		o->bytes = (uint64_t)st.st_size;
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

	fine = fine && put_all(o, begin, end, fault) && verify(o, o->tokens, true, fault) &&
	       publish(o, fault);
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
	free(o->window);
	free(o->end);
	free(o->row_piece);
	ZSTD_freeCCtx(o->zstd);
	free(o->packed);
	free(o->frame);
	free(o->ends);
	free(o->length);
	free(o->piece);
}

bool pack_out(const struct pack_in *in, const struct pack_how *how, uint64_t begin, uint64_t end,
	const char *path, struct pack_result *result, struct fault *fault)
{
	struct out o = {.how = how, .path = path, .reader = {.in = in, .how = how}};
	struct stat st;
	bool fine = name_part(&o, fault);

	if (fine && lstat(path, &st) == 0) /* one of another length is refused at once */
		fine = (how->row_tokens || verify(&o, end - begin, false, fault)) &&
		       put_all(&o, begin, end, fault) && verify(&o, o.tokens, true, fault);
	else
		fine = fine && write_part(&o, begin, end, fault);
	*result = (struct pack_result){.bytes = o.bytes,
		.documents = o.sequences + o.documents,
		.digest = o.digest,
		.padding = o.padding,
		.cut = o.cut,
		.split = o.split};
	free_buffers(&o);
	return fine;
}
