/*
 * tokctl pack: converts shards of any readable format to shards of one format, cut as requested.
 */
#include "client/ctl/offline/offline.h"
#include "client/ctl/offline/shards.h"
#include "daemon/catalog/parallel_for.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
	LEVEL_MOST = 19,
	FRAME_LEAST = 1 << 10,
	FRAME_MOST = 64 << 20, /* each thread here, and each reader later, keeps some in memory */
	SHARDS_MOST = 1000 * 1000,
	MEMORY_BYTES = 1 << 30, /* of pieces that threads read and write at once */
};

static const char *const format_names[] = {"flat", "zstd", "megatron"};
static const char *const endings[] = {".bin", ".bin.zst", ".bin"};

/* ---- the plan ---- */

static bool refuse(
	const struct pack_source *s, const char *field, const char *text, struct fault *fault)
{
	char path[PATH_MAX + 1];

	return fault_set(fault, FAULT_ARGUMENT, field, "%s: %s",
		ctl_place_path(s->place, s->shard, path), text);
}

/* Reports losses, each for the first source that has it. */
static void report_losses(const struct pack *p)
{
	static const char *const texts[PACK_TRAITS] = {
		[PACK_DOCUMENTS] = "its document bounds are lost (eos tokens are kept); --format "
				   "megatron keeps them",
		[PACK_OUTSIDE] = "tokens outside the documents of its .csv.gz become documents of "
				 "their own",
		[PACK_PADDING] = "the padding of its rows becomes tokens like any others",
		[PACK_MASK] = "its loss mask is lost: packed formats have none; keep masks in a "
			      "directory, and name that as the dataset's label_mask",
	};

	for (unsigned t = 0; t < PACK_TRAITS; t++) {
		const struct pack_source *first = p->first[t];
		char path[PATH_MAX + 1];

		if (texts[t] && first)
			ctl_note("%s: %s", ctl_place_path(first->place, first->shard, path),
				texts[t]);
	}
}

/* Documents to pack must have bounds, and no padding among them. */
static bool check_documents(const struct pack *p, struct fault *fault)
{
	const struct pack_source *bare = p->first[PACK_UNINDEXED], *rows = p->first[PACK_PADDING];

	if (bare && !p->has_eos)
		return refuse(bare, "eos",
			"has no document bounds; give --eos ID, the token that ends a document",
			fault);
	return !rows || refuse(rows, "",
				"is packed in rows already; give the shards that it was packed "
				"from",
				fault);
}

/* Adds to *@at, where tokens begin, what is up to the first end of a document among them. */
static bool take_end(void *at, const uint32_t *tokens, uint64_t n, const uint32_t *end,
	uint64_t ends, struct fault *fault)
{
	(void)tokens;
	*(uint64_t *)at += ends ? end[0] : n;
	fault->code = FAULT_NONE;
	return ends == 0;
}

/* Moves the cut at *@at to the next end of a document. The token before it is not before @s. */
static bool move_cut(
	const struct pack *p, const struct pack_source *s, uint64_t *at, struct fault *fault)
{
	--*at;
	return pack_read(p, s, *at, p->tokens, take_end, at, fault) || fault->code == FAULT_NONE;
}

/* One file for each source, or files of equal size, cut between documents if they keep those. */
static bool cut(const struct pack *p, bool by_source, struct fault *fault)
{
	const struct pack_source *s = p->source;
	uint64_t at = 0, tokens = p->tokens;

	for (uint64_t i = 0; i < p->files; i++) {
		struct pack_file *f = &p->file[i];

		while (at < tokens && at >= s->begin + s->tokens)
			s++;
		f->source = s;
		f->begin = at;
		at = by_source ? p->source[i].begin + p->source[i].tokens
			       : (uint64_t)((unsigned __int128)tokens * (i + 1) / p->files);
		if (at == f->begin && by_source)
			return refuse(&p->source[i], "",
				"contains no tokens; leave it out, or give --shards", fault);
		if (at <= f->begin)
			return fault_set(fault, FAULT_ARGUMENT, "",
				"%s: would be empty: there are too few %s (%" PRIu64
				" tokens in all)",
				f->path, pack_keeps_documents(p) ? "documents" : "tokens", tokens);
		if (!by_source && pack_keeps_documents(p) && !move_cut(p, s, &at, fault))
			return false;
		f->end = at;
		if (p->row_tokens && at - f->begin > PACK_FIT_MOST)
			return fault_set(fault, FAULT_ARGUMENT, "",
				"%s: would be packed from %" PRIu64
				" tokens, more than --fit keeps in memory (%d); give a directory "
				"and more --shards, and --eos if documents are long",
				f->path, at - f->begin, PACK_FIT_MOST);
	}
	return true;
}

