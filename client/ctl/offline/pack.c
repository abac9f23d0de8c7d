/*
 * tokctl pack: converts shards of any readable format to shards of one format, cut as requested.
 */
#include "client/ctl/offline/offline.h"
#include "client/ctl/offline/shards.h"
#include "daemon/catalog/parallel_for.h"
#include "daemon/config/url_text.h"
#include "daemon/shard/bytes.h"
#include "daemon/shard/frames.h"
#include "proto/phrases.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum {
	LEVEL_MOST = 19,
	FRAME_LEAST = 1 << 10,
	FRAME_MOST = 64 << 20, /* each thread here, and each reader later, keeps some in memory */
	FRAMES_BYTES = 64 << 20,
	SHARDS_MOST = 1000 * 1000,
	MEMORY_BYTES = 1 << 30, /* of pieces that threads read and write at once */
};

struct pack {
	struct emit emit;
	struct config *config; /* NULL: none */
	struct pack_in in;
	struct pack_how how;
	struct pack_target target;
	uint64_t *cut;		  /* shard i has tokens [cut[i], cut[i + 1]) of the inputs */
	uint64_t largest;	  /* tokens of a shard */
	struct pack_done *done;	  /* [shards] */
	struct pack_result total; /* of all shards, for --fit */
	struct ctl_progress progress;
};

/* ---- the plan ---- */

static bool refuse(
	const struct pack_source *s, const char *field, const char *text, struct fault *fault)
{
	char path[PATH_MAX + 1];

	pack_source_path(s, path);
	return fault_set(fault, FAULT_ARGUMENT, field, "%s: %s", path, text);
}

/* One shard for each source. */
static bool cut_by_source(struct pack *p, struct fault *fault)
{
	for (uint64_t i = 0; i < p->in.sources; i++) {
		if (p->in.source[i].tokens == 0)
			return refuse(&p->in.source[i], "",
				"contains no tokens; leave it out, or give --shards", fault);
		p->cut[i + 1] = p->cut[i] + p->in.source[i].tokens;
	}
	return true;
}

/* Whether shards are cut between documents. */
static bool keeps_documents(const struct pack_how *how)
{
	return how->format == PACK_MEGATRON || how->row_tokens;
}

/* Shards of equal size, cut at the next end of a document if they keep documents. */
static bool cut_evenly(struct pack *p, struct fault *fault)
{
	for (uint64_t i = 1; i <= p->target.shards; i++) {
		uint64_t at = (uint64_t)((unsigned __int128)p->in.tokens * i / p->target.shards);

		if (keeps_documents(&p->how) && !pack_in_boundary(&p->in, at, &at, fault))
			return false;
		if (at == p->cut[i - 1])
			return fault_set(fault, FAULT_ARGUMENT, "",
				"--shards %" PRIu64 ": shard %" PRIu64
				" would be empty: there are too few %s (%" PRIu64 " tokens in all)",
				p->target.shards, i - 1,
				keeps_documents(&p->how) ? "documents" : "tokens", p->in.tokens);
		p->cut[i] = at;
	}
	return true;
}

/* Documents to pack must have bounds, and no padding among them. */
static bool check_documents(const struct pack *p, struct fault *fault)
{
	const struct pack_in *in = &p->in;

	for (uint64_t i = 0; i < in->sources && in->unindexed && !in->has_eos; i++)
		if (in->source[i].unindexed)
			return refuse(&in->source[i], "eos",
				"has no document bounds; give --eos ID, the token that ends a "
				"document",
				fault);
	return in->loss[PACK_PADDING].sources == 0 ||
	       refuse(&in->source[in->loss[PACK_PADDING].first], "",
		       "is packed in rows already; give the shards that it was packed from", fault);
}

/* Finds the largest shard. Its documents are in memory while it is packed with --fit. */
static bool check_windows(struct pack *p, struct fault *fault)
{
	for (uint64_t i = 0; i < p->target.shards; i++) {
		uint64_t tokens = p->cut[i + 1] - p->cut[i];

		if (tokens > p->largest)
			p->largest = tokens;
		if (p->how.row_tokens && tokens > PACK_FIT_MOST)
			return fault_set(fault, FAULT_ARGUMENT, "",
				"shard %" PRIu64 " would be packed from %" PRIu64
				" tokens, more than --fit keeps in memory (%d); %s",
				i, tokens, PACK_FIT_MOST,
				p->target.single ? "give a directory"
						 : "give more --shards, and "
						   "--eos if documents are long");
	}
	return true;
}

