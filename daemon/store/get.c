/* One GET (or HEAD), made by the thread that waits for it, with a handle of libcurl of its own. */
#include "daemon/store/internal.h"

#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	LARGE_BYTES = 1024 * 1024, /* judged by its rate, not by its whole time */
	STALL_MS = 10 * 1000,	   /* a large body: STALL_BYTES in this time */
	STALL_BYTES = 64 * 1024 * 10,
	ROOM_BYTES = 64 * 1024,	  /* the first buffer of a body whose length is not known */
	FIRST_BYTE_MS = 2 * 1000, /* doubled after each timeout */
	FIRST_BYTE_MOST_MS = 30 * 1000,
	URL_BYTES = 16 + URL_HOST_BYTES + URL_PATH_BYTES + CREDENTIALS_QUERY_BYTES + 4096,
};

/* ---- libcurl's callbacks ---- */

/* Of a whole object only the answer says how large it is. */
static bool is_large(const struct get *get)
{
	const struct answer *answer = &get->answer;

	return (answer->has_length ? answer->length : get->reading->asked.n) > LARGE_BYTES;
}

static size_t on_header(char *line, size_t size, size_t n, void *context)
{
	struct get *get = context;

	(void)size;
	answer_header(&get->answer, line, n);
	if (get->answered_ms == 0)
		get->answered_ms = stores_now_ms();
	if (!get->judged) /* they may also follow a body */
		get->deadline_ms =
			get->answered_ms + (is_large(get) ? STALL_MS : get->first_byte_ms);
	return n;
}

/* Makes room for @n more bytes. A range has it from the beginning. */
static bool grow(struct get *get, size_t n)
{
	size_t room = get->room > 0 ? get->room : ROOM_BYTES;

	while (room < get->n + n)
		room *= 2;
	char *body = room > get->room ? realloc(get->body, room) : get->body;

	if (body) {
		get->body = body;
		get->room = room;
	}
	return body;
}

/* Of an error the first bytes say which one. */
static size_t on_body(char *from, size_t size, size_t n, void *context)
{
	struct get *get = context;

	(void)size;
	if (!get->judged) {
		verdict_headers(&get->reading->asked, &get->answer, &get->verdict);
		get->judged = true;
	}
	bool good = get->verdict.kind == VERDICT_GOOD;
	size_t left = (good ? get->reading->asked.n : ANSWER_ERROR_BYTES) - get->n;
	size_t some = n < left ? n : left;

	if (!grow(get, some))
		return 0;
	memcpy(get->body + get->n, from, some);
	get->n += some;
	get->too_long = good && some < n;
	return some; /* fewer than @n ends the GET */
}

/* ---- handles ---- */

static void set_options(const struct store_bucket *bucket, struct get *get)
{
	const struct curl *curl = bucket->stores->curl;
	CURL *easy = get->easy;

	curl->easy_setopt(easy, CURLOPT_ERRORBUFFER, get->error);
	curl->easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
	curl->easy_setopt(easy, CURLOPT_WRITEDATA, get);
	curl->easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
	curl->easy_setopt(easy, CURLOPT_HEADERDATA, get);
	curl->easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
	curl->easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L); /* a proxy's */
	curl->easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
	curl->easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	curl->easy_setopt(
		easy, CURLOPT_REDIR_PROTOCOLS_STR, bucket->place.tls ? "https" : "http,https");
	/* libcurl sends Authorization to the first host only. */
	curl->easy_setopt(easy, CURLOPT_FOLLOWLOCATION, bucket->place.kind == URL_HTTPS ? 1L : 0L);
	curl->easy_setopt(easy, CURLOPT_MAXREDIRS, 5L);
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
	get->easy = curl_handle(curl, bucket->place.store ? bucket->place.store->ca : NULL);
	get->multi = curl->multi_init();
	if (get->easy && get->multi) {
		set_options(bucket, get);
		return get;
	}
	get_free(get);
	return NULL;
}

/* A GET ended, and @bytes of memory are free. */
static void end_turn(struct store_bucket *bucket, uint64_t bytes)
{
	assert(bucket->status.in_flight > 0 && bucket->body_bytes >= bytes);
	bucket->status.in_flight--;
	bucket->body_bytes -= bytes;
	bucket_turns(bucket);
}

/* Frees all but the handle. */
static void put_back(struct get *get)
{
	get->bucket->stores->curl->slist_free_all(get->headers);
	free(get->body);
	get->next = get->bucket->spare;
	get->bucket->spare = get;
}

