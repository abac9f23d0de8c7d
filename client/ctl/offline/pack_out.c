/*
 * One file that comes out. Threads take pieces of tokens in order, read and compress them side by
 * side, and queue up only to learn where in the file theirs goes. What was written is then read
 * back by the same code that the daemon reads shards with, and its digest must be that of what was
 * read from the inputs.
 */
#include "client/ctl/offline/pack.h"

#include "client/ctl/offline/scan.h"

#define XXH_INLINE_ALL
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

enum {
	SPARE_THREADS = 2, /* while some wait for their turn, others work */
	ENTRY_BYTES = 12,  /* of the seek table */
	FOOTER_BYTES = 9,
	IDX_HEADER_BYTES = 34,
	SEQUENCE_MOST = INT32_MAX,
	COPY_ITEMS = 4096,
};

struct out {
	struct pack_in *in;
	const struct pack_how *how;
	uint64_t begin, end, piece_tokens, pieces;
	const char *part;
	int fd;
	bool others; /* another process has it */

	pthread_mutex_t lock; /* over all below */
	pthread_cond_t turns;
	uint64_t next, turn; /* the piece to be taken, to be placed */
	uint64_t at;	     /* bytes placed */
	uint64_t digest;
	uint64_t faulty; /* the first piece that failed, or UINT64_MAX */
	char *why;

	/* zstd: the seek table, as it will lie */
	uint8_t *table;
	uint64_t frames, table_room;

	/* Megatron: the lengths of sequences, i32 each */
	FILE *lengths;
	uint64_t sequences, open_tokens; /* of the sequence that has not ended yet */
};

/* What one thread works in. */
struct worker {
	struct out *o;
	void *tokens, *scratch;
	uint8_t *packed; /* zstd */
	size_t packed_room;
	uint8_t *entries;
	ZSTD_CCtx *zstd;
	uint32_t *ends; /* Megatron */
};

static bool fail(struct out *o, const char *path, int error)
{
	const char *help =
		error == ENOSPC ? "; make room and say the same again: it goes on after the last "
				  "whole file"
				: "";

	return bytes_why(o->why, PACK_WHY, "%s: %s%s", path, strerror(error), help);
}

static bool write_at(int fd, const void *from, size_t n, uint64_t at, int *error)
{
	const char *byte = from;

	while (n > 0) {
		ssize_t put = pwrite(fd, byte, n, (off_t)at);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0) {
			*error = put < 0 ? errno : ENOSPC;
			return false;
		}
		byte += put;
		at += (uint64_t)put;
		n -= (size_t)put;
	}
	return true;
}

static void put32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> 8 * i);
}

static void put64(uint8_t *p, uint64_t v)
{
	put32(p, (uint32_t)v);
	put32(p + 4, (uint32_t)(v >> 32));
}

/* The file that is beside @part with .idx in place of .bin. */
static void idx_path(const char *part, char *path, size_t path_bytes)
{
	if (!bytes_beside(part, ".bin", ".idx", path, path_bytes))
		assert(!"a Megatron file that does not end in .bin");
}

/* ---- frames ---- */

/* Compresses @n tokens as frames one after another; their entries follow each other, too. */
static bool compress_piece(struct worker *w, uint64_t n, size_t *bytes, uint64_t *frames, char *why)
{
	const struct pack_how *how = w->o->how;
	const char *from = w->tokens;
	uint64_t left = n * how->token_bytes;

	*bytes = 0;
	*frames = 0;
	while (left > 0) {
		size_t some = left < how->frame_bytes ? left : how->frame_bytes;
		size_t got = ZSTD_compress2(
			w->zstd, w->packed + *bytes, w->packed_room - *bytes, from, some);
		uint8_t *entry = w->entries + *frames * ENTRY_BYTES;

		if (ZSTD_isError(got))
			return bytes_why(
				why, PACK_WHY, "%s: zstd: %s", w->o->part, ZSTD_getErrorName(got));
		put32(entry, (uint32_t)got);
		put32(entry + 4, (uint32_t)some);
		put32(entry + 8, (uint32_t)XXH64(from, some, 0));
		*bytes += got;
		++*frames;
		from += some;
		left -= some;
	}
	return true;
}

