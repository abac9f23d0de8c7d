#include "proto/wire.h"

#include "proto/pack.h"
#include "proto/phrases.h"
#include "proto/text.h"

#include <assert.h>
#include <string.h>

#define NAME(member, name) [WIRE_##member] = name,
static const char *const op_names[WIRE_OPS] = {WIRE_EACH_OP(NAME)};
static const char *const key_names[WIRE_KEYS] = {WIRE_EACH_NUMBER(NAME) WIRE_EACH_TEXT(NAME)};
#undef NAME

#define BIT WIRE_BIT

/* The keys that each message must have. */
static const uint64_t required[WIRE_OPS] = {
	[WIRE_HELLO] = BIT(WIRE_VERSION_KEY),
	[WIRE_ATTACH] = BIT(WIRE_STREAM) | BIT(WIRE_RUN) | BIT(WIRE_RANK) | BIT(WIRE_WORLD) |
			BIT(WIRE_MICRO) | BIT(WIRE_PEER) | BIT(WIRE_SLOTS),
	[WIRE_FEED] = BIT(WIRE_CURSOR) | BIT(WIRE_CONTENTS) | BIT(WIRE_END) | BIT(WIRE_META_BYTES) |
		      BIT(WIRE_DATA_BYTES),
	[WIRE_CHECKPOINT] = BIT(WIRE_TAG) | BIT(WIRE_CURSOR),
	[WIRE_SAVED] = BIT(WIRE_TAG) | BIT(WIRE_PATH),
	[WIRE_REQUEST] = BIT(WIRE_KIND) | BIT(WIRE_ARGS),
	[WIRE_ASKED] = BIT(WIRE_NUMBER) | BIT(WIRE_RUN) | BIT(WIRE_SESSIONS),
	[WIRE_ANSWER] = BIT(WIRE_NUMBER) | BIT(WIRE_OUTCOME) | BIT(WIRE_TEXT),
	[WIRE_CANCEL] = BIT(WIRE_NUMBER),
	[WIRE_CANCELLED] = BIT(WIRE_NUMBER) | BIT(WIRE_FETCHED),
	[WIRE_DESCRIBED] = BIT(WIRE_CURSOR),
	[WIRE_STATUS] = BIT(WIRE_AFTER),
	[WIRE_ERROR] = BIT(WIRE_CODE) | BIT(WIRE_FIELD) | BIT(WIRE_TEXT),
	[WIRE_WARNING] = BIT(WIRE_TEXT),
};

static bool is_bytes(unsigned key)
{
	return key == WIRE_CURSOR || key == WIRE_SHARDS;
}

const char *wire_op_name(enum wire_op op)
{
	assert(op < WIRE_OPS);
	return op_names[op];
}

/* ---- building ---- */

void wire_set_bytes(struct wire *w, enum wire_key key, const void *bytes, size_t n)
{
	assert(key >= WIRE_NUMBERS && key < WIRE_KEYS);
	assert((bytes || n == 0) && n <= LIMIT_PACKET_BYTES);
	w->has |= BIT(key);
	w->bytes[key - WIRE_NUMBERS] = (struct wire_bytes){bytes, (uint32_t)n};
}

void wire_set_text(struct wire *w, enum wire_key key, const char *text)
{
	wire_set_bytes(w, key, text, strlen(text));
}

size_t wire_encode(const struct wire *w, void *packet)
{
	assert(w->op < WIRE_OPS && w->has >> (WIRE_KEYS - 1) <= 1);
	struct pack p = pack_into(packet, LIMIT_PACKET_BYTES);

	pack_map(&p, 1 + (uint32_t)__builtin_popcountll(w->has));
	pack_text(&p, "op", 2);
	pack_text(&p, op_names[w->op], strlen(op_names[w->op]));
	for (unsigned key = 0; key < WIRE_KEYS; key++) {
		if (!wire_has(w, key))
			continue;
		pack_text(&p, key_names[key], strlen(key_names[key]));
		if (key < WIRE_NUMBERS)
			pack_uint(&p, w->number[key]);
		else if (is_bytes(key))
			pack_bytes(&p, wire_bytes(w, key).at, wire_bytes(w, key).n);
		else
			pack_text(&p, wire_bytes(w, key).at, wire_bytes(w, key).n);
	}
	return p.full ? 0 : p.length;
}

/* ---- reading ---- */

