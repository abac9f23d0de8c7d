#include "client/lib/error.h"

#include <stdio.h>

enum tokend_error error_of(enum fault_code code)
{
	switch (code) {
	case FAULT_MEMORY:
	case FAULT_DESCRIPTORS:
		return TOKEND_EMEMORY;
	case FAULT_DATA:
	case FAULT_TOKEN:
	case FAULT_CHANGED:
		return TOKEND_EDATA;
	case FAULT_PROTOCOL:
		return TOKEND_EPROTOCOL;
	case FAULT_ATTACH:
	case FAULT_CHECKPOINT:
	case FAULT_REQUEST:
	case FAULT_STATE_DIR:
	case FAULT_PERMISSION:
		return TOKEND_EREFUSED;
	case FAULT_NONE:
	case FAULT_ARGUMENT:
	case FAULT_IO:
	case FAULT_CURSOR:
	case FAULT_CODES:
		break;
	}
	return TOKEND_EARGUMENT;
}

enum tokend_error error_line(const struct fault *fault, char *line, size_t line_bytes)
{
	if (line && line_bytes)
		snprintf(line, line_bytes, "%s%s%s", fault->field, fault->field[0] ? ": " : "",
			fault->text);
	return error_of(fault->code);
}
