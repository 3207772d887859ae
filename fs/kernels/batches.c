/* What a mount daemon does to the rows of a batch of reads; batches_twin.py says what each function
 * promises.
 *
 * Nothing here believes its caller: sizes are checked before memory is touched, and a buffer is
 * held while it is.  Rows are copied out of the memory of a program before they come here, so
 * nobody rewrites them meanwhile. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>
#include "hashing/xxh3.h"
#include "wire.h"

#define INTERFACE 4

#define KEY_BYTES 16
#define REPLICAS_MAX 7
#define COLUMNS 6
#define REPLY_COLUMNS 3
#define PIECES_MAX (1 << 16)

/* Layouts of what comes in packed, each in the order of its struct in batches_twin.py; all
 * little-endian. */
typedef struct {
    uint64_t user_data, offset, place, length;
    uint8_t key[KEY_BYTES], unused[16];
} Entry;
typedef struct {
    uint8_t key[KEY_BYTES];
    uint64_t end;
} FileEnd;
typedef struct {
    uint8_t key[KEY_BYTES];
    uint64_t inode_id, chunk_bytes;
    uint32_t stripe_size, first_slot;
} FileLayout;
typedef struct {
    uint64_t chain_id, version;
    uint32_t count, nodes[REPLICAS_MAX];
} ChainNodes;
typedef struct {
    uint64_t place;
    uint32_t length, index;
} Row;
typedef struct {
    int64_t user_data, result;
} Completion;

_Static_assert(sizeof(Entry) == 64 && sizeof(FileEnd) == 24 && sizeof(FileLayout) == 40
                   && sizeof(ChainNodes) == 48,
               "packed");
_Static_assert(sizeof(Row) == 16 && sizeof(Completion) == 16, "packed");
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the rows are little-endian; on this machine the twin serves"
#endif

/* Copies the n-th of some packed records: they may lie anywhere. */
#define RECORD(buffer, type, n) \
    (*(type *)memcpy(&(type){0}, (const char *)(buffer).buf + (n) * sizeof(type), sizeof(type)))

static Py_ssize_t record_count(const Py_buffer *buffer, size_t size, const char *name) {
    if (buffer->len % (Py_ssize_t)size == 0) return buffer->len / (Py_ssize_t)size;
    PyErr_Format(PyExc_ValueError, "%zd bytes are no whole number of %s", buffer->len, name);
    return -1;
}

/* Returns the position of a key among `count` records that begin with one, or -1; `guess` is tried
 * first. */
static Py_ssize_t find_key(const Py_buffer *records, size_t size, Py_ssize_t count,
                           const uint8_t *key, Py_ssize_t guess) {
    if (guess < count && memcmp((char *)records->buf + guess * size, key, KEY_BYTES) == 0)
        return guess;
    for (Py_ssize_t n = 0; n < count; n++)
        if (memcmp((char *)records->buf + n * size, key, KEY_BYTES) == 0) return n;
    return -1;
}

static int is_good_entry(const Entry *entry, uint64_t size, uint64_t block_size,
                         uint64_t length_max, uint64_t end_max) {
    uint64_t length = entry->length;
    if (length == 0 || length > length_max || length > end_max || length > size) return 0;
    if (entry->offset > end_max - length || entry->place > size - length) return 0;
    return block_size == 0
           || (length <= block_size && entry->place % block_size <= block_size - length);
}

static PyObject *kinds_of(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer entries;
    unsigned int memory_id;
    unsigned long long size, block_size, length_max, end_max;
    Py_ssize_t kinds_max;
    if (!PyArg_ParseTuple(args, "y*IKKKKn", &entries, &memory_id, &size, &block_size, &length_max,
                          &end_max, &kinds_max))
        return NULL;
    PyObject *kinds = NULL;
    Py_ssize_t count = record_count(&entries, sizeof(Entry), "entries");
    if (count >= 0) kinds = PyList_New(0);
    int is_plain = 1;
    const char *last = NULL;
    for (Py_ssize_t n = 0; kinds != NULL && is_plain && n < count; n++) {
        Entry entry = RECORD(entries, Entry, n);
        uint32_t of_memory;
        memcpy(&of_memory, entry.key + 4, sizeof of_memory);
        is_plain =
            of_memory == memory_id && is_good_entry(&entry, size, block_size, length_max, end_max);
        if (!is_plain || (last != NULL && memcmp(last, entry.key, KEY_BYTES) == 0)) continue;
        Py_ssize_t known = PyList_Size(kinds), at = 0;
        for (; at < known; at++) {
            last = PyBytes_AsString(PyList_GetItem(kinds, at));
            if (memcmp(last, entry.key, KEY_BYTES) == 0) break;
        }
        if (at < known) continue;
        is_plain = known < kinds_max;
        if (!is_plain) continue;
        PyObject *key = PyBytes_FromStringAndSize((char *)entry.key, KEY_BYTES);
        if (key == NULL || PyList_Append(kinds, key) < 0)
            Py_CLEAR(kinds);
        else
            last = PyBytes_AsString(key); /* the list holds it, too */
        Py_XDECREF(key);
    }
    PyBuffer_Release(&entries);
    if (kinds == NULL || is_plain) return kinds;
    Py_DECREF(kinds);
    Py_RETURN_NONE;
}