/* Names the files. */
static bool name_files(struct pack *p, struct fault *fault)
{
	const char *slash = bytes_ends_in(p->out, "/") ? "" : "/";

	if (strlen(p->out) > PATH_MAX - 64)
		return pack_fail(fault, p->out, ENAMETOOLONG);
	p->file = calloc(p->files, sizeof(*p->file));
	for (uint64_t i = 0; p->file && i < p->files; i++)
		if (p->single ? !(p->file[i].path = strdup(p->out))
			      : asprintf(&p->file[i].path, "%s%sshard-%05" PRIu64 "%s", p->out,
					slash, i, endings[p->format]) < 0)
			return fault_memory(fault);
	return p->file || fault_memory(fault);
}

static bool plan(struct pack *p, struct fault *fault)
{
	bool by_source = !p->row_tokens && p->files == 0 && !p->single, widest = !p->token_bytes;

	if (p->tokens == 0)
		return fault_set(fault, FAULT_ARGUMENT, "", "the inputs contain no tokens");
	if (p->row_tokens && !check_documents(p, fault))
		return false;
	for (size_t i = 0; widest && i < p->sources; i++)
		if (p->source[i].token_bytes > p->token_bytes)
			p->token_bytes = p->source[i].token_bytes;
	if (by_source)
		p->files = p->sources;
	else if (p->row_tokens && p->files == 0 && !p->single)
		p->files = (p->tokens + PACK_FIT_TOKENS - 1) / PACK_FIT_TOKENS;
	else if (p->files == 0)
		p->files = 1;
	return name_files(p, fault) && cut(p, by_source, fault);
}

/* ---- the output ---- */

/* Rejects an OUT inside one of the inputs: a second run would pack its own output. */
static bool is_outside(const struct pack *p, struct fault *fault)
{
	char path[PATH_MAX], parent[PATH_MAX];
	struct stat st;

	snprintf(path, sizeof(path), "%s", p->out);
	bool fine = realpath(dirname(path), parent) || pack_fail(fault, p->out, errno);

	for (unsigned i = 0; fine && i < p->places; i++) {
		const char *in = p->place[i].path, *root = p->place[i].set.list.root;
		size_t n = strlen(root);

		if (strncmp(root, parent, n) == 0 && (parent[n] == '/' || parent[n] == 0) &&
			!(stat(in, &st) == 0 && S_ISREG(st.st_mode)))
			fine = fault_set(fault, FAULT_ARGUMENT, "",
				"%s: is inside the input %s; give a directory outside it", p->out,
				in);
	}
	return fine;
}

/* Is @name that of a file to be written, or of its side file, complete or not? */
static bool is_planned(const struct pack *p, const char *name)
{
	char side[PATH_MAX];
	uint64_t i;

	if (strncmp(name, SHARD_UNFINISHED, strlen(SHARD_UNFINISHED)) == 0)
		name += strlen(SHARD_UNFINISHED);
	if (sscanf(name, "shard-%" SCNu64, &i) != 1 || i >= p->files)
		return false;
	return strcmp(bytes_name(p->file[i].path), name) == 0 ||
	       (pack_side_path(p, p->file[i].path, side) && strcmp(bytes_name(side), name) == 0);
}

/* Creates the directory, or looks at what is in it. */
static bool open_output(const struct pack *p, struct fault *fault)
{
	bool fine = true;

	if (p->single)
		return true;
	DIR *directory = mkdir(p->out, 0777) == 0 || errno == EEXIST ? opendir(p->out) : NULL;

	if (!directory)
		return pack_fail(fault, p->out, errno);
	for (struct dirent *e; fine && (e = readdir(directory));)
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
			!is_planned(p, e->d_name))
			fine = fault_set(fault, FAULT_ARGUMENT, "",
				"%s: is not empty: %s is none of the files that would be written; "
				"give another directory",
				p->out, e->d_name);
	closedir(directory);
	return fine;
}

/* ---- the report ---- */

static const char *dtype(const struct pack *p)
{
	return p->token_bytes == 2 ? "u16" : "u32";
}

