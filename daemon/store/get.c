/* One GET (or HEAD), made by the thread that waits for it, with a handle of libcurl of its own. */
#include "daemon/store/internal.h"

#include "proto/version.h"

#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOOK_MS = 100 }; /* a name is being looked up: so often */

/* ---- libcurl's callbacks ---- */

static size_t on_header(char *line, size_t size, size_t n, void *context)
{
	struct get *get = context;

	(void)size;
	if (get->answered_ms == 0) {
		get->answered_ms = stores_now_ms();
		get->deadline_ms =
			get->answered_ms + (get->large ? GET_STALL_MS : get->first_byte_ms);
	}
	return answer_header(&get->answer, line, n) ? n : 0;
}

/* The body of an error, of which the first bytes say which one. */
static size_t on_error_body(struct get *get, const char *from, size_t n)
{
	size_t room = sizeof(get->error_body) - get->n, fits = n < room ? n : room;

	memcpy(get->error_body + get->n, from, fits);
	get->n += fits;
	return fits; /* fewer than @n ends the GET */
}

static size_t on_body(char *from, size_t size, size_t n, void *context)
{
	struct get *get = context;

	(void)size;
	if (!get->judged) {
		verdict_headers(get->asked, &get->answer, &get->verdict);
		get->judged = true;
	}
	if (get->verdict.kind != VERDICT_GOOD || get->answer.status == 416)
		return on_error_body(get, from, n);
	if (n > get->asked->n - get->n) {
		get->n = get->asked->n + 1; /* too long */
		return 0;
	}
	memcpy(get->body + get->n, from, n);
	get->n += n;
	return n;
}

/* ---- handles ---- */

static void set_certificates(const struct store_bucket *bucket, CURL *easy)
{
	const struct curl *curl = bucket->stores->curl;
	struct curl_blob blob = {.data = bucket->certificates.text,
		.len = bucket->certificates.n,
		.flags = CURL_BLOB_NOCOPY};
	const char *file = certificates_system();

	curl->easy_setopt(easy, CURLOPT_CAPATH, bucket->ca_directory);
	curl->easy_setopt(easy, CURLOPT_CA_CACHE_TIMEOUT, -1L);
	if (blob.data)
		curl->easy_setopt(easy, CURLOPT_CAINFO_BLOB, &blob);
	else if (file || bucket->ca_directory)
		curl->easy_setopt(easy, CURLOPT_CAINFO, bucket->ca_directory ? NULL : file);
}

static void set_options(const struct store_bucket *bucket, struct get *get)
{
	const struct curl *curl = bucket->stores->curl;
	CURL *easy = get->easy;

	curl->easy_setopt(easy, CURLOPT_ERRORBUFFER, get->error);
	curl->easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
	curl->easy_setopt(easy, CURLOPT_WRITEDATA, get);
	curl->easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
	curl->easy_setopt(easy, CURLOPT_HEADERDATA, get);
	curl->easy_setopt(easy, CURLOPT_HTTPHEADER, get->headers);
	curl->easy_setopt(easy, CURLOPT_USERAGENT, "tokend/" TOKEND_VERSION);
	curl->easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
	curl->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl->easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* does not wait for a name server */
	curl->easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L); /* a proxy's */
	curl->easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
	curl->easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	curl->easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
	curl->easy_setopt(
		easy, CURLOPT_REDIR_PROTOCOLS_STR, bucket->place.tls ? "https" : "http,https");
	/* libcurl sends Authorization to the first host only. */
	curl->easy_setopt(easy, CURLOPT_FOLLOWLOCATION, bucket->place.kind == URL_HTTPS ? 1L : 0L);
	curl->easy_setopt(easy, CURLOPT_MAXREDIRS, 5L);
	set_certificates(bucket, easy);
}

/* TLS writes to sockets that the server has closed: the caller's thread may be a tool's main one.
 */
static void block_pipe(sigset_t *before)
{
	sigset_t pipe;

	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &pipe, before);
}

static void unblock_pipe(const sigset_t *before)
{
	const struct timespec now = {0};
	sigset_t pipe;

	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	if (!sigismember(before, SIGPIPE))
		sigtimedwait(&pipe, NULL, &now);
	pthread_sigmask(SIG_SETMASK, before, NULL);
}

static void get_free(struct get *get)
{
	const struct curl *curl = get->bucket->stores->curl;

	if (get->easy)
		curl->easy_cleanup(get->easy);
	if (get->multi)
		curl->multi_cleanup(get->multi);
	free(get);
}

static struct get *get_new(struct store_bucket *bucket)
{
	const struct curl *curl = bucket->stores->curl;
	struct get *get = bucket->spare;

	if (get) {
		bucket->spare = get->next;
		return get;
	}
	get = calloc(1, sizeof(*get));
	if (!get)
		return NULL;
	get->bucket = bucket;
	get->easy = curl->easy_init();
	get->multi = curl->multi_init();
	if (get->easy && get->multi) {
		set_options(bucket, get);
		return get;
	}
	get_free(get);
	return NULL;
}