static bool plan(struct pack *p, struct fault *fault)
{
	bool fit = p->how.row_tokens,
	     by_source = !fit && p->target.shards == 0 && !p->target.single;

	if (p->in.tokens == 0)
		return fault_set(fault, FAULT_ARGUMENT, "", "the inputs contain no tokens");
	if (fit && !check_documents(p, fault))
		return false;
	if (p->how.token_bytes == 0)
		p->how.token_bytes = p->in.token_bytes;
	if (by_source)
		p->target.shards = p->in.sources;
	else if (fit && p->target.shards == 0 && !p->target.single)
		p->target.shards = (p->in.tokens + PACK_FIT_TOKENS - 1) / PACK_FIT_TOKENS;
	else if (p->target.shards == 0)
		p->target.shards = 1;
	p->cut = calloc(p->target.shards + 1, sizeof(*p->cut));
	if (!p->cut)
		return fault_memory(fault);
	return by_source ? cut_by_source(p, fault)
			 : cut_evenly(p, fault) && check_windows(p, fault);
}

/* The digest of the plan and the inputs. A run continues another only if theirs are equal. */
static uint64_t plan_digest(const struct pack *p)
{
	const uint64_t facts[] = {p->how.format, p->how.token_bytes, (uint64_t)p->how.level,
		p->how.frame_bytes, p->in.has_eos, p->in.eos, p->target.shards, p->how.row_tokens};

	return XXH64(p->cut, (p->target.shards + 1) * sizeof(*p->cut),
		XXH64(facts, sizeof(facts), p->in.digest));
}

/* Rejects an OUT inside one of the inputs: a second run would pack its own output. */
static bool is_outside(const struct pack *p, struct fault *fault)
{
	size_t n = strlen(p->target.path);
	char text[PATH_MAX], *parent;
	struct stat st;
	bool fine;

	while (n > 1 && p->target.path[n - 1] == '/')
		n--;
	while (n > 0 && p->target.path[n - 1] != '/')
		n--;
	snprintf(text, sizeof(text), "%.*s", n ? (int)n : 1, n ? p->target.path : ".");
	parent = realpath(text, NULL);
	fine = parent || pack_fail(fault, p->target.path, errno);
	for (unsigned i = 0; fine && i < p->in.places; i++) {
		const struct ctl_place *in = &p->in.place[i];
		size_t m = strlen(in->list.root);
		bool file = stat(in->path, &st) == 0 && !S_ISDIR(st.st_mode);

		if (!file && strncmp(in->list.root, parent, m) == 0 &&
			(parent[m] == '/' || parent[m] == 0))
			fine = fault_set(fault, FAULT_ARGUMENT, "",
				"%s: is inside the input %s; give a directory outside it",
				p->target.path, in->path);
	}
	free(parent);
	return fine;
}

/* ---- packing ---- */

static const char *dtype(const struct pack *p)
{
	return p->how.token_bytes == 2 ? "u16" : "u32";
}

static double percent(uint64_t part, uint64_t whole)
{
	return 100.0 * (double)part / (double)whole;
}

/* Prints the sums of --fit, and the lines of a config that serve its rows. */
static void print_rows(struct pack *p)
{
	const struct pack_result *t = &p->total;
	uint64_t row = p->how.row_tokens, tokens = p->in.tokens + t->padding;
	json_t *name = json_string(p->target.path);
	char *quoted = json_dumps(name, JSON_ENCODE_ANY);

	emit_table(&p->emit);
	emit_line(&p->emit,
		"%" PRIu64 " rows of %" PRIu64 " tokens, %.3f %% padding; cut: %" PRIu64
		" of %" PRIu64 " documents, all longer than a row (by plain concatenation: %" PRIu64
		")",
		tokens / row, row, percent(t->padding, tokens), t->cut, t->documents, t->split);
	emit_line(&p->emit, "    seq_len: %" PRIu64, row - 1);
	emit_line(&p->emit, "    extra: 1");
	emit_line(&p->emit, "    stride: %" PRIu64, row);
	emit_line(&p->emit, "    documents: true");
	emit_line(&p->emit, "    loss_mask: true");
	emit_line(&p->emit, "    datasets:");
	emit_line(&p->emit, "      - {name: packed, path: %s, dtype: %s}",
		quoted ? quoted : p->target.path, dtype(p));
	free(quoted);
	json_decref(name);
}

