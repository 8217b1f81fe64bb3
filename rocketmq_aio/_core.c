/* The compiled core: C versions of the functions that cost most per message.
 *
 * Every function handles only the usual, valid case and leaves the rest to its Python version, which
 * is the reference: so errors, their order and their positions exist once, in Python.  Lengths are
 * compared with what is left of the input before they are used, always by subtraction.  Nothing
 * recurses, and nothing is allocated by a length that was not checked.  State is per module.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <limits.h>
#include <stdint.h>
#include <string.h>

#ifndef SOURCE_CHECKSUM
#error "build with tools/build_hook.py, which defines the checksum of this file"
#endif

enum {
    MAGIC_AT = 4,
    QUEUE_OFFSET_AT = 20,
    SYS_FLAG_AT = 36,
    BODY_LENGTH_AT = 84,
    HEAD = 88, /* fixed fields of a record whose hosts are IPv4 */
    LENGTHS = 1 + 2, /* of topic and properties */
    PREFIX = 4 + 4, /* of a frame: its length, and header encoding and length */
    HEADER_MASK = 0xFFFFFF,
};

static const uint32_t MAGIC_V1 = 0xDAA320A7u;

static inline uint32_t
read_32(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline int64_t
read_64(const unsigned char *at)
{
    return (int64_t)((uint64_t)read_32(at) << 32 | read_32(at + 4));
}

/* Return the size of the plain record at *record*, of *left* bytes at most, with its parts; 0 if it
 * is unusual or invalid. */
static Py_ssize_t
measure_record(const unsigned char *record, Py_ssize_t left, uint32_t unusual, const char *topic,
               Py_ssize_t topic_length, Py_ssize_t *body_length, Py_ssize_t *properties_length)
{
    if (left < HEAD + LENGTHS + topic_length || read_32(record + MAGIC_AT) != MAGIC_V1 ||
        (read_32(record + SYS_FLAG_AT) & unusual)) {
        return 0;
    }
    uint32_t body = read_32(record + BODY_LENGTH_AT);
    if (body > INT32_MAX || (Py_ssize_t)body > left - (HEAD + LENGTHS + topic_length)) {
        return 0;
    }
    const unsigned char *after = record + HEAD + body;
    if (after[0] != topic_length || memcmp(after + 1, topic, (size_t)topic_length) != 0) {
        return 0;
    }
    after += 1 + topic_length;
    *body_length = (Py_ssize_t)body;
    *properties_length = (Py_ssize_t)after[0] << 8 | after[1];
    Py_ssize_t size = HEAD + LENGTHS + topic_length + *body_length + *properties_length;
    if (size > left || (uint32_t)size != read_32(record)) {
        return 0;
    }
    return size;
}

static PyObject *
bytes_of(const unsigned char *at, Py_ssize_t length)
{
    return PyBytes_FromStringAndSize((const char *)at, length);
}

PyDoc_STRVAR(decode_plain_doc,
             "decode_plain(make, messages, data, at, unusual, encoded_topic, topic, queue, /)\n--\n\n"
             "Append the plain records of *data* from *at* to *messages*; return where they end.");

static PyObject *
decode_plain(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 8 || !PyList_Check(args[1]) || !PyBytes_Check(args[5])) {
        PyErr_SetString(PyExc_TypeError, "decode_plain: a list and bytes are expected");
        return NULL;
    }
    PyObject *make = args[0], *messages = args[1], *data = args[2], *topic = args[6], *queue = args[7];
    Py_ssize_t at = PyLong_AsSsize_t(args[3]);
    uint32_t unusual = (uint32_t)PyLong_AsUnsignedLong(args[4]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_ssize_t topic_length = PyBytes_GET_SIZE(args[5]);
    const char *encoded_topic = PyBytes_AS_STRING(args[5]);
    if (!PyBytes_CheckExact(data) || at < 0 || at > PyBytes_GET_SIZE(data) || topic_length > 255) {
        return Py_NewRef(args[3]);
    }
    const unsigned char *start = (const unsigned char *)PyBytes_AS_STRING(data);
    Py_ssize_t end = PyBytes_GET_SIZE(data), body, properties, size;
    while ((size = measure_record(start + at, end - at, unusual, encoded_topic, topic_length, &body,
                                  &properties)) > 0) {
        const unsigned char *record = start + at;
        PyObject *fields[] = {
            NULL, /* room for a self, which makes the call cheaper */
            topic,
            bytes_of(record + HEAD, body),
            queue,
            PyLong_FromLongLong(read_64(record + QUEUE_OFFSET_AT)),
            bytes_of(record, HEAD),
            bytes_of(record + size - properties, properties),
        };
        PyObject *message = NULL;
        if (fields[2] != NULL && fields[4] != NULL && fields[5] != NULL && fields[6] != NULL) {
            message = PyObject_Vectorcall(make, fields + 1, 6 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        }
        Py_XDECREF(fields[2]);
        Py_XDECREF(fields[4]);
        Py_XDECREF(fields[5]);
        Py_XDECREF(fields[6]);
        if (message == NULL) {
            return NULL;
        }
        int failed = PyList_Append(messages, message);
        Py_DECREF(message);
        if (failed) {
            return NULL;
        }
        at += size;
    }
    return PyLong_FromSsize_t(at);
}

PyDoc_STRVAR(cut_frames_doc,
             "cut_frames(data, at, longest, deliver, /)\n--\n\n"
             "Call *deliver* with the header encoding, the header and the body of each complete frame of\n"
             "*data* from *at* on; return where they end.");

static PyObject *
cut_frames(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "cut_frames: four arguments are expected");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]), longest = PyLong_AsSsize_t(args[2]);
    Py_buffer data;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    const unsigned char *start = data.buf;
    PyObject *end = NULL;
    while (at >= 0 && at <= data.len - PREFIX) {
        Py_ssize_t length = read_32(start + at), header = read_32(start + at + 4) & HEADER_MASK;
        /* Of 32 bits, a Py_ssize_t cannot hold each length: those are negative. */
        if (length < 4 || length > longest || length > data.len - at - 4 || header > length - 4) {
            break;
        }
        const unsigned char *header_at = start + at + PREFIX;
        PyObject *parts[] = {
            NULL, /* room for a self, which makes the call cheaper */
            PyLong_FromLong(start[at + 4]),
            bytes_of(header_at, header),
            bytes_of(header_at + header, length - 4 - header),
        };
        PyObject *done = NULL;
        if (parts[1] != NULL && parts[2] != NULL && parts[3] != NULL) {
            done = PyObject_Vectorcall(args[3], parts + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        }
        Py_XDECREF(parts[1]);
        Py_XDECREF(parts[2]);
        Py_XDECREF(parts[3]);
        if (done == NULL) {
            goto failed;
        }
        Py_DECREF(done);
        at += 4 + length;
    }
    end = PyLong_FromSsize_t(at);
failed:
    PyBuffer_Release(&data);
    return end;
}

