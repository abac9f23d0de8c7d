/*
 * Tables of the keys that a YAML mapping may have, and one walker for all of them. The type of a
 * value is given by its key, never by YAML's own rules (octal, yes/no, "1e3" as text). Everything
 * else is rejected with its line.
 */
#ifndef TOKEND_SCHEMA_H
#define TOKEND_SCHEMA_H

#include "daemon/config/refuse.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <yaml.h>

struct schema {
	yaml_document_t *document;
	const char *file;
	char field[320]; /* the present one: "streams.train.seq_len" */
	int index;	 /* of the list's entry that it is in, or FAULT_NO_INDEX */
	size_t item;	 /* how much of the field is before that "[3]" */
	struct fault *fault;
};

struct schema_key {
	const char *name;
	/* Reads @value into @to, which is at @at in the mapping's struct. @line is the key's. */
	bool (*take)(struct schema *s, const struct schema_key *key, yaml_node_t *value, int line,
		void *to);
	size_t at;
	const char *right; /* what would be right; the second half of a message */
	bool required;
	uint64_t min, max;	    /* of numbers */
	const char *const *choices; /* NULL-terminated */
};

enum { SCHEMA_KEYS = 16 }; /* in one table at most */

#define SCHEMA_COUNT(table) (sizeof(table) / sizeof((table)[0]))

/* What is right for a weight, of a dataset or of a step of a schedule. */
#define CONFIG_WEIGHT_RIGHT "a finite number, 0 or more, such as 0.7"

/* Fills s->fault as config_refuse() does, about the current field. Always false. */
__attribute__((format(printf, 3, 4))) bool schema_refuse(
	struct schema *s, int line, const char *text, ...);
bool schema_refuse_memory(struct schema *s, int line);
/* Goes into a part of the current field (".name"). Returns what schema_leave() needs to come back.
 */
__attribute__((format(printf, 2, 3))) size_t schema_enter(struct schema *s, const char *part, ...);
/* The same for an entry of a list, "[3]". */
size_t schema_enter_item(struct schema *s, size_t index);
void schema_leave(struct schema *s, size_t field);
/* Refuses one key of a mapping that has been read. @name: ".seq_len", or "" for the mapping. */
#define SCHEMA_REFUSE_KEY(s, line, name, ...)                                                      \
	(schema_enter(s, "%s", name), schema_refuse(s, line, __VA_ARGS__))

/*
 * Reads a mapping by its table: unknown, repeated and missing keys are refused. @lines, if not
 * NULL, gets each key's line, or 0 where it is not given. @line is that of its key.
 */
bool schema_mapping(struct schema *s, yaml_node_t *node, int line, const struct schema_key *keys,
	size_t n, void *into, int *lines);
/* @node if it is of @type and has no tag, else NULL and s->fault: @right says what would be right.
 */
yaml_node_t *schema_node(
	struct schema *s, yaml_node_t *node, yaml_node_type_t type, int line, const char *right);
/* The text of a scalar, in quotes or not. NULL and s->fault if there is none, or it contains a zero
 * byte. */
const char *schema_scalar(struct schema *s, yaml_node_t *node, int line, const char *right);
/* @text for a message: shortened, control characters replaced. Returns @shown. */
const char *schema_show(const char *text, char shown[64]);
/* The element of @known nearest to a mistyped @text, or NULL if none is near. */
const char *schema_near(const char *text, const char *const *known, size_t n);

/* ---- takers ---- */

/* The node itself, to be read later: yaml_node_t * */
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
