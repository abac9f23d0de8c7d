#include "daemon/store/request.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define REMEDY_KEYS	"correct the credentials"
#define REMEDY_MANIFEST "restore the object, or write the manifest again: tokctl manifest"

/* An error by its code, or by its status where the code is NULL. The first match holds. */
static const struct rule {
	int status; /* 0: any */
	const char *code;
	enum verdict_kind kind;
	bool overload;
	const char *remedy;
} rules[] = {
	{0, "SlowDown", VERDICT_HEALS, true, ""},
	{0, "RequestTimeout", VERDICT_HEALS, false, ""},
	{0, "RequestTimeTooSkewed", VERDICT_CLOCK, false, "set this machine's clock"},
	{0, "ExpiredToken", VERDICT_EXPIRED, false, "renew the credentials"},
	{0, "ExpiredTokenException", VERDICT_EXPIRED, false, "renew the credentials"},
	{0, "InvalidToken", VERDICT_EXPIRED, false, "renew the credentials"},
	{0, "TokenRefreshRequired", VERDICT_EXPIRED, false, "renew the credentials"},
	{0, "InvalidObjectState", VERDICT_FINAL, false,
		"the object is archived: restore it to a class that can be read"},
	{0, "NoSuchBucket", VERDICT_FINAL, false, "correct the bucket's name"},
	{0, "AuthorizationHeaderMalformed", VERDICT_FINAL, false,
		"set `region:` of the store to the bucket's"},
	{0, "KMS.DisabledException", VERDICT_FINAL, false, "enable the object's key"},
	{301, NULL, VERDICT_FINAL, false, "set `region:` or `endpoint:` to the bucket's"},
	{302, NULL, VERDICT_FINAL, false, "set `endpoint:` to where the bucket is"},
	{307, NULL, VERDICT_FINAL, false, "set `region:` or `endpoint:` to the bucket's"},
	{308, NULL, VERDICT_FINAL, false, "set `endpoint:` to where the bucket is"},
	{401, NULL, VERDICT_EXPIRED, false, "renew the credentials"},
	{0, "InvalidAccessKeyId", VERDICT_DENIED, false, REMEDY_KEYS},
	{0, "SignatureDoesNotMatch", VERDICT_DENIED, false, REMEDY_KEYS},
	{0, "AuthenticationFailed", VERDICT_DENIED, false, REMEDY_KEYS}, /* Azure, of a query */
	{403, NULL, VERDICT_DENIED, false, "give these credentials the right to read it"},
	{404, NULL, VERDICT_OTHER, false, REMEDY_MANIFEST},
	{405, NULL, VERDICT_FINAL, false, REMEDY_MANIFEST},
	{408, NULL, VERDICT_HEALS, false, ""},
	{412, NULL, VERDICT_OTHER, false, REMEDY_MANIFEST},
	{416, NULL, VERDICT_OTHER, false, REMEDY_MANIFEST},
	{429, NULL, VERDICT_HEALS, true, ""},
	{501, NULL, VERDICT_FINAL, false, "the server must support ranges of objects"},
	{503, NULL, VERDICT_HEALS, true, ""},
	{505, NULL, VERDICT_FINAL, false, "the server must support HTTP/1.1"},
};

static void judge(
	struct verdict *v, enum verdict_kind kind, enum fault_code code, const char *remedy)
{
	v->kind = kind;
	v->code = code;
	v->remedy = remedy;
}

static void judge_error(const struct answer *a, struct verdict *v)
{
	const struct rule *r = rules, *end = rules + sizeof(rules) / sizeof(rules[0]);

	while (r < end && !(r->code ? strcmp(r->code, a->code) == 0 : r->status == a->status))
		r++;
	snprintf(v->reason, sizeof(v->reason), "%d%s%s%s%s", a->status, a->code[0] ? " " : "",
		a->code, a->deleted ? " (deleted)" : "", "");
	if (a->region[0] && a->status / 100 == 3)
		snprintf(v->reason + strlen(v->reason), sizeof(v->reason) - strlen(v->reason),
			", the bucket is in region %s", a->region);
	if (r < end) {
		judge(v, r->kind, FAULT_IO, r->remedy);
		v->overload = r->overload;
		v->keys = r->code && r->kind == VERDICT_DENIED;
	} else {
		judge(v, a->status >= 500 ? VERDICT_HEALS : VERDICT_FINAL, FAULT_IO, "");
	}
	if (v->kind == VERDICT_DENIED || v->kind == VERDICT_EXPIRED)
		v->code = FAULT_PERMISSION;
	else if (v->kind == VERDICT_OTHER)
		v->code = FAULT_CHANGED;
}

