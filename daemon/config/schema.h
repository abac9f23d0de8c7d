/*
 * The private header of the room. One table row per config key: it reads the value, makes the
 * message for a wrong one, sets the default and is the key's entry in tokend.yaml(5).
 *
 * A value's type follows from its key, not from YAML's own rules for octal, yes/no or "1e3".
 */
#ifndef TOKEND_SCHEMA_H
#define TOKEND_SCHEMA_H

#include "daemon/config/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <yaml.h>

struct schema {
	yaml_document_t *document;
	struct config *config; /* that is being read; it has its path and directory */
	char field[320];       /* the current field: "streams.train.seq_len" */
	int line;	       /* of the field */
	struct fault *fault;
};

struct schema_key {
	const char *name;
	/* Reads @value into @to, which is @at bytes into the mapping's struct. */
	bool (*take)(struct schema *s, const struct schema_key *key, yaml_node_t *value, void *to);
	size_t at;
	size_t line; /* > 0: the int there gets the key's line, or the mapping's */
	bool required;
	uint64_t min, max;	    /* of numbers */
	const char *unit;	    /* of numbers: "tokens"; or NULL */
	const char *const *choices; /* ends with NULL */
	const char *right;	    /* a correct value in words; NULL if the members above say it */
	const char *preset;	    /* default, read as if it had been written; or NULL */
	const char *otherwise;	    /* the default in words if it is not a constant */
	const char *help;	    /* sentences for the man page */
};

struct schema_table {
	const struct schema_key *keys;
	size_t n;
};

extern const struct schema_table config_table;	/* the file */
extern const struct schema_table stream_table;	/* an entry of `streams:` */
extern const struct schema_table dataset_table; /* an entry of a stream's `datasets:` */
extern const struct schema_table step_table;	/* an entry of a stream's `schedule:` */
extern const struct schema_table store_table;	/* an entry of `stores:` */
extern const struct schema_table cache_table;	/* `cache:` */

enum { SCHEMA_KEYS = 17, SCHEMA_RIGHT_BYTES = 160 }; /* most keys of a table */

#define SCHEMA_COUNT(table) (sizeof(table) / sizeof((table)[0]))

/* Goes to a key of the current field, or an entry "[3]". The caller comes back with s->field[N] =
 * 0. */
void schema_enter(struct schema *s, int line, const char *name);
/* Sets s->fault for the current field, as config_refuse() does. Always false. */
#define schema_refuse(s, ...)                                                                      \
	config_refuse((s)->fault, (s)->config->path, (s)->line, (s)->field, __VA_ARGS__)
/* The same for a key of a mapping, after it was read. "": for the mapping. */
#define schema_refuse_key(s, line, name, ...)                                                      \
	(schema_enter(s, line, name), schema_refuse(s, __VA_ARGS__))
bool schema_refuse_memory(struct schema *s);

/* The lines of a mapping's keys. */
struct schema_lines {
	const struct schema_table *table;
	int line[SCHEMA_KEYS];
};

/*
 * Reads a mapping by its table into @into; keys that are not given get their preset. Unknown,
 * repeated and missing keys are refused. s->line is that of the mapping's own key.
 */
bool schema_mapping(struct schema *s, yaml_node_t *node, const struct schema_table *table,
	void *into, struct schema_lines *lines);
/* The line of @key, which is in the table; 0: it is not given. */
int schema_line(const struct schema_lines *lines, const char *key);

/* A list of entries, or a mapping of names to them. */
struct schema_entries {
	yaml_node_type_t type;
	const char *right; /* correct ones in words */
	const char *name;  /* a correct name in words */
	const char *what;  /* "streams"; NULL: any number */
	size_t least, most;
	size_t bytes; /* of an element of the array; 0: there is none */
	/* Reads one. @name: NULL in a list. Field and line are the entry's. */
	bool (*take)(struct schema *s, const char *name, yaml_node_t *value, void *to);
};

/* Allocates *@array for all entries, and calls @take for each. A name that is given twice is
 * refused. */
bool schema_each(struct schema *s, const struct schema_entries *entries, yaml_node_t *node,
	void *array, void *to);

/* @node if it has @type and no tag. Otherwise NULL and s->fault, which says it must be @right. */
yaml_node_t *schema_node(
	struct schema *s, yaml_node_t *node, yaml_node_type_t type, const char *right);
/* The text of a scalar, in quotes or not. NULL and s->fault if it is empty or contains a zero byte.
 */
const char *schema_scalar(struct schema *s, yaml_node_t *node, const char *right);
/* Writes a correct value of the key in words, "an integer from 1 to 64": key->right, or its choices
 * or range. Returns @right. */
const char *schema_right(const struct schema_key *key, char right[SCHEMA_RIGHT_BYTES]);
/* @text for a message: shortened, control characters replaced. Returns @shown. */
const char *schema_show(const char *text, char shown[64]);

/* ---- takers ---- */

#define SCHEMA_TAKER(name)                                                                         \
	bool name(struct schema *s, const struct schema_key *key, yaml_node_t *value, void *to)

SCHEMA_TAKER(schema_keep);     /* yaml_node_t *, to be read later */
SCHEMA_TAKER(schema_number);   /* uint64_t */
SCHEMA_TAKER(schema_number32); /* uint32_t */
SCHEMA_TAKER(schema_size);     /* uint64_t */
SCHEMA_TAKER(schema_real);     /* double ≥ 0 */
SCHEMA_TAKER(schema_flag);     /* bool */
SCHEMA_TAKER(schema_choice);   /* unsigned */
SCHEMA_TAKER(schema_text);     /* char *, owned */
/*
 * A path, owned and made absolute, or a URL of objects. ~, $NAME and other URLs are refused: only
 * shells and other loaders understand them. Nothing is expanded, because daemon, trainers and
 * tokctl read one config as other users.
 */
SCHEMA_TAKER(schema_path_or_url);
SCHEMA_TAKER(schema_path);
/* Of other files; @to is the struct config. */
SCHEMA_TAKER(streams_take);
SCHEMA_TAKER(stores_take);
SCHEMA_TAKER(cache_take);

/* Checks the URLs of all datasets, and how they are fetched, after the whole config is read. */
bool stores_check(struct schema *s);

#endif
