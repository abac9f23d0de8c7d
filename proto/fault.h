/*
 * An error value: what failed, what to do about it, and one line that says so. Functions that can
 * fail take a `struct fault *` last and return false, NULL or a negative count; only then is it
 * filled. Nothing parses its text: what a program decides by is in the other members.
 */
#ifndef TOKEND_FAULT_H
#define TOKEND_FAULT_H

#include "proto/limits.h"

#include <stdbool.h>

/* What to do about it. The numbers are on the wire: they never change. */
enum fault_code {
	FAULT_NONE = 0,
	FAULT_ARGUMENT = 1,    /* a value that cannot be, from a caller, a command line or a config:
				  change it */
	FAULT_MEMORY = 2,      /* out of memory, or over `memory:` */
	FAULT_DESCRIPTORS = 3, /* out of file descriptors or connections */
	FAULT_IO = 4,	       /* a system call failed: see error */
	FAULT_DATA = 5,	       /* a file's contents cannot be served */
	FAULT_CHANGED = 6,     /* a file is not, or no longer, the one that was listed */
	FAULT_PROTOCOL = 7,    /* not a message of a version that we speak */
	FAULT_CURSOR = 8,      /* a cursor that is damaged, or of another run */
	FAULT_ATTACH = 9,      /* an attach that the daemon rejects */
	FAULT_CHECKPOINT = 10, /* a snapshot that could not be saved */
	FAULT_REQUEST = 11,    /* an operator's request that cannot be carried out */
	FAULT_STATE_DIR = 12,  /* state_dir does not answer */
	FAULT_PERMISSION = 13, /* this user may not */
	FAULT_TOKEN = 14,      /* a token that does not fit `dtype:` or is above `vocab:` */
	FAULT_CODES,
};

enum { FAULT_FIELD_BYTES = 112, FAULT_NO_INDEX = -1 };

struct fault {
	enum fault_code code;
	int error;    /* errno, or 0 */
	int index;    /* which entry of the list that `field` is about, or FAULT_NO_INDEX */
	bool passing; /* it ends by itself: the same call may succeed later without a change */
	char field[FAULT_FIELD_BYTES]; /* the member of a config, a message or a cursor: "seed",
					  "dataset web: windows"; or "" */
	char text[LIMIT_TEXT_BYTES];   /* one line: what is wrong, what would be right */
};

/* Fills @fault, with error 0, no index, and not passing; what does not fit is cut off. Always
 * false. */
__attribute__((format(printf, 4, 5))) bool fault_set(
	struct fault *fault, enum fault_code code, const char *field, const char *format, ...);
/* The same, but passing: the same call may succeed later without a change. For what ends by itself
 * only, never for what cannot fit: clients wait for their whole deadline. */
__attribute__((format(printf, 4, 5))) bool fault_set_passing(
	struct fault *fault, enum fault_code code, const char *field, const char *format, ...);
/* The same for a system call that failed with @error (FAULT_IO; ENOMEM: FAULT_MEMORY; EMFILE,
 * ENFILE: FAULT_DESCRIPTORS). @format gives the whole text, strerror(@error) included. Always
 * false. */
__attribute__((format(printf, 4, 5))) bool fault_errno(
	struct fault *fault, int error, const char *field, const char *format, ...);
/* Out of memory (ENOMEM). Always false. */
bool fault_memory(struct fault *fault);
/* Puts a text before fault->text, for example the file that it is about. Always false. */
__attribute__((format(printf, 2, 3))) bool fault_prefix(
	struct fault *fault, const char *format, ...);

/* The compiler is told, so that it does not warn of what is set only after a success. */
static inline bool fault_false(void)
{
	return false;
}

#define fault_set(...)	    (fault_set(__VA_ARGS__), fault_false())
#define fault_errno(...)    (fault_errno(__VA_ARGS__), fault_false())
#define fault_memory(fault) (fault_memory(fault), fault_false())
#define fault_prefix(...)   (fault_prefix(__VA_ARGS__), fault_false())

/* Puts @text, which may hold names of files, on one line: control characters become '?'. Returns
 * @text. */
char *fault_line(char *text);

#endif