static void judge_torn(struct verdict *v, const char *reason)
{
	judge(v, VERDICT_TORN, FAULT_IO, "");
	snprintf(v->reason, sizeof(v->reason), "%s", reason);
}

static bool judge_object(
	const struct verdict_asked *asked, const struct answer *a, uint64_t size, struct verdict *v)
{
	if (asked->size != STORE_SIZE_UNKNOWN && size != STORE_SIZE_UNKNOWN &&
		size != asked->size) {
		judge(v, VERDICT_OTHER, FAULT_CHANGED, REMEDY_MANIFEST);
		snprintf(v->reason, sizeof(v->reason),
			"the object has %" PRIu64 " bytes, in the manifest %" PRIu64, size,
			asked->size);
		return false;
	}
	if (asked->etag && !a->has_etag && a->status != 416) {
		judge_torn(v, "no ETag, so it may be another object");
		return false;
	}
	if (asked->etag && a->has_etag && strcmp(a->etag, asked->etag) != 0) {
		judge(v, VERDICT_OTHER, FAULT_CHANGED, REMEDY_MANIFEST);
		snprintf(v->reason, sizeof(v->reason),
			"the object's ETag is \"%.100s\", in the manifest \"%.100s\"", a->etag,
			asked->etag);
		return false;
	}
	return true;
}

static void judge_part(const struct verdict_asked *asked, const struct answer *a, struct verdict *v)
{
	if (asked->want == VERDICT_HEAD || asked->want == VERDICT_WHOLE) {
		judge_torn(v, "206 without a range");
	} else if (!a->has_range) {
		judge_torn(v, "206 without Content-Range");
	} else if (judge_object(asked, a, a->size, v)) {
		uint64_t last = asked->at + asked->n - 1;
		bool ends = asked->want == VERDICT_BEGIN && a->size != STORE_SIZE_UNKNOWN &&
			    a->to + 1 == a->size && a->to < last;

		if (a->from != asked->at || (a->to != last && !ends))
			judge_torn(v, "another range than asked for");
		else if (a->has_length && a->length != a->to - a->from + 1)
			judge_torn(v, "a length that is not the range's");
		else
			v->kind = VERDICT_GOOD;
	}
}

/* Status 200: the whole object, or an error page. */
static void judge_whole(
	const struct verdict_asked *asked, const struct answer *a, struct verdict *v)
{
	uint64_t size = a->has_length ? a->length : STORE_SIZE_UNKNOWN;
	bool whole =
		asked->at == 0 && size != STORE_SIZE_UNKNOWN &&
		(asked->size == size || (asked->size == STORE_SIZE_UNKNOWN && size <= asked->n));

	if (asked->want == VERDICT_WHOLE) {
		v->kind = VERDICT_GOOD;
	} else if (asked->want == VERDICT_HEAD) {
		if (judge_object(asked, a, size, v))
			v->kind = VERDICT_GOOD;
	} else if (whole && (size == asked->n || asked->want == VERDICT_BEGIN)) {
		if (judge_object(asked, a, size, v))
			v->kind = VERDICT_GOOD;
	} else if (size == asked->size ||
		   (size != STORE_SIZE_UNKNOWN && size > asked->n && asked->etag && a->has_etag)) {
		judge(v, VERDICT_FINAL, FAULT_IO, "the server must support ranges of objects");
		snprintf(v->reason, sizeof(v->reason), "200 with the whole object, not the range");
	} else {
		judge_torn(v, "200 instead of the range");
	}
}

