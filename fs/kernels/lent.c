/* Reads memory, and files, of another process of this machine that it has told us of; lent_twin.py
 * says what each function promises.
 *
 * Nothing here believes its caller: memory of ours is held while the kernel writes to it, and where
 * the other's lies is the kernel's to judge.  The interpreter's lock is given up for the system
 * call. */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define INTERFACE 2
#define PIECE_COUNT_MAX 1000 /* with the nonce below what the kernel takes */
#define NONCE_BYTES 16
#define PARTS_MAX 64

/* As on the wire, where numbers are little-endian. */
typedef struct {
    uint64_t address, length;
} Piece;
typedef struct {
    uint64_t number, offset, length;
} Range;

_Static_assert(sizeof(Piece) == 16 && sizeof(Range) == 24, "packed");
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || UINTPTR_MAX != UINT64_MAX
#error "pieces are little-endian, of 64 bits; on this machine the twin serves"
#endif

static PyObject *pieces_of(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *list;
    if (!PyArg_ParseTuple(args, "O", &list)) return NULL;
    PyObject *items = PySequence_Tuple(list),
             *found = NULL; /* holds them, whatever becomes of the list */
    if (items == NULL) return NULL;
    Py_ssize_t count = PyTuple_Size(items);
    if (count > PIECE_COUNT_MAX) {
        PyErr_SetString(PyExc_ValueError, "too many pieces");
    } else {
        found = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(Piece));
    }
    for (Py_ssize_t n = 0; found != NULL && n < count; n++) {
        Py_buffer view;
        if (PyObject_GetBuffer(PyTuple_GetItem(items, n), &view, PyBUF_SIMPLE) < 0) {
            Py_CLEAR(found);
            break;
        }
        Piece piece = {(uintptr_t)view.buf, (uint64_t)view.len};
        memcpy(PyBytes_AsString(found) + n * (Py_ssize_t)sizeof piece, &piece, sizeof piece);
        PyBuffer_Release(&view);
    }
    Py_DECREF(items);
    return found;
}

/* Says where to read `wanted` bytes from, behind the first `skip` of all pieces; returns how many
 * pieces, -1: they have not so many. */
static Py_ssize_t cut(const char *packed, Py_ssize_t count, uint64_t skip, uint64_t wanted,
                      struct iovec *from) {
    Py_ssize_t used = 0;
    for (Py_ssize_t n = 0; n < count && wanted > 0; n++) {
        Piece piece;
        memcpy(&piece, packed + n * (Py_ssize_t)sizeof piece, sizeof piece);
        if (piece.length > UINT64_MAX - piece.address) return -1;
        if (skip >= piece.length) {
            skip -= piece.length;
            continue;
        }
        uint64_t length = piece.length - skip < wanted ? piece.length - skip : wanted;
        from[used].iov_base = (void *)(uintptr_t)(piece.address + skip);
        from[used++].iov_len = (size_t)length;
        skip = 0;
        wanted -= length;
    }
    return wanted ? -1 : used;
}