/* Prints the sums of --fit, and the lines of a config that serve its rows. */
static void print_rows(struct pack *p)
{
	uint64_t row = p->row_tokens, tokens;
	struct pack_file sum = {0};
	json_t *name = json_string(p->out);
	char *quoted = json_dumps(name, JSON_ENCODE_ANY);

	for (uint64_t i = 0; i < p->files; i++) {
		sum.padding += p->file[i].padding;
		sum.documents += p->file[i].documents;
		sum.cut += p->file[i].cut;
		sum.split += p->file[i].split;
	}
	tokens = p->tokens + sum.padding;
	emit_table(&p->emit);
	emit_line(&p->emit,
		"%" PRIu64 " rows of %" PRIu64 " tokens, %.3f %% padding; cut: %" PRIu64
		" of %" PRIu64 " documents, all longer than a row (by plain concatenation: %" PRIu64
		")",
		tokens / row, row, 100.0 * (double)sum.padding / (double)tokens, sum.cut,
		sum.documents, sum.split);
	emit_line(&p->emit, "    seq_len: %" PRIu64, row - 1);
	emit_line(&p->emit, "    extra: 1");
	emit_line(&p->emit, "    stride: %" PRIu64, row);
	emit_line(&p->emit, "    documents: true");
	emit_line(&p->emit, "    loss_mask: true");
	emit_line(&p->emit, "    datasets:");
	emit_line(&p->emit, "      - {name: packed, path: %s, dtype: %s}", quoted ? quoted : p->out,
		dtype(p));
	free(quoted);
	json_decref(name);
}

/* Prints a file's line. Its tokens are those of the inputs, and padding. */
static void print(struct pack *p, const struct pack_file *f)
{
	uint64_t tokens = f->end - f->begin + f->padding;
	struct emit *e = &p->emit;
	char digest[24];

	snprintf(digest, sizeof(digest), "%016" PRIx64, f->digest);
	emit_text(e, "path", "path", f->path);
	emit_text(e, "format", "format", format_names[p->format]);
	emit_text(e, "dtype", "dtype", dtype(p));
	emit_number(e, "tokens", "tokens", tokens);
	emit_optional(e, "documents", "documents", f->documents, pack_keeps_documents(p));
	if (p->row_tokens) {
		emit_number(e, "rows", "rows", tokens / p->row_tokens);
		emit_number(e, "padding", "padding", f->padding);
		emit_number(e, "cut", "cut", f->cut);
		emit_number(e, "cut_by_concatenation", "cut_by_concatenation", f->split);
	}
	emit_number(e, "size", "size", f->bytes);
	emit_text(e, "digest", "digest", digest);
	emit_row(e);
}

/* ---- packing ---- */

/* Compares a file, if it is there already. Later writes one that is not. */
static bool pack_file(const struct parallel *parallel, struct fault *fault)
{
	struct pack *p = parallel->context;
	struct pack_file *f = &p->file[parallel->i];
	struct stat st;

	return f->bytes > 0 || (!p->writes && lstat(f->path, &st) != 0) || pack_write(p, f, fault);
}

/* Writes the files that are not there, and prints all up to the first that fails. A file that is
 * there with the tokens that it would get is complete: so a repeated command continues an
 * interrupted one. If one of another pack is there, nothing is written. */
static bool pack_files(struct pack *p, struct fault *fault)
{
	uint64_t most = p->threads, done = 0,
		 fit = MEMORY_BYTES / (p->frame_bytes + 8 * (uint64_t)CTL_DIGEST_TOKENS);

	for (uint64_t i = 0; p->row_tokens && i < p->files; i++)
		if (PACK_FIT_MOST / (p->file[i].end - p->file[i].begin) < fit)
			fit = PACK_FIT_MOST / (p->file[i].end - p->file[i].begin);
	unsigned threads = (unsigned)(fit < most ? fit : most);

	ctl_progress_begin("packing", "tokens", p->tokens);
	if (parallel_for(p->files, threads, pack_file, p, fault) == p->files) {
		p->writes = true;
		done = parallel_for(p->files, threads, pack_file, p, fault);
	}
	ctl_progress_end();
	for (uint64_t i = 0; i < done; i++)
		print(p, &p->file[i]);
	return done == p->files;
}

/* ---- the command line ---- */

