#include "daemon/shard/format.h"

#include <errno.h>
#include <string.h>

const char *json_kind(const json_t *value)
{
	static const char *const kinds[] = {/* in the order of json_type */
		"an object", "an array", "a string", "an integer", "a fraction", "true", "false",
		"null"};

	return value ? kinds[json_typeof(value)] : "missing";
}

/*
 * If memory runs out, errno is ENOMEM: jansson may then drop characters without an error. malloc()
 * that succeeds may set ENOMEM, too, hence the second try.
 */
json_t *json_object_of(const char *text, size_t n, struct fault *fault)
{
	json_error_t error;
	json_t *value = NULL;

	for (int tries = 0; tries < 2; tries++) {
		json_decref(value);
		errno = 0;
		value = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
		if (errno != ENOMEM)
			break;
	}
	if (errno == ENOMEM)
		fault_memory(fault);
	else if (!value)
		fault_data(fault, "invalid JSON at byte %d: %s", error.position, error.text);
	else if (!json_is_object(value))
		fault_data(fault, "is %s; must be a JSON object", json_kind(value));
	else
		return value;
	json_decref(value);
	return NULL;
}
