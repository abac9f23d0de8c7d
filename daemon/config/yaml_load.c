/*
 * libyaml looks through all open flow sequences at every token: a file of 200,000 "[" takes it most
 * of a minute. The text is therefore read into memory and parsed twice. The first pass reads events
 * and stops where the nesting is too deep. Only a text that passes is composed into a document.
 */
#include "daemon/config/yaml_load.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	TEXT_MOST = 1 << 20,
	DEPTH_MOST = 32, /* a config needs 7 */
};

struct text {
	unsigned char *bytes;
	size_t n;
};

/* libyaml does not report which error its input had, so the file is read here. */
static bool read_text(struct schema *s, FILE *file, struct text *text)
{
	size_t room = 1 << 16, n;

	for (;; room *= 2) {
		unsigned char *bytes = realloc(text->bytes, room);

		if (!bytes)
			return schema_refuse_memory(s, 1);
		text->bytes = bytes;
		errno = 0;
		n = fread(bytes + text->n, 1, room - text->n, file);
		text->n += n;
		if (ferror(file))
			return fault_errno(s->fault, errno, "",
				"%s: cannot be read: %s; check the path given with -c", s->file,
				strerror(errno));
		if (text->n < room)
			return true;
		if (room >= TEXT_MOST)
			return schema_refuse(s, 1,
				"the file is larger than %d MiB; check the path given with -c",
				TEXT_MOST >> 20);
	}
}

/* Whether a plain word begins with @, which YAML reserves: "@GROUP" needs quotes. */
static bool at_sign(const yaml_parser_t *parser, const struct text *text)
{
	return parser->error == YAML_SCANNER_ERROR && parser->problem_mark.index < text->n &&
	       text->bytes[parser->problem_mark.index] == '@';
}

static bool refuse_syntax(struct schema *s, const yaml_parser_t *parser, const struct text *text)
{
	snprintf(s->field, sizeof(s->field), "YAML");
	if (parser->error == YAML_MEMORY_ERROR)
		return schema_refuse_memory(s, 1);
	/* A reader error (invalid UTF-8) has an offset but no line. */
	if (parser->error == YAML_READER_ERROR)
		return schema_refuse(s, (int)parser->mark.line + 1,
			"%s at byte %zu; must be a file of UTF-8 text", parser->problem,
			parser->problem_offset);
	if (at_sign(parser, text))
		return schema_refuse(s, (int)parser->problem_mark.line + 1,
			"a word that begins with @ (column %zu) needs quotes, as in \"@GROUP\"",
			parser->problem_mark.column + 1);
	return schema_refuse(s, (int)parser->problem_mark.line + 1,
		"%s (column %zu); must be valid YAML",
		parser->problem ? parser->problem : "cannot be parsed",
		parser->problem_mark.column + 1);
}

static bool begin(struct schema *s, yaml_parser_t *parser, const struct text *text)
{
	if (!yaml_parser_initialize(parser))
		return schema_refuse_memory(s, 1);
	yaml_parser_set_input_string(parser, text->bytes, text->n);
	return true;
}

/* True also for invalid YAML, which compose() reports. */
static bool check_depth(struct schema *s, const struct text *text)
{
	yaml_parser_t parser;
	yaml_event_t event;
	int depth = 0, line = 0;
	bool end = false;

	if (!begin(s, &parser, text))
		return false;
	while (!end && depth <= DEPTH_MOST && yaml_parser_parse(&parser, &event)) {
		line = (int)event.start_mark.line + 1;
		depth += event.type == YAML_SEQUENCE_START_EVENT ||
			 event.type == YAML_MAPPING_START_EVENT;
		depth -= event.type == YAML_SEQUENCE_END_EVENT ||
			 event.type == YAML_MAPPING_END_EVENT;
		end = event.type == YAML_STREAM_END_EVENT;
		yaml_event_delete(&event);
	}
	yaml_parser_delete(&parser);
	if (depth <= DEPTH_MOST)
		return true;
	snprintf(s->field, sizeof(s->field), "YAML");
	return schema_refuse(s, line,
		"lists and mappings are nested deeper than %d levels; a config needs 7",
		DEPTH_MOST);
}

/* Most programs would ignore a second document. */
static bool check_trailing(struct schema *s, yaml_parser_t *parser, const struct text *text)
{
	yaml_document_t more;

	if (!yaml_parser_load(parser, &more))
		return refuse_syntax(s, parser, text);
	bool trailing = yaml_document_get_root_node(&more) != NULL;
	int line = (int)more.start_mark.line + 1;

	yaml_document_delete(&more);
	return trailing ? schema_refuse(
				  s, line, "a second YAML document begins here; must be only one")
			: true;
}

static bool compose(struct schema *s, const struct text *text)
{
	yaml_parser_t parser;
	bool done;

	if (!begin(s, &parser, text))
		return false;
	done = yaml_parser_load(&parser, s->document);
	if (!done) {
		refuse_syntax(s, &parser, text);
	} else if (!check_trailing(s, &parser, text)) {
		yaml_document_delete(s->document);
		done = false;
	}
	yaml_parser_delete(&parser);
	return done;
}

bool yaml_load(struct schema *s, FILE *file, char **text, size_t *text_bytes)
{
	struct text read = {0};
	bool done = read_text(s, file, &read) && check_depth(s, &read) && compose(s, &read);

	*text = (char *)read.bytes;
	*text_bytes = read.n;
	return done;
}
