/* Reads memory of another process of this machine that it has told us of; lent_twin.py says what each function promises.
 *
 * Nothing here believes its caller: memory of ours is held while the kernel writes to it, and where the other's lies is the kernel's to
 * judge.  The interpreter's lock is given up for the system call. */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#define INTERFACE 1
#define PIECE_COUNT_MAX 1000 /* with the nonce below what the kernel takes */
#define NONCE_BYTES 16

/* As on the wire, where numbers are little-endian. */
typedef struct { uint64_t address, length; } Piece;

_Static_assert(sizeof(Piece) == 16, "packed");
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || UINTPTR_MAX != UINT64_MAX
#error "pieces are little-endian, of 64 bits; on this machine the twin serves"
#endif

static PyObject *pieces_of(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *list;
    if (!PyArg_ParseTuple(args, "O", &list)) return NULL;
    PyObject *items = PySequence_Tuple(list), *found = NULL; /* holds them, whatever becomes of the list */
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

/* Says where to read `wanted` bytes from, behind the first `skip` of all pieces; returns how many pieces, -1: they have not so many. */
static Py_ssize_t cut(const char *packed, Py_ssize_t count, uint64_t skip, uint64_t wanted, struct iovec *from) {
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
    if (!PyArg_ParseTuple(args, "iy*Kw*Ky*", &pid, &pieces, &skip, &into, &place, &nonce)) return NULL;
    struct iovec from[PIECE_COUNT_MAX + 1];
    char seen[NONCE_BYTES];
    Py_ssize_t count = pieces.len / (Py_ssize_t)sizeof(Piece), used = -1;
    if (pieces.len % (Py_ssize_t)sizeof(Piece) == 0 && count <= PIECE_COUNT_MAX && nonce.len == NONCE_BYTES)
        used = cut(pieces.buf, count, skip, (uint64_t)into.len, from);
    ssize_t done = 0;
    int failure = 0;
    if (used < 0) {
        PyErr_Format(PyExc_ValueError, "%zd bytes of pieces, %zd of a nonce", pieces.len, nonce.len);
    } else {
        /* The nonce comes by the same call: what has it is the process, and the memory, that the bytes are of. */
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

static PyMethodDef methods[] = {
    {"pieces_of", pieces_of, METH_VARARGS, NULL},
    {"read_lent", read_lent, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_lent", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__lent(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0) Py_CLEAR(module);
    return module;
}
