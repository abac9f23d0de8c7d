/*
 * Changes one value of a MessagePack document: a number to one near a limit, a text, a type, or how
 * many items a container has. All else stays valid, so that more than the first check is reached.
 */
#ifndef TOKEND_FUZZ_MUTATE_PACK_H
#define TOKEND_FUZZ_MUTATE_PACK_H

#include "proto/pack.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MUTATE_VALUES = 8192 };

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

struct mutation {
	size_t at;	   /* the value that is replaced */
	struct value with; /* by this */
	size_t from, to;   /* values to leave out, or to write twice */
	bool twice;
};

static inline uint64_t mutate_number(uint64_t old, unsigned seed)
{
	const uint64_t one = 1;

	switch (seed % 8) {
	case 0:
		return old + (one << seed / 8 % 12);
	case 1:
		return old - (one << seed / 8 % 12);
	case 2:
		return (one << seed / 8 % 64) - seed / 512 % 2;
	case 3:
		return seed / 8 % 8;
	case 4:
		return old / 1024 * 1024 + seed / 8 % 4 * 1024;
	case 5:
		return UINT64_MAX - seed / 8 % 4 * 1023;
	case 6:
		return old ^ one << seed / 8 % 64;
	default:
		return seed / 8 % 100000;
	}
}

static inline void mutate_raw(struct pack *p, int head, uint64_t value, int bytes)
{
	if (p->capacity - p->length < 9) {
		p->full = true;
		return;
	}
	p->bytes[p->length++] = (char)head;
	while (bytes-- > 0)
		p->bytes[p->length++] = (char)(value >> 8 * bytes);
}

static inline void mutate_put(struct pack *p, const struct value *v)
{
	switch (v->type) {
	case VALUE_NIL:
		mutate_raw(p, 0xc0, 0, 0);
		break;
	case VALUE_BOOL:
		mutate_raw(p, v->number ? 0xc3 : 0xc2, 0, 0);
		break;
	case VALUE_UINT:
		pack_uint(p, v->number);
		break;
	case VALUE_NEGATIVE:
		mutate_raw(p, 0xd3, v->number, 8);
		break;
	case VALUE_DOUBLE:
		mutate_raw(p, 0xcb, v->number, 8);
		break;
	case VALUE_TEXT:
		pack_text(p, v->bytes, v->count);
		break;
	case VALUE_BYTES:
		pack_bytes(p, v->bytes, v->count);
		break;
	case VALUE_ARRAY:
		pack_array(p, v->count);
		break;
	case VALUE_MAP:
		pack_map(p, v->count);
		break;
	}
}

/* Replaces a value that is not a container. */
static inline struct value mutate_leaf(struct value v, unsigned seed)
{
	static uint8_t text[512];

	if (seed % 16 == 0) {
		v.type = (enum value_type)(seed / 16 % VALUE_ARRAY);
		v.count = 0;
		v.number = seed;
		v.bytes = v.type == VALUE_TEXT || v.type == VALUE_BYTES ? "" : v.bytes;
	} else if (v.type == VALUE_TEXT || v.type == VALUE_BYTES) {
		v.count = v.count < 256 ? v.count : 256;
		memcpy(text, v.bytes, v.count);
		v.count = (uint32_t)LLVMFuzzerMutate(text, v.count, sizeof(text));
		v.bytes = (const char *)text;
	} else {
		v.number = mutate_number(v.number, seed / 16);
	}
	return v;
}

/* Leaves out, or doubles, one item of a container; a pair, if it is a map. */
static inline void mutate_container(
	struct mutation *m, const struct value *values, const struct value *end, unsigned seed)
{
	const struct value *v = values + m->at + 1;
	uint32_t item = m->with.count ? seed / 4 % m->with.count : 0;
	unsigned each = m->with.type == VALUE_MAP ? 2 : 1;

	if (m->with.count == 0)
		return;
	for (uint32_t i = 0; i < item * each; i++)
		v = value_skip(v, end);
	m->from = (size_t)(v - values);
	for (unsigned i = 0; i < each; i++)
		v = value_skip(v, end);
	m->to = (size_t)(v - values);
	m->twice = seed % 4 == 0;
	m->with.count += m->twice ? 1 : (uint32_t)-1;
}

/* Changes the document of @n bytes at @data in place. Returns its new length, or 0 if it is not
 * MessagePack or has no room. */
static inline size_t mutate_pack(uint8_t *data, size_t n, size_t most, unsigned seed)
{
	static struct value values[MUTATE_VALUES];
	static uint8_t copy[1 << 17];
	int count = n <= sizeof(copy) ? unpack(memcpy(copy, data, n), n, values, MUTATE_VALUES) : 0;

	if (count <= 0)
		return 0;

	struct mutation m = {.at = (seed >> 8) % (unsigned)count};
	struct pack p = pack_into(data, most);

	m.with = values[m.at];
	if (m.with.type == VALUE_ARRAY || m.with.type == VALUE_MAP)
		mutate_container(&m, values, values + count, seed & 0xff);
	else
		m.with = mutate_leaf(m.with, (unsigned)rand_r(&seed));
	for (size_t i = 0; i < (size_t)count; i++) {
		if (i == m.from && m.to > m.from && !m.twice)
			i = m.to;
		if (i < (size_t)count)
			mutate_put(&p, i == m.at ? &m.with : &values[i]);
		if (m.twice && i + 1 == m.to) {
			m.twice = false;
			i = m.from - 1;
		}
	}
	return p.full ? 0 : p.length;
}

#endif