PyDoc_STRVAR(take_body_doc,
             "take_body(kept, size, /)\n--\n\n"
             "Return bytes of *size*, to be filled with `fill_body` before anything else reads them.\n\n"
             "Takes the memory of the last bytes of *kept*, a list, which is removed, if nothing else\n"
             "refers to them.");

static PyObject *
take_body(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "take_body: a list and a size are expected");
        return NULL;
    }
    Py_ssize_t size = PyLong_AsSsize_t(args[1]), last = PyList_GET_SIZE(args[0]) - 1;
    if (size < 2) { /* shorter bytes may be shared */
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "take_body: the size is too small");
        }
        return NULL;
    }
    PyObject *body = NULL;
    if (last >= 0) {
        body = Py_NewRef(PyList_GET_ITEM(args[0], last));
        if (PyList_SetSlice(args[0], last, last + 1, NULL) < 0) {
            Py_DECREF(body);
            return NULL;
        }
#ifdef Py_GIL_DISABLED
        Py_CLEAR(body); /* a count of references proves nothing */
#else
        if (!PyBytes_CheckExact(body) || Py_REFCNT(body) != 1 || PyBytes_GET_SIZE(body) < 2) {
            Py_CLEAR(body);
        }
        /* Another size makes it forget its hash. */
        else if ((PyBytes_GET_SIZE(body) == size && _PyBytes_Resize(&body, size - 1) < 0) ||
                 _PyBytes_Resize(&body, size) < 0) {
            return NULL;
        }
#endif
    }
    return body == NULL ? PyBytes_FromStringAndSize(NULL, size) : body;
}

PyDoc_STRVAR(fill_body_doc,
             "fill_body(body, at, data, /)\n--\n\n"
             "Copy *data* into bytes of `take_body`; return the position after it.");

static PyObject *
fill_body(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !PyBytes_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "fill_body: bytes are expected");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    Py_buffer data;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[2], &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    PyObject *end = NULL;
    if (at < 0 || at > PyBytes_GET_SIZE(args[0]) || data.len > PyBytes_GET_SIZE(args[0]) - at) {
        PyErr_SetString(PyExc_ValueError, "fill_body: the data does not fit");
    }
    else {
        memmove(PyBytes_AS_STRING(args[0]) + at, data.buf, (size_t)data.len);
        end = PyLong_FromSsize_t(at + data.len);
    }
    PyBuffer_Release(&data);
    return end;
}

typedef struct {
    PyObject *topic, *body, *flag, *properties, *encoded_properties, *timed, *wait, *delay,
        *priority, *light, *lite;
    PyObject *done, *queue_offset, *popleft, *suspended, *size;
} Names;

static int
intern_names(Names *names)
{
    return (names->topic = PyUnicode_InternFromString("topic")) == NULL ||
           (names->body = PyUnicode_InternFromString("body")) == NULL ||
           (names->flag = PyUnicode_InternFromString("flag")) == NULL ||
           (names->properties = PyUnicode_InternFromString("properties")) == NULL ||
           (names->encoded_properties = PyUnicode_InternFromString("encoded_properties")) == NULL ||
           (names->timed = PyUnicode_InternFromString("timed")) == NULL ||
           (names->wait = PyUnicode_InternFromString("WAIT")) == NULL ||
           (names->delay = PyUnicode_InternFromString("DELAY")) == NULL ||
           (names->priority = PyUnicode_InternFromString("_SYS_MSG_PRIORITY_")) == NULL ||
           (names->light = PyUnicode_InternFromString("INNER_MULTI_DISPATCH")) == NULL ||
           (names->lite = PyUnicode_InternFromString("__LITE_TOPIC")) == NULL ||
           (names->done = PyUnicode_InternFromString("done")) == NULL ||
           (names->queue_offset = PyUnicode_InternFromString("queue_offset")) == NULL ||
           (names->popleft = PyUnicode_InternFromString("popleft")) == NULL ||
           (names->suspended = PyUnicode_InternFromString("suspended")) == NULL ||
           (names->size = PyUnicode_InternFromString("size")) == NULL;
}

static void
free_names(void *module)
{
    Names *names = PyModule_GetState((PyObject *)module);
    if (names != NULL) {
        Py_CLEAR(names->topic);
        Py_CLEAR(names->body);
        Py_CLEAR(names->flag);
        Py_CLEAR(names->properties);
        Py_CLEAR(names->encoded_properties);
        Py_CLEAR(names->timed);
        Py_CLEAR(names->wait);
        Py_CLEAR(names->delay);
        Py_CLEAR(names->priority);
        Py_CLEAR(names->light);
        Py_CLEAR(names->lite);
        Py_CLEAR(names->done);
        Py_CLEAR(names->queue_offset);
        Py_CLEAR(names->popleft);
        Py_CLEAR(names->suspended);
        Py_CLEAR(names->size);
    }
}

