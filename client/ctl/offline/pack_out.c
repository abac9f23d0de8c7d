/*
 * Threads take pieces of tokens in order, and read and compress them in parallel. They wait for
 * each other only to learn the offset of their piece in the file. The file is then read back with
 * the daemon's code; its digest must equal that of the tokens read from the inputs.
 */
#include "client/ctl/offline/pack_out.h"

#include "client/ctl/offline/pack_fit.h"
#include "client/ctl/offline/pack_megatron.h"
#include "client/ctl/offline/pack_zstd.h"
#include "client/ctl/offline/scan.h"
#include "client/ctl/offline/stores.h"
#include "daemon/catalog/parallel_for.h"
#include "daemon/shard/bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	SPARE_THREADS = 2,	/* work while others wait for their turn */
	STORE_BYTES = 512 << 20 /* at most, of threads that wait for a store */
};

/* Memory of one thread. */
struct worker {
	void *tokens, *scratch;
	struct pack_compressor compressor; /* zstd */
	uint32_t *ends;			   /* Megatron */
};

struct out {
	struct pack_in *in;
	const struct pack_how *how;
	struct pack_range range;
	uint64_t piece_tokens, pieces;
	const char *part;
	char side[PATH_MAX]; /* its side file; "": none */
	int fd;
	bool locked; /* another process is writing it */

	/* Each piece changes these in its turn. */
	uint64_t at; /* bytes placed */
	uint64_t digest;
	struct pack_frames frames;	 /* zstd */
	struct pack_sequences sequences; /* Megatron */
	struct pack_fit fit;		 /* --fit; then @range is of its rows */
	struct worker worker[PARALLEL_THREADS];
};

/* ---- pieces ---- */

static bool worker_begin(struct worker *w, const struct out *o)
{
	uint64_t n = o->piece_tokens, bytes = n * o->how->token_bytes;

	w->tokens = malloc(bytes);
	w->scratch = malloc(4 * n);
	if (o->how->format == PACK_MEGATRON)
		w->ends = malloc(4 * n);
	return w->tokens && w->scratch && (w->ends || o->how->format != PACK_MEGATRON) &&
	       (o->how->format != PACK_ZSTD ||
		       pack_compressor_begin(&w->compressor, o->how, bytes));
}

static void worker_end(struct worker *w)
{
	pack_compressor_end(&w->compressor);
	free(w->tokens);
	free(w->scratch);
	free(w->ends);
}