static PyObject *read_lent(PyObject *module, PyObject *args) {
    (void)module;
    int pid;
    Py_buffer pieces, into, nonce;
    unsigned long long skip, place;
    if (!PyArg_ParseTuple(args, "iy*Kw*Ky*", &pid, &pieces, &skip, &into, &place, &nonce))
        return NULL;
    struct iovec from[PIECE_COUNT_MAX + 1];
    char seen[NONCE_BYTES];
    Py_ssize_t count = pieces.len / (Py_ssize_t)sizeof(Piece), used = -1;
    if (pieces.len % (Py_ssize_t)sizeof(Piece) == 0 && count <= PIECE_COUNT_MAX
        && nonce.len == NONCE_BYTES)
        used = cut(pieces.buf, count, skip, (uint64_t)into.len, from);
    ssize_t done = 0;
    int failure = 0;
    if (used < 0) {
        PyErr_Format(PyExc_ValueError, "%zd bytes of pieces, %zd of a nonce", pieces.len,
                     nonce.len);
    } else {
        /* The nonce comes by the same call: what has it is the process, and the memory, that the
         * bytes are of. */
        struct iovec to[2] = {{into.buf, (size_t)into.len}, {seen, NONCE_BYTES}};
        from[used].iov_base = (void *)(uintptr_t)place;
        from[used].iov_len = NONCE_BYTES;
        Py_BEGIN_ALLOW_THREADS
        done = process_vm_readv(pid, to, 2, from, (unsigned long)used + 1, 0);
        failure = done < 0 ? errno : done != (ssize_t)into.len + NONCE_BYTES ? EFAULT : 0;
        Py_END_ALLOW_THREADS
        if (!failure && memcmp(seen, nonce.buf, NONCE_BYTES) != 0) failure = ESRCH;
        if (failure) {
            errno = failure;
            PyErr_SetFromErrno(PyExc_OSError);
        }
    }
    PyBuffer_Release(&pieces);
    PyBuffer_Release(&into);
    PyBuffer_Release(&nonce);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* The nonce is where it was, so what was read before it was still lent; else an errno. */
static int nonce_fault(int pid, uint64_t place, const void *nonce) {
    char seen[NONCE_BYTES];
    struct iovec to = {seen, NONCE_BYTES}, from = {(void *)(uintptr_t)place, NONCE_BYTES};
    ssize_t done = process_vm_readv(pid, &to, 1, &from, 1, 0);
    if (done < 0) return errno;
    if (done != NONCE_BYTES) return EFAULT;
    return memcmp(seen, nonce, NONCE_BYTES) ? ESRCH : 0;
}

/* Says in `fd` which descriptor of ours is their `number`, a regular file; returns 0 or an errno,
 * and then it may be open all the same. */
static int copy_descriptor(int pidfd, uint64_t number, int *fd) {
    struct stat about;
    if (number > INT32_MAX) return EBADF;
    *fd = (int)syscall(SYS_pidfd_getfd, pidfd, (int)number, 0);
    if (*fd < 0) return errno;
    if (fstat(*fd, &about) < 0) return errno;
    return S_ISREG(about.st_mode) ? 0 : EINVAL;
}

/* Fills `to`, behind what is full of it, with a range of a file; both move on.  Returns 0 or an
 * errno. */
static int read_range(int fd, const Range *range, struct iovec **to) {
    uint64_t at = range->offset, left = range->length;
    while (left > 0) {
        struct iovec parts[PARTS_MAX];
        int count = 0;
        uint64_t wanted = 0;
        for (struct iovec *one = *to; wanted < left && count < PARTS_MAX; one++) {
            if (!one->iov_len) continue;
            parts[count] = *one;
            if (parts[count].iov_len > left - wanted)
                parts[count].iov_len = (size_t)(left - wanted);
            wanted += parts[count++].iov_len;
        }
        ssize_t done = preadv2(fd, parts, count, (off_t)at, RWF_NOWAIT);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return errno;
        if ((uint64_t)done != wanted)
            return EAGAIN; /* what is cached ends there, or the file does */
        at += wanted;
        left -= wanted;
        for (; wanted > 0; (*to)++) {
            size_t step = (*to)->iov_len < wanted ? (*to)->iov_len : (size_t)wanted;
            (*to)->iov_base = (char *)(*to)->iov_base + step;
            (*to)->iov_len -= step;
            wanted -= step;
            if ((*to)->iov_len) break;
        }
    }
    return 0;
}

/* The descriptor of ours that an earlier range of the same file is read by; -1: this is the first.
 */
static int known_descriptor(const Range *ranges, const int *fds, Py_ssize_t n) {
    for (Py_ssize_t other = 0; other < n; other++)
        if (fds[other] >= 0 && ranges[other].number == ranges[n].number) return fds[other];
    return -1;
}

/* Reads ranges one after the other; `fds` has room for a descriptor of each.  Returns 0 or an
 * errno. */
static int read_ranges(int pid, const Range *ranges, Py_ssize_t count, struct iovec *to, int *fds) {
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0), fault = pidfd < 0 ? errno : 0;
    Py_ssize_t n;
    for (n = 0; !fault && n < count; n++) {
        int fd = known_descriptor(ranges, fds, n);
        fds[n] = -1;
        if (fd < 0) {
            fault = copy_descriptor(pidfd, ranges[n].number, &fds[n]);
            fd = fds[n];
        }
        if (!fault) fault = read_range(fd, &ranges[n], &to);
    }
    while (n-- > 0)
        if (fds[n] >= 0) close(fds[n]);
    if (pidfd >= 0) close(pidfd);
    return fault;
}