enum {
    ENTRY_HEAD = 20,      /* size, magic, checksum, flag, body length */
    ENTRY_LENGTHS = 20 + 2,
    COUNTER_DIGITS = 4,
    MAX_ID = 64,
};

static const char ID_NAME[] = "UNIQ_KEY\x01";

/* What an entry of a batch is made of; the references are owned. */
typedef struct {
    PyObject *topic, *body, *properties, *wait;
    const char *encoded; /* of properties */
    Py_ssize_t encoded_length;
    int32_t flag;
} Entry;

static void
free_entries(Entry *entries, Py_ssize_t count)
{
    for (Py_ssize_t index = 0; index < count; index++) {
        Py_XDECREF(entries[index].topic);
        Py_XDECREF(entries[index].body);
        Py_XDECREF(entries[index].properties);
        Py_XDECREF(entries[index].wait);
    }
    PyMem_Free(entries);
}

static int
same_text(PyObject *one, PyObject *other)
{
    return one == other || (PyUnicode_GET_LENGTH(one) == PyUnicode_GET_LENGTH(other) &&
                            PyUnicode_Compare(one, other) == 0);
}

static int
read_flag(const Names *names, PyObject *message, int32_t *flag)
{
    PyObject *value = PyObject_GetAttr(message, names->flag);
    int overflow = 1;
    long number = 0;
    if (value != NULL && PyLong_CheckExact(value)) {
        number = PyLong_AsLongAndOverflow(value, &overflow);
    }
    Py_XDECREF(value);
    *flag = (int32_t)number;
    return !overflow && number == (long)*flag;
}

/* Whether *message*, by its delivery time and properties, may be in a batch; sets *wait. */
static int
read_wait(const Names *names, PyObject *message, PyObject **wait)
{
    PyObject *timed = PyObject_GetAttr(message, names->timed);
    int batchable = timed == Py_False;
    Py_XDECREF(timed);
    if (!batchable) {
        return 0;
    }
    PyObject *properties = PyObject_GetAttr(message, names->properties);
    if (properties != NULL && PyDict_CheckExact(properties) &&
        PyDict_Contains(properties, names->delay) == 0 &&
        PyDict_Contains(properties, names->priority) == 0 &&
        PyDict_Contains(properties, names->light) == 0 &&
        PyDict_Contains(properties, names->lite) == 0) {
#if PY_VERSION_HEX >= 0x030D0000
        (void)PyDict_GetItemRef(properties, names->wait, wait);
#else
        *wait = Py_XNewRef(PyDict_GetItemWithError(properties, names->wait));
#endif
    }
    Py_XDECREF(properties);
    return *wait != NULL && PyUnicode_CheckExact(*wait);
}

/* Fill in *entry from *message; false if the message is unusual, perhaps with an exception. */
static int
read_entry(const Names *names, PyObject *message, Entry *entry)
{
    return read_wait(names, message, &entry->wait) &&
           (entry->topic = PyObject_GetAttr(message, names->topic)) != NULL &&
           PyUnicode_CheckExact(entry->topic) &&
           (entry->body = PyObject_GetAttr(message, names->body)) != NULL &&
           PyBytes_CheckExact(entry->body) &&
           (entry->properties = PyObject_GetAttr(message, names->encoded_properties)) != NULL &&
           PyUnicode_CheckExact(entry->properties) &&
           (entry->encoded = PyUnicode_AsUTF8AndSize(entry->properties,
                                                     &entry->encoded_length)) != NULL &&
           read_flag(names, message, &entry->flag);
}

static inline unsigned char *
write_32(unsigned char *at, uint32_t value)
{
    at[0] = (unsigned char)(value >> 24);
    at[1] = (unsigned char)(value >> 16);
    at[2] = (unsigned char)(value >> 8);
    at[3] = (unsigned char)value;
    return at + 4;
}

static inline unsigned char *
write_text(unsigned char *at, const char *text, Py_ssize_t length)
{
    memcpy(at, text, (size_t)length);
    return at + length;
}

static unsigned char *
write_entry(unsigned char *at, const Entry *entry, const char *id, Py_ssize_t id_length)
{
    Py_ssize_t body = PyBytes_GET_SIZE(entry->body);
    Py_ssize_t properties = entry->encoded_length + (Py_ssize_t)sizeof(ID_NAME) - 1 + id_length + 1;
    at = write_32(at, (uint32_t)(ENTRY_LENGTHS + body + properties));
    at = write_32(at, 0); /* brokers fill in magic and checksum */
    at = write_32(at, 0);
    at = write_32(at, (uint32_t)entry->flag);
    at = write_32(at, (uint32_t)body);
    at = write_text(at, PyBytes_AS_STRING(entry->body), body);
    *at++ = (unsigned char)(properties >> 8);
    *at++ = (unsigned char)properties;
    at = write_text(at, entry->encoded, entry->encoded_length);
    at = write_text(at, ID_NAME, (Py_ssize_t)sizeof(ID_NAME) - 1);
    at = write_text(at, id, id_length);
    *at++ = 2;
    return at;
}

