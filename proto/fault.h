/*
 * An error value: a code, the field that is wrong, and one line of text. A function that can fail
 * takes a `struct fault *` last and fills it only if it returns false, NULL or a negative count.
 * Programs decide by the code and the other members; nothing parses the text.
 */
#ifndef TOKEND_FAULT_H
#define TOKEND_FAULT_H

#include "proto/limits.h"

#include <stdbool.h>

/* The kinds of errors, by the remedy. The numbers are sent on the wire and never change. */
enum fault_code {
	FAULT_NONE = 0,
	FAULT_ARGUMENT = 1,    /* an invalid value from a caller, a command line or a config */
	FAULT_MEMORY = 2,      /* out of memory, or over `memory:` */
	FAULT_DESCRIPTORS = 3, /* out of file descriptors or connections */
	FAULT_IO = 4,	       /* a system call failed: see error */
	FAULT_DATA = 5,	       /* a file's contents cannot be served */
	FAULT_CHANGED = 6,     /* a file is not, or no longer, the one that was listed */
	FAULT_PROTOCOL = 7,    /* not a message of a known version */
	FAULT_CURSOR = 8,      /* a cursor that is damaged, or belongs to another run */
	FAULT_ATTACH = 9,      /* an attach that the daemon rejects */
	FAULT_CHECKPOINT = 10, /* a snapshot that could not be saved */
	FAULT_REQUEST = 11,    /* an operator's request that cannot be carried out */
	FAULT_STATE_DIR = 12,  /* state_dir does not answer */
	FAULT_PERMISSION = 13, /* the user is not allowed to */
	FAULT_TOKEN = 14,      /* a token that does not fit `dtype:`, or is not below `vocab:` */
	FAULT_CODES,
};

enum { FAULT_FIELD_BYTES = 112, FAULT_NO_INDEX = -1 };

struct fault {
	enum fault_code code;
	int error;    /* errno, or 0 */
	int index;    /* of an entry, if `field` is a list; otherwise FAULT_NO_INDEX */
	bool passing; /* the same call may succeed later, without a change */
	char field[FAULT_FIELD_BYTES]; /* the member of a config, a message or a cursor: "seed",
					  "dataset web: windows"; or "" */
	char text[LIMIT_TEXT_BYTES];   /* one line: what is wrong; what would be right */
};

/* Fills @fault, with error 0, no index, and not passing. A long text is cut. Always false. */
__attribute__((format(printf, 4, 5))) bool fault_set(
	struct fault *fault, enum fault_code code, const char *field, const char *format, ...);
/* The same, but passing. Only for conditions that end by themselves: clients retry until their
 * deadline. */
__attribute__((format(printf, 4, 5))) bool fault_set_passing(
	struct fault *fault, enum fault_code code, const char *field, const char *format, ...);
/* The same for a system call that failed with @error. The code is FAULT_MEMORY for ENOMEM,
 * FAULT_DESCRIPTORS for EMFILE and ENFILE, both passing, otherwise FAULT_IO. @format gives the
 * whole text; nothing adds strerror(@error). Always false. */
__attribute__((format(printf, 4, 5))) bool fault_errno(
	struct fault *fault, int error, const char *field, const char *format, ...);
/* Out of memory (ENOMEM, passing). Always false. */
bool fault_memory(struct fault *fault);
/* Puts a text before fault->text, for example the name of the file. Always false. */
__attribute__((format(printf, 2, 3))) bool fault_prefix(
	struct fault *fault, const char *format, ...);

/* The macros show the compiler that the result is false. Otherwise it would warn about variables
 * that are set only on success. */
static inline bool fault_false(void)
{
	return false;
}

#define fault_set(...)	    (fault_set(__VA_ARGS__), fault_false())
#define fault_errno(...)    (fault_errno(__VA_ARGS__), fault_false())
#define fault_memory(fault) (fault_memory(fault), fault_false())
#define fault_prefix(...)   (fault_prefix(__VA_ARGS__), fault_false())

/* Makes @text one line of UTF-8: control characters and other bytes, for example of a file's name,
 * become '?'. Returns @text. */
char *fault_line(char *text);

#endif
