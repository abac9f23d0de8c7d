/*
 * tokctl pack: shards of any readable format become shards of one, cut as the user likes.
 *
 * Into a directory, an interrupted run is taken up again: DIR/.pack says in its first line what is
 * being made of what, and below that which files are finished; each is written as a dot file and
 * renamed when it has been read back. The line comes before the rename, so a file without a line is
 * nobody's of ours.
 */
#include "client/ctl/offline/pack.h"
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/out.h"
#include "client/ctl/offline/commands.h"
#include "client/ctl/offline/scan.h"
#include "daemon/shard/frames.h"

#define XXH_INLINE_ALL
#include <dirent.h>
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

enum {
	LEVEL = 3,
	LEVEL_MOST = 19,
	FRAME_BYTES = 256 << 10,
	FRAME_LEAST = 1 << 10,
	FRAME_MOST = 64 << 20, /* each thread holds some, and so does each reader */
	FRAMES_BYTES = 64 << 20,
	SHARDS_MOST = 1000 * 1000,
};

struct pack {
	struct ctl_out out;
	const char *command;
	bool json;
	struct pack_in in;
	struct pack_how how;
	const char *to;
	bool single;	       /* @to is a file */
	uint64_t shards, *cut; /* shard i is [cut[i], cut[i + 1]) of the row */
	struct ctl_progress progress;
	int state; /* DIR/.pack, locked; -1 */
	char why[PACK_WHY];
};

static const struct {
	const char *name, *endings[3], *ending;
} formats[] = {
	[PACK_FLAT] = {"flat", {".bin"}, ".bin"},
	[PACK_ZSTD] = {"zstd", {".zst", ".zstd"}, ".bin.zst"},
	[PACK_MEGATRON] = {"megatron", {".bin"}, ".bin"},
};

static bool fail(struct pack *p, const char *path, int error)
{
	return bytes_why(p->why, PACK_WHY, "%s: %s", path, strerror(error));
}

static bool ends(const char *text, const char *ending)
{
	size_t n = strlen(text), m = strlen(ending);

	return n > m && strcmp(text + n - m, ending) == 0;
}

/* ---- what is asked for ---- */

static int bad_number(
	const struct pack *p, const char *name, const char *text, uint64_t least, uint64_t most)
{
	return ctl_usage(
		p->command, "--%s %s: must be %" PRIu64 " to %" PRIu64, name, text, least, most);
}

/* CTL_OK, or a usage error. */
static int take_number(const struct pack *p, const char *name, const char *text, uint64_t least,
	uint64_t most, uint64_t *value)
{
	if (!text || (ctl_number(text, value) && *value >= least && *value <= most))
		return CTL_OK;
	return bad_number(p, name, text, least, most);
}

static int take_format(struct pack *p, const char *name)
{
	if (!name)
		return ctl_usage(p->command, "needs --format flat|zstd|megatron");
	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
		if (strcmp(formats[i].name, name) == 0) {
			p->how.format = (enum pack_format)i;
			return CTL_OK;
		}
	return ctl_usage(
		p->command, "--format %s is unknown; must be flat, zstd or megatron", name);
}

/* A name that looks like another format's file is a slip, no directory. */
static int take_target(struct pack *p, const char *to)
{
	static const char *const files[] = {
		".bin", ".zst", ".zstd", ".npy", ".ds", ".idx", ".mds", ".arrow"};
	struct stat st;
	bool directory = stat(to, &st) == 0 && S_ISDIR(st.st_mode);

	p->to = to;
	for (int i = 0; !directory && i < 3 && formats[p->how.format].endings[i]; i++)
		p->single |= ends(to, formats[p->how.format].endings[i]);
	for (size_t i = 0; !directory && !p->single && i < sizeof(files) / sizeof(files[0]); i++)
		if (ends(to, files[i]))
			return ctl_usage(p->command,
				"OUT %s: a file of --format %s ends in %s; or name a directory", to,
				formats[p->how.format].name, formats[p->how.format].endings[0]);
	if (p->single && p->shards > 1)
		return ctl_usage(p->command, "OUT %s is one file; --shards needs a directory", to);
	return CTL_OK;
}

struct words {
	const char *format, *dtype, *shards, *level, *frame, *eos;
	const char *input_format, *input_dtype, *input_column;
};

