/* Messages about reads, between bytes as they go over the wire and columns; read_messages_twin.py
 * says what each function promises.
 *
 * Nothing here believes what it is given: every size is checked before memory is touched. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>
#include "hashing/xxh3.h"
#include "wire.h"

#define INTERFACE 2
#define ROW_COLUMNS 6
#define FLAGS_MAX 8
#define REPLY_COLUMNS 3
#define CHUNK_BYTES 12
#define OWNER_BYTES 8
#define KEY_BYTES (OWNER_BYTES + CHUNK_BYTES)
#define SUM_BYTES 8

enum column { INODE_ID, CHUNK_INDEX, CHAIN_ID, CHAIN_VERSION, OFFSET, LENGTH };

/* ---- columns of a message ---- */

typedef struct {
    const uint8_t *start[ROW_COLUMNS], *stop[ROW_COLUMNS];
    unsigned long flags; /* which are set, bit by bit */
} Columns;

/* Find the columns of a message; 0: it has other fields, too, one twice, or not all. */
static int find_columns(Columns *found, const Py_buffer *message, const Py_buffer *columns,
                        const Py_buffer *flags) {
    const uint8_t *at = message->buf, *end = at + message->len;
    unsigned seen = 0;
    found->flags = 0;
    while (at < end) {
        uint8_t tag = *at++;
        uint64_t size;
        if (!take_varint(&at, end, &size)) return 0; /* of a flag its value */
        const uint8_t *known = flags->len > 0 ? memchr(flags->buf, tag, (size_t)flags->len) : NULL;
        if (known != NULL) {
            unsigned long bit = 1ul << (known - (const uint8_t *)flags->buf);
            found->flags = size ? found->flags | bit : found->flags & ~bit;
            continue;
        }
        known = memchr(columns->buf, tag, ROW_COLUMNS);
        if (known == NULL || size > (uint64_t)(end - at)) return 0;
        int column = (int)(known - (const uint8_t *)columns->buf);
        if (seen >> column & 1) return 0;
        seen |= 1u << column;
        found->start[column] = at;
        found->stop[column] = at += size;
    }
    return seen == (1u << ROW_COLUMNS) - 1;
}

/* Put a number as `width` bytes, the highest first. */
static void put_number(char *where, int width, uint64_t value) {
    for (int n = 0; n < width; n++) where[n] = (char)(value >> (8 * (width - 1 - n)));
}

/* ---- messages of a single row ---- */

/* Take the one number of each column; 0: one has more, or none. */
static int take_row(const Columns *found, uint64_t *numbers) {
    for (int column = 0; column < ROW_COLUMNS; column++) {
        const uint8_t *at = found->start[column];
        if (!take_varint(&at, found->stop[column], &numbers[column]) || at != found->stop[column])
            return 0;
    }
    return 1;
}

static PyObject *row_taken(const uint64_t *numbers, unsigned long flags) {
    char chunk[CHUNK_BYTES];
    put_number(chunk, 8, numbers[INODE_ID]);
    put_number(chunk + 8, 4, numbers[CHUNK_INDEX]);
    return Py_BuildValue(
        "(y#KKKKk)", chunk, (Py_ssize_t)sizeof chunk, (unsigned long long)numbers[CHAIN_ID],
        (unsigned long long)numbers[CHAIN_VERSION], (unsigned long long)numbers[OFFSET],
        (unsigned long long)numbers[LENGTH], flags);
}

static PyObject *one_row(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer message, columns, flags;
    if (!PyArg_ParseTuple(args, "y*y*y*", &message, &columns, &flags)) return NULL;
    Columns found;
    uint64_t numbers[ROW_COLUMNS];
    PyObject *row = NULL;
    if (columns.len != ROW_COLUMNS || flags.len > FLAGS_MAX)
        PyErr_SetString(PyExc_ValueError, "not the columns of a row");
    else if (find_columns(&found, &message, &columns, &flags) && take_row(&found, numbers)
             && numbers[CHUNK_INDEX] <= UINT32_MAX)
        row = row_taken(numbers, found.flags);
    else
        row = Py_NewRef(Py_None);
    PyBuffer_Release(&message);
    PyBuffer_Release(&columns);
    PyBuffer_Release(&flags);
    return row;
}

