/* How a mount daemon takes in and answers what the kernel asks for; device_twin.py says what each
 * function promises.
 *
 * Nothing here believes its caller: sizes are checked before memory is touched, and a buffer is
 * held while it is.  The interpreter's lock is given up for the system calls, but for a short
 * answer: that waits for nobody, and takes hardly longer than giving up the lock. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#define INTERFACE 2

#define READ_OPCODE 15
#define READ_BYTES 80
#define COUNT_MAX 64
#define HEADER_BYTES 40
#define PART_COUNT_MAX 8
#define SHORT_BYTES_MAX 16384

/* Of a request as it comes, and in front of an answer: as the kernel has them, in the byte order of
 * the machine. */
typedef struct {
    uint32_t length, opcode;
    uint64_t unique;
} Head;
typedef struct {
    uint32_t length, opcode;
    uint64_t unique, node_id;
    uint32_t uid, gid, pid;
    uint16_t extra, padding;
} Header;
typedef struct {
    uint32_t length;
    int32_t error;
    uint64_t unique;
} OutHeader;
typedef struct {
    uint64_t unique, place;
    uint32_t length;
    int32_t error;
} Answer;

_Static_assert(sizeof(Head) == 16 && sizeof(OutHeader) == 16 && sizeof(Answer) == 24
                   && sizeof(Header) == HEADER_BYTES,
               "packed");

/* Reads requests until one is no READ, none is there, or there are enough; returns how many READs,
 * and in `last` what ended it: the bytes of another request, -1 for none, or -2 with `error`. */
static Py_ssize_t take_reads(int fd, const struct iovec *into, char *rows, Py_ssize_t count_max,
                             Py_ssize_t *last, int *error) {
    Py_ssize_t count = 0;
    *last = -1;
    while (count < count_max) {
        Py_ssize_t size = readv(fd, into, 2);
        if (size < 0) {
            if (errno == ENOENT || errno == EINTR)
                continue; /* that one was given up by its caller */
            if (errno == EAGAIN || count > 0)
                break; /* what is wrong is there to be met next time, too */
            *error = errno;
            *last = -2;
            break;
        }
        Head head;
        if (size == READ_BYTES) memcpy(&head, into[0].iov_base, sizeof head);
        if (size != READ_BYTES || head.opcode != READ_OPCODE || head.length != READ_BYTES) {
            *last = size;
            break;
        }
        memcpy(rows + count++ * READ_BYTES, into[0].iov_base, READ_BYTES);
    }
    return count;
}

static PyObject *receive_reads(PyObject *module, PyObject *args) {
    (void)module;
    int fd, error = 0;
    Py_ssize_t count_max, count, last;
    Py_buffer head, data;
    char rows[COUNT_MAX * READ_BYTES];
    if (!PyArg_ParseTuple(args, "iw*w*n", &fd, &head, &data, &count_max)) return NULL;
    PyObject *found = NULL;
    if (head.len != READ_BYTES || count_max < 1) {
        PyErr_Format(PyExc_ValueError, "%zd bytes for a head, %zd requests", head.len, count_max);
    } else {
        struct iovec into[2] = {{head.buf, READ_BYTES}, {data.buf, (size_t)data.len}};
        Py_BEGIN_ALLOW_THREADS
        count = take_reads(fd, into, rows, count_max < COUNT_MAX ? count_max : COUNT_MAX, &last,
                           &error);
        Py_END_ALLOW_THREADS
        if (last == -2) {
            errno = error;
            PyErr_SetFromErrno(PyExc_OSError);
        } else {
            found = Py_BuildValue("(y#n)", rows, count * READ_BYTES, last);
        }
    }
    PyBuffer_Release(&head);
    PyBuffer_Release(&data);
    return found;
}

