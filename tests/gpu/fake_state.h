/* State and functions that the files of the fake driver share. */
#ifndef FAKE_STATE_H
#define FAKE_STATE_H

#include "tests/gpu/fake_cuda.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum {
	OK = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400,
	NOT_READY = 600,
	ALREADY_REGISTERED = 712,
	NOT_REGISTERED = 713,
	NOT_SUPPORTED = 801,
	CAPTURE_UNSUPPORTED = 900,
	PAGE = 4096,
	DEVICES = 4,
	STREAMS = 64,
	REGIONS = 4096,
	DEPTH = 16,
	RELAXED = 2,
	CHUNK = 1 << 30,
};

struct event {
	struct context *context;
	uint64_t recording; /* number of the last one */
	int waits;	    /* streams that have not reached it */
};

struct op {
	enum { COPY, RECORD, HOST } kind;
	int64_t due_ns;
	uint64_t to;
	const void *from;
	void *staged; /* copy of unregistered memory, which is read at once */
	size_t bytes;
	struct event *event;
	uint64_t recording;
	void (*call)(void *data);
	void *data;
	struct op *next;
};

struct stream {
	struct context *context;
	struct op *first, **last;
	bool used, capturing, busy;
};

struct context {
	int device, refs;
	struct stream stream[STREAMS]; /* [0]: the default one */
};

struct region {
	uintptr_t at;
	size_t bytes;
	unsigned long inode;
};

/* State of all calls, protected by the mutex. */
extern pthread_mutex_t mutex;
extern struct context primary[DEVICES];
extern struct region host[REGIONS], memory[REGIONS];
extern int faults, hosts, memories, registrations, captures, spoiled, held;
extern pid_t process;
extern _Thread_local struct context *stack[DEPTH];
extern _Thread_local int depth, capture_mode;

void fault(const char *format, ...);
int number(const char *name, int otherwise);
int64_t now_ns(void);
unsigned long mapped(uintptr_t at, size_t bytes, bool writable);
struct region *find(struct region *list, int n, uintptr_t at, size_t bytes);
bool within(struct region *list, int n, uintptr_t at, size_t bytes);
void check_regions(const char *when);
struct context *enter(int *error, const char *name, bool disturbs);
int leave(int error);
struct stream *stream_of(struct context *c, void *handle);
struct op *queue(struct stream *s, int kind);
void advance(struct stream *s, bool all);
void advance_all(struct context *c, bool all);

#endif