/* Read the entries of *messages*, a tuple; return the size of their batch, 0 if one is unusual. */
static Py_ssize_t
measure_batch(const Names *names, PyObject *class, PyObject *messages, Entry *entries,
              Py_ssize_t id_length, Py_ssize_t max_bytes, Py_ssize_t max_properties)
{
    const Py_ssize_t fixed = (Py_ssize_t)sizeof(ID_NAME) - 1 + id_length + 1;
    Py_ssize_t total = 0;
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(messages); index++) {
        PyObject *message = PyTuple_GET_ITEM(messages, index);
        Entry *entry = &entries[index];
        if (!Py_IS_TYPE(message, (PyTypeObject *)class) || !read_entry(names, message, entry) ||
            !same_text(entry->topic, entries->topic) || !same_text(entry->wait, entries->wait)) {
            return 0;
        }
        Py_ssize_t body = PyBytes_GET_SIZE(entry->body);
        if (entry->encoded_length > max_properties - fixed || body > max_bytes - total) {
            return 0;
        }
        total += body;
        if (ENTRY_LENGTHS + entry->encoded_length + fixed > max_bytes - total) {
            return 0;
        }
        total += ENTRY_LENGTHS + entry->encoded_length + fixed;
    }
    return total;
}

/* Return (topic, wait, ids, body) of measured *entries*. */
static PyObject *
write_batch(const Entry *entries, Py_ssize_t count, Py_ssize_t size, const char *stamp,
            Py_ssize_t stamp_length, unsigned long number)
{
    static const char digits[] = "0123456789ABCDEF";
    char id[MAX_ID];
    Py_ssize_t id_length = stamp_length + COUNTER_DIGITS;
    PyObject *ids = PyList_New(count), *body = PyBytes_FromStringAndSize(NULL, size);
    if (ids == NULL || body == NULL) {
        goto failed;
    }
    unsigned char *at = (unsigned char *)PyBytes_AS_STRING(body);
    memcpy(id, stamp, (size_t)stamp_length);
    for (Py_ssize_t index = 0; index < count; index++) {
        number = (number + 1) & 0xFFFF;
        for (int digit = 0; digit < COUNTER_DIGITS; digit++) {
            id[stamp_length + digit] = digits[number >> (12 - 4 * digit) & 15];
        }
        PyObject *text = PyUnicode_FromStringAndSize(id, id_length);
        if (text == NULL) {
            goto failed;
        }
        PyList_SET_ITEM(ids, index, text);
        at = write_entry(at, &entries[index], id, id_length);
    }
    return Py_BuildValue("(OONN)", entries->topic, entries->wait, ids, body);
failed:
    Py_XDECREF(ids);
    Py_XDECREF(body);
    return NULL;
}

static inline Py_ssize_t
between(Py_ssize_t least, Py_ssize_t value, Py_ssize_t most)
{
    return value < least ? least : value > most ? most : value;
}

PyDoc_STRVAR(pack_batch_doc,
             "pack_batch(kind, messages, stamp, number, max_bytes, max_properties, /)\n--\n\n"
             "Return (topic, wait, ids, body) of a batch of *messages*; None if one is unusual, or\n"
             "if they do not fit into one batch.");

