#include "daemon/control/keeper.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct keeper {
	uv_loop_t *loop;
	uv_async_t news;
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t given, over;
	struct keeper_job *first, **end;	     /* waiting */
	struct keeper_job *finished, **finished_end; /* their done() must be called */
	unsigned jobs;				     /* waiting or running */
	uint64_t begun_ns;			     /* when the present job began; 0: none */
	uid_t last;				     /* the user of the last job */
	uint64_t turn;				     /* the number of its turn; even */
	bool stopping;
};

static uint64_t clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

uint64_t keeper_clock(void)
{
	return clock_ns() / 1000000;
}

/*
 * The last turn of the user of a new job. A user without waiting jobs comes after all users who
 * have some, but before the one whose turn it is now: a user gains nothing by giving jobs one at a
 * time.
 */
static uint64_t turn_of(const struct keeper *k, uid_t uid)
{
	for (const struct keeper_job *job = k->first; job; job = job->next)
		if (job->uid == uid)
			return job->turn;
	return uid == k->last ? k->turn : k->turn - 1;
}

/* Takes the first job of the user whose last turn was the longest ago. */
static struct keeper_job *take(struct keeper *k)
{
	struct keeper_job **first = &k->first, *job;

	for (struct keeper_job **at = first; *at; at = &(*at)->next)
		if ((*at)->turn < (*first)->turn)
			first = at;
	job = *first;
	*first = job->next;
	if (k->end == &job->next)
		k->end = first;
	k->last = job->uid;
	k->turn += 2;
	for (struct keeper_job *other = k->first; other; other = other->next)
		if (other->uid == job->uid)
			other->turn = k->turn;
	job->next = NULL;
	return job;
}

/* Passes a finished job to the loop, for its done(). */
static void hand_back(struct keeper *k, struct keeper_job *job)
{
	*k->finished_end = job;
	k->finished_end = &job->next;
	if (!k->stopping)
		uv_async_send(&k->news);
}

static void carry_out(struct keeper *k, struct keeper_job *job)
{
	bool dropped = job->dropped;

	k->begun_ns = clock_ns();
	pthread_mutex_unlock(&k->mutex);
	if (!dropped)
		job->work(job);
	pthread_mutex_lock(&k->mutex);
	k->begun_ns = 0;
	k->jobs--;
	job->over = true;
	if (!job->awaited)
		hand_back(k, job);
	pthread_cond_broadcast(&k->over);
}

static void *serve(void *argument)
{
	struct keeper *k = argument;

	pthread_mutex_lock(&k->mutex);
	for (;;) {
		if (k->first)
			carry_out(k, take(k));
		else if (k->stopping)
			break;
		else
			pthread_cond_wait(&k->given, &k->mutex);
	}
	pthread_mutex_unlock(&k->mutex);
	return NULL;
}

/* Calls done() of all finished jobs. */
static void finish(struct keeper *k)
{
	pthread_mutex_lock(&k->mutex);

	struct keeper_job *job = k->finished;

	k->finished = NULL;
	k->finished_end = &k->finished;
	pthread_mutex_unlock(&k->mutex);
	for (struct keeper_job *next; job; job = next) {
		next = job->next;
		job->done(job);
	}
}

static void on_news(uv_async_t *news)
{
	finish(news->data);
}

static void keeper_free(struct keeper *k)
{
	pthread_cond_destroy(&k->given);
	pthread_cond_destroy(&k->over);
	pthread_mutex_destroy(&k->mutex);
	free(k);
}

struct keeper *keeper_start(uv_loop_t *loop, struct fault *fault)
{
	struct keeper *k = calloc(1, sizeof(*k));
	pthread_condattr_t monotonic;

	if (!k) {
		fault_memory(fault);
		return NULL;
	}
	k->loop = loop;
	k->end = &k->first;
	k->finished_end = &k->finished;
	k->last = (uid_t)KEEPER_NOBODY;
	k->turn = 2;
	pthread_mutex_init(&k->mutex, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&k->given, NULL);
	pthread_cond_init(&k->over, &monotonic);
	pthread_condattr_destroy(&monotonic);

	int error = pthread_create(&k->thread, NULL, serve, k);