static bool keep_entries(struct out *o, const uint8_t *entries, uint64_t frames)
{
	if (o->frames + frames > o->table_room) {
		uint64_t room = 2 * o->table_room + frames + 1024;
		uint8_t *table = realloc(o->table, room * ENTRY_BYTES);

		if (!table)
			return fail(o, o->part, ENOMEM);
		o->table = table;
		o->table_room = room;
	}
	memcpy(o->table + o->frames * ENTRY_BYTES, entries, frames * ENTRY_BYTES);
	o->frames += frames;
	return true;
}

/* The skippable frame at the end that says where all others are. */
static bool write_table(struct out *o)
{
	uint8_t head[8], foot[FOOTER_BYTES];
	uint64_t bytes = o->frames * ENTRY_BYTES;
	int error;

	if (bytes + FOOTER_BYTES > UINT32_MAX || o->frames > 0x8000000)
		return bytes_why(o->why, PACK_WHY,
			"%s: %" PRIu64
			" frames; a seek table holds 134217728: take a larger --frame, or "
			"more --shards",
			o->part, o->frames);
	put32(head, 0x184d2a5e);
	put32(head + 4, (uint32_t)(bytes + FOOTER_BYTES));
	put32(foot, (uint32_t)o->frames);
	foot[4] = 0x80; /* there are checksums */
	put32(foot + 5, 0x8f92eab1);
	if (!write_at(o->fd, head, sizeof(head), o->at, &error) ||
		!write_at(o->fd, o->table, bytes, o->at + sizeof(head), &error) ||
		!write_at(o->fd, foot, sizeof(foot), o->at + sizeof(head) + bytes, &error))
		return fail(o, o->part, error);
	o->at += sizeof(head) + bytes + sizeof(foot);
	return true;
}

/* ---- sequences ---- */

static bool keep_sequence(struct out *o, uint64_t tokens)
{
	uint8_t length[4];

	if (tokens > SEQUENCE_MOST)
		return bytes_why(o->why, PACK_WHY,
			"%s: a document of %" PRIu64
			" tokens; a Megatron file's have at most %d: give "
			"--eos, or more --shards",
			o->part, tokens, SEQUENCE_MOST);
	put32(length, (uint32_t)tokens);
	o->sequences++;
	return fwrite(length, sizeof(length), 1, o->lengths) == 1 || fail(o, o->part, errno);
}

/* Documents of a piece of @n tokens end at @ends. */
static bool keep_sequences(struct out *o, const uint32_t *ends, int64_t count, uint64_t n)
{
	uint64_t at = 0;

	for (int64_t i = 0; i < count; i++) {
		if (!keep_sequence(o, o->open_tokens + ends[i] - at))
			return false;
		o->open_tokens = 0;
		at = ends[i];
	}
	o->open_tokens += n - at;
	return true;
}

static void idx_header(const struct out *o, uint8_t *header)
{
	static const uint8_t magic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};

	memcpy(header, magic, sizeof(magic));
	put64(header + 9, 1);
	header[17] = o->how->token_bytes == 2 ? 8 : 4; /* u16, i32 */
	put64(header + 18, o->sequences);
	put64(header + 26, o->sequences + 1);
}

/* The lengths once more from the start, as they are or summed up to pointers. */
static bool copy_lengths(struct out *o, FILE *idx, bool pointers)
{
	uint64_t at = 0;
	uint8_t length[4], pointer[8];

	rewind(o->lengths);
	for (uint64_t i = 0; i < o->sequences; i++) {
		if (fread(length, sizeof(length), 1, o->lengths) != 1)
			return false;
		put64(pointer, at);
		if (pointers ? fwrite(pointer, 8, 1, idx) != 1 : fwrite(length, 4, 1, idx) != 1)
			return false;
		at += (uint64_t)bytes_u32(length) * o->how->token_bytes;
	}
	return true;
}

/* Every sequence is a document. */
static bool put_documents(const struct out *o, FILE *idx)
{
	uint8_t document[8];

	for (uint64_t i = 0; i <= o->sequences; i++) {
		put64(document, i);
		if (fwrite(document, sizeof(document), 1, idx) != 1)
			return false;
	}
	return true;
}