static PyObject *are_within(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer entries, ends;
    if (!PyArg_ParseTuple(args, "y*y*", &entries, &ends)) return NULL;
    Py_ssize_t count = record_count(&entries, sizeof(Entry), "entries");
    Py_ssize_t end_count = record_count(&ends, sizeof(FileEnd), "ends of files"), kind = 0;
    int is_within = 1;
    for (Py_ssize_t n = 0; is_within && n < count && end_count >= 0; n++) {
        Entry entry = RECORD(entries, Entry, n);
        kind = find_key(&ends, sizeof(FileEnd), end_count, entry.key, kind < 0 ? 0 : kind);
        if (kind < 0) break;
        uint64_t end = RECORD(ends, FileEnd, kind).end;
        is_within = entry.length <= end && entry.offset <= end - entry.length;
    }
    PyBuffer_Release(&entries);
    PyBuffer_Release(&ends);
    if (PyErr_Occurred()) return NULL;
    if (kind < 0) return PyErr_Format(PyExc_ValueError, "an entry of a kind that is not told of");
    return PyBool_FromLong(is_within);
}

/* ---- planning ---- */

typedef struct {
    uint64_t columns[COLUMNS]; /* what its request says of it */
    uint64_t place;            /* in the memory */
    uint32_t entry, next; /* the first entry that it is of, and the next piece of its request; of
                             the last one, anything */
} Piece;

typedef struct {
    Py_buffer entries, layouts, slots, chains, tags;
    Py_ssize_t entry_count, layout_count, slot_count, chain_count, node_count;
    unsigned long long start, together, joined_max, count_max, bytes_max;
    Piece *pieces;  /* each within one chunk, in the order of entries and offsets; joined where one
                       continues the other */
    uint64_t *load; /* of each node, the bytes given to it */
    uint32_t *open; /* of each node, 1 + the number of the request that takes more */
    uint32_t *chosen; /* of each chain, 1 + the node that has had its last read */
    struct {
        uint32_t node, rows, first, last;
        uint64_t bytes;
    } *requests;
    uint32_t piece_count, request_count, last_request; /* which the last piece is of */
} Plan;

static uint32_t choose(const Plan *plan, const ChainNodes *chain) {
    uint32_t best = 0;
    uint64_t least = UINT64_MAX;
    for (uint32_t k = 0; k < chain->count; k++) {
        uint32_t node = chain->nodes[(plan->start % chain->count + k) % chain->count];
        uint64_t given = plan->load[node];
        if (given > 0 && given < plan->together) return node;
        if (given < least) {
            best = node;
            least = given;
        }
    }
    return best;
}

static int is_good_chain(const Plan *plan, const ChainNodes *chain) {
    if (chain->count == 0 || chain->count > REPLICAS_MAX) return 0;
    for (uint32_t k = 0; k < chain->count; k++)
        if (chain->nodes[k] >= plan->node_count) return 0;
    return 1;
}

/* Returns the layout that an entry goes by, and its kind; chunk_bytes are 0 with an exception set.
 */
static FileLayout layout_of(const Plan *plan, const Entry *entry, Py_ssize_t *kind) {
    FileLayout none = {0};
    *kind = find_key(&plan->layouts, sizeof(FileLayout), plan->layout_count, entry->key, *kind);
    if (*kind < 0)
        return PyErr_SetString(PyExc_ValueError, "an entry of a kind that is not told of"), none;
    FileLayout file = RECORD(plan->layouts, FileLayout, *kind);
    if (file.chunk_bytes == 0 || file.chunk_bytes > UINT32_MAX || file.stripe_size == 0
        || (uint64_t)file.first_slot + file.stripe_size > (uint64_t)plan->slot_count)
        return PyErr_SetString(PyExc_ValueError, "a layout that cannot be"), none;
    return file;
}

