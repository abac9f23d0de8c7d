/*
 * One table row per config key. The row reads the value, makes the message for a wrong one, sets
 * the default and is the key's entry in tokend.yaml(5).
 *
 * A value's type follows from its key, not from YAML's own rules for octal, yes/no or "1e3".
 */
#ifndef TOKEND_SCHEMA_H
#define TOKEND_SCHEMA_H

#include "daemon/config/refuse.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <yaml.h>

struct schema_table;

/* A mapping of the config, for messages about a key that belongs to another one. */
struct schema_level {
	const struct schema_table *table;
	const char *is; /* "is a key of a dataset; move it into …" */
};

struct schema {
	yaml_document_t *document;
	const char *file;
	const struct schema_level *levels; /* all; ends with a NULL table */
	char field[320];		   /* the current field: "streams.train.seq_len" */
	int index;   /* of the list entry that contains it, or FAULT_NO_INDEX */
	size_t item; /* length of the field before that entry's "[3]" */
	struct fault *fault;
};

struct schema_key {
	const char *name;
	/* Reads @value into @to, which is @at bytes into the mapping's struct. @line is the key's.
	 */
	bool (*take)(struct schema *s, const struct schema_key *key, yaml_node_t *value, int line,
		void *to);
	size_t at;
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

enum { SCHEMA_KEYS = 17, SCHEMA_RIGHT_BYTES = 160 }; /* most keys of a table */

#define SCHEMA_COUNT(table) (sizeof(table) / sizeof((table)[0]))

/* Sets s->fault for the current field, as config_refuse() does. Always false. */
__attribute__((format(printf, 3, 4))) bool schema_refuse(
	struct schema *s, int line, const char *text, ...);
bool schema_refuse_memory(struct schema *s, int line);
/* Appends a part (".name") to the current field. Returns the argument for schema_leave(). */
__attribute__((format(printf, 2, 3))) size_t schema_enter(struct schema *s, const char *part, ...);
/* The same for an entry of a list, "[3]". */
size_t schema_enter_item(struct schema *s, size_t index);
void schema_leave(struct schema *s, size_t field);
/* Refuses one key of a mapping after it was read. @name: ".seq_len", or "" for the mapping. */
#define SCHEMA_REFUSE_KEY(s, line, name, ...)                                                      \
	(schema_enter(s, "%s", name), schema_refuse(s, line, __VA_ARGS__))

/*
 * Reads a mapping by its table into @into; keys that are not given get their preset. Unknown,
 * repeated and missing keys are refused. @lines (or NULL) gets each key's line, 0 if not given.
 * @line is the line of the mapping's own key.
 */
bool schema_mapping(struct schema *s, yaml_node_t *node, int line, const struct schema_key *keys,
	size_t n, void *into, int *lines);
/* @node if it has @type and no tag. Otherwise NULL and s->fault, which says it must be @right. */
yaml_node_t *schema_node(
	struct schema *s, yaml_node_t *node, yaml_node_type_t type, int line, const char *right);
/* The text of a scalar, in quotes or not. NULL and s->fault if it is empty or contains a zero byte.
 */
const char *schema_scalar(struct schema *s, yaml_node_t *node, int line, const char *right);
/* Writes a correct value of the key in words, "an integer from 1 to 64": key->right, or its choices
 * or range. Returns @right. */
const char *schema_right(const struct schema_key *key, char right[SCHEMA_RIGHT_BYTES]);
/* @text for a message: shortened, control characters replaced. Returns @shown. */
const char *schema_show(const char *text, char shown[64]);

/* ---- takers ---- */

/* Keeps the node, to be read later: yaml_node_t * */
bool schema_keep(
	struct schema *s, const struct schema_key *key, yaml_node_t *value, int line, void *to);
bool schema_number(struct schema *s, const struct schema_key *key, yaml_node_t *value, int line,
	void *to); /* uint64_t */
bool schema_number32(struct schema *s, const struct schema_key *key, yaml_node_t *value, int line,
	void *to); /* uint32_t */
bool schema_size(struct schema *s, const struct schema_key *key, yaml_node_t *value, int line,
	void *to); /* uint64_t */
bool schema_real(struct schema *s, const struct schema_key *key, yaml_node_t *value, int line,
	void *to); /* double ≥ 0 */
bool schema_flag(struct schema *s, const struct schema_key *key, yaml_node_t *value, int line,
	void *to); /* bool */
bool schema_choice(struct schema *s, const struct schema_key *key, yaml_node_t *value, int line,
	void *to); /* unsigned */
bool schema_text(struct schema *s, const struct schema_key *key, yaml_node_t *value, int line,
	void *to); /* char *, owned */

#endif