static PyObject *
pack_batch(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 6 || !PyType_Check(args[0]) || !PyList_Check(args[1]) ||
        !PyUnicode_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "pack_batch: a class, a list and a string are expected");
        return NULL;
    }
    Py_ssize_t stamp_length, size = 0;
    const char *stamp = PyUnicode_AsUTF8AndSize(args[2], &stamp_length);
    unsigned long number = PyLong_AsUnsignedLongMask(args[3]);
    Py_ssize_t max_bytes = PyLong_AsSsize_t(args[4]), max_properties = PyLong_AsSsize_t(args[5]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    max_bytes = between(0, max_bytes, INT32_MAX);
    max_properties = between(0, max_properties, INT16_MAX);
    PyObject *messages = PyList_AsTuple(args[1]); /* stays as it is */
    if (messages == NULL) {
        return NULL;
    }
    PyObject *packed = NULL;
    Py_ssize_t length = PyTuple_GET_SIZE(messages);
    Entry *entries = PyMem_Calloc((size_t)length, sizeof(Entry));
    if (entries == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (length > 0 && stamp_length <= MAX_ID - COUNTER_DIGITS) {
        size = measure_batch(PyModule_GetState(module), args[0], messages, entries,
                             stamp_length + COUNTER_DIGITS, max_bytes, max_properties);
    }
    if (size > 0) {
        packed = write_batch(entries, length, size, stamp, stamp_length, number);
    }
    else {
        PyErr_Clear(); /* the Python version raises it */
        packed = Py_NewRef(Py_None);
    }
    free_entries(entries, length);
done:
    Py_DECREF(messages);
    return packed;
}

/* --- The constructor of messages to send, and the results of a batch ----------------------------- */

enum {
    MAX_TEXT = INT16_MAX, /* of a property; more does not fit into a message */
    WAIT_END = 10,
};

static const char WAIT_TRUE[] = "WAIT\x01true\x02";

/* What `Message(...)` needs. A type passes nothing to its vectorcall, so there is one for the main
 * interpreter; other interpreters run the Python version. */
static struct {
    PyObject *module; /* borrowed: cleared when the module is freed */
    PyTypeObject *kind;
    PyObject *topics, *reserved;         /* sets: topics that were checked, names of the system */
    PyObject *tags, *keys, *properties;  /* names of arguments */
    PyObject *TAGS, *KEYS, *WAIT, *yes;  /* names of properties, and a value */
    Py_ssize_t topic_at, body_at, flag_at, properties_at, encoded_at, sharding_at, timed_at;
} maker;

static void
forget_maker(PyObject *module)
{
    if (maker.module == module) {
        maker.module = NULL;
        Py_CLEAR(maker.kind);
        Py_CLEAR(maker.topics);
        Py_CLEAR(maker.reserved);
        Py_CLEAR(maker.tags);
        Py_CLEAR(maker.keys);
        Py_CLEAR(maker.properties);
        Py_CLEAR(maker.TAGS);
        Py_CLEAR(maker.KEYS);
        Py_CLEAR(maker.WAIT);
        Py_CLEAR(maker.yes);
    }
}

/* Return the length of *text*, a name or value of a property; 0 if it is unusual or invalid. */
static Py_ssize_t
plain_text(PyObject *text, unsigned char refused)
{
    if (!PyUnicode_CheckExact(text) || !PyUnicode_IS_COMPACT_ASCII(text)) {
        return 0;
    }
    Py_ssize_t length = PyUnicode_GET_LENGTH(text);
    const unsigned char *at = PyUnicode_1BYTE_DATA(text);
    if (length > MAX_TEXT) {
        return 0;
    }
    int good = 0, bad = 0;
    for (Py_ssize_t index = 0; index < length; index++) {
        good |= at[index] > ' ';
        bad |= (at[index] == 1) | (at[index] == 2) | (at[index] == refused);
    }
    return good && !bad ? length : 0;
}

static unsigned char *
write_pair(unsigned char *at, PyObject *name, PyObject *value)
{
    at = write_text(at, PyUnicode_DATA(name), PyUnicode_GET_LENGTH(name));
    *at++ = 1;
    at = write_text(at, PyUnicode_DATA(value), PyUnicode_GET_LENGTH(value));
    *at++ = 2;
    return at;
}

/* Return the size of the wire form of *named*, the properties of the user; -1 if one is unusual. */
static Py_ssize_t
measure_named(PyObject *named)
{
    PyObject *name, *value;
    Py_ssize_t at = 0, size = 0, name_length, value_length;
    while (PyDict_Next(named, &at, &name, &value)) {
        if ((name_length = plain_text(name, 1)) == 0 ||
            (value_length = plain_text(value, 1)) == 0 ||
            PySet_Contains(maker.reserved, name) != 0) {
            return -1;
        }
        size += name_length + value_length + 2;
    }
    return size;
}

/* Add tags and keys, which may be NULL, and the rest to *named*; return the wire form. */
static PyObject *
encode_named(PyObject *named, Py_ssize_t size, PyObject *keys, PyObject *tags)
{
    PyObject *name, *value, *encoded = PyUnicode_New(size, 127);
    if (encoded == NULL) {
        return NULL;
    }
    unsigned char *at = PyUnicode_1BYTE_DATA(encoded);
    Py_ssize_t position = 0;
    while (PyDict_Next(named, &position, &name, &value)) {
        at = write_pair(at, name, value);
    }
    if (keys != NULL) {
        at = write_pair(at, maker.KEYS, keys);
    }
    if (tags != NULL) {
        at = write_pair(at, maker.TAGS, tags);
    }
    write_text(at, WAIT_TRUE, WAIT_END);
    if ((keys != NULL && PyDict_SetItem(named, maker.KEYS, keys)) ||
        (tags != NULL && PyDict_SetItem(named, maker.TAGS, tags)) ||
        PyDict_SetItem(named, maker.WAIT, maker.yes)) {
        Py_DECREF(encoded);
        return NULL;
    }
    return encoded;
}

static inline void
set_slot(PyObject *message, Py_ssize_t at, PyObject *value)
{
    *(PyObject **)((char *)message + at) = value; /* a new object: nothing was there */
}

/* Return the message; NULL if an argument is unusual or invalid, perhaps with an exception. */
static PyObject *
make_usual(PyObject *const *args, PyObject *names)
{
    PyObject *topic = args[0], *body = args[1], *tags = NULL, *keys = NULL, *properties = NULL;
    Py_ssize_t size = WAIT_END, length, count = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t index = 0; index < count; index++) {
        PyObject *name = PyTuple_GET_ITEM(names, index), *value = args[2 + index];
        if (name == maker.tags) {
            tags = value == Py_None ? NULL : value;
        }
        else if (name == maker.keys) {
            keys = value == Py_None ? NULL : value;
        }
        else if (name == maker.properties) {
            properties = value == Py_None ? NULL : value;
        }
        else {
            return NULL;
        }
    }
    if (!PyUnicode_CheckExact(topic) || PySet_Contains(maker.topics, topic) != 1 ||
        !PyBytes_CheckExact(body) || PyBytes_GET_SIZE(body) == 0) {
        return NULL;
    }
    if (keys != NULL) {
        if ((length = plain_text(keys, ' ')) == 0) {
            return NULL;
        }
        size += (Py_ssize_t)sizeof("KEYS\x01\x02") - 1 + length;
    }
    if (tags != NULL) {
        if ((length = plain_text(tags, '|')) == 0) {
            return NULL;
        }
        size += (Py_ssize_t)sizeof("TAGS\x01\x02") - 1 + length;
    }
    PyObject *named;
    if (properties == NULL) {
        named = PyDict_New();
    }
    else if (PyDict_CheckExact(properties)) {
        named = PyDict_Copy(properties); /* first: nobody else changes the copy */
    }
    else {
        return NULL;
    }
    if (named == NULL) {
        return NULL;
    }
    PyObject *encoded = NULL, *message = NULL;
    if ((length = measure_named(named)) >= 0 &&
        (encoded = encode_named(named, size + length, keys, tags)) != NULL) {
        message = maker.kind->tp_alloc(maker.kind, 0);
    }
    if (message == NULL) {
        Py_DECREF(named);
        Py_XDECREF(encoded);
        return NULL;
    }
    set_slot(message, maker.topic_at, Py_NewRef(topic));
    set_slot(message, maker.body_at, Py_NewRef(body));
    set_slot(message, maker.flag_at, PyLong_FromLong(0)); /* a small number: cannot fail */
    set_slot(message, maker.properties_at, named);
    set_slot(message, maker.encoded_at, encoded);
    set_slot(message, maker.sharding_at, Py_NewRef(Py_None));
    set_slot(message, maker.timed_at, Py_NewRef(Py_False));
    return message;
}