static int take(struct pack *p, const struct words *w, const char *to)
{
	uint64_t level = LEVEL, frame = FRAME_BYTES;
	int status = take_format(p, w->format);

	if (status == CTL_OK && w->dtype && strcmp(w->dtype, "u16") != 0 &&
		strcmp(w->dtype, "u32") != 0)
		status = ctl_usage(
			p->command, "--dtype %s is unknown; must be u16 or u32", w->dtype);
	if (w->dtype)
		p->how.token_bytes = strcmp(w->dtype, "u16") == 0 ? 2 : 4;
	if (status == CTL_OK && (w->level || w->frame) && p->how.format != PACK_ZSTD)
		status = ctl_usage(p->command, "--level and --frame are for --format zstd");
	if (status == CTL_OK)
		status = take_number(p, "shards", w->shards, 1, SHARDS_MOST, &p->shards);
	if (status == CTL_OK)
		status = take_number(p, "level", w->level, 1, LEVEL_MOST, &level);
	if (status == CTL_OK)
		status = take_number(p, "frame", w->frame, FRAME_LEAST, FRAME_MOST, &frame);
	if (status == CTL_OK)
		status = take_number(p, "eos", w->eos, 0, UINT32_MAX, &p->in.eos);
	if (status == CTL_OK && frame % 4 != 0)
		status = ctl_usage(
			p->command, "--frame %" PRIu64 ": must be a multiple of 4", frame);
	p->in.has_eos = w->eos;
	p->how.level = (int)level;
	p->how.frame_bytes = (uint32_t)frame;
	if (status == CTL_OK)
		status = take_target(p, to);
	if (status == CTL_OK && !ctl_input_options(&p->in.input, p->command, w->input_format,
					w->input_dtype, w->input_column))
		status = CTL_USAGE;
	return status;
}

/* ---- the plan ---- */

/* One shard for each source. */
static bool cut_as_they_are(struct pack *p)
{
	for (uint64_t i = 0; i < p->in.sources; i++) {
		if (p->in.source[i].tokens == 0)
			return bytes_why(p->why, PACK_WHY,
				"%s: has no tokens; leave it out, or give --shards",
				p->in.source[i].path);
		p->cut[i + 1] = p->cut[i] + p->in.source[i].tokens;
	}
	return true;
}

/* Shards of about one size: exactly, or where the documents of a Megatron file end. */
static bool cut_evenly(struct pack *p)
{
	for (uint64_t i = 1; i <= p->shards; i++) {
		uint64_t at = (uint64_t)((unsigned __int128)p->in.tokens * i / p->shards);

		if (p->how.format == PACK_MEGATRON && !pack_in_boundary(&p->in, at, &at, p->why))
			return false;
		if (at == p->cut[i - 1])
			return bytes_why(p->why, PACK_WHY,
				"--shards %" PRIu64 ": shard %" PRIu64
				" would be empty; there are too few %s (%" PRIu64 " tokens in all)",
				p->shards, i - 1,
				p->how.format == PACK_MEGATRON ? "documents" : "tokens",
				p->in.tokens);
		p->cut[i] = at;
	}
	return true;
}

static bool plan(struct pack *p)
{
	bool as_they_are = p->shards == 0 && !p->single;

	if (p->in.tokens == 0)
		return bytes_why(p->why, PACK_WHY, "there are no tokens to pack");
	if (p->how.token_bytes == 0)
		p->how.token_bytes = p->in.token_bytes;
	if (as_they_are)
		p->shards = p->in.sources;
	else if (p->shards == 0)
		p->shards = 1;
	p->cut = calloc(p->shards + 1, sizeof(*p->cut));
	if (!p->cut)
		return bytes_why(p->why, PACK_WHY, "%s", strerror(ENOMEM));
	return as_they_are ? cut_as_they_are(p) : cut_evenly(p);
}

/* What is to be made, of what: runs that differ in it do not go on from each other. */
static uint64_t plan_digest(const struct pack *p)
{
	const uint64_t facts[] = {p->how.format, p->how.token_bytes, (uint64_t)p->how.level,
		p->how.frame_bytes, p->in.has_eos, p->in.eos, p->shards};

	return XXH64(p->cut, (p->shards + 1) * sizeof(*p->cut),
		XXH64(facts, sizeof(facts), p->in.digest));
}

/* ---- names ---- */

static bool join(struct pack *p, char *path, const char *name)
{
	int n = snprintf(path, PATH_MAX, "%s%s%s", p->to, ends(p->to, "/") ? "" : "/", name);

	return (n >= 0 && n < PATH_MAX) || fail(p, p->to, ENAMETOOLONG);
}

