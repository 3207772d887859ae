/* What every process does to the headers of frames (fs/rpc/frame.py); frames_twin.py says what each
 * function promises.
 *
 * Nothing here believes its caller: numbers are checked against their fields, and a place against
 * the buffer, which is held. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>
#include "hashing/xxh3.h"

#define INTERFACE 1
#define FIELDS 10
#define BOUNDS 6

typedef struct {
    uint8_t magic[4], version, kind;
    uint16_t flags;
    uint64_t request_id;
    uint16_t service, method, status, reserved;
    uint32_t timeout_ms, message_bytes;
    uint64_t payload_bytes, checksum;
} Header;

static const uint8_t MAGIC[4] = {'E', 'M', 'B', 'R'};

_Static_assert(sizeof(Header) == 48 && offsetof(Header, checksum) == 40, "as on the wire");
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "headers are little-endian; on this machine the twin serves"
#endif

/* Take a number of 0..most; only of Python's own kind, as making one of anything else is code in
 * Python. */
static int take_number(PyObject *item, uint64_t most, uint64_t *value) {
    if (!PyLong_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "no number");
        return -1;
    }
    *value = PyLong_AsUnsignedLongLong(item);
    if (*value == (uint64_t)-1 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return -1;
        PyErr_Clear();
    } else if (*value <= most) {
        return 0;
    }
    PyErr_SetString(PyExc_ValueError, "a number that its field cannot hold");
    return -1;
}

static int has_count(Py_ssize_t count, Py_ssize_t wanted) {
    if (count == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%zd arguments, not %zd", count, wanted);
    return 0;
}

static PyObject *make_header(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    static const uint64_t most[FIELDS] = {UINT8_MAX,  UINT8_MAX,  UINT16_MAX, UINT64_MAX,
                                          UINT16_MAX, UINT16_MAX, UINT16_MAX, UINT32_MAX,
                                          UINT32_MAX, UINT64_MAX};
    uint64_t values[FIELDS];
    if (!has_count(count, FIELDS)) return NULL;
    for (int n = 0; n < FIELDS; n++)
        if (take_number(args[n], most[n], &values[n]) < 0) return NULL;
    Header header = {.version = (uint8_t)values[0],
                     .kind = (uint8_t)values[1],
                     .flags = (uint16_t)values[2],
                     .request_id = values[3],
                     .service = (uint16_t)values[4],
                     .method = (uint16_t)values[5],
                     .status = (uint16_t)values[6],
                     .timeout_ms = (uint32_t)values[7],
                     .message_bytes = (uint32_t)values[8],
                     .payload_bytes = values[9]};
    memcpy(header.magic, MAGIC, sizeof MAGIC);
    header.checksum = xxh3_64(&header, offsetof(Header, checksum));
    return PyBytes_FromStringAndSize((char *)&header, sizeof header);
}

static int is_usual(const Header *header, const uint64_t *bounds) {
    return memcmp(header->magic, MAGIC, sizeof MAGIC) == 0 && header->version == bounds[1]
           && header->kind > 0 && header->kind <= bounds[2] && header->flags == 0
           && header->reserved == 0 && header->message_bytes <= bounds[3]
           && header->payload_bytes <= bounds[4]
           && header->checksum == xxh3_64(header, offsetof(Header, checksum));
}

static PyObject *take_header(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    uint64_t bounds[BOUNDS - 1]; /* where it begins, version, greatest kind, most message bytes,
                                    most payload bytes */
    if (!has_count(count, BOUNDS)) return NULL;
    for (int n = 0; n < BOUNDS - 1; n++)
        if (take_number(args[n + 1], UINT64_MAX, &bounds[n]) < 0) return NULL;
    Py_buffer buffer;
    if (PyObject_GetBuffer(args[0], &buffer, PyBUF_SIMPLE) < 0) return NULL;
    Header header;
    int is_inside =
        (uint64_t)buffer.len >= sizeof header && bounds[0] <= (uint64_t)buffer.len - sizeof header;
    if (is_inside) memcpy(&header, (char *)buffer.buf + bounds[0], sizeof header);
    PyBuffer_Release(&buffer);
    if (!is_inside) {
        PyErr_SetString(PyExc_ValueError, "a header beyond the buffer");
        return NULL;
    }
    if (!is_usual(&header, bounds)) return Py_NewRef(Py_None);
    return Py_BuildValue("(iiKiiikkKi)", header.version, header.kind,
                         (unsigned long long)header.request_id, header.service, header.method,
                         header.status, (unsigned long)header.timeout_ms,
                         (unsigned long)header.message_bytes,
                         (unsigned long long)header.payload_bytes, header.flags);
}

static PyMethodDef methods[] = {
    {"make_header", (PyCFunction)(void (*)(void))make_header, METH_FASTCALL, NULL},
    {"take_header", (PyCFunction)(void (*)(void))take_header, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_frames", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__frames(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0)
        Py_CLEAR(module);
    return module;
}
