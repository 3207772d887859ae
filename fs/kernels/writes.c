/* What a storage process does to the bytes of new versions; writes_twin.py says what each function
 * promises.
 *
 * Nothing here believes its caller: memory is held while it is looked at or written out.  A call
 * takes its arguments apart, hashes and writes without any object of Python's and without the
 * interpreter's lock, and then makes what it returns. */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <limits.h>
#include <sys/uio.h>
#include "hashing/xxh3.h"

#define INTERFACE 1
#define SUM_BYTES 8
#define ROWS_MAX 1024
#define BLOCK_BYTES_MAX (1 << 30)
/* Hashing fewer is over before giving up the interpreter could pay. */
#define UNLOCK_BYTES_MIN (256 << 10)

/* A piece of memory and where it goes; `written` says in the end how much of it is there, or,
 * negative, why not. */
typedef struct {
    Py_buffer view;
    int fd;
    int64_t offset;
    Py_ssize_t wanted;
    int64_t written;
    PyObject *checksums;
    uint8_t *sums;
} Row;

static Py_ssize_t block_count(Py_ssize_t length, Py_ssize_t block) {
    return length / block + (length % block != 0);
}

static void hash_blocks(const uint8_t *bytes, Py_ssize_t length, Py_ssize_t block, uint8_t *sums) {
    for (Py_ssize_t at = 0; at < length; at += block, sums += SUM_BYTES) {
        uint64_t sum = xxh3_64(bytes + at, (size_t)(length - at < block ? length - at : block));
        for (int n = 0; n < SUM_BYTES; n++) sums[n] = (uint8_t)(sum >> (8 * (SUM_BYTES - 1 - n)));
    }
}

static int is_block(Py_ssize_t block) {
    if (block > 0 && block <= BLOCK_BYTES_MAX) return 1;
    PyErr_SetString(PyExc_ValueError, "no size of a block");
    return 0;
}

/* Return room for the checksums of so many bytes, and where it lies. */
static PyObject *room_for(Py_ssize_t length, Py_ssize_t block, uint8_t **sums) {
    PyObject *found = PyBytes_FromStringAndSize(NULL, block_count(length, block) * SUM_BYTES);
    if (found != NULL) *sums = (uint8_t *)PyBytes_AsString(found);
    return found;
}

static PyObject *block_checksums(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer view;
    Py_ssize_t block;
    if (!PyArg_ParseTuple(args, "y*n", &view, &block)) return NULL;
    uint8_t *sums;
    PyObject *found = is_block(block) ? room_for(view.len, block, &sums) : NULL;
    if (found != NULL && view.len < UNLOCK_BYTES_MIN) {
        hash_blocks(view.buf, view.len, block, sums);
    } else if (found != NULL) {
        Py_BEGIN_ALLOW_THREADS
        hash_blocks(view.buf, view.len, block, sums);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&view);
    return found;
}

/* Take a row apart; what it holds, also of one that is refused, `let_go` gives back. */
static int take_row(Row *row, PyObject *item, Py_ssize_t block, Py_ssize_t unit) {
    PyObject *data;
    long long offset;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "no row");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "iLO", &row->fd, &offset, &data)) return -1;
    if (offset < 0 || PyObject_GetBuffer(data, &row->view, PyBUF_SIMPLE) < 0) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a negative offset");
        return -1;
    }
    row->offset = offset;
    if (offset > INT64_MAX - row->view.len) {
        PyErr_SetString(PyExc_ValueError, "an offset that no file has");
        return -1;
    }
    int is_askew =
        row->view.readonly || offset % unit != 0 || (uintptr_t)row->view.buf % (uintptr_t)unit != 0;
    row->wanted = is_askew ? 0 : row->view.len - row->view.len % unit;
    row->checksums = room_for(row->view.len, block, &row->sums);
    return row->checksums == NULL ? -1 : 0;
}