static bool write_idx(struct out *o)
{
	char path[PATH_MAX];
	uint8_t header[IDX_HEADER_BYTES];

	if (o->open_tokens > 0 && !keep_sequence(o, o->open_tokens))
		return false;
	idx_path(o->part, path, sizeof(path));
	if (fflush(o->lengths) != 0)
		return fail(o, path, errno);
	FILE *idx = fopen(path, "we");

	if (!idx)
		return fail(o, path, errno);
	idx_header(o, header);
	bool fine = fwrite(header, sizeof(header), 1, idx) == 1 && copy_lengths(o, idx, false) &&
		    copy_lengths(o, idx, true) && put_documents(o, idx) && fflush(idx) == 0 &&
		    fsync(fileno(idx)) == 0;
	int error = errno;

	fclose(idx);
	return fine || fail(o, path, error);
}

/* ---- pieces ---- */

/* The first fault in the order of pieces is the one that is told. */
static void note_fault(struct out *o, uint64_t piece, const char *why)
{
	pthread_mutex_lock(&o->lock);
	if (piece < o->faulty) {
		o->faulty = piece;
		memcpy(o->why, why, strlen(why) + 1);
	}
	pthread_cond_broadcast(&o->turns);
	pthread_mutex_unlock(&o->lock);
}

static bool take_piece(struct out *o, uint64_t *piece)
{
	pthread_mutex_lock(&o->lock);
	bool more = o->next < o->pieces && o->faulty == UINT64_MAX;

	*piece = more ? o->next++ : 0;
	pthread_mutex_unlock(&o->lock);
	return more;
}

/* Waits until all pieces before it have their places. False: one of them failed. */
static bool await_turn(struct out *o, uint64_t piece)
{
	while (o->turn < piece && o->faulty > piece)
		pthread_cond_wait(&o->turns, &o->lock);
	return o->faulty > piece;
}

/* A place in the file for what piece @piece has come to. False: there is a fault, told or not to be
 * told. */
static bool place_piece(struct worker *w, uint64_t piece, size_t bytes, uint64_t frames,
	int64_t documents, uint64_t n, uint64_t digest, uint64_t *at)
{
	struct out *o = w->o;

	pthread_mutex_lock(&o->lock);
	bool fine = await_turn(o, piece);

	if (fine) {
		*at = o->at;
		o->at += bytes;
		o->digest += digest;
		if ((frames > 0 && !keep_entries(o, w->entries, frames)) ||
			(o->lengths && !keep_sequences(o, w->ends, documents, n))) {
			o->faulty = piece;
			fine = false;
		}
		o->turn++;
	}
	pthread_cond_broadcast(&o->turns);
	pthread_mutex_unlock(&o->lock);
	return fine;
}