void verdict_headers(const struct verdict_asked *asked, const struct answer *a, struct verdict *v)
{
	*v = (struct verdict){.kind = VERDICT_GOOD, .code = FAULT_IO, .remedy = ""};
	if (a->too_long) {
		judge_torn(v, "headers over 64 KiB");
	} else if (a->status == 0) {
		judge(v, VERDICT_HEALS, FAULT_IO, "");
		snprintf(v->reason, sizeof(v->reason), "no HTTP answer");
	} else if (a->status == 416 && asked->want == VERDICT_BEGIN && asked->at == 0 &&
		   (a->size == 0 || a->size == STORE_SIZE_UNKNOWN)) {
		v->kind = VERDICT_GOOD; /* an empty object */
	} else if (a->status != 200 && a->status != 206) {
		judge_error(a, v);
		if (a->status == 416 && a->size != STORE_SIZE_UNKNOWN)
			judge_object(asked, a, a->size, v);
	} else if (a->encoded) {
		judge(v, VERDICT_FINAL, FAULT_IO,
			"upload the object again without Content-Encoding");
		snprintf(v->reason, sizeof(v->reason), "the object has a Content-Encoding");
	} else if (a->status == 206) {
		judge_part(asked, a, v);
	} else {
		judge_whole(asked, a, v);
	}
	fault_line(v->reason); /* an ETag may contain anything */
}

uint64_t verdict_body(const struct verdict_asked *asked, const struct answer *a)
{
	if (asked->want == VERDICT_HEAD || a->status == 416)
		return 0;
	if (a->status == 206)
		return a->to - a->from + 1;
	return a->has_length ? a->length : STORE_SIZE_UNKNOWN;
}

void verdict_answer(
	const struct verdict_asked *asked, const struct answer *a, uint64_t n, struct verdict *v)
{
	verdict_headers(asked, a, v);
	uint64_t body = verdict_body(asked, a);

	if (v->kind != VERDICT_GOOD || a->status == 416)
		return;
	if (body == STORE_SIZE_UNKNOWN && n > asked->n)
		body = asked->n; /* it was cut there */
	if (body == STORE_SIZE_UNKNOWN || n == body)
		return;
	judge_torn(v, "");
	snprintf(v->reason, sizeof(v->reason), "%" PRIu64 " bytes instead of %" PRIu64, n, body);
}

/* ---- retries ---- */

/* A random number below @most. */
static int64_t part_of(int64_t most, uint32_t random)
{
	return (int64_t)(((uint64_t)most * random) >> 32);
}

/* Full jitter: any time up to a bound that doubles. */
static int64_t pace(struct tries *tries, const struct retry_state *state)
{
	int64_t most = RETRY_MOST_MS, least = (int64_t)state->retry_after_s * 1000;

	if (tries->paced < 8 && (RETRY_FIRST_MS << tries->paced) < RETRY_MOST_MS)
		most = RETRY_FIRST_MS << tries->paced;
	tries->paced++;
	int64_t wait = part_of(most, state->random);

	return wait > least ? wait : least;
}

static int64_t pace_other(struct tries *tries, const struct retry_state *state)
{
	if (!state->listed || ++tries->other >= RETRY_OTHER)
		return RETRY_STOP;
	return RETRY_OTHER_MS - part_of(RETRY_OTHER_MS / 4, state->random);
}

int64_t retry_after(
	struct tries *tries, const struct verdict *verdict, const struct retry_state *state)
{
	if (verdict->kind != VERDICT_TORN)
		tries->torn = 0;
	/* Those before and after an outage are not in a row. */
	if (verdict->kind != VERDICT_OTHER && verdict->kind != VERDICT_DENIED)
		tries->other = 0;
	switch (verdict->kind) {
	case VERDICT_TORN:
		return ++tries->torn < RETRY_TORN ? 0 : pace(tries, state);
	case VERDICT_CLOCK:
		return tries->clock++ == 0 ? 0 : pace(tries, state);
	case VERDICT_DENIED:
		if (!state->proven)
			return RETRY_STOP;
		return state->others ? pace_other(tries, state) : pace(tries, state);
	case VERDICT_OTHER:
		return pace_other(tries, state);
	case VERDICT_UNTRUSTED:
		return state->proven ? pace(tries, state) : RETRY_STOP;
	case VERDICT_FINAL:
		return RETRY_STOP;
	case VERDICT_GOOD:
	case VERDICT_HEALS:
	case VERDICT_EXPIRED:
		break;
	}
	return pace(tries, state);
}

int64_t retry_first_byte_ms(const struct tries *tries)
{
	int64_t ms = RETRY_FIRST_BYTE_MS;

	for (unsigned i = 0; i < tries->timeouts && ms < RETRY_FIRST_BYTE_MOST_MS; i++)
		ms *= 2;
	return ms < RETRY_FIRST_BYTE_MOST_MS ? ms : RETRY_FIRST_BYTE_MOST_MS;
}