void get_release(struct get *get)
{
	struct store_bucket *bucket = get->bucket;

	assert(bucket->status.in_flight > 0);
	bucket->status.in_flight--;
	if (get->body)
		bucket->body_bytes -= get->body_bytes;
	free(get->body);
	get->body = NULL;
	get->next = bucket->spare;
	bucket->spare = get;
	bucket_turns(bucket);
}

void get_free_spares(struct store_bucket *bucket)
{
	sigset_t before;

	block_pipe(&before);
	while (bucket->spare) {
		struct get *get = bucket->spare;

		bucket->spare = get->next;
		get_free(get);
	}
	unblock_pipe(&before);
}

/* ---- the request ---- */

static void add(struct get *get, char *header)
{
	struct curl_slist *node = &get->headers[get->header_count];

	*node = (struct curl_slist){.data = header};
	if (get->header_count++ > 0)
		node[-1].next = node;
}

static void add_range(struct get *get, const struct ask *ask)
{
	const struct verdict_asked *asked = &ask->asked;

	if (asked->want != VERDICT_RANGE && asked->want != VERDICT_BEGIN)
		return;
	snprintf(get->range_header, sizeof(get->range_header), "Range: bytes=%" PRIu64 "-%" PRIu64,
		asked->at, asked->at + asked->n - 1);
	add(get, get->range_header);
	if (!asked->etag || ask->no_match || strncmp(asked->etag, "W/", 2) == 0)
		return;
	snprintf(get->match, sizeof(get->match), "If-Match: \"%s\"", asked->etag);
	add(get, get->match);
}

/* Copies a secret header: other credentials may take the place of these during the GET. */
static void add_secret(struct get *get, const char *header)
{
	snprintf(get->secret, sizeof(get->secret), "%s", header);
	add(get, get->secret);
}

static void add_signature(struct get *get, const struct ask *ask, const char *path)
{
	static char body[] = SIGN_BODY_HEADER, payer[] = SIGN_PAYER_HEADER;
	struct store_bucket *bucket = get->bucket;
	struct sign_keys *keys = &bucket->credentials->keys;
	bool pays = bucket->place.store && bucket->place.store->requester_pays;

	sign_request(keys,
		&(struct sign_request){
			.method = ask->asked.want == VERDICT_HEAD ? "HEAD" : "GET",
			.host = bucket->place.host,
			.path = path,
			.query = ask->query,
			.region = bucket->place.region,
			.payer = pays,
			.now = (int64_t)time(NULL) + bucket->clock_offset_s,
		},
		&get->sign);
	add(get, body);
	if (pays)
		add(get, payer);
	if (keys->token_header[0])
		add_secret(get, keys->token_header);
	add(get, get->sign.date);
	add(get, get->sign.authorization);
}

/* Fills the URL and the headers, signed. */
static void write_request(
	struct get *get, const char *key, const struct ask *ask, char url[GET_URL_BYTES])
{
	static char identity[] = "Accept-Encoding: identity", accept[] = "Accept:";
	const struct store_bucket *bucket = get->bucket;
	char path[URL_PATH_BYTES];

	add(get, identity);
	add(get, accept);
	add_range(get, ask);
	url_path(&bucket->place, key, path);
	int n = snprintf(url, GET_URL_BYTES, "%s://%s%s%s%s", bucket->place.tls ? "https" : "http",
		bucket->place.host, path, ask->query[0] ? "?" : "", ask->query);

	switch (bucket->credentials->kind) {
	case CREDENTIALS_KEYS:
		add_signature(get, ask, path);
		break;
	case CREDENTIALS_BEARER:
		add_secret(get, bucket->credentials->bearer);
		break;
	case CREDENTIALS_QUERY:
		snprintf(url + n, GET_URL_BYTES - (size_t)n, "%s%s", ask->query[0] ? "&" : "?",
			bucket->credentials->query);
		break;
	case CREDENTIALS_ANONYMOUS:
		break;
	}
}

static void set_request(struct get *get, const char *key, const struct ask *ask)
{
	const struct curl *curl = get->bucket->stores->curl;
	char url[GET_URL_BYTES];

	write_request(get, key, ask, url);
	curl->easy_setopt(get->easy, CURLOPT_URL, url);
	if (ask->asked.want == VERDICT_HEAD)
		curl->easy_setopt(get->easy, CURLOPT_NOBODY, 1L);
	else
		curl->easy_setopt(get->easy, CURLOPT_HTTPGET, 1L);
	/* After some faults: another connection, perhaps to another address. */
	curl->easy_setopt(get->easy, CURLOPT_FRESH_CONNECT, ask->fresh ? 1L : 0L);
	curl->easy_setopt(get->easy, CURLOPT_DNS_CACHE_TIMEOUT, ask->fresh ? 0L : 60L);
	curl->easy_setopt(get->easy, CURLOPT_BUFFERSIZE,
		ask->asked.n > 64 * 1024 ? 256L * 1024 : (long)CURL_MAX_WRITE_SIZE);
}

/* ---- the end ---- */

