/* One GET (or HEAD), made by the thread that waits for it, with a handle of libcurl of its own. */
#include "daemon/store/internal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	LARGE_BYTES = 1024 * 1024, /* judged by its rate, not by its whole time */
	STALL_MS = 10 * 1000,	   /* a large body: STALL_BYTES in this time */
	STALL_BYTES = 64 * 1024 * 10,
	FIRST_BYTE_MS = 2 * 1000, /* doubled after each timeout */
	FIRST_BYTE_MOST_MS = 30 * 1000,
	URL_BYTES = 16 + URL_HOST_BYTES + URL_PATH_BYTES + CREDENTIALS_QUERY_BYTES + 4096,
};

/* ---- libcurl's callbacks ---- */

/* Of a whole object only the answer says how large it is. */
static bool is_large(const struct reading *r)
{
	const struct answer *answer = &r->get.answer;

	return (answer->has_length ? answer->length : r->asked.n) > LARGE_BYTES;
}

static size_t on_header(char *line, size_t size, size_t n, void *context)
{
	struct reading *r = context;
	struct get *get = &r->get;

	(void)size;
	if (get->judged) /* after the body, they say nothing that counts */
		return n;
	answer_header(&get->answer, line, n);
	if (get->answered_ms == 0)
		get->answered_ms = stores_now_ms();
	get->deadline_ms = get->answered_ms + (is_large(r) ? STALL_MS : get->first_byte_ms);
	return n;
}

/* Of an error the first bytes say which one. A range has its memory from the beginning. */
static size_t on_body(char *from, size_t size, size_t n, void *context)
{
	struct reading *r = context;
	struct get *get = &r->get;

	(void)size;
	if (!get->judged) {
		verdict_headers(&r->asked, &get->answer, &get->verdict);
		get->judged = true;
	}
	bool good = get->verdict.kind == VERDICT_GOOD;
	size_t left = (good ? r->asked.n : ANSWER_ERROR_BYTES) - get->n;
	size_t some = n < left ? n : left;

	char *body = get->n + some > r->bytes ? realloc(get->body, get->n + some) : get->body;

	if (!body)
		return 0;
	get->body = body;
	memcpy(get->body + get->n, from, some);
	get->n += some;
	get->too_long = good && some < n;
	return some; /* fewer than @n ends the GET */
}

/* ---- handles ---- */

static void set_options(const struct store_bucket *bucket, struct handle *handle)
{
	const struct curl *curl = bucket->stores->curl;
	CURL *easy = handle->easy;

	curl->easy_setopt(easy, CURLOPT_ERRORBUFFER, handle->error);
	curl->easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
	curl->easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
	curl->easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
	curl->easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L); /* a proxy's */
	curl->easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
	curl->easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	curl->easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS,
		(long)(CURLPROTO_HTTPS | (bucket->place.tls ? 0 : CURLPROTO_HTTP)));
	/* libcurl sends Authorization to the first host only. */
	curl->easy_setopt(easy, CURLOPT_FOLLOWLOCATION, bucket->place.kind == URL_HTTPS ? 1L : 0L);
	curl->easy_setopt(easy, CURLOPT_MAXREDIRS, 5L);
}

static void handle_free(const struct curl *curl, struct handle *handle)
{
	curl->easy_cleanup(handle->easy);
	curl->multi_cleanup(handle->multi);
	free(handle);
}

/* NULL: out of memory. With the lock, which is not held while a new one is made. */
static struct handle *handle_take(struct store_bucket *bucket)
{
	const struct curl *curl = bucket->stores->curl;
	struct handle *handle = bucket->spare;

	if (handle) {
		bucket->spare = handle->next;
		return handle;
	}
	pthread_mutex_unlock(&bucket->stores->lock);
	handle = calloc(1, sizeof(*handle));
	if (handle) {
		handle->easy =
			curl_handle(curl, bucket->place.store ? bucket->place.store->ca : NULL);
		handle->multi = curl->multi_init();
		set_options(bucket, handle);
	}
	pthread_mutex_lock(&bucket->stores->lock);
	if (!handle || (handle->easy && handle->multi))
		return handle;
	handle_free(curl, handle);
	return NULL;
}

void get_release(struct reading *r)
{
	struct store_bucket *bucket = r->bucket;
	/* Its memory, unless somebody has taken the body. */
	uint64_t bytes = r->get.body ? r->bytes : 0;

	free(r->get.body);
	/* A connection may be out of step: its answers are those of other requests. */
	if (r->handle && r->get.answer.status / 100 == 2 && r->get.verdict.kind != VERDICT_GOOD) {
		handle_free(r->stores->curl, r->handle);
	} else if (r->handle) {
		r->handle->next = bucket->spare;
		bucket->spare = r->handle;
	}
	r->handle = NULL;
	assert(bucket->status.in_flight > 0 && bucket->body_bytes >= bytes);
	bucket->status.in_flight--;
	bucket->body_bytes -= bytes;
	bucket_turns(bucket);
}