static PyObject *one_reply(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer columns;
    unsigned long long length, version, checksum;
    int want_checksum;
    if (!PyArg_ParseTuple(args, "y*KKKp", &columns, &length, &version, &checksum, &want_checksum))
        return NULL;
    uint8_t message[REPLY_COLUMNS * (2 + VARINT_BYTES)], *at = message;
    PyObject *packed = NULL;
    if (columns.len == REPLY_COLUMNS) {
        const uint8_t *tags = columns.buf;
        const unsigned long long numbers[] = {length, version};
        for (int n = 0; n < 2; n++) {
            *at++ = tags[n];
            uint8_t *size = at++;
            at = put_varint(at, numbers[n]);
            *size = (uint8_t)(at - size - 1);
        }
        if (want_checksum) {
            *at++ = tags[2];
            *at++ = SUM_BYTES;
            for (int n = 0; n < SUM_BYTES; n++) *at++ = (uint8_t)(checksum >> (8 * n));
        }
        packed = PyBytes_FromStringAndSize((char *)message, at - message);
    } else {
        PyErr_SetString(PyExc_ValueError, "not the columns of a reply");
    }
    PyBuffer_Release(&columns);
    return packed;
}

/* ---- which rows are alike ---- */

/* Number records of equal size by their content, in the order of their first; firsts[k] is where
 * number k came up first. */
static Py_ssize_t number_alike(const char *records, size_t size, Py_ssize_t count,
                               Py_ssize_t *numbers, Py_ssize_t *firsts) {
    Py_ssize_t found = 0;
    size_t room = 8;
    while (room < 2 * (size_t)count) room *= 2;
    Py_ssize_t *table = PyMem_Calloc(room, sizeof *table); /* number + 1; 0: free */
    if (table == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t n = 0; n < count; n++) {
        const char *record = records + (size_t)n * size;
        size_t at = xxh3_64(record, size) & (room - 1);
        while (table[at] != 0
               && memcmp(records + (size_t)firsts[table[at] - 1] * size, record, size) != 0)
            at = (at + 1) & (room - 1);
        if (table[at] == 0) {
            firsts[found] = n;
            table[at] = ++found;
        }
        numbers[n] = table[at] - 1;
    }
    PyMem_Free(table);
    return found;
}

/* ---- messages of many rows ---- */

typedef struct {
    Columns columns;
    Py_ssize_t count;
    uint64_t *numbers[ROW_COLUMNS]; /* of each row; all in one piece of memory */
    Py_ssize_t *pairs, *pair_firsts, pair_count;
    Py_ssize_t *chunks, *chunk_firsts, chunk_count;
    char *keys; /* of each row */
} Rows;

/* Take the numbers of all columns; 0: they are not as long as the first, or too large. */
static int take_numbers(Rows *rows) {
    for (int column = 0; column < ROW_COLUMNS; column++) {
        const uint8_t *at = rows->columns.start[column], *stop = rows->columns.stop[column];
        uint64_t all = 0;
        for (Py_ssize_t n = 0; n < rows->count; n++) {
            if (!take_varint(&at, stop, &rows->numbers[column][n])) return 0;
            all |= rows->numbers[column][n];
        }
        if (at != stop || (column != INODE_ID && all > UINT32_MAX)) return 0;
    }
    return 1;
}

/* Number pairs and chunks; -1: an error is set. */
static int number_rows(Rows *rows) {
    uint64_t *pairs = PyMem_Calloc((size_t)rows->count, 2 * sizeof *pairs);
    if (pairs == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t n = 0; n < rows->count; n++) {
        pairs[2 * n] = rows->numbers[CHAIN_ID][n];
        pairs[2 * n + 1] = rows->numbers[CHAIN_VERSION][n];
    }
    rows->pair_count =
        number_alike((char *)pairs, 2 * sizeof *pairs, rows->count, rows->pairs, rows->pair_firsts);
    PyMem_Free(pairs);
    if (rows->pair_count < 0) return -1;
    for (Py_ssize_t n = 0; n < rows->count; n++) {
        char *key = rows->keys + n * KEY_BYTES;
        put_number(key, OWNER_BYTES, (uint64_t)rows->pairs[n]);
        put_number(key + OWNER_BYTES, 8, rows->numbers[INODE_ID][n]);
        put_number(key + OWNER_BYTES + 8, 4, rows->numbers[CHUNK_INDEX][n]);
    }
    rows->chunk_count =
        number_alike(rows->keys, KEY_BYTES, rows->count, rows->chunks, rows->chunk_firsts);
    return rows->chunk_count < 0 ? -1 : 0;
}

static PyObject *list_of(const uint64_t *numbers, Py_ssize_t count) {
    PyObject *list = PyList_New(count);
    for (Py_ssize_t n = 0; list != NULL && n < count; n++) {
        PyObject *value = PyLong_FromUnsignedLongLong(numbers[n]);
        if (value == NULL || PyList_SetItem(list, n, value) < 0) Py_CLEAR(list);
    }
    return list;
}

static PyObject *number_list(const Py_ssize_t *numbers, Py_ssize_t count) {
    PyObject *list = PyList_New(count);
    for (Py_ssize_t n = 0; list != NULL && n < count; n++) {
        PyObject *value = PyLong_FromSsize_t(numbers[n]);
        if (value == NULL || PyList_SetItem(list, n, value) < 0) Py_CLEAR(list);
    }
    return list;
}