/* Words for a GET that libcurl ended without an answer. */
static void judge_network(const struct get *get, CURLcode code, struct verdict *v)
{
	const struct curl *curl = get->bucket->stores->curl;

	*v = (struct verdict){.kind = VERDICT_HEALS, .code = FAULT_IO, .remedy = ""};
	if (get->timed_out) {
		v->overload = true;
		snprintf(v->reason, sizeof(v->reason), "no %s within %.0f s",
			get->answered_ms ? "end of the answer" : "answer",
			(double)(get->deadline_ms -
				 (get->answered_ms ? get->answered_ms : get->begun_ms)) /
				1000);
		return;
	}
	if (code == CURLE_PEER_FAILED_VERIFICATION) {
		v->kind = VERDICT_UNTRUSTED;
		v->remedy = "set `ca:` of the store to the certificate of its authority";
	} else if (code == CURLE_SSL_CACERT_BADFILE) {
		v->kind = VERDICT_FINAL;
		v->remedy = "correct `ca:` of the store, or SSL_CERT_FILE";
	} else if (code == CURLE_TOO_MANY_REDIRECTS || code == CURLE_UNSUPPORTED_PROTOCOL) {
		v->kind = VERDICT_FINAL;
		v->remedy = "give the URL to which it redirects";
	} else if (code == CURLE_PARTIAL_FILE || code == CURLE_GOT_NOTHING ||
		   code == CURLE_RECV_ERROR) {
		v->kind = get->answered_ms ? VERDICT_TORN : VERDICT_HEALS;
	}
	snprintf(v->reason, sizeof(v->reason), "%.200s",
		get->error[0] ? get->error : curl->easy_strerror(code));
	fault_line(v->reason);
}

static void judge(struct get *get, CURLcode code)
{
	bool answered = get->answer.status >= 200 && !get->timed_out;
	bool cut_by_us = get->judged && get->verdict.kind != VERDICT_GOOD;

	if (get->answer.too_long ||
		(answered && (code == CURLE_OK || cut_by_us || get->n > get->asked->n))) {
		if (cut_by_us)
			answer_error(&get->answer, get->error_body, get->n);
		verdict_answer(get->asked, &get->answer, get->n, &get->verdict);
	} else {
		judge_network(get, code, &get->verdict);
	}
}

/* Looking up a name has its own end. */
static bool too_slow(struct get *get, int64_t now_ms)
{
	curl_off_t lookup = 0;

	if (now_ms < get->deadline_ms)
		return false;
	if (get->answered_ms && get->large && get->n - get->stall_n >= GET_STALL_BYTES) {
		get->stall_n = get->n;
		get->deadline_ms = now_ms + GET_STALL_MS;
		return false;
	}
	get->bucket->stores->curl->easy_getinfo(get->easy, CURLINFO_NAMELOOKUP_TIME_T, &lookup);
	get->timed_out = lookup > 0 || get->answered_ms;
	return get->timed_out;
}

static CURLcode perform(struct get *get)
{
	const struct curl *curl = get->bucket->stores->curl;
	const struct CURLMsg *message;
	CURLcode code = CURLE_ABORTED_BY_CALLBACK;
	int running = 1, left;
	sigset_t before;

	if (curl->multi_add_handle(get->multi, get->easy) != CURLM_OK)
		return CURLE_OUT_OF_MEMORY;
	block_pipe(&before);
	while (curl->multi_perform(get->multi, &running) == CURLM_OK && running) {
		int64_t now_ms = stores_now_ms(), wait_ms = get->deadline_ms - now_ms;

		if (get->left || too_slow(get, now_ms))
			break;
		curl->multi_poll(get->multi, NULL, 0, wait_ms > 0 ? (int)wait_ms : LOOK_MS, NULL);
	}
	message = curl->multi_info_read(get->multi, &left);
	if (message)
		code = message->data.result;
	curl->multi_remove_handle(get->multi, get->easy);
	unblock_pipe(&before);
	return code;
}

struct get *get_make(struct reading *reading)
{
	const struct ask *ask = &reading->ask;
	struct store_bucket *bucket = reading->bucket;
	struct stores *stores = bucket->stores;
	char *body = malloc(ask->asked.n > 0 ? ask->asked.n : 1);
	struct get *get = body ? get_new(bucket) : NULL;

	if (!get) {
		free(body);
		return NULL;
	}
	*get = (struct get){
		.bucket = bucket,
		.easy = get->easy,
		.multi = get->multi,
		.left = reading_cancelled(reading),
		.asked = &ask->asked,
		.answer = {.size = STORE_SIZE_UNKNOWN},
		.large = ask->asked.n > GET_LARGE_BYTES,
		.body = body,
		.body_bytes = ask->asked.n,
		.serial = bucket->credentials->serial,
		.begun_ms = stores_now_ms(),
		.first_byte_ms = ask->first_byte_ms,
	};
	get->deadline_ms = get->begun_ms + get->first_byte_ms;
	set_request(get, reading->key, ask);
	bucket->status.requests++;
	reading->get = get;
	pthread_mutex_unlock(&stores->lock);
	judge(get, perform(get));
	pthread_mutex_lock(&stores->lock);
	reading->get = NULL;
	return get;
}

void get_leave(struct get *get)
{
	get->left = true;
	get->bucket->stores->curl->multi_wakeup(get->multi);
}
