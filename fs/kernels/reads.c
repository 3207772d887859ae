/* What a storage process does to the rows of many reads; reads_twin.py says what each function
 * promises.
 *
 * Nothing here believes its caller: sizes are checked before memory is touched, and what is touched
 * is held meanwhile.  A call takes its arguments apart, works without any object of Python's, and
 * then makes what it returns. */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include "hashing/xxh3.h"

#define INTERFACE 7
#define SUM_BYTES 8

/* ---- numbers ---- */

/* Take a number of 0 or more, INT64_MAX for all that is larger: no size is, so nothing larger can
 * be right.  Only of Python's own kind: making a number of anything else is code in Python, which
 * could change the lists that are gone through. */
static int take_number(PyObject *item, int64_t *value) {
    int is_over = 0;
    if (item == NULL) return -1;
    if (!PyLong_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "no number");
        return -1;
    }
    *value = PyLong_AsLongLongAndOverflow(item, &is_over);
    if (*value == -1 && PyErr_Occurred()) return -1;
    if (is_over > 0) *value = INT64_MAX;
    if (is_over < 0 || *value < 0) {
        PyErr_SetString(PyExc_ValueError, "a negative number");
        return -1;
    }
    return 0;
}

static int take_at(PyObject *list, Py_ssize_t position, int64_t *value) {
    return take_number(PyList_GetItem(list, position), value);
}

static int are_as_long(Py_ssize_t count, PyObject *const *columns, int column_count) {
    for (int n = 0; n < column_count; n++)
        if (PyList_Size(columns[n]) != count) {
            PyErr_SetString(PyExc_ValueError, "columns of different lengths");
            return 0;
        }
    return 1;
}

/* ---- checksums ---- */

static PyObject *row_checksums(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *ends = NULL;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "y*O!", &view, &PyList_Type, &ends)) return NULL;
    Py_ssize_t count = PyList_Size(ends);
    int64_t start = 0, end = 0;
    PyObject *found = PyList_New(count);
    for (Py_ssize_t n = 0; found != NULL && n < count; n++, start = end) {
        PyObject *value = NULL;
        if (take_at(ends, n, &end) == 0) {
            if (start <= end && end <= view.len)
                value = PyLong_FromUnsignedLongLong(
                    xxh3_64((char *)view.buf + start, (size_t)(end - start)));
            else
                PyErr_SetString(PyExc_ValueError, "a piece beyond the buffer");
        }
        if (value == NULL || PyList_SetItem(found, n, value) < 0) Py_CLEAR(found);
    }
    PyBuffer_Release(&view);
    return found;
}

/* ---- reads ---- */

enum state { LEFT, COLD, READ };

typedef struct {
    enum state state;
    int fd;
    int64_t number;         /* of the chunk */
    int64_t start;          /* of the chunk in its file */
    int64_t chunk_length;   /* bytes */
    const char *sums;       /* of the chunk, 8 bytes for each of its checksum blocks */
    int64_t sums_length;    /* bytes */
    int64_t offset, length; /* of the row in its chunk */
    char *target;           /* where `length` bytes are to go */
    uint64_t checksum;      /* of them, once read */
} Row;

typedef struct {
    int64_t block, bounce_max; /* bytes */
    int64_t cold_min;          /* see COLD_COUNT_MIN; 0: rows may wait for the disk */
    int want_checksums;
    Row *rows;
    Py_ssize_t count;
    char *wide; /* where checksum blocks are read that are wider than what is asked for */
    int64_t wide_bytes;
    Py_ssize_t cold_count;
} Batch;