/* Call *kind* as if it had no vectorcall: the Python version runs. */
static PyObject *
make_in_python(PyObject *kind, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *positional = PyTuple_New(count), *named = names == NULL ? NULL : PyDict_New();
    PyObject *message = NULL;
    if (positional == NULL || (names != NULL && named == NULL)) {
        goto done;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        PyTuple_SET_ITEM(positional, index, Py_NewRef(args[index]));
    }
    for (Py_ssize_t index = 0; names != NULL && index < PyTuple_GET_SIZE(names); index++) {
        if (PyDict_SetItem(named, PyTuple_GET_ITEM(names, index), args[count + index])) {
            goto done;
        }
    }
    message = PyType_Type.tp_call(kind, positional, named);
done:
    Py_XDECREF(positional);
    Py_XDECREF(named);
    return message;
}

static PyObject *
make_message(PyObject *kind, PyObject *const *args, size_t flags, PyObject *names)
{
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (count == 2 && kind == (PyObject *)maker.kind) {
        PyObject *message = make_usual(args, names);
        if (message != NULL) {
            return message;
        }
        PyErr_Clear(); /* the Python version raises it */
    }
    return make_in_python(kind, args, count, names);
}

/* Return where instances have the slot *name*; -1 with an exception if there is none. */
static Py_ssize_t
slot_of(PyObject *kind, const char *name)
{
    PyObject *slot = PyObject_GetAttrString(kind, name);
    Py_ssize_t at = -1;
    if (slot != NULL && Py_IS_TYPE(slot, &PyMemberDescr_Type) &&
        ((PyMemberDescrObject *)slot)->d_member->type == T_OBJECT_EX) {
        at = ((PyMemberDescrObject *)slot)->d_member->offset;
    }
    else if (slot != NULL) {
        PyErr_Format(PyExc_TypeError, "accelerate_messages: %s is no slot", name);
    }
    Py_XDECREF(slot);
    return at;
}

PyDoc_STRVAR(accelerate_messages_doc,
             "accelerate_messages(kind, topics, reserved, /)\n--\n\n"
             "Make usual instances of *kind*, which is `Message`, without its __init__.");

static PyObject *
accelerate_messages(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !PyType_Check(args[0]) || !PyAnySet_Check(args[1]) ||
        !PyAnySet_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "accelerate_messages: a class and two sets are expected");
        return NULL;
    }
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        Py_RETURN_NONE;
    }
    if (maker.module != NULL) {
        forget_maker(maker.module);
    }
    if ((maker.topic_at = slot_of(args[0], "topic")) < 0 ||
        (maker.body_at = slot_of(args[0], "body")) < 0 ||
        (maker.flag_at = slot_of(args[0], "flag")) < 0 ||
        (maker.properties_at = slot_of(args[0], "properties")) < 0 ||
        (maker.encoded_at = slot_of(args[0], "encoded_properties")) < 0 ||
        (maker.sharding_at = slot_of(args[0], "sharding_key")) < 0 ||
        (maker.timed_at = slot_of(args[0], "timed")) < 0) {
        return NULL;
    }
    maker.module = module;
    maker.topics = Py_NewRef(args[1]);
    maker.reserved = Py_NewRef(args[2]);
    if ((maker.tags = PyUnicode_InternFromString("tags")) == NULL ||
        (maker.keys = PyUnicode_InternFromString("keys")) == NULL ||
        (maker.properties = PyUnicode_InternFromString("properties")) == NULL ||
        (maker.TAGS = PyUnicode_InternFromString("TAGS")) == NULL ||
        (maker.KEYS = PyUnicode_InternFromString("KEYS")) == NULL ||
        (maker.WAIT = PyUnicode_InternFromString("WAIT")) == NULL ||
        (maker.yes = PyUnicode_InternFromString("true")) == NULL) {
        forget_maker(module);
        return NULL;
    }
    maker.kind = (PyTypeObject *)Py_NewRef(args[0]);
    maker.kind->tp_vectorcall = make_message; /* subclasses do not inherit it */
    Py_RETURN_NONE;
}

PyDoc_STRVAR(batch_results_doc,
             "batch_results(make, ids, stored_ids, queue_offset, status, queue, transaction_id,\n"
             "region_id, trace_on, /)\n--\n\n"
             "Return a result for each of *ids*, with successive offsets; *stored_ids* may be short.");

static PyObject *
batch_results(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 9 || !PyList_Check(args[1]) || !PyList_Check(args[2]) ||
        PyList_GET_SIZE(args[2]) == 0) {
        PyErr_SetString(PyExc_TypeError, "batch_results: two lists are expected");
        return NULL;
    }
    PyObject *ids = PyList_AsTuple(args[1]), *stored_ids = PyList_AsTuple(args[2]); /* stay so */
    long long offset = PyLong_AsLongLong(args[3]);
    PyObject *results = NULL;
    if (ids == NULL || stored_ids == NULL || (offset == -1 && PyErr_Occurred())) {
        goto done;
    }
    Py_ssize_t length = PyTuple_GET_SIZE(ids), stored = PyTuple_GET_SIZE(stored_ids);
    if (offset > LLONG_MAX - length) {
        PyErr_SetString(PyExc_OverflowError, "batch_results: the offset is too large");
        goto done;
    }
    results = PyList_New(length);
    for (Py_ssize_t index = 0; results != NULL && index < length; index++) {
        PyObject *number = PyLong_FromLongLong(offset + index);
        PyObject *fields[] = {
            NULL, /* room for a self, which makes the call cheaper */
            args[4],
            PyTuple_GET_ITEM(ids, index),
            PyTuple_GET_ITEM(stored_ids, index < stored ? index : 0),
            args[5],
            number,
            args[6],
            args[7],
            Py_None, /* a batch cannot be recalled */
            args[8],
        };
        PyObject *result = NULL;
        if (number != NULL) {
            result = PyObject_Vectorcall(args[0], fields + 1, 9 | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                         NULL);
            Py_DECREF(number);
        }
        if (result == NULL) {
            Py_CLEAR(results);
            break;
        }
        PyList_SET_ITEM(results, index, result);
    }