/* Returns how many pieces there will be; -1: too many, or of a chunk that no file has; -2: with an
 * exception set. */
static int64_t count_pieces(const Plan *plan) {
    Py_ssize_t kind = 0;
    uint64_t count = 0;
    for (Py_ssize_t n = 0; n < plan->entry_count; n++) {
        Entry entry = RECORD(plan->entries, Entry, n);
        FileLayout file = layout_of(plan, &entry, &kind);
        if (file.chunk_bytes == 0) return -2;
        if (entry.length == 0 || entry.length - 1 > UINT64_MAX - entry.offset
            || entry.length - 1 > UINT64_MAX - entry.place)
            return -1;
        uint64_t first = entry.offset / file.chunk_bytes,
                 last = (entry.offset + (entry.length - 1)) / file.chunk_bytes;
        if (last > UINT32_MAX || last - first >= PIECES_MAX) return -1;
        count += last - first + 1;
        if (count > PIECES_MAX) return -1;
    }
    return (int64_t)count;
}

/* Makes the last piece longer by one that continues it, in its chunk and in the memory; returns 0
 * where that one is a piece of its own. */
static int join_piece(Plan *plan, const Piece *piece) {
    if (plan->piece_count == 0) return 0;
    Piece *last = &plan->pieces[plan->piece_count - 1];
    uint64_t done = last->columns[5], length = piece->columns[5];
    if (memcmp(last->columns, piece->columns, 4 * sizeof(uint64_t)) != 0
        || last->columns[4] + done != piece->columns[4])
        return 0;
    if (piece->place < done || piece->place - done != last->place
        || done + length > plan->joined_max)
        return 0;
    if (plan->requests[plan->last_request].bytes + length > plan->bytes_max) return 0;
    last->columns[5] += length;
    plan->requests[plan->last_request].bytes += length;
    plan->load[plan->requests[plan->last_request].node] += length;
    return 1;
}

/* Puts a piece into the request of a node that can be asked for it; returns 0 with an exception
 * set. */
static int plan_piece(Plan *plan, const FileLayout *file, uint32_t entry, uint64_t place,
                      uint64_t offset, uint64_t length) {
    uint64_t chunk = offset / file->chunk_bytes;
    uint32_t number = RECORD(plan->slots, uint32_t, file->first_slot + chunk % file->stripe_size);
    if (number >= plan->chain_count)
        return PyErr_SetString(PyExc_ValueError, "a slot without a chain"), 0;
    ChainNodes chain = RECORD(plan->chains, ChainNodes, number);
    if (!is_good_chain(plan, &chain))
        return PyErr_SetString(PyExc_ValueError, "a chain without nodes, or with unknown ones"), 0;

    Piece piece = {
        {file->inode_id, chunk, chain.chain_id, chain.version, offset % file->chunk_bytes, length},
        place,
        entry,
        0};
    if (join_piece(plan, &piece)) return 1;

    uint32_t node = plan->chosen[number] - 1;
    if (plan->chosen[number] == 0 || plan->load[node] >= plan->together) {
        node = choose(plan, &chain);
        plan->chosen[number] = node + 1;
    }
    plan->load[node] += length;
    uint32_t at = plan->piece_count++, request = plan->open[node] - 1;
    if (plan->open[node] == 0 || plan->requests[request].rows >= plan->count_max
        || plan->requests[request].bytes + length > plan->bytes_max) {
        request = plan->request_count++; /* there is room for one for each piece */
        plan->requests[request].node = node;
        plan->requests[request].first = plan->requests[request].last = at;
        plan->open[node] = request + 1;
    }
    plan->pieces[plan->requests[request].last].next = at;
    plan->requests[request].last = at;
    plan->requests[request].rows++;
    plan->requests[request].bytes += length;
    plan->pieces[at] = piece;
    plan->last_request = request;
    return 1;
}

static int plan_entry(Plan *plan, Py_ssize_t n, Py_ssize_t *kind) {
    Entry entry = RECORD(plan->entries, Entry, n);
    FileLayout file = layout_of(plan, &entry, kind);
    if (file.chunk_bytes == 0) return 0;
    for (uint64_t done = 0, step; done < entry.length; done += step) {
        step = file.chunk_bytes - (entry.offset + done) % file.chunk_bytes;
        if (step > entry.length - done) step = entry.length - done;
        if (!plan_piece(plan, &file, (uint32_t)n, entry.place + done, entry.offset + done, step))
            return 0;
    }
    return 1;
}

