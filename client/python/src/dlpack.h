/* DLPack's unversioned ABI, which all consumers accept. */
#ifndef TOKEND_PYTHON_DLPACK_H
#define TOKEND_PYTHON_DLPACK_H

#include "client/python/src/client.h"

enum { DEVICE_CPU = 1, CODE_INT = 0, CODE_UINT = 1 };

struct dl_tensor {
	void *data;
	struct {
		int32_t type, id;
	} device;
	int32_t dimensions;
	struct {
		uint8_t code, bits;
		uint16_t lanes;
	} dtype;
	int64_t *shape, *strides;
	uint64_t byte_offset;
};

struct dl_managed {
	struct dl_tensor tensor;
	void *context;
	void (*deleter)(struct dl_managed *self);
};

/* A capsule of @managed, whose deleter is called unless a consumer takes it. NULL: not called. */
PyObject *dl_capsule(struct dl_managed *managed);

#endif