/* Where shard @i goes, and where it is until it is whole. */
static bool name_shard(struct pack *p, uint64_t i, char *path, char *part)
{
	const char *ending = formats[p->how.format].ending, *slash = strrchr(p->to, '/');
	char name[64];

	if (p->single) {
		int before = slash ? (int)(slash + 1 - p->to) : 0;
		int n = snprintf(part, PATH_MAX, "%.*s.part-%s", before, p->to, p->to + before);

		snprintf(path, PATH_MAX, "%s", p->to);
		return (n >= 0 && n < PATH_MAX) || fail(p, p->to, ENAMETOOLONG);
	}
	snprintf(name, sizeof(name), ".part-shard-%05" PRIu64 "%s", i, ending);
	return join(p, part, name) && join(p, path, name + sizeof(".part-") - 1);
}

static bool size_of(const char *path, uint64_t *bytes)
{
	struct stat st;

	if (lstat(path, &st) != 0)
		return false;
	*bytes = (uint64_t)st.st_size;
	return true;
}

static bool sync_directory(struct pack *p, const char *path)
{
	char directory[PATH_MAX];
	const char *slash = strrchr(path, '/');

	snprintf(directory, sizeof(directory), "%.*s", slash ? (int)(slash + 1 - path) : 1,
		slash ? path : ".");
	int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool fine = fd >= 0 && fsync(fd) == 0;

	if (fd >= 0)
		close(fd);
	return fine || fail(p, directory, errno);
}

/* ---- what is already there ---- */

struct done {
	bool is;
	struct pack_result result;
};

static bool is_empty(const char *path)
{
	DIR *dir = opendir(path);
	bool empty = dir;

	for (struct dirent *e; dir && empty && (e = readdir(dir));)
		empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
	if (dir)
		closedir(dir);
	return empty;
}

/* Reads which shards are finished. */
static bool read_done(struct pack *p, FILE *state, struct done *done, const char *path)
{
	char line[256];

	while (fgets(line, sizeof(line), state)) {
		struct pack_result r;
		uint64_t i;

		if (sscanf(line, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNx64, &i, &r.bytes,
			    &r.documents, &r.digest) != 4 ||
			i >= p->shards)
			return bytes_why(p->why, PACK_WHY,
				"%s: is damaged; remove %s and begin anew", path, p->to);
		done[i] = (struct done){true, r};
	}
	return true;
}

/* Is the finished shard where it was put? If it never got there it is made again. */
static bool check_done(struct pack *p, struct done *done)
{
	char path[PATH_MAX], part[PATH_MAX];
	uint64_t bytes;

	for (uint64_t i = 0; i < p->shards; i++) {
		if (!name_shard(p, i, path, part))
			return false;
		if (!done[i].is) {
			if (size_of(path, &bytes))
				return bytes_why(p->why, PACK_WHY,
					"%s: is there already, and not by this run", path);
			continue;
		}
		if (!size_of(path, &bytes)) {
			done[i].is = false;
			pack_out_remove(path); /* an .idx that got there without its .bin */
		} else if (bytes != done[i].result.bytes) {
			return bytes_why(p->why, PACK_WHY,
				"%s: is %" PRIu64 " bytes long; %" PRIu64
				" were written before the interruption: remove %s and begin anew",
				path, bytes, done[i].result.bytes, p->to);
		}
	}
	return true;
}

static bool begin_state(struct pack *p, const char *path, bool fresh, struct done *done)
{
	char line[64], first[64];
	struct stat st;

	snprintf(line, sizeof(line), "tokctl pack 1 %016" PRIx64 "\n", plan_digest(p));
	if (fstat(p->state, &st) != 0)
		return fail(p, path, errno);
	if (fresh ||
		(size_t)st.st_size < strlen(line)) /* nothing was made before that line was whole */
		return (ftruncate(p->state, 0) == 0 && dprintf(p->state, "%s", line) > 0 &&
			       fsync(p->state) == 0) ||
		       fail(p, path, errno);
	FILE *state = fopen(path, "re");

	if (!state)
		return fail(p, path, errno);
	bool same = fgets(first, sizeof(first), state) && strcmp(first, line) == 0;
	bool fine = same ? read_done(p, state, done, path)
			 : bytes_why(p->why, PACK_WHY,
				   "%s: holds an interrupted pack of other inputs or with other "
				   "options; "
				   "finish that, or remove the directory",
				   p->to);

	fclose(state);
	return fine;
}

/* Cuts off a last line that has no end: it was being written, and what it tells of was not renamed
 * yet. */
static bool trim_state(struct pack *p, const char *path)
{
	struct stat st;
	char c;

	if (fstat(p->state, &st) != 0)
		return fail(p, path, errno);
	off_t n = st.st_size;

	while (n > 0 && pread(p->state, &c, 1, n - 1) == 1 && c != '\n')
		n--;
	return ftruncate(p->state, n) == 0 || fail(p, path, errno);
}