/* Returns the index of the text @value among @n names, or @n. */
static unsigned find_name(const struct value *value, const char *const *names, unsigned n)
{
	unsigned i = 0;

	while (i < n && !value_is(value, names[i]))
		i++;
	return i;
}

static bool take(struct wire *w, unsigned key, const struct value *value)
{
	if (key < WIRE_NUMBERS) {
		if (value->type != VALUE_UINT)
			return false;
		wire_set(w, key, value->number);
		return true;
	}
	if (value->type != (is_bytes(key) ? VALUE_BYTES : VALUE_TEXT))
		return false;
	wire_set_bytes(w, key, value->bytes, value->count);
	return true;
}

bool wire_decode(struct wire *w, const void *packet, size_t n, struct fault *fault)
{
	struct value values[256];
	int count = n <= LIMIT_PACKET_BYTES ? unpack(packet, n, values, 256) : -1;
	unsigned op = WIRE_OPS;

	if (count < 0 || values[0].type != VALUE_MAP)
		return fault_set(fault, FAULT_PROTOCOL, "packet",
			"must be a MessagePack map of at most 128 KiB and 256 values, nested at "
			"most %d deep",
			LIMIT_DEPTH);

	const struct value *end = values + count, *v = values + 1;

	memset(w, 0, sizeof(*w));
	for (uint32_t i = 0; i < values[0].count; i++) {
		const struct value *key = v, *value = value_skip(v, end);
		unsigned k = find_name(key, key_names, WIRE_KEYS);

		v = value_skip(value, end);
		if (value_is(key, "op"))
			op = find_name(value, op_names, WIRE_OPS);
		else if (k < WIRE_KEYS && !take(w, k, value))
			return fault_set(fault, FAULT_PROTOCOL, key_names[k], PHRASE_MISSING);
	}
	if (op == WIRE_OPS)
		return fault_set(fault, FAULT_PROTOCOL, "op", PHRASE_MISSING);
	w->op = op;
	for (unsigned k = 0; k < WIRE_KEYS; k++)
		if ((required[op] & BIT(k)) && !wire_has(w, k))
			return fault_set(fault, FAULT_PROTOCOL, key_names[k], PHRASE_MISSING);
	return true;
}

enum fault_code wire_code(const struct wire *w)
{
	uint64_t code = wire_number(w, WIRE_CODE);

	return code < FAULT_CODES ? (enum fault_code)code : FAULT_NONE;
}

bool wire_text(const struct wire *w, enum wire_key key, char *to, size_t capacity)
{
	struct wire_bytes b = wire_bytes(w, key);

	if (!wire_has(w, key) || b.n >= capacity || memchr(b.at, 0, b.n))
		return false;
	memcpy(to, b.at, b.n);
	to[b.n] = 0;
	return true;
}

/* ---- numbers and names as texts ---- */

bool wire_digits(const char *text, uint64_t *value)
{
	uint64_t n = 0;

	if (!*text)
		return false;
	for (; *text; text++) {
		uint64_t digit = (uint64_t)(*text - '0');

		if (*text < '0' || *text > '9' || n > (UINT64_MAX - digit) / 10)
			return false;
		n = n * 10 + digit;
	}
	*value = n;
	return true;
}

bool wire_label_ok(const char *name)
{
	size_t n = strlen(name);

	if (n == 0 || n > LIMIT_NAME_BYTES)
		return false;
	for (const char *p = name; *p;) {
		unsigned step = text_character(p);

		if (step == 0)
			return false;
		p += step;
	}
	return true;
}

bool wire_name_ok(const char *name)
{
	return wire_label_ok(name) && name[0] != '.' && !strchr(name, '/');
}

static bool shards_differ(const struct wire_shards *a, const struct wire_shards *b)
{
	bool known = a->tokens && b->tokens && ((a->tokens ^ b->tokens) & 7) == 0;

	return (known && a->tokens != b->tokens) ||
	       (known && a->notes && b->notes && a->notes != b->notes) ||
	       (a->eos && b->eos && a->eos != b->eos) ||
	       (a->files && b->files && a->files != b->files);
}

uint32_t wire_shards_differ(
	const struct wire_shards *was, uint32_t had, const struct wire_shards *is, uint32_t n)
{
	assert(had <= LIMIT_DATASETS && n <= LIMIT_DATASETS);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < had; k++)
			if (is[i].name == was[k].name && shards_differ(&was[k], &is[i]))
				return i;
	return n;
}