static void print(struct pack *p, const char *path, uint64_t tokens, const struct pack_result *r)
{
	struct emit *e = &p->emit;
	char digest[24];

	snprintf(digest, sizeof(digest), "%016" PRIx64, r->digest);
	emit_text(e, "path", NULL, path);
	emit_text(e, "format", "", pack_formats[p->how.format].name);
	emit_text(e, "dtype", "", dtype(p));
	emit_number(e, "tokens", NULL, tokens);
	emit_cell(e, "", "%" PRIu64 " tokens", tokens);
	emit_optional(e, "documents", NULL, r->documents, keeps_documents(&p->how));
	if (p->how.row_tokens) {
		emit_number(e, "rows", NULL, tokens / p->how.row_tokens);
		emit_number(e, "padding", NULL, r->padding);
		emit_number(e, "cut", NULL, r->cut);
		emit_number(e, "cut_by_concatenation", NULL, r->split);
	}
	emit_number(e, "size", NULL, r->bytes);
	emit_cell(e, "", "%" PRIu64 " bytes", r->bytes);
	emit_text(e, NULL, "", path);
	emit_text(e, "digest", NULL, digest);
	emit_row(e);
}

/* Reports what the inputs contain and the packed files will not. */
static void report_losses(const struct pack *p)
{
	static const char *const texts[] = {
		[PACK_DOCUMENTS] = "its document bounds are lost (eos tokens are kept); --format "
				   "megatron keeps them",
		[PACK_OUTSIDE] = "tokens outside the documents of its .csv.gz become documents of "
				 "their own",
		[PACK_PADDING] = "the padding of its rows becomes tokens like any others",
		[PACK_MASK] = "its loss mask is lost: packed formats have none; keep masks in a "
			      "directory, and name that as the dataset's label_mask",
	};

	for (unsigned i = 0; i < PACK_LOSSES; i++) {
		uint64_t sources = p->in.loss[i].sources;
		char others[64] = "", path[PATH_MAX + 1];

		if (sources > 1)
			snprintf(others, sizeof(others), " (the first of %" PRIu64 " inputs)",
				sources);
		if (sources == 0)
			continue;
		pack_source_path(&p->in.source[p->in.loss[i].first], path);
		ctl_note("%s%s: %s", path, others, texts[i]);
	}
}

/* Writes shard @p->i, and reports it in order. */
static bool pack_shard(const struct parallel *parallel, struct fault *fault)
{
	struct pack *p = parallel->context;
	uint64_t i = parallel->i, tokens = p->cut[i + 1] - p->cut[i];
	struct pack_done *done = &p->done[i];
	const struct pack_result *r = &done->result;
	char path[PATH_MAX], part[PATH_MAX];

	if (!pack_target_name(&p->target, i, path, part, fault))
		return false;
	if (done->is)
		ctl_progress_add(&p->progress, tokens);
	else if (!pack_out(&p->in, &p->how, p->cut[i], p->cut[i + 1], part, &done->result, fault) ||
		 !pack_target_publish(&p->target, i, r, fault))
		return false;
	if (!parallel_turn(parallel))
		return true;
	p->total.documents += r->documents;
	p->total.padding += r->padding;
	p->total.cut += r->cut;
	p->total.split += r->split;
	print(p, path, tokens + r->padding, r);
	parallel_pass(parallel);
	return true;
}

/* Windows of --fit are in memory; so are the pieces that threads read from a store. */
static unsigned count_threads(const struct pack *p)
{
	uint64_t most = parallel_processors(), fit;

	if (p->in.stores)
		most = CTL_GETS;
	fit = p->how.row_tokens
		      ? PACK_FIT_MOST / p->largest
		      : MEMORY_BYTES / (p->how.frame_bytes + 8 * (uint64_t)CTL_DIGEST_TOKENS);
	return (unsigned)(fit < 1 ? 1 : fit < most ? fit : most);
}

static bool pack_shards(struct pack *p, struct fault *fault)
{
	bool fine;

	ctl_progress_begin(&p->progress, "packing", "tokens", p->in.tokens);
	p->how.progress = &p->progress;
	fine = parallel_for(p->target.shards, count_threads(p), pack_shard, p, fault) ==
	       p->target.shards;
	ctl_progress_end(&p->progress);
	return fine && pack_target_end(&p->target, fault);
}

