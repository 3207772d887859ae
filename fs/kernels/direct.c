/* Has a disk read several places at once; direct_twin.py says what the function promises.
 *
 * By the kernel's own asynchronous reads (io_submit), which containers are allowed where io_uring is not.  A context of these takes long to be given
 * back, so those that are not in use are kept; the interpreter's lock guards them.  Where there is none to be had, as in the child of a fork with
 * those of its parent, places are read one after the other.
 *
 * Nothing returns while the kernel may still write into memory of a caller. */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <linux/aio_abi.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INTERFACE 1
#define PLACE_COUNT_MAX 64 /* read at once; more than that in several goes */
#define KEPT_MAX 16

typedef struct {
    int fd;
    uint64_t offset;
    Py_buffer view;
} Place;

static aio_context_t kept[KEPT_MAX];
static int kept_count;

/* Returns a context, 0: there is none. */
static aio_context_t take_context(void) {
    aio_context_t context = 0;
    if (kept_count > 0) return kept[--kept_count];
    return syscall(SYS_io_setup, PLACE_COUNT_MAX, &context) == 0 ? context : 0;
}

/* Keeps a context in which nothing is under way. */
static void keep_context(aio_context_t context) {
    if (context && kept_count < KEPT_MAX) kept[kept_count++] = context;
    else if (context) syscall(SYS_io_destroy, context);
}

/* Reads one place, whole; returns whether it is. */
static int read_one(const Place *place) {
    char *to = place->view.buf;
    size_t left = (size_t)place->view.len;
    off_t at = (off_t)place->offset;
    while (left > 0) {
        ssize_t done = pread(place->fd, to, left, at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return 0;
        to += done;
        at += done;
        left -= (size_t)done;
    }
    return 1;
}

/* Waits until one of some reads has ended, or several; returns how many, and in `is_whole` 0 if one is not whole.  0: it cannot be waited for so. */
static int wait_for_some(aio_context_t context, int under_way, int *is_whole) {
    struct io_event events[PLACE_COUNT_MAX];
    long count;
    do count = syscall(SYS_io_getevents, context, 1L, (long)under_way, events, NULL);
    while (count < 0 && errno == EINTR);
    for (long n = 0; n < count; n++)
        if (events[n].res != (int64_t)events[n].data) *is_whole = 0;
    return count > 0 ? (int)count : 0;
}

/* Reads up to PLACE_COUNT_MAX places; returns whether all came whole.  The context is lost, and 0 then, if the kernel does not know it. */
static int read_at_once(aio_context_t *context, const Place *places, int count) {
    struct iocb blocks[PLACE_COUNT_MAX], *pointers[PLACE_COUNT_MAX];
    memset(blocks, 0, sizeof blocks);
    for (int n = 0; n < count; n++) {
        blocks[n].aio_lio_opcode = IOCB_CMD_PREAD;
        blocks[n].aio_fildes = (uint32_t)places[n].fd;
        blocks[n].aio_buf = (uintptr_t)places[n].view.buf;
        blocks[n].aio_nbytes = (uint64_t)places[n].view.len;
        blocks[n].aio_offset = (int64_t)places[n].offset;
        blocks[n].aio_data = (uint64_t)places[n].view.len; /* what its event is compared with */
        pointers[n] = &blocks[n];
    }
    int sent = 0, under_way, is_whole = 1;
    while (*context && sent < count) {
        long taken = syscall(SYS_io_submit, *context, (long)(count - sent), pointers + sent);
        if (taken <= 0) break; /* a place that it refuses, or all of them: what is wrong the ordinary call says */
        sent += (int)taken;
    }
    under_way = sent;
    while (under_way > 0) {
        int ended = wait_for_some(*context, under_way, &is_whole);
        if (!ended) { /* it has to be ended for the memory to be free */
            syscall(SYS_io_destroy, *context);
            *context = 0;
            is_whole = 0;
            break;
        }
        under_way -= ended;
    }
    for (; is_whole && sent < count; sent++) is_whole = read_one(&places[sent]);
    return is_whole;
}

/* Takes a tuple (descriptor, offset, buffer) apart; returns -1 with an error set, and then holds nothing. */
static int take_place(PyObject *item, Place *place) {
    unsigned long long offset;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a place is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "iKw*", &place->fd, &offset, &place->view)) return -1;
    if (offset > INT64_MAX || (uint64_t)place->view.len > INT64_MAX - offset) {
        PyErr_SetString(PyExc_ValueError, "a place beyond any file");
        PyBuffer_Release(&place->view);
        return -1;
    }
    place->offset = offset;
    return 0;
}

static PyObject *read_places(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *list;
    if (!PyArg_ParseTuple(args, "O", &list)) return NULL;
    PyObject *items = PySequence_Tuple(list); /* holds them, whatever becomes of the list */
    if (items == NULL) return NULL;
    Py_ssize_t count = PyTuple_Size(items), taken = 0;
    Place *places = PyMem_Calloc((size_t)count + 1, sizeof *places);
    if (places == NULL) PyErr_NoMemory();
    while (places != NULL && taken < count && take_place(PyTuple_GetItem(items, taken), &places[taken]) == 0) taken++;
    int is_whole = 1;
    if (!PyErr_Occurred()) {
        aio_context_t context = count > 1 ? take_context() : 0;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t start = 0; is_whole && start < count; start += PLACE_COUNT_MAX) {
            Py_ssize_t some = count - start < PLACE_COUNT_MAX ? count - start : PLACE_COUNT_MAX;
            is_whole = read_at_once(&context, places + start, (int)some);
        }
        Py_END_ALLOW_THREADS
        keep_context(context);
    }
    while (taken > 0) PyBuffer_Release(&places[--taken].view);
    PyMem_Free(places);
    Py_DECREF(items);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(is_whole);
}

static PyMethodDef methods[] = {
    {"read_places", read_places, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_direct", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__direct(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0) Py_CLEAR(module);
    return module;
}