void get_free_spares(struct store_bucket *bucket)
{
	while (bucket->spare) {
		struct handle *handle = bucket->spare;

		bucket->spare = handle->next;
		handle_free(bucket->stores->curl, handle);
	}
}

/* ---- the request ---- */

__attribute__((format(printf, 2, 3))) static void add(struct reading *r, const char *format, ...)
{
	char header[sizeof(((struct sign_keys *)0)->token_header)]; /* the longest */
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(header, sizeof(header), format, arguments);
	va_end(arguments);
	struct curl_slist *more = r->stores->curl->slist_append(r->get.headers, header);

	r->get.headers = more ? more : r->get.headers;
	r->get.incomplete |= !more;
}

static void add_signature(struct reading *r, const char *path)
{
	const struct url_place *place = &r->bucket->place;
	const struct wallet *wallet = &r->bucket->wallet;
	const struct sign_keys *keys = &wallet->now.keys;
	bool pays = place->store && place->store->requester_pays;
	struct sign_headers sign;

	sign_request(keys,
		&(struct sign_request){
			.method = r->asked.want == VERDICT_HEAD ? "HEAD" : "GET",
			.host = place->host,
			.path = path,
			.query = r->query,
			.region = place->region,
			.payer = pays,
			.now = (int64_t)time(NULL) + wallet->clock_offset_s,
		},
		&sign);
	add(r, "%s", SIGN_BODY_HEADER);
	if (pays)
		add(r, "%s", SIGN_PAYER_HEADER);
	if (keys->token_header[0])
		add(r, "%s", keys->token_header);
	add(r, "%s", sign.date);
	add(r, "%s", sign.authorization);
}

/* Fills the URL and the headers, signed. With the lock. */
static void write_request(struct reading *r, char url[URL_BYTES])
{
	const struct url_place *place = &r->bucket->place;
	const struct credentials *credentials = &r->bucket->wallet.now;
	const struct verdict_asked *asked = &r->asked;
	char path[URL_PATH_BYTES];

	r->get.serial = credentials->serial;
	add(r, "Accept-Encoding: identity");
	add(r, "Accept:");
	if (asked->want == VERDICT_RANGE)
		add(r, "Range: bytes=%" PRIu64 "-%" PRIu64, asked->at, asked->at + asked->n - 1);
	url_path(place, r->key, path);
	int n = snprintf(url, URL_BYTES, "%s://%s%s%s%s", place->tls ? "https" : "http",
		place->host, path, r->query[0] ? "?" : "", r->query);

	if (credentials->kind == CREDENTIALS_KEYS)
		add_signature(r, path);
	else if (credentials->kind == CREDENTIALS_BEARER)
		add(r, "%s", credentials->bearer);
	else if (credentials->kind == CREDENTIALS_QUERY)
		snprintf(url + n, URL_BYTES - (size_t)n, "%s%s", r->query[0] ? "&" : "?",
			credentials->query);
}

static void set_request(struct reading *r, const char *url)
{
	const struct curl *curl = r->stores->curl;
	CURL *easy = r->handle->easy;

	r->handle->error[0] = 0;
	curl->easy_setopt(easy, CURLOPT_WRITEDATA, r);
	curl->easy_setopt(easy, CURLOPT_HEADERDATA, r);
	curl->easy_setopt(easy, CURLOPT_URL, url);
	curl->easy_setopt(easy, CURLOPT_HTTPHEADER, r->get.headers);
	if (r->asked.want == VERDICT_HEAD)
		curl->easy_setopt(easy, CURLOPT_NOBODY, 1L);
	else
		curl->easy_setopt(easy, CURLOPT_HTTPGET, 1L);
	/* After some faults: another connection, perhaps to another address. */
	curl->easy_setopt(easy, CURLOPT_FRESH_CONNECT, r->fresh ? 1L : 0L);
	curl->easy_setopt(easy, CURLOPT_DNS_CACHE_TIMEOUT, r->fresh ? 0L : 60L);
	curl->easy_setopt(easy, CURLOPT_BUFFERSIZE,
		r->asked.n > 64 * 1024 ? 256L * 1024 : (long)CURL_MAX_WRITE_SIZE);
}

/* ---- the end ---- */