	if (error) {
		keeper_free(k);
		fault_errno(fault, error, "state_dir", "cannot start the thread for state_dir: %s",
			strerror(error));
		return NULL;
	}
	uv_async_init(loop, &k->news, on_news);
	k->news.data = k;
	return k;
}

static void queue(struct keeper *k, struct keeper_job *job, bool awaited)
{
	job->next = NULL;
	job->dropped = job->over = false;
	job->awaited = awaited;
	job->since_ms = keeper_clock();
	job->turn = turn_of(k, job->uid);
	*k->end = job;
	k->end = &job->next;
	k->jobs++;
	pthread_cond_signal(&k->given);
}

void keeper_give(struct keeper *k, struct keeper_job *job)
{
	pthread_mutex_lock(&k->mutex);
	queue(k, job, false);
	pthread_mutex_unlock(&k->mutex);
}

static struct timespec after(unsigned ms)
{
	uint64_t until = clock_ns() + ms * UINT64_C(1000000);

	return (struct timespec){
		(time_t)(until / UINT64_C(1000000000)), (long)(until % UINT64_C(1000000000))};
}

bool keeper_await(struct keeper *k, struct keeper_job *job, unsigned patience_ms)
{
	const struct timespec until = after(patience_ms);
	bool over = false;
	int error = 0;

	pthread_mutex_lock(&k->mutex);

	bool wait = !k->begun_ns || clock_ns() - k->begun_ns < patience_ms * UINT64_C(1000000);

	queue(k, job, wait);
	while (wait && !job->over && error == 0)
		error = pthread_cond_timedwait(&k->over, &k->mutex, &until);
	if (wait) { /* otherwise @job may be freed already */
		over = job->over;
		job->awaited = false;
	}
	pthread_mutex_unlock(&k->mutex);
	return over;
}

void keeper_finish(struct keeper *k, struct keeper_job *job)
{
	pthread_mutex_lock(&k->mutex);
	hand_back(k, job);
	pthread_mutex_unlock(&k->mutex);
}

void keeper_drop(struct keeper *k, struct keeper_job *job)
{
	pthread_mutex_lock(&k->mutex);
	job->dropped = true;
	pthread_mutex_unlock(&k->mutex);
}

unsigned keeper_jobs(struct keeper *k)
{
	pthread_mutex_lock(&k->mutex);

	unsigned jobs = k->jobs;

	pthread_mutex_unlock(&k->mutex);
	return jobs;
}

unsigned keeper_jobs_of(struct keeper *k, uid_t uid)
{
	unsigned jobs = 0;

	pthread_mutex_lock(&k->mutex);
	for (const struct keeper_job *job = k->first; job; job = job->next)
		jobs += job->uid == uid;
	pthread_mutex_unlock(&k->mutex);
	return jobs;
}

uint64_t keeper_busy_ms(struct keeper *k)
{
	pthread_mutex_lock(&k->mutex);

	uint64_t begun = k->begun_ns;

	pthread_mutex_unlock(&k->mutex);
	return begun ? (clock_ns() - begun) / 1000000 : 0;
}

bool keeper_wait(struct keeper *k, unsigned patience_ms)
{
	const struct timespec until = after(patience_ms);
	int error = 0;

	pthread_mutex_lock(&k->mutex);
	while (k->jobs > 0 && error == 0)
		error = pthread_cond_timedwait(&k->over, &k->mutex, &until);

	bool idle = k->jobs == 0;

	pthread_mutex_unlock(&k->mutex);
	finish(k);
	return idle;
}

void keeper_close(struct keeper *k)
{
	pthread_mutex_lock(&k->mutex);
	k->stopping = true;
	pthread_cond_signal(&k->given);
	pthread_mutex_unlock(&k->mutex);
	uv_close((uv_handle_t *)&k->news, NULL);
}

bool keeper_stop(struct keeper *k, unsigned patience_ms, unsigned *left)
{
	if (keeper_wait(k, patience_ms)) {
		*left = 0;
		pthread_join(k->thread, NULL);
		keeper_free(k);
		return true;
	}
	/* The thread must take no more jobs: they point to memory that is about to be freed. */
	pthread_mutex_lock(&k->mutex);
	k->first = NULL;
	*left = k->jobs;
	pthread_mutex_unlock(&k->mutex);
	return false;
}