/* Take one row apart; 0: it is in `row`, or known to be left. */
static int take_row(Row *row, PyObject *chunks, PyObject *const *columns, Py_ssize_t n,
                    const Py_buffer *view) {
    int64_t end, fd;
    if (take_at(columns[0], n, &row->number) < 0 || take_at(columns[1], n, &row->offset) < 0
        || take_at(columns[2], n, &row->length) < 0 || take_at(columns[3], n, &end) < 0)
        return -1;
    if (end > view->len || row->length > end || row->number >= PyTuple_Size(chunks)) {
        PyErr_SetString(PyExc_ValueError, "a row beyond the buffer, or of no chunk");
        return -1;
    }
    row->target = (char *)view->buf + (end - row->length);
    PyObject *chunk = PyTuple_GetItem(chunks, (Py_ssize_t)row->number);
    if (chunk == Py_None) {
        row->fd = -1;
        return 0;
    }
    if (!PyTuple_Check(chunk) || PyTuple_Size(chunk) != 5) {
        PyErr_SetString(PyExc_TypeError, "no chunk");
        return -1;
    }
    if (take_number(PyTuple_GetItem(chunk, 0), &fd) < 0
        || take_number(PyTuple_GetItem(chunk, 1), &row->start) < 0
        || take_number(PyTuple_GetItem(chunk, 2), &row->chunk_length) < 0)
        return -1;
    char *sums;
    Py_ssize_t sums_length;
    if (PyBytes_AsStringAndSize(PyTuple_GetItem(chunk, 4), &sums, &sums_length) < 0) return -1;
    row->sums = sums;
    row->sums_length = sums_length;
    row->fd = fd > INT_MAX ? -1 : (int)fd;
    return 0;
}

/* Fill a buffer from a file; return how many bytes there were, -1 and errno. */
static int64_t fill(int fd, char *buffer, int64_t length, int64_t where, int may_wait) {
    int64_t done = 0;
    while (done < length || length == 0) {
        struct iovec part = {buffer + done, (size_t)(length - done)};
        ssize_t more = preadv2(fd, &part, 1, where + done, may_wait ? 0 : RWF_NOWAIT);
        if (more < 0 && errno == EINTR) continue;
        if (more < 0) return -1;
        done += more;
        if (more == 0 || !may_wait) break;
    }
    return done;
}

/* Return whether the bytes of whole checksum blocks match; *last: the checksum of the last of them.
 */
static int do_match(const Row *row, const char *bytes, int64_t low, int64_t width, int64_t block,
                    uint64_t *last) {
    int64_t at = low / block * SUM_BYTES, done = 0;
    do {
        int64_t step = width - done < block ? width - done : block;
        unsigned char sum[SUM_BYTES];
        *last = xxh3_64(bytes + done, (size_t)step);
        for (int n = 0; n < SUM_BYTES; n++)
            sum[n] = (unsigned char)(*last >> (8 * (SUM_BYTES - 1 - n)));
        if (at + SUM_BYTES > row->sums_length || memcmp(sum, row->sums + at, SUM_BYTES) != 0)
            return 0;
        at += SUM_BYTES;
        done += step;
    } while (done < width);
    return 1;
}

/* See to it that `wide` holds so many bytes; what it held is gone if it did not. */
static int has_room(Batch *batch, int64_t width) {
    if (width <= batch->wide_bytes) return 1;
    free(batch->wide);
    batch->wide_bytes = width < 2 * batch->block ? 2 * batch->block : width;
    batch->wide = malloc((size_t)batch->wide_bytes);
    if (batch->wide == NULL) batch->wide_bytes = 0;
    return batch->wide != NULL;
}

/* Find the bytes of the chunk that have to be read for a row: whole checksum blocks.  False: the
 * row is left. */
static int has_span(const Row *row, int64_t block, int64_t *low, int64_t *high) {
    if (row->fd < 0 || row->offset > row->chunk_length
        || row->length > row->chunk_length - row->offset)
        return 0;
    if (row->start > INT64_MAX - row->chunk_length || row->chunk_length > INT64_MAX - block)
        return 0;
    int64_t stop = row->offset + row->length;
    *low = row->offset - row->offset % block;
    *high = stop + (block - stop % block) % block;
    if (*high > row->chunk_length) *high = row->chunk_length;
    return 1;
}