static bool pack(struct pack *p, char *const *path, int n, struct fault *fault)
{
	if (!pack_in_add(&p->in, path, n, fault) || !is_outside(p, fault) || !plan(p, fault))
		return false;
	p->done = calloc(p->target.shards, sizeof(*p->done));
	p->target.how = &p->how;
	p->target.digest = plan_digest(p);
	bool fine = p->done ? pack_target_open(&p->target, p->done, fault) : fault_memory(fault);

	if (fine)
		report_losses(p);
	fine = fine && pack_shards(p, fault);
	if (fine && p->how.row_tokens)
		print_rows(p);
	pack_target_close(&p->target);
	free(p->done);
	return fine;
}

/* Opens the stores of URLs. */
static bool open_stores(
	struct pack *p, const char *config, char *const *path, int n, struct fault *fault)
{
	bool any = false;

	for (int i = 0; i < n; i++)
		any |= url_text_is(path[i]);
	p->config = config ? config_load(config, fault) : NULL;
	if (config && !p->config)
		return false;
	p->in.stores = any ? ctl_stores_open(p->config, fault) : NULL;
	return !any || p->in.stores;
}

static int run(struct pack *p, const char *config, char *const *path, int n)
{
	struct fault fault;

	p->in.input.hint.frames = frames_new(FRAMES_BYTES);
	if (!p->in.input.hint.frames)
		return ctl_fail(PHRASE_MEMORY);
	p->in.input.hint.documents = keeps_documents(&p->how);

	bool fine = open_stores(p, config, path, n, &fault) && pack(p, path, n, &fault);
	int status = emit_end(&p->emit, fine ? CTL_OK : CTL_FAILED);

	if (!fine)
		ctl_fail("%s", fault.text);
	pack_in_end(&p->in);
	frames_free(p->in.input.hint.frames);
	store_close(p->in.stores);
	config_free(p->config);
	free(p->cut);
	return status;
}

/* ---- the command line ---- */

enum {
	CONFIG,
	FORMAT,
	DTYPE,
	FIT,
	SHARDS,
	LEVEL,
	FRAME,
	EOS,
	INPUT_FORMAT,
	INPUT_DTYPE,
	INPUT_COLUMN,
	JSON,
};

static const struct ctl_option options[] = {
	[CONFIG] = {OPTION_TEXT("config", "FILE",
			    "config whose stores: say how URLs are read; only for IN with URLs"),
		.letter = 'c'},
	/* in the order of enum pack_format */
	[FORMAT] = {OPTION_CHOICE("format", "flat|zstd|megatron",
		"format to write; with --fit flat or zstd, default: flat")},
	[DTYPE] = {OPTION_CHOICE(
		"dtype", "u16|u32", "width of a token; default: that of the widest input")},
	[FIT] = {OPTION_NUMBER("fit", "TOKENS", 2, PACK_FIT_ROW,
		"pack whole documents into rows of so many tokens, seq_len + extra of the "
		"stream")},
	[SHARDS] = {OPTION_NUMBER("shards", "N", 1, SHARDS_MOST,
		"write N shards of about equal size; default: one per input file, with "
		"--fit one per 2^27 tokens")},
	[LEVEL] = {OPTION_NUMBER("level", "L", 1, LEVEL_MOST, "zstd compression level"),
		.preset = "3"},
	[FRAME] = {OPTION_NUMBER("frame", "BYTES", FRAME_LEAST, FRAME_MOST,
			   "decoded size of a zstd frame, a multiple of 4"),
		.preset = "262144"},
	[EOS] = {OPTION_NUMBER("eos", "ID", 0, UINT32_MAX,
		"token that ends a document, for inputs without document bounds")},
	[INPUT_FORMAT] = {CTL_INPUT_FORMAT_OPTION},
	[INPUT_DTYPE] = {CTL_INPUT_DTYPE_OPTION},
	[INPUT_COLUMN] = {CTL_INPUT_COLUMN_OPTION},
	[JSON] = {CTL_JSON_OPTION},
};

/* Does @text end in @ending, with something before it? */
static bool ends_in(const char *text, const char *ending)
{
	return strlen(text) > strlen(ending) && bytes_ends_in(text, ending);
}

/* Sets the target. Rejects a name that looks like another format's file: it is hardly a directory.
 */
