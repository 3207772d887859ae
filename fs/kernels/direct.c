/* Has a disk read several places at once; direct_twin.py says what the functions promise.
 *
 * By the kernel's own asynchronous reads (io_submit), which containers are allowed where io_uring
 * is not.  A context of these takes long to be given back, so those that are not in use are kept;
 * the interpreter's lock guards them.  Where there is none to be had, as in the child of a fork
 * with those of its parent, places are read one after the other.
 *
 * Nothing returns while the kernel may still write into memory of a caller. */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INTERFACE 2
#define PLACE_COUNT_MAX 64 /* read at once; further ones when some of these have ended */
#define KEPT_MAX 16
#define LINE_NAME "fs.kernels._direct.line"

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
    if (context && kept_count < KEPT_MAX)
        kept[kept_count++] = context;
    else if (context)
        syscall(SYS_io_destroy, context);
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

/* ---- lines ---- */

/* Who reads from one disk, one behind the other: the next one's first place is handed to it while
 * the last ones of who is in front are there. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t bytes_max, under_way; /* handed to the disk, and not back */
    uint64_t come,
        gone; /* so many have taken a place in the line, and have handed over all of theirs */
} Line;

/* Waits until all who came before have handed over what they have. */
static void enter(Line *line) {
    if (line == NULL) return;
    pthread_mutex_lock(&line->lock);
    uint64_t number = line->come++;
    while (line->gone != number) pthread_cond_wait(&line->changed, &line->lock);
    pthread_mutex_unlock(&line->lock);
}

static void leave(Line *line) {
    if (line == NULL) return;
    pthread_mutex_lock(&line->lock);
    line->gone++;
    pthread_cond_broadcast(&line->changed);
    pthread_mutex_unlock(&line->lock);
}

/* Takes room for so many bytes, which whoever reads more than that has for himself; returns 0 if
 * there is none, and then waits for some if it may. */
static int take_room(Line *line, uint64_t bytes, int may_wait) {
    if (line == NULL) return 1;
    pthread_mutex_lock(&line->lock);
    int has_room = line->under_way == 0
                   || (bytes <= line->bytes_max && line->under_way <= line->bytes_max - bytes);
    if (has_room)
        line->under_way += bytes;
    else if (may_wait)
        pthread_cond_wait(&line->changed, &line->lock);
    pthread_mutex_unlock(&line->lock);
    return has_room;
}

static void give_room(Line *line, uint64_t bytes) {
    if (line == NULL || bytes == 0) return;
    pthread_mutex_lock(&line->lock);
    line->under_way -= bytes;
    pthread_cond_broadcast(&line->changed);
    pthread_mutex_unlock(&line->lock);
}

/* ---- reading ---- */

typedef struct {
    aio_context_t context; /* 0: places are read one after the other */
    Line *line;
    int under_way, is_whole;
    uint64_t bytes; /* under way */
} Reader;

/* Waits until one of the reads under way has ended, or several. */
static void wait_for_some(Reader *reader) {
    struct io_event events[PLACE_COUNT_MAX];
    long count;
    uint64_t bytes = 0;
    do
        count =
            syscall(SYS_io_getevents, reader->context, 1L, (long)reader->under_way, events, NULL);
    while (count < 0 && errno == EINTR);
    if (count > 0) {
        for (long n = 0; n < count; n++) {
            bytes += events[n].data;
            if (events[n].res != (int64_t)events[n].data) reader->is_whole = 0;
        }
        reader->under_way -= (int)count;
    } else { /* it cannot be waited for so: the context has to be ended for the memory to be free */
        syscall(SYS_io_destroy, reader->context);
        reader->context = 0;
        reader->is_whole = 0;
        reader->under_way = 0;
        bytes = reader->bytes;
    }
    reader->bytes -= bytes;
    give_room(reader->line, bytes);
}

/* Hands a place to the disk, or reads it; `is_last`: who is next in the line may hand over what he
 * has then. */