done:
    Py_XDECREF(ids);
    Py_XDECREF(stored_ids);
    return results;
}

/* --- The process queue and the calls of handlers ------------------------------------------------- */

static Py_ssize_t
body_length(const Names *names, PyObject *message)
{
    PyObject *body = PyObject_GetAttr(message, names->body);
    Py_ssize_t length = body == NULL ? -1 : PyObject_Size(body);
    Py_XDECREF(body);
    return length;
}

/* Whether *message is done, from its attribute; -1 with an exception. */
static int
is_done(const Names *names, PyObject *message)
{
    PyObject *done = PyObject_GetAttr(message, names->done);
    int yes = done == NULL ? -1 : PyObject_IsTrue(done);
    Py_XDECREF(done);
    return yes;
}

PyDoc_STRVAR(measure_messages_doc,
             "measure_messages(messages, largest, /)\n--\n\n"
             "Return the offset of the last one and the bytes of all bodies; None unless offsets\n"
             "ascend from above *largest*, or if one needs more than 64 bits.");

static PyObject *
measure_messages(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "measure_messages: a list is expected");
        return NULL;
    }
    const Names *names = PyModule_GetState(module);
    int overflow;
    long long largest = PyLong_AsLongLongAndOverflow(args[1], &overflow);
    if (overflow) {
        Py_RETURN_NONE;
    }
    if (largest == -1 && PyErr_Occurred()) {
        return NULL;
    }
    Py_ssize_t total = 0;
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(args[0]); index++) {
        PyObject *message = Py_NewRef(PyList_GET_ITEM(args[0], index));
        PyObject *number = PyObject_GetAttr(message, names->queue_offset);
        long long offset = number == NULL ? -1 : PyLong_AsLongLongAndOverflow(number, &overflow);
        Py_XDECREF(number);
        Py_ssize_t length = PyErr_Occurred() ? -1 : body_length(names, message);
        Py_DECREF(message);
        if (length < 0) {
            return NULL;
        }
        if (overflow || offset <= largest || length > PY_SSIZE_T_MAX - total) {
            Py_RETURN_NONE;
        }
        largest = offset;
        total += length;
    }
    return Py_BuildValue("(Ln)", largest, total);
}

/* Remove the done messages at the start of *held*; return the bytes of their bodies, or -1. */
static Py_ssize_t
remove_done(const Names *names, PyObject *held)
{
    Py_ssize_t freed = 0, left;
    while ((left = PyObject_Size(held)) > 0) {
        PyObject *first = PySequence_GetItem(held, 0);
        int done = first == NULL ? -1 : is_done(names, first);
        if (done > 0) {
            PyObject *removed = PyObject_CallMethodNoArgs(held, names->popleft);
            Py_ssize_t length = removed == NULL ? -1 : body_length(names, removed);
            Py_XDECREF(removed);
            done = length < 0 ? -1 : 1;
            freed += length;
        }
        Py_XDECREF(first);
        if (done <= 0) {
            return done < 0 ? -1 : freed;
        }
    }
    return left < 0 ? -1 : freed;
}

PyDoc_STRVAR(mark_done_doc,
             "mark_done(messages, held, /)\n--\n\n"
             "Set *done* of *messages*, and remove the done messages at the start of the deque *held*.\n"
             "Return how many were not done, and the bytes of the removed bodies.");

static PyObject *
mark_done(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "mark_done: a list and a deque are expected");
        return NULL;
    }
    const Names *names = PyModule_GetState(module);
    Py_ssize_t marked = 0;
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(args[0]); index++) {
        PyObject *message = Py_NewRef(PyList_GET_ITEM(args[0], index));
        int done = is_done(names, message);
        if (done == 0) {
            done = PyObject_SetAttr(message, names->done, Py_True);
            marked++;
        }
        Py_DECREF(message);
        if (done < 0) {
            return NULL;
        }
    }
    Py_ssize_t freed = remove_done(names, args[1]);
    return freed < 0 ? NULL : Py_BuildValue("(nn)", marked, freed);
}

/* What became of a call of a handler: kept in step with `workers.py`. */
enum {
    RETURNED, /* a value that is not None, or something has cancelled the task */
    WAITS,    /* its coroutine has yielded */
    RAISED,
    AWAITABLE, /* it returned something other than a coroutine */
};

static PyObject *
raised(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(value, traceback);
    }
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
#endif
}

/* Call *handler* and run its coroutine until it waits or ends; set *coroutine and *value. */
static int
call_handler(PyObject *handler, PyObject *message, PyObject **coroutine, PyObject **value)
{
    *value = NULL;
    *coroutine = PyObject_CallOneArg(handler, message);
    if (*coroutine != NULL && !PyCoro_CheckExact(*coroutine)) {
        *value = Py_NewRef(*coroutine);
        return AWAITABLE;
    }
    if (*coroutine != NULL) {
        switch (PyIter_Send(*coroutine, Py_None, value)) {
        case PYGEN_RETURN:
            return RETURNED;
        case PYGEN_NEXT:
            return WAITS;
        case PYGEN_ERROR:
            break;
        }
    }
    *value = raised();
    return RAISED;
}