static size_t varint_bytes(uint64_t value) {
    size_t bytes = 1;
    while (value >>= 7) bytes++;
    return bytes;
}

/* Returns (node, message, rows, bytes) of one request. */
static PyObject *request_of_plan(const Plan *plan, uint32_t request) {
    uint32_t count = plan->requests[request].rows, n = plan->requests[request].first;
    size_t sizes[COLUMNS] = {0}, total = 0;
    for (uint32_t k = 0; k < count; k++, n = plan->pieces[n].next)
        for (int c = 0; c < COLUMNS; c++) sizes[c] += varint_bytes(plan->pieces[n].columns[c]);
    for (int c = 0; c < COLUMNS; c++) total += 1 + varint_bytes(sizes[c]) + sizes[c];

    PyObject *message = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    PyObject *rows = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(Row)));
    PyObject *found = NULL;
    if (message != NULL && rows != NULL) {
        uint8_t *ends[COLUMNS], *at = (uint8_t *)PyBytes_AsString(message);
        for (int c = 0; c < COLUMNS; c++) {
            *at++ = ((uint8_t *)plan->tags.buf)[c];
            ends[c] = put_varint(at, sizes[c]);
            at = ends[c] + sizes[c];
        }
        char *row_at = PyBytes_AsString(rows);
        n = plan->requests[request].first;
        for (uint32_t k = 0; k < count; k++, n = plan->pieces[n].next) {
            const Piece *piece = &plan->pieces[n];
            for (int c = 0; c < COLUMNS; c++) ends[c] = put_varint(ends[c], piece->columns[c]);
            Row row = {piece->place, (uint32_t)piece->columns[COLUMNS - 1], piece->entry};
            memcpy(row_at, &row, sizeof row);
            row_at += sizeof row;
        }
        found = Py_BuildValue("(IOOK)", plan->requests[request].node, message, rows,
                              (unsigned long long)plan->requests[request].bytes);
    }
    Py_XDECREF(message);
    Py_XDECREF(rows);
    return found;
}

static PyObject *plan_with_memory(Plan *plan) {
    Py_ssize_t kind = 0;
    for (Py_ssize_t n = 0; n < plan->entry_count; n++)
        if (!plan_entry(plan, n, &kind)) return NULL;
    PyObject *requests = PyList_New(0);
    for (uint32_t r = 0; requests != NULL && r < plan->request_count; r++) {
        PyObject *request = request_of_plan(plan, r);
        if (request == NULL || PyList_Append(requests, request) < 0) Py_CLEAR(requests);
        Py_XDECREF(request);
    }
    return requests;
}

static PyObject *plan_checked(Plan *plan) {
    plan->entry_count = record_count(&plan->entries, sizeof(Entry), "entries");
    plan->layout_count = record_count(&plan->layouts, sizeof(FileLayout), "layouts");
    plan->slot_count = record_count(&plan->slots, sizeof(uint32_t), "slots");
    plan->chain_count = record_count(&plan->chains, sizeof(ChainNodes), "chains");
    if (PyErr_Occurred()) return NULL;
    if (plan->tags.len != COLUMNS || plan->node_count < 0 || plan->node_count > 1 << 20
        || plan->entry_count > PIECES_MAX)
        return PyErr_Format(PyExc_ValueError, "%zd tags, %zd nodes, %zd entries", plan->tags.len,
                            plan->node_count, plan->entry_count);
    int64_t pieces = count_pieces(plan);
    if (pieces == -1) Py_RETURN_NONE;
    if (pieces < 0) return NULL;
    size_t count = (size_t)pieces + 1, nodes = (size_t)plan->node_count + 1;
    plan->pieces = PyMem_Calloc(count, sizeof *plan->pieces);
    plan->requests = PyMem_Calloc(count, sizeof *plan->requests);
    plan->load = PyMem_Calloc(nodes, sizeof *plan->load);
    plan->open = PyMem_Calloc(nodes, sizeof *plan->open);
    plan->chosen = PyMem_Calloc((size_t)plan->chain_count + 1, sizeof *plan->chosen);
    PyObject *found = NULL;
    if (plan->pieces && plan->requests && plan->load && plan->open && plan->chosen)
        found = plan_with_memory(plan);
    else
        PyErr_NoMemory();
    PyMem_Free(plan->pieces);
    PyMem_Free(plan->requests);
    PyMem_Free(plan->load);
    PyMem_Free(plan->open);
    PyMem_Free(plan->chosen);
    return found;
}

