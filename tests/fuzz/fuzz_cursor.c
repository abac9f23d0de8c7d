/*
 * A libFuzzer target: a cursor, and edits of it. A cursor that is decoded has one encoding and one
 * JSON form, and its order can be evaluated. An edit gives such a cursor, or changes nothing and
 * sets a fault.
 *
 * An input is: failures (fail.h), a byte of flags, a cursor with its length before it, edits.
 * Flags: REPAIR puts the right checksum into the cursor; 4: the failure is in the edits.
 */
#include "proto/cursor.h"
#include "proto/wire.h"
#include "tests/fuzz/input.h"

#include <stdlib.h>

enum { REPAIR = 1, HEADER = 16, EDITS = 12, SOURCES = 6, STEPS = 4 };

struct bytes {
	size_t n;
	uint8_t at[LIMIT_CURSOR_BYTES];
};

static void repair(uint8_t *cursor, size_t n)
{
	uint64_t sum = order_checksum(cursor + HEADER, n - HEADER);

	memcpy(cursor, "tkdc", 4);
	memcpy(cursor + 8, &sum, 8);
}

/* ---- what holds for every cursor ---- */

static void encode(const struct cursor *c, struct bytes *b)
{
	b->n = cursor_encode(c, b->at, sizeof(b->at));
	assert(b->n > HEADER);
}

static bool same(const struct bytes *a, const struct bytes *b)
{
	return a->n == b->n && memcmp(a->at, b->at, a->n) == 0;
}

static void check_order(const struct cursor *c)
{
	const uint64_t end = cursor_end(c), from = c->segment[0]->start;
	const uint64_t ahead[] = {0, 1, 1023, 1024, 5000, UINT64_C(1) << 40};
	struct order order = cursor_history(c);
	struct order_place place;
	uint64_t back;

	for (size_t i = 0; i < sizeof(ahead) / sizeof(ahead[0]); i++) {
		uint64_t base = i % 2 ? from : c->next;
		uint64_t at = base + ahead[i];

		if (at < base || at >= end)
			continue;
		assert(order_at(&order, at, &place));
		assert(place.dataset < c->datasets);
		assert(place.window < order_path_windows(&c->order[place.dataset]));
		assert(order_when(&order, &place, &back) && back == at);
		place = (struct order_place){(uint32_t)i % c->datasets, base, from};
		order_when(&order, &place, &back); /* whether or not there is such a place */
	}
}

/* Its JSON has the same buffer's worth of text in every decoding, and fits only whole. */
static void check_json(const struct cursor *c, const struct cursor *again)
{
	static char one[CURSOR_JSON_BYTES], two[CURSOR_JSON_BYTES];
	size_t n = cursor_json(c, one, sizeof(one));

	assert(n > 0 && strlen(one) == n && cursor_json(again, two, sizeof(two)) == n);
	assert(memcmp(one, two, n) == 0);
	assert(cursor_json(c, two, n) == 0 && cursor_json(c, two, n + 1) == n);
}

static void check_compared(const struct cursor *c, const struct cursor *again)
{
	struct fault fault;
	uint64_t position, unserved;

	assert(cursor_belongs(again, c, &fault));
	assert(cursor_fingerprint(c, 4, 8) == cursor_fingerprint(again, 4, 8));
	for (uint32_t d = 0; d < c->datasets; d++) {
		assert(cursor_find(c, c->dataset[d].name) == (int)d);
		if (cursor_unserved(c, d, &position, &unserved))
			assert(position < cursor_end(c) && c->dataset[d].max_epochs > 0);
	}
}

static void check(const struct cursor *c, struct bytes *b)
{
	static struct bytes second;
	struct cursor again, copy;
	struct fault fault;

	cursor_check(c);
	encode(c, b);
	assert(cursor_encode(c, second.at, b->n - 1) == 0);
	assert(cursor_encode(c, second.at, b->n) == b->n);
	assert(cursor_decode(&again, b->at, b->n, &fault));
	encode(&again, &second);
	assert(same(b, &second));
	assert(cursor_copy(&copy, &again));
	encode(&copy, &second);
	assert(same(b, &second));
	check_order(c);
	check_json(c, &again);
	check_compared(c, &copy);
	cursor_free(&again);
	cursor_free(&copy);
}

/* ---- making ---- */

static void take_name(struct input *in, char *name)
{
	struct input part = input_part(in, input_byte(in) % (LIMIT_NAME_BYTES + 1));

	memset(name, 0, LIMIT_NAME_BYTES + 1);
	memcpy(name, part.at, part.n);
}

static double take_weight(struct input *in)
{
	uint8_t kind = input_byte(in);
	uint64_t bits = kind < 250 ? 0 : input_number(in, 8);
	double weight = kind % 16;

	if (kind >= 250)
		memcpy(&weight, &bits, sizeof(weight));
	else if (kind >= 128)
		weight = 1 / (weight + 3);
	return weight;
}

static void take_source(struct input *in, char *name, struct cursor_source *s)
{
	take_name(in, name);
	*s = (struct cursor_source){.name = name,
		.weight = take_weight(in),
		.windows = input_any(in),
		.digest = input_any(in),
		.block = (uint32_t)input_any(in),
		.group = (uint32_t)input_any(in),
		.shuffle = (enum order_shuffle)(input_byte(in) % 4),
		.slide = input_byte(in) % 2,
		.max_epochs = input_byte(in) % 2 ? input_any(in) : 0};
}