static int has_count(Py_ssize_t count, Py_ssize_t wanted) {
    if (count == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%zd arguments, not %zd", count, wanted);
    return 0;
}

/* Take a number of least..most; only of Python's own kind, as making one of anything else is code
 * in Python. */
static int take_number(PyObject *item, long long least, long long most, long long *value) {
    int overflow = 0;
    if (!PyLong_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "no number");
        return -1;
    }
    *value = PyLong_AsLongLongAndOverflow(item, &overflow);
    if (*value == -1 && PyErr_Occurred()) return -1;
    if (!overflow && *value >= least && *value <= most) return 0;
    PyErr_SetString(PyExc_ValueError, "a number that its field cannot hold");
    return -1;
}

/* A new tuple of a request of `size` bytes that lies in two buffers. */
static PyObject *request_of(const Py_buffer *head, const Py_buffer *data, long long size) {
    Header header;
    if (head->len != READ_BYTES || size < HEADER_BYTES || size - READ_BYTES > data->len)
        return PyErr_Format(PyExc_ValueError, "%lld bytes of a request, in %zd and %zd", size,
                            head->len, data->len);
    memcpy(&header, head->buf, sizeof header);
    if (header.length != (unsigned long long)size)
        return PyErr_Format(PyExc_ValueError, "%lld bytes of a request, which says %lu", size,
                            (unsigned long)header.length);
    Py_ssize_t first = (Py_ssize_t)(size < READ_BYTES ? size : READ_BYTES) - HEADER_BYTES;
    PyObject *body = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size - HEADER_BYTES);
    if (body == NULL) return NULL;
    char *bytes = PyBytes_AsString(body);
    memcpy(bytes, (char *)head->buf + HEADER_BYTES, (size_t)first);
    if (size > READ_BYTES) memcpy(bytes + first, data->buf, (size_t)size - READ_BYTES);
    return Py_BuildValue("(KIKIIIN)", (unsigned long long)header.unique, header.opcode,
                         (unsigned long long)header.node_id, header.uid, header.gid, header.pid,
                         body);
}

static PyObject *take_request(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    Py_buffer head, data;
    long long size;
    if (!has_count(count, 3) || take_number(args[2], 0, PY_SSIZE_T_MAX, &size) < 0) return NULL;
    if (PyObject_GetBuffer(args[0], &head, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *found = NULL;
    if (PyObject_GetBuffer(args[1], &data, PyBUF_SIMPLE) == 0) {
        found = request_of(&head, &data, size);
        PyBuffer_Release(&data);
    }
    PyBuffer_Release(&head);
    return found;
}

static int write_parts(int fd, const struct iovec *from, int count) {
    while (writev(fd, from, count) < 0)
        if (errno != EINTR) return errno;
    return 0;
}

static PyObject *answer_request(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    long long fd, error;
    if (!has_count(count, 4) || take_number(args[0], INT32_MIN, INT32_MAX, &fd) < 0) return NULL;
    if (take_number(args[2], 0, INT32_MAX, &error) < 0) return NULL;
    if (!PyLong_Check(args[1])) return PyErr_Format(PyExc_TypeError, "no number");
    uint64_t unique = PyLong_AsUnsignedLongLong(args[1]);
    if (unique == (uint64_t)-1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError))
            PyErr_SetString(PyExc_ValueError, "no unique number of a request");
        return NULL;
    }
    if (!PyTuple_Check(args[3])) return PyErr_Format(PyExc_TypeError, "no tuple of buffers");
    Py_ssize_t parts = PyTuple_Size(args[3]), held = 0;
    if (parts > PART_COUNT_MAX)
        return PyErr_Format(PyExc_ValueError, "%zd parts of an answer", parts);
    Py_buffer buffers[PART_COUNT_MAX];
    struct iovec from[PART_COUNT_MAX + 1];
    unsigned long long length = sizeof(OutHeader);
    int failure = 0, is_bad = 0;
    for (; !is_bad && held < parts; held++) {
        if (PyObject_GetBuffer(PyTuple_GetItem(args[3], held), &buffers[held], PyBUF_SIMPLE) < 0)
            break;
        from[held + 1] = (struct iovec){buffers[held].buf, (size_t)buffers[held].len};
        length += (unsigned long long)buffers[held].len;
        is_bad = length > UINT32_MAX;
    }
    if (is_bad) {
        PyErr_Format(PyExc_ValueError, "%llu bytes of an answer", length);
    } else if (held == parts) {
        OutHeader header = {(uint32_t)length, -(int32_t)error, unique};
        from[0] = (struct iovec){&header, sizeof header};
        if (length <= SHORT_BYTES_MAX) {
            failure = write_parts((int)fd, from, (int)parts + 1);
        } else {
            Py_BEGIN_ALLOW_THREADS
            failure = write_parts((int)fd, from, (int)parts + 1);
            Py_END_ALLOW_THREADS
        }
    }
    for (Py_ssize_t n = 0; n < held; n++) PyBuffer_Release(&buffers[n]);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(failure);
}