static bool open_directory(struct pack *p, struct done *done)
{
	char path[PATH_MAX];
	bool fresh = mkdir(p->to, 0777) == 0;

	if (!fresh && errno != EEXIST)
		return fail(p, p->to, errno);
	if (!join(p, path, ".pack"))
		return false;
	fresh |= is_empty(p->to);
	p->state = open(path, O_RDWR | O_APPEND | O_CLOEXEC | (fresh ? O_CREAT : 0), 0666);
	if (p->state < 0 && errno == ENOENT)
		return bytes_why(p->why, PACK_WHY,
			"%s: is not empty; nothing is overwritten: name a new directory", p->to);
	if (p->state < 0)
		return fail(p, path, errno);
	if (flock(p->state, LOCK_EX | LOCK_NB) != 0)
		return errno == EWOULDBLOCK
			       ? bytes_why(p->why, PACK_WHY,
					 "%s: another tokctl pack is at work there", p->to)
			       : fail(p, path, errno);
	return trim_state(p, path) && begin_state(p, path, fresh, done) && check_done(p, done);
}

static bool open_target(struct pack *p, struct done *done)
{
	char idx[PATH_MAX];
	uint64_t bytes;

	if (!p->single)
		return open_directory(p, done);
	if (size_of(p->to, &bytes))
		return bytes_why(
			p->why, PACK_WHY, "%s: is there already; nothing is overwritten", p->to);
	if (p->how.format == PACK_MEGATRON &&
		bytes_beside(p->to, ".bin", ".idx", idx, sizeof(idx)) && size_of(idx, &bytes))
		return bytes_why(
			p->why, PACK_WHY, "%s: is there already; nothing is overwritten", idx);
	return true;
}

/* Once more from the same place, packing would take in what it has put out. */
static bool apart(struct pack *p, char *const *path, int n)
{
	char text[PATH_MAX];

	snprintf(text, sizeof(text), "%s", p->to);
	for (size_t m = strlen(text); m > 1 && text[m - 1] == '/'; m--)
		text[m - 1] = 0;
	char *slash = strrchr(text, '/');

	if (slash)
		slash[slash == text] = 0;
	char *parent = realpath(slash ? text : ".", NULL);
	bool fine = parent || fail(p, p->to, errno);

	for (int i = 0; fine && i < n; i++) {
		char *in = ctl_input_real(path[i]);
		size_t m = in ? strlen(in) : 0;

		if (in && strncmp(in, parent, m) == 0 && (parent[m] == '/' || parent[m] == 0))
			fine = bytes_why(p->why, PACK_WHY,
				"%s: lies in %s; name a place outside it", p->to, path[i]);
		free(in);
	}
	free(parent);
	return fine;
}

/* ---- one after another ---- */

static void print(struct pack *p, const char *path, uint64_t tokens, const struct pack_result *r)
{
	struct ctl_out *out = &p->out;
	const char *dtype = p->how.token_bytes == 2 ? "u16" : "u32";
	char digest[24];

	snprintf(digest, sizeof(digest), "%016" PRIx64, r->digest);
	if (!p->json) {
		ctl_put_left(out, formats[p->how.format].name, 10);
		ctl_put_left(out, dtype, 4);
		ctl_put_right(out, tokens, 16);
		ctl_put(out, " tokens ");
		ctl_put_right(out, r->bytes, 16);
		ctl_put(out, " bytes  ");
		ctl_put_left(out, path, 0);
		ctl_put(out, "\n");
		return;
	}
	ctl_put(out, "{\"path\":");
	ctl_put_string(out, path);
	ctl_put(out, ",\"format\":");
	ctl_put_string(out, formats[p->how.format].name);
	ctl_put(out, ",\"dtype\":");
	ctl_put_string(out, dtype);
	ctl_put(out, ",");
	ctl_put_pair(out, "tokens", tokens);
	ctl_put(out, ",\"documents\":");
	p->how.format == PACK_MEGATRON ? ctl_put_number(out, r->documents) : ctl_put(out, "null");
	ctl_put(out, ",");
	ctl_put_pair(out, "size", r->bytes);
	ctl_put(out, ",\"digest\":");
	ctl_put_string(out, digest);
	ctl_put(out, "}\n");
}