void get_release(struct get *get)
{
	uint64_t bytes = get->body ? get->reading->bytes : 0;

	put_back(get);
	end_turn(get->bucket, bytes);
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

__attribute__((format(printf, 2, 3))) static void add(struct get *get, const char *format, ...)
{
	char header[sizeof(((struct sign_keys *)0)->token_header)]; /* the longest */
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(header, sizeof(header), format, arguments);
	va_end(arguments);
	struct curl_slist *more = get->bucket->stores->curl->slist_append(get->headers, header);

	get->headers = more ? more : get->headers;
	get->incomplete |= !more;
}

static void add_signature(struct get *get, const struct reading *r, const char *path)
{
	const struct url_place *place = &get->bucket->place;
	const struct wallet *wallet = &get->bucket->wallet;
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
	add(get, "%s", SIGN_BODY_HEADER);
	if (pays)
		add(get, "%s", SIGN_PAYER_HEADER);
	if (keys->token_header[0])
		add(get, "%s", keys->token_header);
	add(get, "%s", sign.date);
	add(get, "%s", sign.authorization);
}

/* Fills the URL and the headers, signed. */
static void write_request(struct get *get, const struct reading *r, char url[URL_BYTES])
{
	const struct url_place *place = &get->bucket->place;
	const struct credentials *credentials = &get->bucket->wallet.now;
	const struct verdict_asked *asked = &r->asked;
	char path[URL_PATH_BYTES];

	get->serial = credentials->serial;
	add(get, "Accept-Encoding: identity");
	add(get, "Accept:");
	if (asked->want == VERDICT_RANGE)
		add(get, "Range: bytes=%" PRIu64 "-%" PRIu64, asked->at, asked->at + asked->n - 1);
	url_path(place, r->key, path);
	int n = snprintf(url, URL_BYTES, "%s://%s%s%s%s", place->tls ? "https" : "http",
		place->host, path, r->query[0] ? "?" : "", r->query);

	if (credentials->kind == CREDENTIALS_KEYS)
		add_signature(get, r, path);
	else if (credentials->kind == CREDENTIALS_BEARER)
		add(get, "%s", credentials->bearer);
	else if (credentials->kind == CREDENTIALS_QUERY)
		snprintf(url + n, URL_BYTES - (size_t)n, "%s%s", r->query[0] ? "&" : "?",
			credentials->query);
}

/* False: out of memory. */
static bool set_request(struct get *get, const struct reading *r)
{
	const struct curl *curl = get->bucket->stores->curl;
	char url[URL_BYTES];

	write_request(get, r, url);
	curl->easy_setopt(get->easy, CURLOPT_URL, url);
	curl->easy_setopt(get->easy, CURLOPT_HTTPHEADER, get->headers);
	if (r->asked.want == VERDICT_HEAD)
		curl->easy_setopt(get->easy, CURLOPT_NOBODY, 1L);
	else
		curl->easy_setopt(get->easy, CURLOPT_HTTPGET, 1L);
	/* After some faults: another connection, perhaps to another address. */
	curl->easy_setopt(get->easy, CURLOPT_FRESH_CONNECT, r->fresh ? 1L : 0L);
	curl->easy_setopt(get->easy, CURLOPT_DNS_CACHE_TIMEOUT, r->fresh ? 0L : 60L);
	curl->easy_setopt(get->easy, CURLOPT_BUFFERSIZE,
		r->asked.n > 64 * 1024 ? 256L * 1024 : (long)CURL_MAX_WRITE_SIZE);
	return !get->incomplete;
}

/* ---- the end ---- */

/* Words for a GET that libcurl ended without an answer. */
static void judge_network(const struct get *get, CURLcode code, struct verdict *v)
{
	const struct curl *curl = get->bucket->stores->curl;

	*v = (struct verdict){.kind = VERDICT_HEALS, .remedy = ""};
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
	} else if (get->answered_ms && (code == CURLE_PARTIAL_FILE || code == CURLE_GOT_NOTHING ||
					       code == CURLE_RECV_ERROR)) {
		v->kind = VERDICT_TORN;
	}
	snprintf(v->reason, sizeof(v->reason), "%.200s",
		get->error[0] ? get->error : curl->easy_strerror(code));
	fault_line(v->reason);
}

static void judge(struct get *get, CURLcode code)
{
	bool answered = get->answer.status >= 200 && !get->timed_out;
	bool cut_by_us = get->judged && get->verdict.kind != VERDICT_GOOD;

	if (answered && (code == CURLE_OK || cut_by_us || get->too_long)) {
		if (cut_by_us)
			answer_error(&get->answer, get->body, get->n);
		verdict_answer(
			&get->reading->asked, &get->answer, get->n + get->too_long, &get->verdict);
	} else {
		judge_network(get, code, &get->verdict);
	}
}

static bool too_slow(struct get *get, int64_t now_ms)
{
	if (now_ms < get->deadline_ms)
		return false;
	if (get->answered_ms && is_large(get) && get->n - get->stall_n >= STALL_BYTES) {
		get->stall_n = get->n;
		get->deadline_ms = now_ms + STALL_MS;
		return false;
	}
	get->timed_out = true;
	return true;
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
		int64_t now_ms = stores_now_ms();

		if (get->left || too_slow(get, now_ms))
			break;
		curl->multi_poll(get->multi, NULL, 0, (int)(get->deadline_ms - now_ms), NULL);
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
	struct store_bucket *bucket = reading->bucket;
	struct stores *stores = bucket->stores;
	struct get *get = get_new(bucket);

	if (!get) {
		end_turn(bucket, reading->bytes);
		return NULL;
	}
	*get = (struct get){
		.bucket = bucket,
		.easy = get->easy,
		.multi = get->multi,
		.left = reading_cancelled(reading),
		.reading = reading,
		.answer = {.size = STORE_SIZE_UNKNOWN},
		.room = reading->bytes,
		.begun_ms = stores_now_ms(),
		.first_byte_ms = (int64_t)FIRST_BYTE_MS
				 << (reading->timeouts < 4 ? reading->timeouts : 4),
	};
	if (get->first_byte_ms > FIRST_BYTE_MOST_MS)
		get->first_byte_ms = FIRST_BYTE_MOST_MS;
	get->deadline_ms = get->begun_ms + get->first_byte_ms;
	get->body = malloc(get->room > 0 ? get->room : 1);
	if (!get->body || !set_request(get, reading)) {
		put_back(get);
		end_turn(bucket, reading->bytes);
		return NULL;
	}
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