static bool pack_piece(struct worker *w, uint64_t piece, char *why)
{
	struct out *o = w->o;
	uint32_t width = o->how->token_bytes;
	uint64_t token = o->begin + piece * o->piece_tokens, frames = 0, at;
	uint64_t n = o->end - token < o->piece_tokens ? o->end - token : o->piece_tokens;
	uint64_t most = width == 2 ? UINT16_MAX : w->ends ? INT32_MAX : UINT32_MAX;
	size_t bytes = n * width;
	int64_t documents = 0;
	int error;

	if (!pack_in_read(o->in, token, n, w->tokens, width, most, w->scratch, why))
		return false;
	if (w->ends) {
		documents = pack_in_documents(o->in, token, n, w->tokens, width, w->ends, why);
		if (documents < 0)
			return false;
	}
	if (w->zstd && !compress_piece(w, n, &bytes, &frames, why))
		return false;
	uint64_t digest = ctl_digest_piece(w->tokens, n, width, piece);

	if (!place_piece(w, piece, bytes, frames, documents, n, digest, &at))
		return true; /* it is told by whom it befell */
	if (!write_at(o->fd, w->zstd ? w->packed : w->tokens, bytes, at, &error))
		return bytes_why(why, PACK_WHY, "%s: %s%s", o->part, strerror(error),
			error == ENOSPC
				? "; make room and say the same again: it goes on after the last "
				  "whole file"
				: "");
	/* The disk may begin with it: there is a wait for all of it at the end. */
	(void)sync_file_range(o->fd, (off_t)at, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
	ctl_progress_add(o->how->progress, n * width);
	return true;
}

/*
 * zstd's parameters of the level for large files: those for such small ones as a frame cost more
 * time than they save space.
 */
static bool set_up(ZSTD_CCtx *zstd, const struct pack_how *how)
{
	ZSTD_compressionParameters c = ZSTD_getCParams(how->level, 0, 0);
	const struct {
		ZSTD_cParameter name;
		int value;
	} set[] = {
		{ZSTD_c_compressionLevel, how->level},
		{ZSTD_c_checksumFlag, 1},
		{ZSTD_c_hashLog, (int)c.hashLog},
		{ZSTD_c_chainLog, (int)c.chainLog},
		{ZSTD_c_searchLog, (int)c.searchLog},
		{ZSTD_c_minMatch, (int)c.minMatch},
		{ZSTD_c_targetLength, (int)c.targetLength},
		{ZSTD_c_strategy, (int)c.strategy},
	};

	for (size_t i = 0; i < sizeof(set) / sizeof(set[0]); i++)
		if (ZSTD_isError(ZSTD_CCtx_setParameter(zstd, set[i].name, set[i].value)))
			return false;
	return true;
}

static bool worker_begin(struct worker *w, struct out *o)
{
	uint64_t n = o->piece_tokens, bytes = n * o->how->token_bytes;
	uint64_t frames = bytes / o->how->frame_bytes + 1;

	*w = (struct worker){.o = o};
	w->tokens = malloc(bytes);
	w->scratch = malloc(4 * n);
	if (o->how->format == PACK_MEGATRON)
		w->ends = malloc(4 * n);
	if (o->how->format != PACK_ZSTD)
		return w->tokens && w->scratch && (w->ends || o->how->format == PACK_FLAT);
	w->packed_room = frames * ZSTD_compressBound(o->how->frame_bytes);
	w->packed = malloc(w->packed_room);
	w->entries = malloc(frames * ENTRY_BYTES);
	w->zstd = ZSTD_createCCtx();
	return w->tokens && w->scratch && w->packed && w->entries && w->zstd &&
	       set_up(w->zstd, o->how);
}

static void worker_end(struct worker *w)
{
	ZSTD_freeCCtx(w->zstd);
	free(w->tokens);
	free(w->scratch);
	free(w->packed);
	free(w->entries);
	free(w->ends);
}

static void *work(void *context)
{
	struct out *o = context;
	char why[PACK_WHY] = "out of memory";
	struct worker w;
	uint64_t piece;

	if (!worker_begin(&w, o))
		note_fault(o, 0, why);
	else
		while (take_piece(o, &piece))
			if (!pack_piece(&w, piece, why))
				note_fault(o, piece, why);
	worker_end(&w);
	return NULL;
}

static bool write_pieces(struct out *o)
{
	unsigned threads = ctl_processors() + SPARE_THREADS;

	ctl_threads(o->pieces < threads ? (unsigned)o->pieces : threads, work, o);
	return o->faulty == UINT64_MAX;
}

/* ---- reading back ---- */

static bool verify(struct out *o, struct pack_result *result)
{
	bool megatron = o->how->format == PACK_MEGATRON;
	struct ctl_input input = {.format = shard_format(megatron ? "megatron" : "flat"),
		.hint = {.type = o->how->token_bytes == 2 ? SHARD_U16 : SHARD_U32,
			.has_type = true,
			.frames = o->in->input.hint.frames}};
	char text[PATH_MAX + 256];
	int fd;
	struct shard *shard = ctl_input_open(&input, o->part, &fd, text, sizeof(text));
	struct ctl_scan scan = {.shard = shard, .piece_tokens = o->piece_tokens, .digests = true};
	bool fine = shard != NULL;

	if (fine && !ctl_scan(&scan))
		fine = bytes_why(text, sizeof(text), "%s", strerror(ENOMEM));
	else if (fine && scan.faults > 0)
		fine = bytes_why(text, sizeof(text), "%s", scan.why);
	else if (fine && (shard->facts.tokens != o->end - o->begin || scan.digest != o->digest))
		fine = bytes_why(text, sizeof(text),
			"%" PRIu64 " tokens of digest %016" PRIx64 " were written; %" PRIu64
			" of %016" PRIx64 " are read",
			o->end - o->begin, o->digest, shard->facts.tokens, scan.digest);
	else if (fine && megatron && shard->facts.documents != o->sequences)
		fine = bytes_why(text, sizeof(text),
			"%" PRIu64 " documents were written; %" PRIu64 " are read", o->sequences,
			shard->facts.documents);
	shard_close(shard);
	if (fd >= 0)
		close(fd);
	*result = (struct pack_result){
		.bytes = o->at, .documents = o->sequences, .digest = o->digest};
	return fine || bytes_why(o->why, PACK_WHY, "%s: does not read back: %s", o->part, text);
}

/* ---- all of it ---- */

static bool begin(struct out *o)
{
	uint64_t frame_tokens = o->how->frame_bytes / o->how->token_bytes;

	o->piece_tokens = frame_tokens > CTL_DIGEST_TOKENS ? frame_tokens : CTL_DIGEST_TOKENS;
	o->pieces =
		(o->end - o->begin) / o->piece_tokens + ((o->end - o->begin) % o->piece_tokens > 0);
	o->faulty = UINT64_MAX;
	pthread_mutex_init(&o->lock, NULL);
	pthread_cond_init(&o->turns, NULL);
	o->fd = open(o->part, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	if (o->fd < 0)
		return fail(o, o->part, errno);
	if (flock(o->fd, LOCK_EX | LOCK_NB) != 0) {
		o->others = errno == EWOULDBLOCK;
		return o->others ? bytes_why(o->why, PACK_WHY,
					   "%s: another tokctl pack is writing it", o->part)
				 : fail(o, o->part, errno);
	}
	if (ftruncate(o->fd, 0) != 0)
		return fail(o, o->part, errno);
	if (o->how->format == PACK_MEGATRON) {
		char path[PATH_MAX];

		/* Without a name, it is gone with the process. */
		idx_path(o->part, path, sizeof(path));
		o->lengths = fopen(path, "w+e");
		if (!o->lengths)
			return fail(o, path, errno);
		unlink(path);
	}
	return true;
}

static bool finish(struct out *o, struct pack_result *result)
{
	if (o->how->format == PACK_ZSTD && !write_table(o))
		return false;
	if (o->how->format == PACK_MEGATRON && !write_idx(o))
		return false;
	if (fsync(o->fd) != 0)
		return fail(o, o->part, errno);
	return verify(o, result);
}

static void end(struct out *o)
{
	if (o->fd >= 0)
		close(o->fd);
	if (o->lengths)
		fclose(o->lengths);
	free(o->table);
	pthread_cond_destroy(&o->turns);
	pthread_mutex_destroy(&o->lock);
}

bool pack_out(struct pack_in *in, const struct pack_how *how, uint64_t first, uint64_t last,
	const char *part, struct pack_result *result, char *why)
{
	struct out o = {.in = in,
		.how = how,
		.begin = first,
		.end = last,
		.part = part,
		.fd = -1,
		.why = why};
	bool fine = begin(&o) && write_pieces(&o) && finish(&o, result);

	end(&o);
	if (!fine && !o.others)
		pack_out_remove(part);
	return fine;
}

void pack_out_remove(const char *part)
{
	char idx[PATH_MAX];

	unlink(part);
	if (bytes_beside(part, ".bin", ".idx", idx, sizeof(idx)))
		unlink(idx);
}

static bool move(const char *from, const char *to, char *why)
{
	if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
		return true;
	/* Not every file system can do that at one stroke. */
	if (errno == EINVAL && access(to, F_OK) != 0 && rename(from, to) == 0)
		return true;
	return bytes_why(why, PACK_WHY, "%s: %s", to, strerror(errno == EINVAL ? EEXIST : errno));
}

/* The .idx first: a .bin alone would be taken for a flat file. */
bool pack_out_publish(const struct pack_how *how, const char *part, const char *path, char *why)
{
	char from[PATH_MAX], to[PATH_MAX];

	if (how->format == PACK_MEGATRON) {
		idx_path(part, from, sizeof(from));
		idx_path(path, to, sizeof(to));
		if (!move(from, to, why))
			return false;
	}
	return move(part, path, why);
}
