/*
 * A libFuzzer target: what stores and their users write. A listing, the shared AWS files, the JSON
 * of a provider of credentials, a URL, or sums. Keys, paths and secrets stay within their bounds.
 *
 * An input is: failures (fail.h), a byte (which of them), the text.
 */
#include "daemon/store/list_page.h"
#include "daemon/store/profile.h"
#include "daemon/store/providers_own.h"
#include "daemon/store/sums.h"
#include "daemon/store/url.h"
#include "tests/fuzz/check_fault.h"
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
	struct list_page page;
	unsigned most = 100;

	if (list_page(text, n, NULL, n % 2 ? "w" : "", see, &most, &page, &fault))
		assert(strlen(page.next) < LIST_TOKEN_BYTES && page.objects <= 100);
	else
		check_fault(&fault);
}

static void check_profile(char *text, bool prefixed)
{
	static struct profile p;
	int number;

	memset(&p, 0, sizeof(p));
	strcpy(p.name, "lab");
	if (!profile_parse(text, prefixed, &p, &number))
		assert(number >= 1);
	assert(strlen(p.access) < sizeof(p.access) && strlen(p.secret) < sizeof(p.secret));
	assert(strlen(p.token) < sizeof(p.token) && strlen(p.process) < sizeof(p.process));
	assert(strcmp(p.name, "lab") == 0);
}

static void check_json(const char *text, size_t n)
{
	static struct credentials credentials;
	struct seek seek = {.to = &credentials, .expires = INT64_MAX};

	memset(&credentials, 0, sizeof(credentials));
	if (provide_json(&seek, text, n, "Token", "container") != PROVIDED) {
		check_fault(&seek.fault);
		return;
	}
	struct sign_headers headers;
	const struct sign_request request = {"GET", "h", "/", "", "us-east-1", false, 1};

	assert(credentials.keys.access[0] && credentials.keys.secret[0]);
	sign_request(&credentials.keys, &request, &headers);
	assert(strpbrk(headers.authorization, "\r\n") == NULL);
	assert(strpbrk(credentials.keys.token_header, "\r\n") == NULL);
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
	char path[URL_PATH_BYTES], wrong[LIMIT_TEXT_BYTES], host[URL_ENDPOINT_BYTES];
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
	if (url_text_endpoint(text, &tls, host, wrong))
		assert(host[0] && !strpbrk(host, "@/?# \r\n"));
}

/* Sums of the manifest that they name, or of another one. */
static void check_sums(char *text, size_t n)
{
	FILE *file = n > 0 ? fmemopen(text, n, "r") : NULL;
	struct sums_head manifest = {0};
	struct fault fault = {0};

	if (n >= SUMS_HEAD_BYTES)
		sums_head_get(&manifest, text, n - n % 8, &fault);
	manifest.shards += n % 8 == 1;
	uint64_t *sums = file ? sums_read(file, &manifest, &fault) : NULL;

	if (sums)
		assert(n == SUMS_HEAD_BYTES + 8 * manifest.pieces);
	else if (file)
		check_fault(&fault);
	free(sums);
	if (file)
		fclose(file);
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
		if (kind % 6 == 0)
			check_listing(text, in.n);
		else if (kind % 6 == 1)
			check_json(text, in.n);
		else if (kind % 6 == 2)
			check_url(text);
		else if (kind % 6 == 5)
			check_sums(text, in.n);
		else
			check_profile(text, kind % 6 == 3);
	}
	fail_end();
	free(text);
	return 0;
}