/* Return the pairs, each with the bytes that its rows want. */
static PyObject *pair_list(const Rows *rows) {
    uint64_t *totals = PyMem_Calloc((size_t)rows->pair_count, sizeof *totals);
    PyObject *list = totals != NULL ? PyList_New(rows->pair_count) : PyErr_NoMemory();
    for (Py_ssize_t n = 0; list != NULL && n < rows->count; n++)
        totals[rows->pairs[n]] += rows->numbers[LENGTH][n];
    for (Py_ssize_t n = 0; list != NULL && n < rows->pair_count; n++) {
        Py_ssize_t first = rows->pair_firsts[n];
        PyObject *value = Py_BuildValue("(KKK)", (unsigned long long)rows->numbers[CHAIN_ID][first],
                                        (unsigned long long)rows->numbers[CHAIN_VERSION][first],
                                        (unsigned long long)totals[n]);
        if (value == NULL || PyList_SetItem(list, n, value) < 0) Py_CLEAR(list);
    }
    PyMem_Free(totals);
    return list;
}

static PyObject *chunk_bytes(const Rows *rows) {
    PyObject *found = PyBytes_FromStringAndSize(NULL, rows->chunk_count * KEY_BYTES);
    char *where = found != NULL ? PyBytes_AsString(found) : NULL;
    for (Py_ssize_t n = 0; where != NULL && n < rows->chunk_count; n++)
        memcpy(where + n * KEY_BYTES, rows->keys + rows->chunk_firsts[n] * KEY_BYTES, KEY_BYTES);
    return found;
}

/* Return what `take_rows` does; the lengths become the ends, to have the latter without memory of
 * their own. */
static PyObject *rows_taken(Rows *rows) {
    Py_ssize_t count = rows->count;
    PyObject *parts[] = {pair_list(rows),
                         number_list(rows->pairs, count),
                         chunk_bytes(rows),
                         number_list(rows->chunks, count),
                         list_of(rows->numbers[OFFSET], count),
                         list_of(rows->numbers[LENGTH], count),
                         NULL};
    const int part_count = sizeof parts / sizeof *parts;
    for (Py_ssize_t n = 1; n < count; n++) rows->numbers[LENGTH][n] += rows->numbers[LENGTH][n - 1];
    parts[part_count - 1] = list_of(rows->numbers[LENGTH], count);
    int is_whole = 1;
    for (int n = 0; n < part_count; n++) is_whole &= parts[n] != NULL;
    PyObject *result = NULL;
    if (is_whole)
        result = Py_BuildValue("(OOOOOOOk)", parts[0], parts[1], parts[2], parts[3], parts[4],
                               parts[5], parts[6], rows->columns.flags);
    for (int n = 0; n < part_count; n++) Py_XDECREF(parts[n]);
    return result;
}

/* Return whether every row is of some bytes, none of them beyond `reach_max`. */
static int are_within(const Rows *rows, uint64_t reach_max) {
    for (Py_ssize_t n = 0; n < rows->count; n++) {
        uint64_t length = rows->numbers[LENGTH][n];
        if (length == 0 || rows->numbers[OFFSET][n] + length > reach_max) return 0;
    }
    return 1;
}

static PyObject *take_rows(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer message, columns, flags;
    unsigned long long count_max, reach_max;
    if (!PyArg_ParseTuple(args, "y*y*y*KK", &message, &columns, &flags, &count_max, &reach_max))
        return NULL;
    PyObject *result = NULL;
    Rows rows = {0};
    void *memory = NULL;
    if (columns.len != ROW_COLUMNS || flags.len > FLAGS_MAX) {
        PyErr_SetString(PyExc_ValueError, "not the columns of rows");
        goto end;
    }
    int is_plain = find_columns(&rows.columns, &message, &columns, &flags);
    if (is_plain)
        for (const uint8_t *at = rows.columns.start[0]; at < rows.columns.stop[0]; at++)
            rows.count += *at < 0x80;
    if (is_plain && rows.count > 0 && (uint64_t)rows.count <= count_max) {
        size_t count = (size_t)rows.count;
        memory = PyMem_Calloc(count,
                              ROW_COLUMNS * sizeof(uint64_t) + 4 * sizeof(Py_ssize_t) + KEY_BYTES);
        if (memory == NULL) {
            PyErr_NoMemory();
            goto end;
        }
        for (int n = 0; n < ROW_COLUMNS; n++) rows.numbers[n] = (uint64_t *)memory + n * count;
        rows.pairs = (Py_ssize_t *)((uint64_t *)memory + ROW_COLUMNS * count);
        rows.pair_firsts = rows.pairs + count;
        rows.chunks = rows.pair_firsts + count;
        rows.chunk_firsts = rows.chunks + count;
        rows.keys = (char *)(rows.chunk_firsts + count);
        if (take_numbers(&rows) && are_within(&rows, reach_max)) {
            if (number_rows(&rows) == 0) result = rows_taken(&rows);
            goto end;
        }
    }
    result = Py_NewRef(Py_None);
end:
    PyMem_Free(memory);
    PyBuffer_Release(&message);
    PyBuffer_Release(&columns);
    PyBuffer_Release(&flags);
    return result;
}