static uint32_t take_steps(struct input *in, struct cursor_step *steps, uint32_t datasets)
{
	static double weights[STEPS][LIMIT_DATASETS];
	uint32_t n = input_byte(in) % (STEPS + 1);

	for (uint32_t i = 0; i < n; i++) {
		uint64_t from = input_any(in), more = input_any(in);

		for (uint32_t d = 0; d < datasets; d++)
			weights[i][d] = in->n ? take_weight(in) : 1;
		steps[i] = (struct cursor_step){.from = from,
			.to = more > UINT64_MAX - from ? UINT64_MAX : from + more,
			.steps = (uint32_t)input_any(in),
			.weights = weights[i]};
	}
	return n;
}

static bool make(struct cursor *c, struct input *in, uint8_t flags, struct fault *fault)
{
	struct input part = input_sized(in);
	bool ok;

	uint8_t *copy = malloc(part.n ? part.n : 1); /* so that any byte read past it is seen */

	if (!copy)
		return fault_memory(fault);
	memcpy(copy, part.at, part.n);
	if ((flags & REPAIR) && part.n > HEADER)
		repair(copy, part.n);
	ok = cursor_decode(c, copy, part.n, fault);
	free(copy);
	return ok;
}

/* ---- edits ---- */

static bool edit_mix(struct cursor *c, struct input *in, struct fault *fault)
{
	static double weights[LIMIT_DATASETS];
	uint64_t at = input_byte(in) % 4 ? cursor_mix_at(c) + 1024 * (uint64_t)input_byte(in)
					 : input_any(in);

	for (uint32_t d = 0; d < c->datasets; d++)
		weights[d] = in->n ? take_weight(in) : 1;
	return cursor_mix(c, at, weights, fault);
}

static bool edit_add(struct cursor *c, struct input *in, struct fault *fault)
{
	char name[LIMIT_NAME_BYTES + 1];
	struct cursor_source source;

	take_source(in, name, &source);
	if (input_byte(in) % 2) { /* as `tokctl cursor add` does, from a cursor of the stream */
		cursor_source(c, input_byte(in) % c->datasets, &source);
		source.name = name;
	}
	return cursor_add(c, &source, fault);
}

static bool edit_schedule(struct cursor *c, struct input *in, struct fault *fault)
{
	static double weights[LIMIT_DATASETS];
	static uint64_t epochs[LIMIT_DATASETS];
	struct cursor_step steps[STEPS];
	uint8_t kind = input_byte(in);

	for (uint32_t d = 0; d < c->datasets; d++) {
		weights[d] = kind & 1 && in->n ? take_weight(in) : 1;
		epochs[d] = kind & 2 ? input_any(in) : 0;
	}
	uint32_t n = take_steps(in, steps, c->datasets);

	return cursor_schedule(
		c, kind & 1 ? weights : NULL, steps, n, kind & 2 ? epochs : NULL, fault);
}

/* As programs and operators edit. An unknown name, and a name twice, are refused. */
static bool edit_by_name(
	struct cursor *c, enum cursor_edit_kind kind, struct input *in, struct fault *fault)
{
	const char *name[3];
	double weight[3];
	struct cursor stream;
	struct cursor_edit e = {.kind = kind,
		.number = input_byte(in) % 2 ? CURSOR_SOON : input_any(in),
		.names = kind == CURSOR_REMOVE ? 1 : input_byte(in) % 4,
		.name = name,
		.weight = weight};
	uint64_t acts_from;

	for (uint32_t i = 0; i < 3; i++) {
		uint8_t d = input_byte(in);

		name[i] = d == 255 ? "unknown" : c->dataset[d % c->datasets].name;
		weight[i] = take_weight(in);
	}
	if (!cursor_copy(&stream, c))
		return fault_memory(fault);
	if (kind == CURSOR_ADD || input_byte(in) % 2)
		e.stream = &stream;

	bool done = cursor_apply(c, &e, &acts_from, fault);

	assert(!done || kind > CURSOR_REWIND || acts_from == c->next);
	cursor_free(&stream);
	return done;
}

static bool edit(struct cursor *c, struct input *in, struct fault *fault)
{
	uint8_t kind = input_byte(in) % 8;
	uint64_t at;

	switch (kind) {
	case 0:
	case 1:
	case 2:
		return edit_by_name(c, (enum cursor_edit_kind)kind, in, fault);
	case 3:
		return edit_mix(c, in, fault);
	case 4:
		return edit_add(c, in, fault);
	case 5:
		at = cursor_mix_at(c) + 1024 * (uint64_t)input_byte(in);
		return cursor_remove(c, input_byte(in) % c->datasets, at, fault);
	case 6:
		return edit_by_name(c, CURSOR_MIX + input_byte(in) % 3, in, fault);
	default:
		return edit_schedule(c, in, fault);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct bytes before, after;
	struct input in = {data, size};
	struct fault fault = {0}, other = {0};
	struct cursor c = {0}, first;
	uint8_t plan[FAIL_BYTES] = {input_byte(&in), input_byte(&in)}, flags = input_byte(&in);
	const uint8_t none[FAIL_BYTES] = {0};

	fail_plan(flags & 4 ? none : plan); /* 4: the failure is in the edits */
	bool made = make(&c, &in, flags, &fault);

	fail_end();
	if (!made) {
		check_fault(&fault);
		assert(fault.code == FAULT_CURSOR || fault.code == FAULT_MEMORY);
		cursor_free(&c);
		return 0;
	}
	check(&c, &before);
	assert(cursor_copy(&first, &c));
	for (int i = 0; i < EDITS && in.n > 0; i++) {
		fail_plan(flags & 4 ? plan : none);
		bool edited = edit(&c, &in, &fault);

		fail_end();
		check(&c, &after);
		if (!edited) {
			check_fault(&fault);
			assert(same(&before, &after));
		}
		before = after;
		if (!cursor_belongs(&c, &first, &other))
			check_fault(&other);
		if (!cursor_belongs(&first, &c, &other))
			check_fault(&other);
	}
	cursor_free(&first);
	cursor_free(&c);
	return 0;
}