static void let_go(Row *rows, Py_ssize_t count) {
    for (Py_ssize_t n = 0; n < count; n++) {
        if (rows[n].view.obj != NULL) PyBuffer_Release(&rows[n].view);
        Py_XDECREF(rows[n].checksums);
    }
}

/* Return how many rows from `first` on, at least one, follow each other in their file. */
static Py_ssize_t run_length(const Row *rows, Py_ssize_t first, Py_ssize_t count) {
    Py_ssize_t end = first + 1;
    while (end < count && rows[end].wanted > 0 && rows[end].fd == rows[first].fd
           && rows[end - 1].wanted == rows[end - 1].view.len
           && rows[end].offset == rows[end - 1].offset + rows[end - 1].wanted)
        end++;
    return end - first;
}

/* Write rows that follow each other, by one call, and say in each how much of it is there. */
static void write_run(Row *rows, Py_ssize_t count, struct iovec *parts) {
    for (Py_ssize_t n = 0; n < count; n++) {
        parts[n].iov_base = rows[n].view.buf;
        parts[n].iov_len = (size_t)rows[n].wanted;
    }
    ssize_t done;
    do done = pwritev(rows[0].fd, parts, (int)count, rows[0].offset);
    while (done < 0 && errno == EINTR);
    int failure = done < 0 ? errno : 0;
    for (Py_ssize_t n = 0; n < count; n++) {
        rows[n].written = failure ? -failure : done < rows[n].wanted ? done : rows[n].wanted;
        if (!failure) done -= rows[n].written;
    }
}

static PyObject *rows_written(Row *rows, Py_ssize_t count) {
    PyObject *found = PyList_New(count);
    for (Py_ssize_t n = 0; found != NULL && n < count; n++) {
        PyObject *written = PyLong_FromLongLong(rows[n].written);
        PyObject *pair = written == NULL ? NULL : PyTuple_Pack(2, written, rows[n].checksums);
        Py_XDECREF(written);
        if (pair == NULL || PyList_SetItem(found, n, pair) < 0) Py_CLEAR(found);
    }
    return found;
}

static PyObject *write_rows(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *list, *items = NULL, *result = NULL;
    Py_ssize_t block, unit, count = 0, taken = 0;
    Row *rows = NULL;
    struct iovec *parts = NULL;
    if (!PyArg_ParseTuple(args, "nnO!", &block, &unit, &PyList_Type, &list)) return NULL;
    if (!is_block(block) || !is_block(unit)) return NULL;
    items = PyList_AsTuple(list); /* holds them, whatever becomes of the list */
    if (items == NULL) return NULL;
    count = PyTuple_Size(items);
    if (count > ROWS_MAX) {
        PyErr_SetString(PyExc_ValueError, "too many rows");
        goto end;
    }
    rows = PyMem_Calloc((size_t)count + 1, sizeof *rows);
    parts = PyMem_Calloc((size_t)count + 1, sizeof *parts);
    if (rows == NULL || parts == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    while (taken < count) {
        Row *row = &rows[taken];
        PyObject *item =
            PyTuple_GetItem(items, taken++); /* one that is refused may hold something, too */
        if (take_row(row, item, block, unit) < 0) goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t n = 0; n < count; n++)
        hash_blocks(rows[n].view.buf, rows[n].view.len, block, rows[n].sums);
    for (Py_ssize_t n = 0, run; n < count; n += run) {
        run = 1;
        if (rows[n].wanted > 0) {
            run = run_length(rows, n, count);
            write_run(rows + n, run, parts);
        }
    }
    Py_END_ALLOW_THREADS
    result = rows_written(rows, count);
end:
    if (rows != NULL) let_go(rows, taken);
    PyMem_Free(rows);
    PyMem_Free(parts);
    Py_DECREF(items);
    return result;
}

/* ---- module ---- */

static PyMethodDef methods[] = {
    {"block_checksums", block_checksums, METH_VARARGS, NULL},
    {"write_rows", write_rows, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_writes", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__writes(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0)
        Py_CLEAR(module);
    return module;
}
