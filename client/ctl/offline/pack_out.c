/*
 * Writes one file of `tokctl pack`, piece by piece. It is then read back with the daemon's code;
 * its digest must equal that of the tokens read from the inputs.
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
#include <unistd.h>
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>

enum {
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
	const char *part;
	char side[PATH_MAX]; /* its side file; "": none */
	FILE *file;
	struct pack_reader reader;
	void *piece; /* tokens that are not written yet; without --fit, room for pack_read() */
	uint64_t room, used; /* in the piece; room: whole pieces of the digest, and frames */
	uint64_t tokens, bytes, digest; /* written */

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

	/* --fit */
	struct pack_fit fit;
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
	ZSTD_compressionParameters c = ZSTD_getCParams(o->how->level, 0, 0);
	const struct {
		ZSTD_cParameter name;
		int value;
	} set[] = {
		{ZSTD_c_compressionLevel, o->how->level},
		{ZSTD_c_checksumFlag, 1},
		{ZSTD_c_hashLog, (int)c.hashLog},
		{ZSTD_c_chainLog, (int)c.chainLog},
		{ZSTD_c_searchLog, (int)c.searchLog},
		{ZSTD_c_minMatch, (int)c.minMatch},
		{ZSTD_c_targetLength, (int)c.targetLength},
		{ZSTD_c_strategy, (int)c.strategy},
	};

	o->packed_room = ZSTD_compressBound(o->how->frame_bytes);
	o->packed = malloc(o->packed_room);
	o->zstd = ZSTD_createCCtx();
	for (size_t i = 0; o->zstd && i < sizeof(set) / sizeof(set[0]); i++)
		if (ZSTD_isError(ZSTD_CCtx_setParameter(o->zstd, set[i].name, set[i].value)))
			return false;
	return o->packed && o->zstd;
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
			o->part, tokens, SEQUENCE_MOST);
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

static bool put_numbers(const struct out *o, FILE *idx)
{
	uint64_t header[] = {htole64(o->sequences), htole64(o->sequences + 1)}, at = 0;
	uint32_t width = o->how->token_bytes;

	fwrite("MMIDIDX\0\0\1\0\0\0\0\0\0\0", 1, 17, idx);
	fputc(width == 2 ? 8 : 4, idx); /* u16, i32 */
	fwrite(header, sizeof(header), 1, idx);
	for (size_t i = 0; i < o->sequences; i++) {
		uint32_t length = htole32((uint32_t)o->length[i]);

		fwrite(&length, sizeof(length), 1, idx);
	}
	for (size_t i = 0; i < o->sequences; at += (uint64_t)o->length[i++] * width) {
		uint64_t pointer = htole64(at);

		fwrite(&pointer, sizeof(pointer), 1, idx);
	}
	for (uint64_t i = 0; i <= o->sequences; i++) {
		uint64_t document = htole64(i);

		fwrite(&document, sizeof(document), 1, idx);
	}
	return fflush(idx) == 0 && !ferror(idx) && fsync(fileno(idx)) == 0;
}

static bool put_idx(struct out *o, struct fault *fault)
{
	if (o->open_tokens > 0 && !add_sequence(o, o->open_tokens, fault))
		return false;
	FILE *idx = fopen(o->side, "we");
	bool fine = idx && put_numbers(o, idx);
	int error = errno;

	if (idx)
		fclose(idx);
	return fine || pack_fail(fault, o->side, error);
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
	if (!(o->zstd ? put_frames(o, o->piece, n * width, fault)
		      : put(o, o->piece, n * width, fault)))
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
	return pack_read_end(&o->reader, fault);
}

/* ---- rows of --fit, and the list of their documents ---- */

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

/* Writes @n tokens of a document, and its bounds. */
static bool put_document(struct out *o, uint32_t from, uint32_t n, struct fault *fault)
{
	uint64_t at = o->tokens + o->used;

	if (gzprintf(o->list, "%" PRIu64 ",%" PRIu64 "\n", at, at + n) <= 0)
		return pack_fail(fault, o->side, errno);
	return put_tokens(o, o->fit.tokens + (uint64_t)from * o->how->token_bytes, n, fault);
}

/* Writes the row of the rests whose first one is that of document @d. Its end is padding. */
static bool put_rests(struct out *o, uint32_t d, struct fault *fault)
{
	const struct pack_fit *f = &o->fit;
	uint32_t left = f->row_tokens, last = d;

	for (; d != PACK_NONE; d = f->after[d]) {
		uint32_t rest = pack_fit_rest(f, d);

		if (!put_document(o, f->end[d] - rest, rest, fault))
			return false;
		left -= rest;
		last = d;
	}
	while (left > 0 &&
		put_tokens(o, f->tokens + (f->end[last] - UINT64_C(1)) * f->token_bytes, 1, fault))
		left--;
	return left == 0;
}

/* Writes the rows in the order of their first documents. */
static bool put_rows(struct out *o, struct fault *fault)
{
	const struct pack_fit *f = &o->fit;
	uint32_t from = 0;

	for (uint32_t d = 0; d < f->documents; from = f->end[d++]) {
		for (; f->end[d] - from >= f->row_tokens; from += f->row_tokens)
			if (!put_document(o, from, f->row_tokens, fault))
				return false;
		if (from < f->end[d] && f->first[f->bin[d]] == d && !put_rests(o, d, fault))
			return false;
	}
	return flush(o, fault);
}

/* Opens the list. It begins with an empty gzip member, for the comment, which zlib does not write:
 * no time, so equal bytes; 3: Unix; an empty last block, and checksum and length of no bytes. */