static PyObject *plan_reads(PyObject *module, PyObject *args) {
    (void)module;
    Plan plan;
    memset(&plan, 0, sizeof plan);
    if (!PyArg_ParseTuple(args, "y*y*y*y*nKKKKKy*", &plan.entries, &plan.layouts, &plan.slots,
                          &plan.chains, &plan.node_count, &plan.start, &plan.together,
                          &plan.joined_max, &plan.count_max, &plan.bytes_max, &plan.tags))
        return NULL;
    PyObject *found = plan_checked(&plan);
    PyBuffer_Release(&plan.entries);
    PyBuffer_Release(&plan.layouts);
    PyBuffer_Release(&plan.slots);
    PyBuffer_Release(&plan.chains);
    PyBuffer_Release(&plan.tags);
    return found;
}

/* ---- replies ---- */

/* Returns 1 where a list has just the lengths of the rows, 0 where not. */
static int are_whole(const Py_buffer *rows, Py_ssize_t count, PyObject *lengths) {
    if (PyList_Size(lengths) != count) return 0;
    for (Py_ssize_t n = 0; n < count; n++) {
        unsigned long long length = PyLong_AsUnsignedLongLong(PyList_GetItem(lengths, n));
        if (PyErr_Occurred() || length != RECORD(*rows, Row, n).length) return 0;
    }
    return 1;
}

static int is_inside(const Row *row, Py_ssize_t size) {
    return row->length <= (uint64_t)size && row->place <= (uint64_t)size - row->length;
}

static PyObject *windows_of(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *view, *lengths, *windows = NULL;
    Py_buffer rows;
    unsigned long long payload_bytes;
    if (!PyArg_ParseTuple(args, "Oy*O!K", &view, &rows, &PyList_Type, &lengths, &payload_bytes))
        return NULL;
    Py_ssize_t count = record_count(&rows, sizeof(Row), "rows"), size = PyObject_Size(view);
    int is_plain = count >= 0 && size >= 0 && are_whole(&rows, count, lengths);
    uint64_t start = 0, end = 0, total = 0;
    if (is_plain) windows = PyList_New(0);
    for (Py_ssize_t n = 0; windows != NULL && n <= count;
         n++) { /* once more than there are rows, for what is open at the end */
        Row row = n < count ? RECORD(rows, Row, n) : (Row){UINT64_MAX, 0, 0};
        if (n < count && !is_inside(&row, size)) {
            PyErr_SetString(PyExc_ValueError, "a row beyond the memory");
            Py_CLEAR(windows);
            break;
        }
        total += row.length;
        if (row.place == end && end > start) {
            end += row.length;
            continue;
        }
        if (end > start) {
            PyObject *window = PySequence_GetSlice(view, (Py_ssize_t)start, (Py_ssize_t)end);
            if (window == NULL || PyList_Append(windows, window) < 0) Py_CLEAR(windows);
            Py_XDECREF(window);
        }
        start = row.place;
        end = start + row.length;
    }
    PyBuffer_Release(&rows);
    if (PyErr_Occurred()) {
        Py_XDECREF(windows);
        return NULL;
    }
    if (windows != NULL && total == payload_bytes) return windows;
    Py_XDECREF(windows);
    Py_RETURN_NONE;
}

static PyObject *have_come(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer view, rows;
    PyObject *lengths, *checksums;
    if (!PyArg_ParseTuple(args, "y*y*O!O", &view, &rows, &PyList_Type, &lengths, &checksums))
        return NULL;
    Py_ssize_t count = record_count(&rows, sizeof(Row), "rows");
    int is_good = count >= 0 && are_whole(&rows, count, lengths);
    if (is_good && checksums != Py_None) {
        is_good = PyList_Check(checksums) && PyList_Size(checksums) == count;
        for (Py_ssize_t n = 0; is_good && n < count; n++) {
            Row row = RECORD(rows, Row, n);
            unsigned long long wanted = PyLong_AsUnsignedLongLong(PyList_GetItem(checksums, n));
            is_good = !PyErr_Occurred() && is_inside(&row, view.len)
                      && xxh3_64((char *)view.buf + row.place, row.length) == wanted;
        }
    }
    PyBuffer_Release(&view);
    PyBuffer_Release(&rows);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(is_good);
}