/* Says whether ranges are within any file, and as many bytes as there is room for. */
static int do_fit(const Range *ranges, Py_ssize_t count, uint64_t room) {
    for (Py_ssize_t n = 0; n < count; n++) {
        if (ranges[n].offset > INT64_MAX || ranges[n].length > INT64_MAX - ranges[n].offset
            || ranges[n].length > room)
            return 0;
        room -= ranges[n].length;
    }
    return room == 0;
}

/* What `read_files` holds: memory of ours, and where it lies. */
typedef struct {
    PyObject *items;
    Py_buffer *views;
    struct iovec *to;
    Py_ssize_t count, taken;
    uint64_t size;
} Room;

static void let_go(Room *room) {
    while (room->taken > 0) PyBuffer_Release(&room->views[--room->taken]);
    PyMem_Free(room->views);
    PyMem_Free(room->to);
    Py_XDECREF(room->items);
}

/* Takes hold of buffers that may be written to; returns -1 with an error set.  `let_go` gives back
 * what it holds, also then. */
static int take_hold(Room *room, PyObject *list) {
    room->items = PySequence_Tuple(list); /* holds them, whatever becomes of the list */
    if (room->items == NULL) return -1;
    room->count = PyTuple_Size(room->items);
    room->views = PyMem_Calloc((size_t)room->count + 1, sizeof *room->views);
    room->to = PyMem_Calloc((size_t)room->count + 1, sizeof *room->to);
    if (room->views == NULL || room->to == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    while (room->taken < room->count) {
        Py_buffer *view = &room->views[room->taken];
        if (PyObject_GetBuffer(PyTuple_GetItem(room->items, room->taken), view, PyBUF_WRITABLE) < 0)
            return -1;
        room->to[room->taken].iov_base = view->buf;
        room->to[room->taken++].iov_len = (size_t)view->len;
        room->size += (uint64_t)view->len;
    }
    return 0;
}

static PyObject *read_files(PyObject *module, PyObject *args) {
    (void)module;
    int pid, fault = 0, fds[PIECE_COUNT_MAX];
    Py_buffer packed, nonce;
    PyObject *list;
    unsigned long long place;
    if (!PyArg_ParseTuple(args, "iy*OKy*", &pid, &packed, &list, &place, &nonce)) return NULL;
    Range ranges[PIECE_COUNT_MAX];
    Room room = {0};
    Py_ssize_t count = packed.len / (Py_ssize_t)sizeof(Range);
    int is_right = packed.len % (Py_ssize_t)sizeof(Range) == 0 && count <= PIECE_COUNT_MAX
                   && nonce.len == NONCE_BYTES;
    if (is_right) memcpy(ranges, packed.buf, (size_t)packed.len);
    if (!is_right) {
        PyErr_Format(PyExc_ValueError, "%zd bytes of ranges, %zd of a nonce", packed.len,
                     nonce.len);
    } else if (take_hold(&room, list) < 0) {
        /* the error is set */
    } else if (!do_fit(ranges, count, room.size)) {
        PyErr_SetString(PyExc_ValueError,
                        "ranges beyond any file, or of other sizes than the buffers");
    } else {
        Py_BEGIN_ALLOW_THREADS
        fault = read_ranges(pid, ranges, count, room.to, fds);
        if (!fault)
            fault = nonce_fault(pid, place,
                                nonce.buf); /* behind the reads: they were of what was lent */
        Py_END_ALLOW_THREADS
    }
    let_go(&room);
    if (fault) {
        errno = fault;
        PyErr_SetFromErrno(PyExc_OSError);
    }
    PyBuffer_Release(&packed);
    PyBuffer_Release(&nonce);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"pieces_of", pieces_of, METH_VARARGS, NULL},
    {"read_lent", read_lent, METH_VARARGS, NULL},
    {"read_files", read_files, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_lent", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__lent(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0)
        Py_CLEAR(module);
    return module;
}