static PyObject *chunk_keys(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer chunks;
    PyObject *owners;
    if (!PyArg_ParseTuple(args, "y*O!", &chunks, &PyList_Type, &owners)) return NULL;
    Py_ssize_t count = chunks.len / KEY_BYTES;
    PyObject *list = PyList_New(count);
    if (list != NULL && chunks.len % KEY_BYTES) {
        PyErr_SetString(PyExc_ValueError, "a chunk that is cut off");
        Py_CLEAR(list);
    }
    for (Py_ssize_t n = 0; list != NULL && n < count; n++) {
        char key[KEY_BYTES];
        uint64_t number = 0;
        memcpy(key, (char *)chunks.buf + n * KEY_BYTES, KEY_BYTES);
        for (int at = 0; at < OWNER_BYTES; at++) number = number << 8 | (uint8_t)key[at];
        PyObject *value = NULL;
        if (number >= (uint64_t)PyList_Size(owners)) {
            PyErr_SetString(PyExc_ValueError, "a chunk of no owner");
        } else {
            uint64_t owner = PyLong_AsUnsignedLongLong(PyList_GetItem(owners, (Py_ssize_t)number));
            if (owner != (uint64_t)-1 || !PyErr_Occurred()) {
                put_number(key, OWNER_BYTES, owner);
                value = PyBytes_FromStringAndSize(key, KEY_BYTES);
            }
        }
        if (value == NULL || PyList_SetItem(list, n, value) < 0) Py_CLEAR(list);
    }
    PyBuffer_Release(&chunks);
    return list;
}

/* Put a column of numbers, `fixed` or as varints, behind its tag and size; NULL: an error is set.
 */
static uint8_t *put_column(uint8_t *at, uint8_t tag, PyObject *list, Py_ssize_t count,
                           int is_fixed) {
    uint8_t *head = at, *body = at += 1 + VARINT_BYTES;
    for (Py_ssize_t n = 0; n < count; n++) {
        PyObject *item = PyList_GetItem(list, n);
        if (item == NULL) return NULL;
        uint64_t number = PyLong_AsUnsignedLongLong(item);
        if (number == (uint64_t)-1 && PyErr_Occurred()) return NULL;
        if (is_fixed)
            for (int shift = 0; shift < 64; shift += 8) *at++ = (uint8_t)(number >> shift);
        else
            at = put_varint(at, number);
    }
    size_t size = (size_t)(at - body);
    if (size == 0) return head;
    *head++ = tag;
    head = put_varint(head, size);
    memmove(head, body, size);
    return head + size;
}

static PyObject *rows_reply(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer columns;
    PyObject *lists[REPLY_COLUMNS], *packed = NULL; /* lengths, versions, checksums */
    uint8_t *message = NULL;
    if (!PyArg_ParseTuple(args, "y*O!O!O!", &columns, &PyList_Type, &lists[0], &PyList_Type,
                          &lists[1], &PyList_Type, &lists[2]))
        return NULL;
    Py_ssize_t count = PyList_Size(lists[0]), sum_count = PyList_Size(lists[2]);
    if (columns.len != REPLY_COLUMNS || PyList_Size(lists[1]) != count
        || (sum_count != 0 && sum_count != count)) {
        PyErr_SetString(PyExc_ValueError, "not the columns of a reply");
        goto end;
    }
    message = PyMem_Calloc((size_t)count + 2, REPLY_COLUMNS * (1 + VARINT_BYTES));
    if (message == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    uint8_t *at = message;
    for (int n = 0; at != NULL && n < REPLY_COLUMNS; n++)
        at = put_column(at, ((uint8_t *)columns.buf)[n], lists[n], n == 2 ? sum_count : count,
                        n == 2);
    if (at != NULL) packed = PyBytes_FromStringAndSize((char *)message, at - message);
end:
    PyMem_Free(message);
    PyBuffer_Release(&columns);
    return packed;
}

/* ---- module ---- */

static PyMethodDef methods[] = {
    {"one_row", one_row, METH_VARARGS, NULL},       {"one_reply", one_reply, METH_VARARGS, NULL},
    {"take_rows", take_rows, METH_VARARGS, NULL},   {"chunk_keys", chunk_keys, METH_VARARGS, NULL},
    {"rows_reply", rows_reply, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_read_messages", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__read_messages(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0)
        Py_CLEAR(module);
    return module;
}