typedef struct {
    const uint8_t *start[REPLY_COLUMNS], *stop[REPLY_COLUMNS];
} ReplyColumns; /* lengths, versions, checksums */

/* Finds the columns of a reply; 0: it has other fields, too, or one of these twice. */
static int find_reply(ReplyColumns *found, const Py_buffer *message, const Py_buffer *tags) {
    const uint8_t *at = message->buf, *end = at + message->len;
    while (at < end) {
        const uint8_t *known = memchr(tags->buf, *at++, REPLY_COLUMNS);
        uint64_t size;
        if (known == NULL || !take_varint(&at, end, &size) || size > (uint64_t)(end - at)) return 0;
        ptrdiff_t column = known - (const uint8_t *)tags->buf;
        if (found->start[column] != NULL) return 0;
        found->start[column] = at;
        found->stop[column] = at += size;
    }
    return 1;
}

/* Returns 1 where all rows have come and, if that is looked at, are what was sent; they lie in
 * `view` then.  -1: an error is set. */
static int is_put(const Py_buffer *view, const Py_buffer *rows, Py_ssize_t count,
                  ReplyColumns *reply, const Py_buffer *payload, int verifies) {
    const uint8_t *sums = reply->start[2], *from = payload->buf, *end = from + payload->len;
    if (verifies && reply->stop[2] - sums != count * (Py_ssize_t)sizeof(uint64_t)) return 0;
    for (Py_ssize_t n = 0; n < count; n++) {
        Row row = RECORD(*rows, Row, n);
        uint64_t length, wanted;
        if (!is_inside(&row, view->len)) {
            PyErr_SetString(PyExc_ValueError, "a row beyond the memory");
            return -1;
        }
        if (!take_varint(&reply->start[0], reply->stop[0], &length)) return 0;
        if (length != row.length || length > (uint64_t)(end - from)) return 0;
        char *target = (char *)view->buf + row.place;
        memcpy(target, from, length);
        from += length;
        if (!verifies) continue;
        memcpy(&wanted, sums + n * (Py_ssize_t)sizeof wanted, sizeof wanted);
        if (xxh3_64(target, length) != wanted) return 0;
    }
    return reply->start[0] == reply->stop[0] && from == end;
}

static PyObject *put_reply(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer view, rows, message, tags, payload;
    int verifies, is_good = -1;
    if (!PyArg_ParseTuple(args, "w*y*y*y*y*p", &view, &rows, &message, &tags, &payload, &verifies))
        return NULL;
    Py_ssize_t count = record_count(&rows, sizeof(Row), "rows");
    ReplyColumns reply = {0};
    if (tags.len != REPLY_COLUMNS)
        PyErr_SetString(PyExc_ValueError, "not the columns of a reply");
    else if (count >= 0)
        is_good = find_reply(&reply, &message, &tags)
                      ? is_put(&view, &rows, count, &reply, &payload, verifies)
                      : 0;
    PyBuffer_Release(&view);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&message);
    PyBuffer_Release(&tags);
    PyBuffer_Release(&payload);
    return is_good < 0 ? NULL : PyBool_FromLong(is_good);
}

static PyObject *completions_of(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer entries;
    if (!PyArg_ParseTuple(args, "y*", &entries)) return NULL;
    Py_ssize_t count = record_count(&entries, sizeof(Entry), "entries");
    PyObject *packed =
        count < 0 ? NULL : PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(Completion));
    char *at = packed == NULL ? NULL : PyBytes_AsString(packed);
    for (Py_ssize_t n = 0; at != NULL && n < count; n++) {
        Entry entry = RECORD(entries, Entry, n);
        Completion completion = {(int64_t)entry.user_data, (int64_t)entry.length};
        memcpy(at + n * (Py_ssize_t)sizeof completion, &completion, sizeof completion);
    }
    PyBuffer_Release(&entries);
    return packed;
}

static PyMethodDef methods[] = {
    {"kinds_of", kinds_of, METH_VARARGS, NULL},
    {"are_within", are_within, METH_VARARGS, NULL},
    {"plan_reads", plan_reads, METH_VARARGS, NULL},
    {"windows_of", windows_of, METH_VARARGS, NULL},
    {"have_come", have_come, METH_VARARGS, NULL},
    {"put_reply", put_reply, METH_VARARGS, NULL},
    {"completions_of", completions_of, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_batches", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__batches(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0)
        Py_CLEAR(module);
    return module;
}