static const struct ctl_option options[] = {
	{OPTION_TEXT("config", "FILE",
		 "config whose stores: say how URLs are read; only for IN with URLs"),
		.letter = 'c'},
	/* in the order of enum pack_format */
	{OPTION_CHOICE("format", "flat|zstd|megatron",
		"format to write; with --fit flat or zstd, default: flat")},
	{OPTION_CHOICE("dtype", "u16|u32", "width of a token; default: that of the widest input")},
	{OPTION_NUMBER("fit", "TOKENS", 2, PACK_FIT_ROW,
		"pack whole documents into rows of so many tokens, seq_len + extra of the "
		"stream")},
	{OPTION_NUMBER("shards", "N", 1, SHARDS_MOST,
		"write N shards of about equal size; default: one per input file, with "
		"--fit one per 2^27 tokens")},
	{OPTION_NUMBER("level", "L", 1, LEVEL_MOST, "zstd compression level"), .preset = "3"},
	{OPTION_NUMBER("frame", "BYTES", FRAME_LEAST, FRAME_MOST,
		 "decoded size of a zstd frame, a multiple of 4"),
		.preset = "262144"},
	{OPTION_NUMBER("eos", "ID", 0, UINT32_MAX,
		"token that ends a document, for inputs without document bounds")},
	{CTL_INPUT_FORMAT_OPTION},
	{CTL_INPUT_DTYPE_OPTION},
	{CTL_INPUT_COLUMN_OPTION},
	{CTL_JSON_OPTION},
};

/* Sets the target. A name with a dot is a file's, which must be one of the format. */
static int take_target(struct pack *p, const struct ctl_command *command, const char *to)
{
	bool zst = bytes_ends_in(to, ".zst") || bytes_ends_in(to, ".zstd");
	struct stat st;

	p->out = to;
	if (url_text_is(to))
		return ctl_usage(command,
			"OUT %s: is a URL, but only files are written; give a directory, and copy "
			"that with `aws s3 cp` or s5cmd",
			to);
	p->single = strchr(bytes_name(to), '.') && !(stat(to, &st) == 0 && S_ISDIR(st.st_mode));
	if (p->single && (zst != (p->format == PACK_ZSTD) || !bytes_ending(to, ".bin")))
		return ctl_usage(command,
			"OUT %s: a file must end in %s; or give a directory, with '/' at its end",
			to, endings[p->format]);
	if (p->single && p->files > 1)
		return ctl_usage(command, "OUT %s: is one file; --shards needs a directory", to);
	return CTL_OK;
}

static int take(struct pack *p, const struct ctl_arguments *a)
{
	const struct ctl_command *c = a->command;
	uint64_t frame = ctl_number(a, "frame", 0);

	p->row_tokens = (uint32_t)ctl_number(a, "fit", 0);
	if (!ctl_given(a, "format") && !ctl_given(a, "fit"))
		return ctl_usage(c, "needs --format flat|zstd|megatron, or --fit TOKENS");
	p->format = (enum pack_format)ctl_number(a, "format", PACK_FLAT);
	if (p->format == PACK_MEGATRON && p->row_tokens)
		return ctl_usage(c, "--fit needs --format flat or zstd: megatron has no loss mask");
	if (ctl_given(a, "dtype"))
		p->token_bytes = ctl_number(a, "dtype", 0) == 0 ? 2 : 4;
	if ((ctl_given(a, "level") || ctl_given(a, "frame")) && p->format != PACK_ZSTD)
		return ctl_usage(c, "--level and --frame need --format zstd");
	if (frame % 4 != 0)
		return ctl_usage(c, "--frame %" PRIu64 ": must be a multiple of 4", frame);
	p->files = ctl_number(a, "shards", 0);
	p->level = (int)ctl_number(a, "level", 0);
	p->frame_bytes = (uint32_t)frame;
	p->has_eos = ctl_given(a, "eos");
	p->eos = ctl_number(a, "eos", 0);
	return take_target(p, c, a->argument[a->arguments - 1]);
}

static int pack(const struct ctl_arguments *a)
{
	static struct pack p; /* what it has is not freed: the process ends */
	int status = take(&p, a), paths = a->arguments - 1;
	struct fault fault;

	p.emit.json = ctl_given(a, "json");
	if (status == CTL_OK)
		status = ctl_input_begin(&p.input, a, &paths);
	if (status == CTL_OK) {
		p.input.hint.documents = pack_keeps_documents(&p);
		bool fine = pack_find_sources(&p, a->argument, paths, &fault) &&
			    is_outside(&p, &fault) && plan(&p, &fault) && open_output(&p, &fault);

		if (fine)
			report_losses(&p);
		fine = fine && pack_files(&p, &fault);
		if (fine && p.row_tokens)
			print_rows(&p);
		status = emit_end(&p.emit, fine ? CTL_OK : CTL_FAILED);
		if (!fine)
			ctl_fail("%s", fault.text);
	}
	store_close(p.input.stores);
	return status;
}

const struct ctl_command ctl_pack = {
	.name = "pack",
	.arguments = "IN... OUT",
	.help = "convert shards of any readable format to flat, zstd or Megatron shards",
	.run = pack,
	OPTIONS_ARE(options),
};