static void read_place(Reader *reader, const Place *place, int is_last) {
    uint64_t bytes = (uint64_t)place->view.len;
    if (reader->under_way == PLACE_COUNT_MAX) wait_for_some(reader);
    while (!take_room(reader->line, bytes, reader->under_way == 0))
        if (reader->under_way > 0) wait_for_some(reader);
    struct iocb block, *pointer = &block;
    memset(&block, 0, sizeof block);
    block.aio_lio_opcode = IOCB_CMD_PREAD;
    block.aio_fildes = (uint32_t)place->fd;
    block.aio_buf = (uintptr_t)place->view.buf;
    block.aio_nbytes = bytes;
    block.aio_offset = (int64_t)place->offset;
    block.aio_data = bytes; /* what its event is compared with */
    int is_sent = reader->context && syscall(SYS_io_submit, reader->context, 1L, &pointer) == 1;
    if (is_last) leave(reader->line);
    if (is_sent) {
        reader->under_way++;
        reader->bytes += bytes;
        return;
    }
    /* refused, or nothing to hand it to: what is wrong with it the ordinary call says */
    if (!read_one(place)) reader->is_whole = 0;
    give_room(reader->line, bytes);
}

/* Reads places; all came whole if `is_whole` says so then. */
static void read_all(Reader *reader, const Place *places, Py_ssize_t count) {
    Py_ssize_t done = 0;
    enter(reader->line);
    for (; reader->is_whole && done < count; done++)
        read_place(reader, &places[done], done == count - 1);
    if (done < count || count == 0) leave(reader->line);
    while (reader->under_way > 0) wait_for_some(reader);
}

/* Takes a tuple (descriptor, offset, buffer) apart; returns -1 with an error set, and then holds
 * nothing. */
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

static void end_line(PyObject *capsule) {
    Line *line = PyCapsule_GetPointer(capsule, LINE_NAME);
    pthread_mutex_destroy(&line->lock);
    pthread_cond_destroy(&line->changed);
    PyMem_Free(line);
}

static PyObject *new_line(PyObject *module, PyObject *args) {
    (void)module;
    long long bytes_max;
    if (!PyArg_ParseTuple(args, "L", &bytes_max)) return NULL;
    if (bytes_max < 1) return PyErr_Format(PyExc_ValueError, "a line for %lld bytes", bytes_max);
    Line *line = PyMem_Calloc(1, sizeof *line);
    if (line == NULL) return PyErr_NoMemory();
    line->bytes_max = (uint64_t)bytes_max;
    pthread_mutex_init(&line->lock, NULL);
    pthread_cond_init(&line->changed, NULL);
    PyObject *capsule = PyCapsule_New(line, LINE_NAME, end_line);
    if (capsule == NULL) PyMem_Free(line);
    return capsule;
}

static PyObject *read_places(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *list, *capsule = Py_None;
    Reader reader = {.is_whole = 1};
    if (!PyArg_ParseTuple(args, "O|O", &list, &capsule)) return NULL;
    if (capsule != Py_None && (reader.line = PyCapsule_GetPointer(capsule, LINE_NAME)) == NULL) {
        PyErr_SetString(PyExc_TypeError, "no line");
        return NULL;
    }
    PyObject *items = PySequence_Tuple(list); /* holds them, whatever becomes of the list */
    if (items == NULL) return NULL;
    Py_ssize_t count = PyTuple_Size(items), taken = 0;
    Place *places = PyMem_Calloc((size_t)count + 1, sizeof *places);
    if (places == NULL) PyErr_NoMemory();
    while (places != NULL && taken < count
           && take_place(PyTuple_GetItem(items, taken), &places[taken]) == 0)
        taken++;
    if (!PyErr_Occurred()) {
        reader.context = count > 1 ? take_context() : 0;
        Py_BEGIN_ALLOW_THREADS
        read_all(&reader, places, count);
        Py_END_ALLOW_THREADS
        keep_context(reader.context);
    }
    while (taken > 0) PyBuffer_Release(&places[--taken].view);
    PyMem_Free(places);
    Py_DECREF(items);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(reader.is_whole);
}

static PyMethodDef methods[] = {
    {"new_line", new_line, METH_VARARGS, NULL},
    {"read_places", read_places, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_direct", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__direct(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0)
        Py_CLEAR(module);
    return module;
}