static int write_answer(int fd, const Answer *answer, char *memory) {
    uint32_t length = answer->error ? 0 : answer->length;
    OutHeader header = {sizeof header + length, -answer->error, answer->unique};
    struct iovec from[2] = {{&header, sizeof header},
                            {memory + (length ? answer->place : 0), length}};
    while (writev(fd, from, length ? 2 : 1) < 0)
        if (errno != EINTR) return errno;
    return 0;
}

/* Says of the answers that are not as they should be; a new list, NULL with an error set. */
static PyObject *failures_of(const int *errors, Py_ssize_t count) {
    PyObject *found = PyList_New(0);
    for (Py_ssize_t n = 0; found != NULL && n < count; n++) {
        /* ENOENT: its caller gave up meanwhile.  ENODEV: the mount is gone, and so is everybody who
         * waits. */
        if (errors[n] == 0 || errors[n] == ENOENT || errors[n] == ENODEV) continue;
        PyObject *pair = Py_BuildValue("(ni)", n, errors[n]);
        if (pair == NULL || PyList_Append(found, pair) < 0) Py_CLEAR(found);
        Py_XDECREF(pair);
    }
    return found;
}

static PyObject *answer_reads(PyObject *module, PyObject *args) {
    (void)module;
    int fd, errors[COUNT_MAX];
    Py_buffer packed, memory;
    Answer answers[COUNT_MAX];
    if (!PyArg_ParseTuple(args, "iy*y*", &fd, &packed, &memory)) return NULL;
    PyObject *found = NULL;
    Py_ssize_t count = packed.len / (Py_ssize_t)sizeof(Answer), bad = -1;
    int is_whole = packed.len % (Py_ssize_t)sizeof(Answer) == 0 && count <= COUNT_MAX;
    if (is_whole) memcpy(answers, packed.buf, (size_t)packed.len);
    for (Py_ssize_t n = 0; is_whole && bad < 0 && n < count; n++) {
        uint64_t size = (uint64_t)memory.len, length = answers[n].length;
        if (length > size || answers[n].place > size - length
            || length > UINT32_MAX - sizeof(OutHeader))
            bad = n;
        if (answers[n].error < 0) bad = n;
    }
    if (!is_whole) {
        PyErr_Format(PyExc_ValueError, "%zd bytes of answers", packed.len);
    } else if (bad >= 0) {
        PyErr_Format(PyExc_ValueError, "answer %zd is beyond the memory, or no answer", bad);
    } else {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t n = 0; n < count; n++)
            errors[n] = write_answer(fd, &answers[n], memory.buf);
        Py_END_ALLOW_THREADS
        found = failures_of(errors, count);
    }
    PyBuffer_Release(&packed);
    PyBuffer_Release(&memory);
    return found;
}

static PyMethodDef methods[] = {
    {"receive_reads", receive_reads, METH_VARARGS, NULL},
    {"answer_reads", answer_reads, METH_VARARGS, NULL},
    {"take_request", (PyCFunction)(void (*)(void))take_request, METH_FASTCALL, NULL},
    {"answer_request", (PyCFunction)(void (*)(void))answer_request, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_device", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__device(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0)
        Py_CLEAR(module);
    return module;
}
