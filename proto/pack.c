#include "proto/pack.h"

#include "proto/limits.h"

#include <assert.h>
#include <msgpack/pack.h>
#include <msgpack/unpack.h>
#include <msgpack/unpack_define.h>
#include <string.h>

_Static_assert(MSGPACK_EMBED_STACK_SIZE >= LIMIT_DEPTH, "the template's stack is deep enough");

/* ---- packing ---- */

static int put(void *data, const char *bytes, size_t n)
{
	struct pack *p = data;

	if (p->full || n > p->capacity - p->length) {
		p->full = true;
		return -1;
	}
	assert(p->length <= p->capacity);
	if (n > 0) /* @bytes may be NULL for an empty value */
		memcpy(p->bytes + p->length, bytes, n);
	p->length += n;
	return 0;
}

static msgpack_packer packer(struct pack *pack)
{
	return (msgpack_packer){.data = pack, .callback = put};
}

void pack_map(struct pack *pack, uint32_t pairs)
{
	msgpack_packer p = packer(pack);

	msgpack_pack_map(&p, pairs);
}

void pack_array(struct pack *pack, uint32_t items)
{
	msgpack_packer p = packer(pack);

	msgpack_pack_array(&p, items);
}

void pack_uint(struct pack *pack, uint64_t value)
{
	msgpack_packer p = packer(pack);

	msgpack_pack_uint64(&p, value);
}

void pack_text(struct pack *pack, const char *text, size_t n)
{
	msgpack_packer p = packer(pack);

	msgpack_pack_str(&p, n);
	msgpack_pack_str_body(&p, text, n);
}

void pack_bytes(struct pack *pack, const void *bytes, size_t n)
{
	msgpack_packer p = packer(pack);

	msgpack_pack_bin(&p, n);
	msgpack_pack_bin_body(&p, bytes, n);
}

/* ---- unpacking: the template calls a function for each value, in document order ---- */

struct sink {
	struct value *values;
	size_t count, max;
	unsigned depth;
	uint32_t open[LIMIT_DEPTH]; /* items still to come in each open container */
};

typedef int nothing; /* the template's type of an object; only containers use it */

static int sink_value(struct sink *s, struct value v)
{
	if (s->count == s->max)
		return -1;
	s->values[s->count++] = v;
	return 0;
}

static int sink_open(struct sink *s, enum value_type type, unsigned int n)
{
	if (n > 0 && s->depth == LIMIT_DEPTH)
		return -1;
	s->depth += n > 0;
	assert(s->depth <= LIMIT_DEPTH);
	return sink_value(s, (struct value){.type = type, .count = n});
}

static int sink_unsigned(struct sink *s, uint64_t d, nothing *o)
{
	*o = 0;
	return sink_value(s, (struct value){.type = VALUE_UINT, .number = d});
}

static int sink_signed(struct sink *s, int64_t d, nothing *o)
{
	*o = 0;
	return d < 0 ? sink_value(s, (struct value){.type = VALUE_OTHER})
		     : sink_unsigned(s, (uint64_t)d, o);
}

#define sink_uint8  sink_unsigned
#define sink_uint16 sink_unsigned
#define sink_uint32 sink_unsigned
#define sink_uint64 sink_unsigned
#define sink_int8   sink_signed
#define sink_int16  sink_signed
#define sink_int32  sink_signed
#define sink_int64  sink_signed

static int sink_nil(struct sink *s, nothing *o)
{
	*o = 0;
	return sink_value(s, (struct value){.type = VALUE_OTHER});
}

#define sink_true  sink_nil
#define sink_false sink_nil

static int sink_double(struct sink *s, double d, nothing *o)
{
	(void)d;
	return sink_nil(s, o);
}

static int sink_float(struct sink *s, float d, nothing *o)
{
	return sink_double(s, d, o);
}

/* The template gives NULL for an empty text; memcpy() and memchr() do not allow that. */
static int sink_bytes(
	struct sink *s, enum value_type type, const char *at, unsigned int n, nothing *o)
{
	*o = 0;
	return sink_value(s, (struct value){.type = type, .count = n, .bytes = n ? at : ""});
}

static int sink_str(struct sink *s, const char *base, const char *at, unsigned int n, nothing *o)
{
	(void)base;
	return sink_bytes(s, VALUE_TEXT, at, n, o);
}

static int sink_bin(struct sink *s, const char *base, const char *at, unsigned int n, nothing *o)
{
	(void)base;
	return sink_bytes(s, VALUE_BYTES, at, n, o);
}

static int sink_ext(struct sink *s, const char *base, const char *at, unsigned int n, nothing *o)
{
	(void)s, (void)base, (void)at, (void)n, (void)o;
	return -1; /* extension types are not supported */
}

static nothing sink_root(struct sink *s)
{
	(void)s;
	return 0;
}

/* A container's object counts its items that are still to come; the last one closes it. */
static int sink_array(struct sink *s, unsigned int n, nothing *o)
{
	if (n > INT32_MAX)
		return -1;
	*o = (nothing)n;
	return sink_open(s, VALUE_ARRAY, n);
}

static int sink_map(struct sink *s, unsigned int n, nothing *o)
{
	if (n > INT32_MAX)
		return -1;
	*o = (nothing)n;
	return sink_open(s, VALUE_MAP, n);
}

static int sink_array_item(struct sink *s, nothing *container, nothing item)
{
	(void)item;
	assert(*container > 0 && s->depth > 0);
	if (--*container == 0)
		s->depth--;
	return 0;
}

static int sink_map_item(struct sink *s, nothing *container, nothing key, nothing item)
{
	(void)key;
	return sink_array_item(s, container, item);
}

#define msgpack_unpack_struct(name)    struct sink##name
#define msgpack_unpack_func(ret, name) static ret sink##name
#define msgpack_unpack_callback(name)  sink##name
#define msgpack_unpack_object	       nothing
#define msgpack_unpack_user	       struct sink
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wimplicit-fallthrough"
#pragma GCC diagnostic ignored "-Wcast-qual"
#include <msgpack/unpack_template.h>
#pragma GCC diagnostic pop

int unpack_first(const void *bytes, size_t n, struct value *values, size_t max, size_t *used)
{
	struct sink_context context = {.user = {.values = values, .max = max}};
	int done;

	assert(values || max == 0);

	*used = 0;
	sink_init(&context);
	done = sink_execute(&context, bytes, n, used);
	if (done <= 0)
		return -1;
	assert(context.user.count > 0 && context.user.count <= max);
	assert(context.user.depth == 0);
	return (int)context.user.count;
}

int unpack(const void *bytes, size_t n, struct value *values, size_t max)
{
	size_t used;
	int count = unpack_first(bytes, n, values, max, &used);

	return count > 0 && used != n ? -1 : count;
}

const struct value *value_skip(const struct value *value, const struct value *end)
{
	uint64_t left = 1;

	assert(value <= end);
	while (left > 0 && value < end) {
		left--;
		if (value->type == VALUE_ARRAY)
			left += value->count;
		else if (value->type == VALUE_MAP)
			left += 2 * (uint64_t)value->count;
		value++;
	}
	return value;
}

bool value_is(const struct value *value, const char *text)
{
	return value->type == VALUE_TEXT && value->count == strlen(text) &&
	       memcmp(value->bytes, text, value->count) == 0;
}
