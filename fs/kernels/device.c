/* How a mount daemon takes in and answers the small READs that the kernel has ready; device_twin.py says what each function promises.
 *
 * Nothing here believes its caller: sizes are checked before memory is touched, and a buffer is held while it is.  The interpreter's
 * lock is given up for the system calls. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#define INTERFACE 1

#define READ_OPCODE 15
#define READ_BYTES 80
#define COUNT_MAX 64

/* Of a request as it comes, and in front of an answer: as the kernel has them, in the byte order of the machine. */
typedef struct { uint32_t length, opcode; uint64_t unique; } Head;
typedef struct { uint32_t length; int32_t error; uint64_t unique; } OutHeader;
typedef struct { uint64_t unique, place; uint32_t length; int32_t error; } Answer;

_Static_assert(sizeof(Head) == 16 && sizeof(OutHeader) == 16 && sizeof(Answer) == 24, "packed");

/* Reads requests until one is no READ, none is there, or there are enough; returns how many READs, and in `last` what ended it:
 * the bytes of another request, -1 for none, or -2 with `error`. */
static Py_ssize_t take_reads(int fd, const struct iovec *into, char *rows, Py_ssize_t count_max, Py_ssize_t *last, int *error) {
    Py_ssize_t count = 0;
    *last = -1;
    while (count < count_max) {
        Py_ssize_t size = readv(fd, into, 2);
        if (size < 0) {
            if (errno == ENOENT || errno == EINTR) continue; /* that one was given up by its caller */
            if (errno == EAGAIN || count > 0) break;         /* what is wrong is there to be met next time, too */
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
        count = take_reads(fd, into, rows, count_max < COUNT_MAX ? count_max : COUNT_MAX, &last, &error);
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

static int write_answer(int fd, const Answer *answer, char *memory) {
    uint32_t length = answer->error ? 0 : answer->length;
    OutHeader header = {sizeof header + length, -answer->error, answer->unique};
    struct iovec from[2] = {{&header, sizeof header}, {memory + (length ? answer->place : 0), length}};
    while (writev(fd, from, length ? 2 : 1) < 0)
        if (errno != EINTR) return errno;
    return 0;
}

/* Says of the answers that are not as they should be; a new list, NULL with an error set. */
static PyObject *failures_of(const int *errors, Py_ssize_t count) {
    PyObject *found = PyList_New(0);
    for (Py_ssize_t n = 0; found != NULL && n < count; n++) {
        /* ENOENT: its caller gave up meanwhile.  ENODEV: the mount is gone, and so is everybody who waits. */
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
        if (length > size || answers[n].place > size - length || length > UINT32_MAX - sizeof(OutHeader)) bad = n;
        if (answers[n].error < 0) bad = n;
    }
    if (!is_whole) {
        PyErr_Format(PyExc_ValueError, "%zd bytes of answers", packed.len);
    } else if (bad >= 0) {
        PyErr_Format(PyExc_ValueError, "answer %zd is beyond the memory, or no answer", bad);
    } else {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t n = 0; n < count; n++) errors[n] = write_answer(fd, &answers[n], memory.buf);
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
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_device", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__device(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0) Py_CLEAR(module);
    return module;
}
