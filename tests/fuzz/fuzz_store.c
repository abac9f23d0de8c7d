/*
 * A libFuzzer target: what stores and their users write. A listing, the shared AWS files, the JSON
 * of a provider of credentials, a URL, or an HTTP answer. Keys, paths and secrets stay within
 * their bounds; an answer is good only for what was asked, otherwise the reason is one line.
 *
 * An input is: failures (fail.h), a byte (which of them), the text. An answer's text is a byte
 * (what was asked for), numbers for size, offset and length, the sized body of an error, the
 * headers.
 */
#include "daemon/store/internal.h"
#include "tests/fuzz/input.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool see(void *context, const struct object *object)
{
	unsigned *most = context;

	assert(strlen(object->key) <= LIST_KEY_BYTES);
	assert(!object->etag || strlen(object->etag) < STORE_ETAG_BYTES);
	assert(object->size < UINT64_C(1000000000000000000));
	return --*most > 0;
}

static void check_listing(const char *text, size_t n)
{
	struct fault fault = {0};
	unsigned most = 100;
	struct listing listing = {.prefix = n % 2 ? "w" : "", .each = see, .context = &most};

	if (list_page(&listing, text, n, &fault))
		assert(strlen(listing.next) < LIST_TOKEN_BYTES);
	else
		check_fault(&fault);
}

static void check_profile(char *text, bool prefixed)
{
	static struct profile p;

	memset(&p, 0, sizeof(p));
	strcpy(p.name, "lab");
	assert(profile_parse(text, prefixed, &p) >= 0);
	assert(strlen(p.access) < sizeof(p.access) && strlen(p.secret) < sizeof(p.secret));
	assert(strlen(p.token) < sizeof(p.token) && strlen(p.process) < sizeof(p.process));
	assert(strlen(p.other) < sizeof(p.other));
	assert(strcmp(p.name, "lab") == 0);
}

static void check_json(const char *text)
{
	static struct seek seek;

	memset(&seek, 0, sizeof(seek));
	snprintf(seek.answer, sizeof(seek.answer), "%s", text);
	if (provide_json(&seek, "Token") != PROVIDED) {
		check_fault(&seek.fault);
		return;
	}
	struct sign_headers headers;
	const struct sign_request request = {"GET", "h", "/", "", "us-east-1", false, 1};

	assert(seek.found.keys.access[0] && seek.found.keys.secret[0]);
	sign_request(&seek.found.keys, &request, &headers);
	assert(strpbrk(headers.authorization, "\r\n") == NULL);
	assert(strpbrk(seek.found.keys.token_header, "\r\n") == NULL);
}

static void check_url(const char *text)
{
	static struct config_store stores[] = {
		{.name = "lab", .endpoint = "http://[::1]:9000"},
		{.name = "far", .style = CONFIG_STYLE_PATH},
	};
	const struct config config = {.store = stores, .stores = 2};
	struct url_place place;
	struct fault fault = {0};
	const char *key;
	char path[URL_PATH_BYTES], host[URL_ENDPOINT_BYTES];
	bool tls;

	if (url_place(&config, text, &place, &key, &fault)) {
		size_t n = url_path(&place, key, path);

		assert(n < sizeof(path) && n == strlen(path) && path[0] == '/');
		assert(strspn(path, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
				    "0123456789-._~/%") == n);
		assert(place.host[0] && !strpbrk(place.host, "@/?# \r\n"));
	} else {
		check_fault(&fault);
		assert(fault.code == FAULT_ARGUMENT);
	}
	if (url_text_endpoint(text, &tls, host, &fault))
		assert(host[0] && !strpbrk(host, "@/?# \r\n"));
}

/* @n: bytes of the body. */
static void check_verdict(const struct verdict_asked *asked, const struct answer *a, size_t n)
{
	struct verdict v;

	verdict_answer(asked, a, n, &v);
	assert(strlen(v.reason) < sizeof(v.reason) && v.remedy);
	for (const char *c = v.reason; *c; c++)
		assert((unsigned char)*c >= 0x20 && *c != 0x7f);
	assert((v.kind == VERDICT_GOOD) == !v.reason[0]);
	if (v.kind != VERDICT_GOOD)
		return;
	assert(asked->want != VERDICT_RANGE || n == asked->n);
	assert(asked->want != VERDICT_WHOLE || n <= asked->n);
	if (asked->want == VERDICT_RANGE && asked->etag)
		assert(a->has_etag && strcmp(a->etag, asked->etag) == 0);
}

static void check_answer(struct input *in)
{
	uint8_t kind = input_byte(in);
	struct verdict_asked asked = {
		.want = kind % 3, .etag = kind & 4 ? "e-16" : NULL, .size = 1000};
	struct answer answer = {.size = STORE_SIZE_UNKNOWN};

	if (kind & 8)
		asked.size = input_number(in, 4) + 1;
	asked.at = input_number(in, 3);
	asked.n = input_number(in, 2) + 1;
	struct input body = input_sized(in);

	while (in->n > 0) {
		const uint8_t *end = memchr(in->at, '\n', in->n);
		struct input line = input_part(in, end ? (size_t)(end - in->at) + 1 : in->n);

		answer_header(&answer, (const char *)line.at, line.n);
	}
	assert(answer.status < 600);
	answer_error(&answer, (const char *)body.at,
		body.n < ANSWER_ERROR_BYTES ? body.n : ANSWER_ERROR_BYTES);
	for (size_t n = asked.n - 1; n <= asked.n + 1; n++)
		check_verdict(&asked, &answer, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};

	setenv("HOME", "/nonexistent", 1);
	unsetenv("AWS_ENDPOINT_URL");
	unsetenv("AWS_ENDPOINT_URL_S3");
	input_fail(&in);
	uint8_t kind = input_byte(&in);
	char *text = malloc(in.n + 1);

	if (text) {
		memcpy(text, in.at, in.n);
		text[in.n] = 0;
		if (kind % 7 == 0)
			check_listing(text, in.n);
		else if (kind % 7 == 1)
			check_json(text);
		else if (kind % 7 == 2)
			check_url(text);
		else if (kind % 7 == 6)
			check_answer(&in);
		else
			check_profile(text, kind % 7 == 3);
	}
	fail_end();
	free(text);
	return 0;
}