/* Have the disk at work on all rows before the first is waited for; it promises nothing, so what it
 * says does not count. */
static void begin_all(const Batch *batch) {
    for (Py_ssize_t n = 0; n < batch->count; n++) {
        const Row *row = &batch->rows[n];
        int64_t low, high;
        if (has_span(row, batch->block, &low, &high) && low < high)
            (void)posix_fadvise(row->fd, row->start + low, high - low, POSIX_FADV_WILLNEED);
    }
}

/* Read, verify and put in place all rows.  Touches no object of Python's. */
static void read_all(Batch *batch) {
    int64_t block = batch->block, held = -1, held_low = 0,
            held_high = 0; /* what `wide` begins with: verified bytes */
    for (Py_ssize_t n = 0; n < batch->count; n++) {
        Row *row = &batch->rows[n];
        int64_t low, high;
        if (!has_span(row, block, &low, &high)) continue;
        int64_t width = high - low;
        int is_widened = width != row->length;
        uint64_t last = 0;
        if (!is_widened || held != row->number || held_low != low || held_high != high) {
            if (is_widened) {
                if (width > batch->bounce_max) continue;
                held = -1;
                if (!has_room(batch, width)) continue;
            }
            char *bytes = is_widened ? batch->wide : row->target;
            int64_t count = fill(row->fd, bytes, width, row->start + low, batch->cold_min == 0);
            if (count < 0 && errno == EAGAIN && batch->cold_min) {
                row->state = COLD;
                if (++batch->cold_count >= batch->cold_min && 2 * batch->cold_count > n + 1) {
                    batch->cold_count += batch->count - (n + 1);
                    return;
                }
            }
            if (count != width || !do_match(row, bytes, low, width, block, &last)) continue;
            if (is_widened) {
                held = row->number;
                held_low = low;
                held_high = high;
            }
        }
        if (is_widened) memcpy(row->target, batch->wide + (row->offset - low), (size_t)row->length);
        row->state = READ;
        if (batch->want_checksums)
            row->checksum =
                is_widened || width > block ? xxh3_64(row->target, (size_t)row->length) : last;
    }
}

/* Return (versions, checksums, left, cold_count). */
static PyObject *rows_read(const Batch *batch, PyObject *chunks) {
    PyObject *versions = PyList_New(batch->count), *left = PyList_New(0), *result = NULL;
    PyObject *checksums = PyList_New(batch->want_checksums ? batch->count : 0);
    if (versions == NULL || checksums == NULL || left == NULL) goto end;
    for (Py_ssize_t n = 0; n < batch->count; n++) {
        const Row *row = &batch->rows[n];
        PyObject *version;
        if (row->state == READ) {
            version = PyTuple_GetItem(PyTuple_GetItem(chunks, (Py_ssize_t)row->number), 3);
            Py_XINCREF(version);
        } else {
            version = PyLong_FromLong(0);
            PyObject *position = PyLong_FromSsize_t(n);
            int failed = position == NULL || PyList_Append(left, position) < 0;
            Py_XDECREF(position);
            if (failed) {
                Py_XDECREF(version);
                goto end;
            }
        }
        if (version == NULL || PyList_SetItem(versions, n, version) < 0) goto end;
        if (batch->want_checksums) {
            PyObject *checksum =
                PyLong_FromUnsignedLongLong(row->state == READ ? row->checksum : 0);
            if (checksum == NULL || PyList_SetItem(checksums, n, checksum) < 0) goto end;
        }
    }
    PyObject *cold_count = PyLong_FromSsize_t(batch->cold_count);
    if (cold_count != NULL) result = PyTuple_Pack(4, versions, checksums, left, cold_count);
    Py_XDECREF(cold_count);
end:
    Py_XDECREF(versions);
    Py_XDECREF(checksums);
    Py_XDECREF(left);
    return result;
}

