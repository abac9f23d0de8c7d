/* tokend's command line. One table parses it and makes the usage line, `--help` and tokend(8). */
#ifndef TOKEND_OPTIONS_H
#define TOKEND_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct option_row {
	const char *name;  /* without "--" */
	char letter;	   /* or 0 */
	const char *value; /* the name of its value, with its unit: "SECONDS"; NULL: it has none */
	bool required;
	uint64_t least, most; /* of a number; 0: it is not a number */
	const char *help;     /* a phrase, in lower case and without a full stop */
};

struct options {
	const char *config, *socket; /* from argv; socket may be NULL */
	int private_lock;	     /* a descriptor, or -1 */
	bool check;
	unsigned linger_s; /* 0: for ever */
	char **argv;
};

extern const struct option_row option_table[];
extern const unsigned option_rows;

/* True: @options is complete. False: leave with *@code, after a message, the help or the version.
 */
bool options_parse(struct options *options, int argc, char **argv, int *code);

#endif