/* What the inputs know and what is made of them will not. */
static void tell_losses(const struct pack *p)
{
	static const char *const texts[] = {
		[PACK_DOCUMENTS] = "where its documents begin and end is not kept: a flat file has "
				   "no place for it; "
				   "an eos among the tokens stays, and --format megatron keeps all",
		[PACK_OUTSIDE] = "has tokens that its list of bounds (.csv.gz) leaves out; between "
				 "documents they "
				 "become documents of their own",
		[PACK_MASK] = "its loss mask is not kept: no packed format has a place for it; a "
			      "dataset's "
			      "label_mask "
			      "may name a directory of masks",
	};

	for (unsigned i = 0; i < PACK_LOSSES; i++) {
		uint64_t sources = p->in.loss[i].sources;
		char others[64] = "";

		if (sources > 1)
			snprintf(others, sizeof(others), " (the first of %" PRIu64 " inputs)",
				sources);
		if (sources > 0)
			ctl_note("%s%s: %s", p->in.source[p->in.loss[i].first].path, others,
				texts[i]);
	}
}

static bool note_done(struct pack *p, uint64_t i, const struct pack_result *r)
{
	return p->single ||
	       (dprintf(p->state, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %016" PRIx64 "\n", i,
			r->bytes, r->documents, r->digest) > 0 &&
		       fsync(p->state) == 0) ||
	       fail(p, p->to, errno);
}

static bool pack_shard(struct pack *p, uint64_t i, struct done *done)
{
	uint64_t tokens = p->cut[i + 1] - p->cut[i];
	char path[PATH_MAX], part[PATH_MAX];

	if (!name_shard(p, i, path, part))
		return false;
	if (done->is)
		ctl_progress_add(&p->progress, tokens * p->how.token_bytes);
	else if (!pack_out(&p->in, &p->how, p->cut[i], p->cut[i + 1], part, &done->result, p->why))
		return false;
	else if (!note_done(p, i, &done->result) ||
		 !pack_out_publish(&p->how, part, path, p->why) || !sync_directory(p, path)) {
		pack_out_remove(part);
		return false;
	}
	print(p, path, tokens, &done->result);
	return true;
}

static bool pack_shards(struct pack *p, struct done *done)
{
	char state[PATH_MAX];
	bool fine = true;

	ctl_progress_begin(&p->progress, "packing", p->in.tokens * p->how.token_bytes);
	p->how.progress = &p->progress;
	for (uint64_t i = 0; fine && i < p->shards; i++)
		fine = pack_shard(p, i, &done[i]);
	ctl_progress_end(&p->progress);
	if (fine && !p->single)
		fine = join(p, state, ".pack") && (unlink(state) == 0 || fail(p, state, errno));
	return fine;
}

static int run(struct pack *p, char *const *path, int n)
{
	struct done *done = NULL;

	p->in.input.hint.frames = frames_new(FRAMES_BYTES);
	p->in.input.hint.documents = p->how.format == PACK_MEGATRON;
	bool fine = p->in.input.hint.frames || bytes_why(p->why, PACK_WHY, "%s", strerror(ENOMEM));

	fine = fine && apart(p, path, n) && pack_in_begin(&p->in, path, n, p->why) && plan(p);
	if (fine) {
		done = calloc(p->shards, sizeof(*done));
		fine = done || bytes_why(p->why, PACK_WHY, "%s", strerror(ENOMEM));
	}
	fine = fine && open_target(p, done);
	if (fine)
		tell_losses(p);
	fine = fine && pack_shards(p, done);
	int status = ctl_finish(&p->out, fine ? CTL_OK : CTL_FAILED);

	if (!fine)
		ctl_fail("%s", p->why);
	pack_in_end(&p->in);
	frames_free(p->in.input.hint.frames);
	if (p->state >= 0)
		close(p->state);
	free(p->cut);
	free(done);
	return status;
}

int ctl_pack(int argc, char **argv)
{
	static struct pack p = {.state = -1};
	struct words w = {0};
	const struct ctl_option options[] = {
		{.name = "format", .value = &w.format},
		{.name = "dtype", .value = &w.dtype},
		{.name = "shards", .value = &w.shards},
		{.name = "level", .value = &w.level},
		{.name = "frame", .value = &w.frame},
		{.name = "eos", .value = &w.eos},
		{.name = "input-format", .value = &w.input_format},
		{.name = "input-dtype", .value = &w.input_dtype},
		{.name = "input-column", .value = &w.input_column},
		{.name = "json", .flag = &p.json},
	};
	int n = ctl_options(argc, argv, options, sizeof(options) / sizeof(options[0]));

	if (n < 0)
		return CTL_USAGE;
	p.command = argv[0];
	if (n < 2)
		return ctl_usage(argv[0], "needs IN... and OUT");
	int status = take(&p, &w, argv[n]);

	if (status != CTL_OK)
		return status;
	n = ctl_input_paths(argv + 1, n - 1);
	return n < 0 ? ctl_fail("%s", strerror(ENOMEM)) : run(&p, argv + 1, n);
}