static PyObject *read_rows(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *chunk_list, *columns[4],
        *result = NULL, *chunks = NULL; /* numbers of chunks, offsets, lengths, ends */
    Py_buffer view;
    long long block, bounce_max, cold_min;
    Batch batch = {0};
    if (!PyArg_ParseTuple(args, "LLLO!O!O!O!O!w*p", &block, &bounce_max, &cold_min, &PyList_Type,
                          &chunk_list, &PyList_Type, &columns[0], &PyList_Type, &columns[1],
                          &PyList_Type, &columns[2], &PyList_Type, &columns[3], &view,
                          &batch.want_checksums))
        return NULL;
    batch.block = block, batch.bounce_max = bounce_max, batch.cold_min = cold_min;
    batch.count = PyList_Size(columns[0]);
    if (block <= 0 || block > 1 << 30 || bounce_max < 0 || bounce_max > 1 << 30 || cold_min < 0) {
        PyErr_SetString(PyExc_ValueError, "sizes that nothing has");
        goto end;
    }
    if (!are_as_long(batch.count, columns, 4)) goto end;
    chunks = PyList_AsTuple(chunk_list); /* holds them, whatever becomes of the list */
    batch.rows = PyMem_Calloc((size_t)batch.count + 1, sizeof *batch.rows);
    if (chunks == NULL || batch.rows == NULL) {
        if (chunks != NULL) PyErr_NoMemory();
        goto end;
    }
    for (Py_ssize_t n = 0; n < batch.count; n++)
        if (take_row(&batch.rows[n], chunks, columns, n, &view) < 0) goto end;
    if (cold_min) {
        read_all(
            &batch); /* waits for nothing, and is over before giving up the interpreter could pay */
    } else {
        Py_BEGIN_ALLOW_THREADS
        if (batch.count > 1)
            begin_all(&batch); /* a single read is left to the kernel, which reads ahead */
        read_all(&batch);
        Py_END_ALLOW_THREADS
    }
    result = rows_read(&batch, chunks);
end:
    Py_XDECREF(chunks);
    PyMem_Free(batch.rows);
    free(batch.wide);
    PyBuffer_Release(&view);
    return result;
}

static PyObject *read_row(PyObject *module, PyObject *args) {
    (void)module;
    long long block, bounce_max, start, chunk_length, offset;
    Py_buffer sums, view;
    Row row = {0};
    if (!PyArg_ParseTuple(args, "LLiLLy*Lw*", &block, &bounce_max, &row.fd, &start, &chunk_length,
                          &sums, &offset, &view))
        return NULL;
    row.start = start, row.chunk_length = chunk_length, row.offset = offset;
    row.sums = sums.buf, row.sums_length = sums.len, row.target = view.buf, row.length = view.len;
    Batch batch = {.block = block,
                   .bounce_max = bounce_max,
                   .cold_min = 1,
                   .want_checksums = 1,
                   .rows = &row,
                   .count = 1};
    PyObject *result = NULL;
    if (block <= 0 || block > 1 << 30 || bounce_max < 0 || bounce_max > 1 << 30 || start < 0
        || chunk_length < 0 || offset < 0) {
        PyErr_SetString(PyExc_ValueError, "sizes that nothing has");
    } else {
        read_all(&batch); /* waits for nothing */
        if (row.state == COLD) {
            errno = EAGAIN;
            PyErr_SetFromErrno(PyExc_OSError);
        } else {
            result =
                row.state == READ ? PyLong_FromUnsignedLongLong(row.checksum) : Py_NewRef(Py_None);
        }
    }
    free(batch.wide);
    PyBuffer_Release(&sums);
    PyBuffer_Release(&view);
    return result;
}

/* ---- module ---- */

static PyMethodDef methods[] = {
    {"row_checksums", row_checksums, METH_VARARGS, NULL},
    {"read_rows", read_rows, METH_VARARGS, NULL},
    {"read_row", read_row, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_reads", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__reads(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0)
        Py_CLEAR(module);
    return module;
}