static int take_target(struct pack *p, const struct ctl_command *command, const char *to)
{
	static const char *const files[] = {
		".bin", ".zst", ".zstd", ".npy", ".ds", ".idx", ".mds", ".arrow"};
	struct stat st;
	bool directory = stat(to, &st) == 0 && S_ISDIR(st.st_mode);

	p->target.path = to;
	for (int i = 0; !directory && i < 3 && pack_formats[p->how.format].endings[i]; i++)
		p->target.single |= ends_in(to, pack_formats[p->how.format].endings[i]);
	for (size_t i = 0; !directory && !p->target.single && i < sizeof(files) / sizeof(files[0]);
		i++)
		if (ends_in(to, files[i]))
			return ctl_usage(command,
				"OUT %s: a file of --format %s must end in %s; or give a directory",
				to, pack_formats[p->how.format].name,
				pack_formats[p->how.format].endings[0]);
	if (p->target.single && p->how.row_tokens && !bytes_ending(to, ".bin"))
		return ctl_usage(command,
			"OUT %s: with --fit it must end in .bin or .bin.zst, or be a directory",
			to);
	if (p->target.single && p->target.shards > 1)
		return ctl_usage(command, "OUT %s: is one file; --shards needs a directory", to);
	return CTL_OK;
}

/* Checks which arguments are URLs. */
static int check_urls(const struct ctl_arguments *a)
{
	const char *to = a->argument[a->arguments - 1];

	if (url_text_is(to))
		return ctl_usage(a->command,
			"OUT %s: is a URL, but only files are written; give a directory, and copy "
			"that with `aws s3 cp` or s5cmd",
			to);
	for (int i = 0; i < a->arguments; i++)
		if (ctl_place_unlisted(a->argument[i]))
			return ctl_usage(a->command,
				"%s: an HTTPS server has no listing; download the shards, and give "
				"their directory",
				a->argument[i]);
	return CTL_OK;
}

static int take(struct pack *p, const struct ctl_arguments *a)
{
	const struct ctl_command *c = a->command;
	uint64_t frame = ctl_number(a, FRAME, 0);

	p->emit.json = ctl_given(a, JSON);
	p->how.row_tokens = (uint32_t)ctl_number(a, FIT, 0);
	if (!ctl_given(a, FORMAT) && !ctl_given(a, FIT))
		return ctl_usage(c, "needs --format flat|zstd|megatron, or --fit TOKENS");
	p->how.format = (enum pack_format)ctl_number(a, FORMAT, PACK_FLAT);
	if (p->how.format == PACK_MEGATRON && p->how.row_tokens)
		return ctl_usage(c, "--fit needs --format flat or zstd: megatron has no loss mask");
	if (ctl_given(a, DTYPE))
		p->how.token_bytes = ctl_number(a, DTYPE, 0) == 0 ? 2 : 4;
	if ((ctl_given(a, LEVEL) || ctl_given(a, FRAME)) && p->how.format != PACK_ZSTD)
		return ctl_usage(c, "--level and --frame need --format zstd");
	if (frame % 4 != 0)
		return ctl_usage(c, "--frame %" PRIu64 ": must be a multiple of 4", frame);
	p->target.shards = ctl_number(a, SHARDS, 0);
	p->how.level = (int)ctl_number(a, LEVEL, 0);
	p->how.frame_bytes = (uint32_t)frame;
	p->in.has_eos = ctl_given(a, EOS);
	p->in.eos = ctl_number(a, EOS, 0);
	if (check_urls(a) != CTL_OK)
		return CTL_USAGE;
	if (take_target(p, c, a->argument[a->arguments - 1]) != CTL_OK ||
		!ctl_input_options(&p->in.input, a, INPUT_FORMAT, INPUT_DTYPE, INPUT_COLUMN))
		return CTL_USAGE;
	return CTL_OK;
}

static int pack_arguments(const struct ctl_arguments *a)
{
	struct pack *p = calloc(1, sizeof(*p));
	int status, n;

	if (!p)
		return ctl_fail(PHRASE_MEMORY);
	p->target.state = -1;
	status = take(p, a);
	if (status == CTL_OK) {
		n = ctl_input_paths(a->argument, a->arguments - 1);
		status = n < 0 ? ctl_fail(PHRASE_MEMORY)
			       : run(p, ctl_text(a, CONFIG), a->argument, n);
	}
	free(p);
	return status;
}

const struct ctl_command ctl_pack = {
	.name = "pack",
	.arguments = "IN... OUT",
	.help = "convert shards of any readable format to flat, zstd or Megatron shards",
	.run = pack_arguments,
	OPTIONS_ARE(options),
};