static bool open_list(struct out *o, int fd)
{
	static const char head[] = "\x1f\x8b\x08\x10\0\0\0\0\0\3", empty[] = "\3\0\0\0\0\0\0\0\0";
	char text[sizeof(head) + 96 + sizeof(empty)];
	size_t n = sizeof(head) - 1;

	memcpy(text, head, n);
	n += (size_t)sprintf(text + n, BOUNDS_ROWS, (uint64_t)o->fit.row_tokens, o->fit.padding) +
	     1;
	memcpy(text + n, empty, sizeof(empty));
	n += sizeof(empty);
	if (write(fd, text, n) != (ssize_t)n)
		return false;
	o->list = gzdopen(dup(fd), "wb1");
	return o->list && gzbuffer(o->list, LIST_BYTES) == 0;
}

/* Packs tokens [begin, end), which are whole documents, into rows. */
static bool put_fit(struct out *o, uint64_t begin, uint64_t end, struct fault *fault)
{
	if (!pack_fit_begin(&o->fit, &o->reader, begin, end, fault))
		return false;
	int fd = open(o->side, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	bool fine = (fd >= 0 && open_list(o, fd)) || pack_fail(fault, o->side, errno);

	fine = fine && put_rows(o, fault);
	if (o->list && (gzclose(o->list) != Z_OK || fsync(fd) != 0) && fine)
		fine = pack_fail(fault, o->side, errno);
	if (fd >= 0)
		close(fd);
	return fine;
}

static bool put_all(struct out *o, uint64_t begin, uint64_t end, struct fault *fault)
{
	if (!(o->how->row_tokens ? put_fit : put_inputs)(o, begin, end, fault))
		return false;
	if (o->zstd && !put_seek_table(o, fault))
		return false;
	if (o->ends && !put_idx(o, fault))
		return false;
	return (fflush(o->file) == 0 && fsync(fileno(o->file)) == 0) ||
	       pack_fail(fault, o->part, errno);
}

/* ---- reading back ---- */

/* Compares the file's contents with what was written. The fault does not name the file. */
static bool compare(const struct out *o, const struct shard *shard, struct fault *fault)
{
	struct ctl_scan scan = {.digests = true};
	uint64_t documents = o->how->row_tokens		       ? o->fit.pieces
			     : o->how->format == PACK_MEGATRON ? o->sequences
							       : SHARD_UNKNOWN;

	if (!ctl_scan(&scan, shard, fault))
		return false;
	if (shard->facts.tokens != o->tokens || scan.digest != o->digest)
		return fault_set(fault, FAULT_DATA, "",
			"%" PRIu64 " tokens with digest %016" PRIx64 " were written, but %" PRIu64
			" with %016" PRIx64 " are read",
			o->tokens, o->digest, shard->facts.tokens, scan.digest);
	return shard->facts.documents == documents ||
	       fault_set(fault, FAULT_DATA, "",
		       "%" PRIu64 " documents were written, but %" PRIu64 " are read", documents,
		       shard->facts.documents);
}

static bool verify(const struct out *o, struct fault *fault)
{
	struct ctl_input input = {
		.format = shard_format(o->how->format == PACK_MEGATRON ? "megatron" : "flat"),
		.hint = {.type = o->how->token_bytes == 2 ? SHARD_U16 : SHARD_U32,
			.has_type = true,
			.documents = o->how->row_tokens,
			.loss_mask = o->how->row_tokens,
			.frames = o->reader.in->input.hint.frames}};
	int fd;
	struct shard *shard = ctl_input_open(&input, o->part, &fd, fault);
	bool fine = shard && compare(o, shard, fault);

	shard_close(shard);
	if (fd >= 0)
		close(fd);
	return fine || fault_prefix(fault, "%s: reading it back failed: ", o->part);
}

/* ---- all of it ---- */

/* Opens the file, which no other process may be writing. One that was killed may have left it. */
static bool open_part(struct out *o, struct fault *fault)
{
	int fd = open(o->part, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);

	if (fd < 0)
		return pack_fail(fault, o->part, errno);
	if (flock(fd, LOCK_EX | LOCK_NB) != 0 || ftruncate(fd, 0) != 0 ||
		!(o->file = fdopen(fd, "w"))) {
		int error = errno;

		close(fd);
		return error == EWOULDBLOCK
			       ? fault_set(fault, FAULT_ARGUMENT, "",
					 "%s: another tokctl pack is writing it", o->part)
			       : pack_fail(fault, o->part, error);
	}
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
		       (o->how->format != PACK_ZSTD || begin_zstd(o))) ||
	       fault_memory(fault);
}

static void free_buffers(struct out *o)
{
	pack_read_end(&o->reader, NULL);
	pack_fit_end(&o->fit);
	ZSTD_freeCCtx(o->zstd);
	free(o->packed);
	free(o->frame);
	free(o->ends);
	free(o->length);
	free(o->piece);
}

bool pack_out(const struct pack_in *in, const struct pack_how *how, uint64_t begin, uint64_t last,
	const char *part, struct pack_result *result, struct fault *fault)
{
	struct out o = {.how = how, .part = part, .reader = {.in = in, .how = how}};

	pack_side_path(how, part, o.side);
	if (!open_part(&o, fault))
		return false;
	bool fine = prepare(&o, fault) && put_all(&o, begin, last, fault);

	*result = (struct pack_result){.bytes = o.bytes,
		.documents = o.sequences + o.fit.documents,
		.digest = o.digest,
		.padding = o.fit.padding,
		.cut = o.fit.cut,
		.split = o.fit.split};
	free_buffers(&o);
	fine = fine && verify(&o, fault);
	fclose(o.file);
	if (!fine)
		pack_out_remove(how, part);
	return fine;
}

void pack_out_remove(const struct pack_how *how, const char *part)
{
	char side[PATH_MAX];

	unlink(part);
	if (pack_side_path(how, part, side))
		unlink(side);
}
