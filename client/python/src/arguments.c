/* Conversion of Python arguments to C. */
#include "client/python/src/client.h"

int to_integer(PyObject *object, void *out)
{
	struct integer *w = out;

	if (object == Py_None)
		return 1;

	PyObject *index = PyNumber_Index(object);

	if (!index) {
		PyErr_Format(PyExc_TypeError, "%s: %R is not an integer from 0 to %llu", w->name,
			object, (unsigned long long)w->most);
		return 0;
	}
	w->value = PyLong_AsUnsignedLongLong(index);
	w->given = true;
	Py_DECREF(index);
	if (!PyErr_Occurred() && w->value <= w->most)
		return 1;
	PyErr_Clear();
	PyErr_Format(PyExc_ValueError, "%s: %S; must be 0 to %llu", w->name, object,
		(unsigned long long)w->most);
	return 0;
}

int to_path(PyObject *object, void *out)
{
	return object == Py_None ? 1 : PyUnicode_FSConverter(object, out);
}

void free_weights(struct weights *w)
{
	PyMem_Free(w->name);
	PyMem_Free(w->weight);
}

bool read_weights(struct weights *w, PyObject *names, PyObject *weights)
{
	Py_ssize_t n = PyList_Size(names);

	*w = (struct weights){PyMem_Malloc((size_t)(n + 1) * sizeof(*w->name)),
		PyMem_Malloc((size_t)(n + 1) * sizeof(*w->weight)), (uint32_t)n};
	if (!w->name || !w->weight) {
		PyErr_NoMemory();
		return false;
	}
	if (PyList_Size(weights) != n) {
		PyErr_Format(PyExc_ValueError,
			"mix: %zd names, but %zd weights; give each name a weight", n,
			PyList_Size(weights));
		return false;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		w->name[i] = PyUnicode_AsUTF8AndSize(PyList_GetItem(names, i), NULL);
		w->weight[i] = PyFloat_AsDouble(PyList_GetItem(weights, i));
		if (!w->name[i] || PyErr_Occurred())
			return false;
	}
	return true;
}