static bool pack_piece(const struct parallel *p, struct fault *fault)
{
	struct out *o = p->context;
	struct worker *w = &o->worker[p->thread];
	uint32_t width = o->how->token_bytes;
	uint64_t token = o->range.begin + p->i * o->piece_tokens, frames = 0, at;
	uint64_t n =
		o->range.end - token < o->piece_tokens ? o->range.end - token : o->piece_tokens;
	uint64_t most = width == 2 ? UINT16_MAX : w->ends ? INT32_MAX : UINT32_MAX;
	size_t bytes = n * width;
	int64_t documents = 0;

	if (!w->tokens && !worker_begin(w, o))
		return fault_memory(fault);
	if (o->how->row_tokens)
		pack_fit_read(&o->fit, token, n, w->tokens);
	else if (!pack_in_read(o->in, token, n, w->tokens, width, most, w->scratch, fault))
		return false;
	if (w->ends) {
		documents = pack_in_documents(o->in, token, n, w->tokens, width, w->ends, fault);
		if (documents < 0)
			return false;
	}
	if (w->compressor.zstd &&
		!pack_compress(&w->compressor, o->how, w->tokens, bytes, &bytes, &frames, fault))
		return fault_prefix(fault, "%s: ", o->part);
	uint64_t digest = ctl_digest_piece(w->tokens, n, width, p->i);

	if (!parallel_turn(p))
		return true;
	at = o->at;
	o->at += bytes;
	o->digest += digest;
	if (frames > 0 && !pack_frames_add(&o->frames, w->compressor.entries, frames, fault))
		return false;
	if (o->sequences.lengths &&
		!pack_sequences_add(&o->sequences, w->ends, documents, n, fault))
		return false;
	parallel_pass(p);
	if (!pack_write(o->fd, w->compressor.zstd ? w->compressor.packed : w->tokens, bytes, at))
		return pack_fail(fault, o->part, errno);
	/* Starts writing to the disk early, because fsync() waits for all of it at the end. */
	(void)sync_file_range(o->fd, (off_t)at, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
	if (!o->how->row_tokens) /* otherwise it was added when it was read */
		ctl_progress_add(o->how->progress, n * width);
	return true;
}

static bool write_pieces(struct out *o, struct fault *fault)
{
	unsigned threads = parallel_processors() + SPARE_THREADS;
	uint64_t each = o->piece_tokens * (o->how->token_bytes + sizeof(uint32_t));

	if (o->in->stores && threads < STORE_BYTES / each)
		threads = STORE_BYTES / each < CTL_GETS ? (unsigned)(STORE_BYTES / each) : CTL_GETS;
	bool fine = parallel_for(o->pieces, threads, pack_piece, o, fault) == o->pieces;

	for (unsigned i = 0; i < PARALLEL_THREADS; i++)
		worker_end(&o->worker[i]);
	return fine;
}

/* ---- reading back ---- */

/* Compares the file's contents with what was written. The fault does not name the file. */
static bool compare(const struct out *o, struct shard *shard, struct fault *fault)
{
	struct ctl_scan scan = {.shard = shard, .piece_tokens = o->piece_tokens, .digests = true};
	uint64_t tokens = o->range.end - o->range.begin;
	uint64_t documents = o->how->row_tokens		       ? o->fit.pieces
			     : o->how->format == PACK_MEGATRON ? o->sequences.sequences
							       : SHARD_UNKNOWN;

	if (!ctl_scan(&scan))
		return fault_memory(fault);
	if (scan.failures > 0) {
		*fault = scan.failed;
		return false;
	}
	if (shard->facts.tokens != tokens || scan.digest != o->digest)
		return fault_set(fault, FAULT_DATA, "",
			"%" PRIu64 " tokens with digest %016" PRIx64 " were written, but %" PRIu64
			" with %016" PRIx64 " are read",
			tokens, o->digest, shard->facts.tokens, scan.digest);
	if (shard->facts.documents != documents)
		return fault_set(fault, FAULT_DATA, "",
			"%" PRIu64 " documents were written, but %" PRIu64 " are read", documents,
			shard->facts.documents);
	return true;
}

static bool verify(const struct out *o, struct pack_result *result, struct fault *fault)
{
	bool megatron = o->how->format == PACK_MEGATRON;
	struct ctl_input input = {.format = shard_format(megatron ? "megatron" : "flat"),
		.hint = {.type = o->how->token_bytes == 2 ? SHARD_U16 : SHARD_U32,
			.has_type = true,
			.documents = o->how->row_tokens,
			.loss_mask = o->how->row_tokens,
			.frames = o->in->input.hint.frames}};
	int fd;
	struct shard *shard = ctl_input_open(&input, o->part, &fd, fault);
	bool fine = shard && compare(o, shard, fault);

	shard_close(shard);
	if (fd >= 0)
		close(fd);
	*result = (struct pack_result){.bytes = o->at,
		.documents = o->sequences.sequences + o->fit.rows.documents,
		.digest = o->digest,
		.padding = o->fit.padding,
		.cut = o->fit.rows.cut,
		.split = o->fit.split};
	return fine || fault_prefix(fault, "%s: reading it back failed: ", o->part);
}

/* ---- all of it ---- */

/* Opens the file, which no other process may be writing. */
static bool begin(struct out *o, struct fault *fault)
{
	o->fd = open(o->part, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	if (o->fd < 0)
		return pack_fail(fault, o->part, errno);
	if (flock(o->fd, LOCK_EX | LOCK_NB) != 0) {
		o->locked = errno == EWOULDBLOCK;
		return o->locked ? fault_set(fault, FAULT_ARGUMENT, "",
					   "%s: another tokctl pack is writing it", o->part)
				 : pack_fail(fault, o->part, errno);
	}
	return ftruncate(o->fd, 0) == 0 || pack_fail(fault, o->part, errno);
}

/* Numbers the pieces. With --fit they are of the rows, which are packed here. */
static bool prepare(struct out *o, struct fault *fault)
{
	uint64_t frame_tokens = o->how->frame_bytes / o->how->token_bytes;

	if (o->how->row_tokens) {
		if (!pack_fit_begin(&o->fit, o->in, o->how, o->range.begin, o->range.end, fault))
			return false;
		o->range = (struct pack_range){0, o->fit.rows.rows * o->fit.row_tokens};
	}
	uint64_t tokens = o->range.end - o->range.begin;

	o->piece_tokens = frame_tokens > CTL_DIGEST_TOKENS ? frame_tokens : CTL_DIGEST_TOKENS;
	o->pieces = tokens / o->piece_tokens + (tokens % o->piece_tokens > 0);
	return o->how->format != PACK_MEGATRON ||
	       pack_sequences_begin(&o->sequences, o->part, o->side, o->how->token_bytes, fault);
}

static bool finish(struct out *o, struct pack_result *result, struct fault *fault)
{
	if (o->how->format == PACK_ZSTD &&
		!pack_frames_write(&o->frames, o->fd, o->part, &o->at, fault))
		return false;
	if (o->how->format == PACK_MEGATRON && !pack_sequences_write(&o->sequences, o->side, fault))
		return false;
	if (o->how->row_tokens && !pack_fit_list(&o->fit, o->side, fault))
		return false;
	if (fsync(o->fd) != 0)
		return pack_fail(fault, o->part, errno);
	return verify(o, result, fault);
}

static void end(struct out *o)
{
	if (o->fd >= 0)
		close(o->fd);
	pack_sequences_end(&o->sequences);
	pack_fit_end(&o->fit);
	free(o->frames.table);
}

bool pack_out(struct pack_in *in, const struct pack_how *how, struct pack_range range,
	const char *part, struct pack_result *result, struct fault *fault)
{
	struct out o = {.in = in, .how = how, .range = range, .part = part, .fd = -1};

	pack_side_path(how, part, o.side);
	bool fine = begin(&o, fault) && prepare(&o, fault) && write_pieces(&o, fault) &&
		    finish(&o, result, fault);

	end(&o);
	if (!fine && !o.locked)
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

static bool move(const char *from, const char *to, struct fault *fault)
{
	if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
		return true;
	/* Not every file system has RENAME_NOREPLACE. */
	if (errno == EINVAL && access(to, F_OK) != 0 && rename(from, to) == 0)
		return true;
	return pack_fail(fault, to, errno == EINVAL ? EEXIST : errno);
}

/* Renames the side file first: a shard without one would be taken for a flat file. */
bool pack_out_publish(
	const struct pack_how *how, const char *part, const char *path, struct fault *fault)
{
	char from[PATH_MAX], to[PATH_MAX];

	if (pack_side_path(how, part, from) && pack_side_path(how, path, to) &&
		!move(from, to, fault))
		return false;
	return move(part, path, fault);
}
