/*
 * A libFuzzer target: the records of trainers, as `tokctl verify` reads them, and the proof over
 * them. Beginnings and rows may be the right ones of a small stream, or anything.
 *
 * Each position of the range is counted once: as taken, skipped or lost.
 *
 * An input is: failures (fail.h), the range, then two files, each a length and parts: a byte, and
 * the fields of a beginning, of rows, or bytes as they are.
 */
#include "client/ctl/offline/cmd_verify.c"
#include "tests/fuzz/input.h"
#include "tests/fuzz/scratch.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SEQ_LEN = 4, TOKENS = 1001, MOST = 1 << 16, POSITIONS = 600 };

static const char *const files[] = {"a.record", "b.record"};
static struct ctl_stream stream;
static struct ctl_history history;
static uint64_t checksums[POSITIONS];
static unsigned char cursor[LIMIT_CURSOR_BYTES];
static size_t cursor_bytes;

static void leave(void)
{
	ctl_history_close(&history);
	ctl_stream_close(&stream);
}

/* The right checksum of each row. */
static void sum_rows(const uint16_t *tokens)
{
	const struct dataset *dataset = stream.stream->dataset;
	struct order_place place;
	uint64_t file, at;

	for (uint64_t p = 0; p < POSITIONS; p++) {
		if (!order_at(&history.order, p, &place))
			abort();
		table_locate(&dataset->table, &history.cursor.order[0], history.cursor.seed,
			place.epoch, place.window, &file, &at);
		checksums[p] = record_checksum(p, tokens + at, (SEQ_LEN + 1) * sizeof(*tokens));
	}
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static const char text[] =
		"streams:\n  train:\n    seed: 1\n    seq_len: 4\n    datasets:\n"
		"      - {name: web, path: a.bin, dtype: u16, format: flat}\n";
	static uint16_t tokens[TOKENS];

	(void)argc, (void)argv;
	scratch_open();
	for (int i = 0; i < TOKENS; i++)
		tokens[i] = (uint16_t)(i * 7);
	scratch_put("a.bin", tokens, sizeof(tokens));
	atexit(leave);
	if (!ctl_stream_open(&stream, scratch_put("t.yaml", text, strlen(text)), "train", false) ||
		!cursor_copy(&history.cursor, &stream.stream->begin) ||
		!ctl_history_map(&history, &stream))
		exit(2);
	sum_rows(tokens);
	cursor_bytes = cursor_encode(&history.cursor, cursor, sizeof(cursor));
	return 0;
}

/* ---- record files ---- */

struct words {
	uint64_t at[1 << 12];
	size_t n;
};

static void put(struct words *w, uint64_t value)
{
	if (w->n < sizeof(w->at) / sizeof(w->at[0]))
		w->at[w->n++] = value;
}

static void put_begin(struct words *w, struct input *in, unsigned flags)
{
	uint8_t kind = input_byte(in);
	uint64_t position = kind & 1 ? input_any(in) : input_byte(in);
	struct record_begin begin = {.time_ns = input_byte(in),
		.position = position,
		.left = kind & 2 ? input_byte(in) : position,
		.rank = kind & 4 ? input_any(in) : kind / 32 % 4,
		.world = kind & 8 ? input_any(in) : 4,
		.micro_batch = kind & 16 ? input_any(in) : 2,
		.peer = kind / 128,
		.cursor_bytes = cursor_bytes};
	uint64_t entry[1 << 9];
	size_t words = 2 * record_begin_entries(cursor_bytes);

	assert(words <= sizeof(entry) / sizeof(entry[0]));
	record_put_beginning(entry, flags, &begin, cursor);
	if (kind == 255)
		entry[input_byte(in) % words] ^= UINT64_C(1) << input_byte(in) % 64;
	for (size_t i = 0; i < words; i++)
		put(w, entry[i]);
}

/* With their right checksums, as far as there are such rows. */
static void put_rows(struct words *w, struct input *in)
{
	uint8_t n = input_byte(in) % 32, step = input_byte(in) % 16;
	uint64_t position = input_number(in, 2);

	for (uint8_t i = 0; i < n; i++, position += step) {
		put(w, position);
		put(w, position < POSITIONS ? checksums[position] : i);
	}
}

static void put_file(struct input *all, const char *name)
{
	static struct words w;
	struct input in = input_sized(all);

	w.n = 0;
	while (in.n > 0)
		switch (input_byte(&in) % 6) {
		case 0:
		case 1:
			put_begin(&w, &in, RECORD_FIRST);
			break;
		case 2:
			put_begin(&w, &in, input_byte(&in) % 4);
			break;
		case 3:
		case 4:
			put_rows(&w, &in);
			break;
		default:
			put(&w, input_any(&in));
			put(&w, input_any(&in));
		}
	scratch_put(name, w.at, w.n * sizeof(w.at[0]) + all->n % 3);
}

/* ---- the proof ---- */

static void prove_peer(const struct records *r, size_t peer, uint64_t from, uint64_t to)
{
	struct proof p = {.records = r, .peer = &r->peer[peer], .from = from, .to = to};
	struct emit text = {0}, json = {.json = true};

	if (run_proof(&p)) {
		assert(p.samples + p.skipped + p.found[LOST] == to - from);
		assert(p.found[LOST] == 0 || p.shown[LOST] > 0);
		for (unsigned i = 0; i < p.shown[LOST]; i++)
			assert(p.finding[LOST][i].position >= from &&
				p.finding[LOST][i].position + p.finding[LOST][i].count <= to);
		put_proof(&text, &p);
		put_proof(&json, &p);
	}
	free_proof(&p);
	emit_end(&text, CTL_OK);
	emit_end(&json, CTL_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	uint8_t plan[FAIL_BYTES] = {input_byte(&in), input_byte(&in)}, kind;
	uint64_t from = input_any(&in), n = 1 + input_number(&in, 2) % MOST;
	struct records r = {0};
	char path[2][64];

	kind = input_byte(&in);
	from = from > UINT64_MAX - n ? UINT64_MAX - n : from;
	for (int i = 0; i < 2; i++) {
		put_file(&in, files[i]);
		snprintf(path[i], sizeof(path[i]), "%s/%s", scratch, files[i]);
	}
	fail_plan(plan);
	bool done = kind % 4 == 0 ? records_add(&r, scratch)
				  : records_add(&r, path[0]) &&
					    (kind % 4 == 1 || records_add(&r, path[kind % 2]));

	if (done && records_read(&r, &stream, kind & 64 ? &history : NULL))
		for (size_t i = 0; i < r.peers && i < 4; i++)
			prove_peer(&r, i, from, from + n);
	records_free(&r);
	assert(!records_add(&r, "/nowhere") && !records_add(&r, "/dev/null"));
	fail_end();
	records_free(&r);
	return 0;
}