/* Words for a GET that libcurl ended without an answer. */
static void judge_network(const struct reading *r, CURLcode code, struct verdict *v)
{
	const struct get *get = &r->get;

	*v = (struct verdict){.kind = VERDICT_HEALS, .remedy = ""};
	if (get->timed_out) {
		v->overload = true;
		snprintf(v->reason, sizeof(v->reason), "no %s in time",
			get->answered_ms ? "end of the answer" : "answer");
		return;
	}
	if (code == CURLE_PEER_FAILED_VERIFICATION) {
		v->kind = VERDICT_UNTRUSTED;
		v->remedy = "set `ca:` of the store to the certificate of its authority";
	} else if (code == CURLE_SSL_CACERT_BADFILE) {
		v->kind = VERDICT_FINAL;
		v->remedy = "correct `ca:` of the store, or SSL_CERT_FILE";
	} else if (code == CURLE_TOO_MANY_REDIRECTS ||
		   /* also of an answer that is not HTTP: its text names HTTP in capitals */
		   (code == CURLE_UNSUPPORTED_PROTOCOL && !strstr(r->handle->error, "HTTP"))) {
		v->kind = VERDICT_FINAL;
		v->remedy = "give the URL to which it redirects";
	} else if (get->answered_ms && (code == CURLE_PARTIAL_FILE || code == CURLE_GOT_NOTHING ||
					       code == CURLE_RECV_ERROR)) {
		v->kind = VERDICT_TORN;
	}
	snprintf(v->reason, sizeof(v->reason), "%.200s",
		r->handle->error[0] ? r->handle->error : r->stores->curl->easy_strerror(code));
	fault_line(v->reason);
}

static void judge(struct reading *r, CURLcode code)
{
	struct get *get = &r->get;
	bool answered = get->answer.status >= 200 && !get->timed_out;
	bool cut_by_us = get->judged && get->verdict.kind != VERDICT_GOOD;

	if (answered && (code == CURLE_OK || cut_by_us || get->too_long)) {
		if (cut_by_us)
			answer_error(&get->answer, get->body, get->n);
		verdict_answer(&r->asked, &get->answer, get->n + get->too_long, &get->verdict);
	} else {
		judge_network(r, code, &get->verdict);
	}
}

static bool too_slow(struct reading *r, int64_t now_ms)
{
	struct get *get = &r->get;

	if (now_ms < get->deadline_ms)
		return false;
	/* A thin line brings less. */
	size_t least = (size_t)STALL_BYTES >> (r->timeouts < 8 ? r->timeouts : 8);

	if (get->answered_ms && is_large(r) && get->n - get->stall_n >= least) {
		get->stall_n = get->n;
		get->deadline_ms = now_ms + STALL_MS;
		return false;
	}
	get->timed_out = true;
	return true;
}

static CURLcode perform(struct reading *r)
{
	const struct curl *curl = r->stores->curl;
	const struct handle *handle = r->handle;
	const struct CURLMsg *message;
	CURLcode code = CURLE_ABORTED_BY_CALLBACK;
	int running = 1, left;

	if (curl->multi_add_handle(handle->multi, handle->easy) != CURLM_OK)
		return CURLE_OUT_OF_MEMORY;
	while (curl->multi_perform(handle->multi, &running) == CURLM_OK && running) {
		int64_t now_ms = stores_now_ms();

		if (reading_cancelled(r) || too_slow(r, now_ms))
			break;
		curl->multi_poll(handle->multi, NULL, 0, (int)(r->get.deadline_ms - now_ms), NULL);
	}
	message = curl->multi_info_read(handle->multi, &left);
	if (message)
		code = message->data.result;
	curl->multi_remove_handle(handle->multi, handle->easy);
	return code;
}

bool get_make(struct reading *r)
{
	int first_byte_ms = r->timeouts < 4 ? FIRST_BYTE_MS << r->timeouts : FIRST_BYTE_MOST_MS;
	char url[URL_BYTES];

	r->get = (struct get){
		.answer = {.size = STORE_SIZE_UNKNOWN},
		.begun_ms = stores_now_ms(),
		.first_byte_ms = first_byte_ms,
	};
	r->get.deadline_ms = r->get.begun_ms + first_byte_ms;
	r->handle = handle_take(r->bucket);
	write_request(r, url);
	r->bucket->status.requests++;
	pthread_mutex_unlock(&r->stores->lock);
	r->get.body = malloc(r->bytes > 0 ? r->bytes : 1);
	bool ready = r->handle && r->get.body && !r->get.incomplete;

	if (ready) {
		set_request(r, url);
		judge(r, perform(r));
	}
	r->stores->curl->slist_free_all(r->get.headers);
	pthread_mutex_lock(&r->stores->lock);
	if (!ready) {
		r->bucket->body_bytes -= r->get.body ? 0 : r->bytes;
		get_release(r);
	}
	return ready;
}