/* Whether *attribute* of *object* is true; -1 with an exception. */
static int
is_set(PyObject *object, PyObject *attribute)
{
    PyObject *value = PyObject_GetAttr(object, attribute);
    int yes = value == NULL ? -1 : PyObject_IsTrue(value);
    Py_XDECREF(value);
    return yes;
}

/* Whether the number that *call* returns is not 0; -1 with an exception. */
static int
is_counted(PyObject *call)
{
    PyObject *number = PyObject_CallNoArgs(call);
    int yes = number == NULL ? -1 : PyObject_IsTrue(number);
    Py_XDECREF(number);
    return yes;
}

/* Whether worker *number* of *workers* is surplus; -1 with an exception. */
static int
is_surplus(const Names *names, PyObject *workers, long number)
{
    PyObject *size = PyObject_GetAttr(workers, names->size);
    long most = size == NULL ? -1 : PyLong_AsLong(size);
    Py_XDECREF(size);
    return most == -1 && PyErr_Occurred() ? -1 : number >= most;
}

PyDoc_STRVAR(run_handlers_doc,
             "run_handlers(handler, waiting, done, limit, due, monotonic, cancelling, service, workers,\n"
             "number, /)\n--\n\n"
             "Call *handler* with up to *limit* messages of the deque *waiting*, while its coroutines\n"
             "return None without waiting; append their messages to *done*.\n\n"
             "Return None when the turn ends, else (kind, message, coroutine, value, began) of the\n"
             "first call with another outcome.");

static PyObject *
run_handlers(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 10 || !PyList_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "run_handlers: a list is expected");
        return NULL;
    }
    const Names *names = PyModule_GetState(module);
    PyObject *handler = args[0], *waiting = args[1], *done = args[2], *monotonic = args[5];
    PyObject *cancelling = args[6], *service = args[7], *workers = args[8];
    Py_ssize_t limit = PyLong_AsSsize_t(args[3]);
    double due = PyFloat_AsDouble(args[4]);
    long number = PyLong_AsLong(args[9]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    for (; limit > 0; limit--) {
        Py_ssize_t left = PyObject_Size(waiting);
        int stops = left <= 0 ? 1 : is_set(service, names->suspended);
        if (left < 0 || stops < 0) {
            return NULL;
        }
        if (stops) {
            break;
        }
        PyObject *began = PyObject_CallNoArgs(monotonic);
        double at = began == NULL ? -1 : PyFloat_AsDouble(began);
        PyObject *message = NULL, *coroutine, *value;
        if (!PyErr_Occurred()) {
            message = PyObject_CallMethodNoArgs(waiting, names->popleft);
        }
        if (message == NULL) {
            Py_XDECREF(began);
            return NULL;
        }
        int kind = call_handler(handler, message, &coroutine, &value);
        int ended = kind == RETURNED && value == Py_None ? is_counted(cancelling) : 1;
        if (ended > 0) {
            if (coroutine == NULL) {
                coroutine = Py_NewRef(Py_None);
            }
            return Py_BuildValue("(iNNNN)", kind, message, coroutine, value, began);
        }
        int failed = ended < 0 || PyList_Append(done, message) < 0;
        Py_DECREF(message);
        Py_DECREF(coroutine);
        Py_DECREF(value);
        Py_DECREF(began);
        stops = failed ? -1 : at >= due ? 1 : is_surplus(names, workers, number);
        if (stops < 0) {
            return NULL;
        }
        if (stops) {
            break;
        }
    }
    Py_RETURN_NONE;
}

static void
free_module(void *module)
{
    forget_maker(module);
    free_names(module);
}

static PyMethodDef functions[] = {
    {"decode_plain", (PyCFunction)(void (*)(void))decode_plain, METH_FASTCALL, decode_plain_doc},
    {"cut_frames", (PyCFunction)(void (*)(void))cut_frames, METH_FASTCALL, cut_frames_doc},
    {"take_body", (PyCFunction)(void (*)(void))take_body, METH_FASTCALL, take_body_doc},
    {"fill_body", (PyCFunction)(void (*)(void))fill_body, METH_FASTCALL, fill_body_doc},
    {"pack_batch", (PyCFunction)(void (*)(void))pack_batch, METH_FASTCALL, pack_batch_doc},
    {"accelerate_messages", (PyCFunction)(void (*)(void))accelerate_messages, METH_FASTCALL,
     accelerate_messages_doc},
    {"batch_results", (PyCFunction)(void (*)(void))batch_results, METH_FASTCALL,
     batch_results_doc},
    {"measure_messages", (PyCFunction)(void (*)(void))measure_messages, METH_FASTCALL,
     measure_messages_doc},
    {"mark_done", (PyCFunction)(void (*)(void))mark_done, METH_FASTCALL, mark_done_doc},
    {"run_handlers", (PyCFunction)(void (*)(void))run_handlers, METH_FASTCALL, run_handlers_doc},
    {NULL, NULL, 0, NULL},
};

static int
set_up(PyObject *module)
{
    if (intern_names(PyModule_GetState(module))) {
        return -1;
    }
    PyObject *checksum = PyLong_FromUnsignedLong(SOURCE_CHECKSUM);
    if (checksum == NULL) {
        return -1;
    }
    int failed = PyModule_AddObjectRef(module, "SOURCE_CHECKSUM", checksum);
    Py_DECREF(checksum);
    return failed;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)set_up},
#ifdef Py_MOD_PER_INTERPRETER_GIL_SUPPORTED
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_MOD_GIL_NOT_USED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_core",
    .m_doc = "Compiled versions of hot functions; see rocketmq_aio.core.",
    .m_size = sizeof(Names),
    .m_methods = functions,
    .m_slots = slots,
    .m_free = free_module,
};

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
