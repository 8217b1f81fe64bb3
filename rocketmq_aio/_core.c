/* The compiled core: C versions of the functions that cost most per message.
 *
 * Every function handles only the usual, valid case and leaves the rest to its Python version, which
 * is the reference: so errors, their order and their positions exist once, in Python.  Lengths are
 * compared with what is left of the input before they are used, always by subtraction.  Nothing
 * recurses, and nothing is allocated by a length that was not checked.  There is no global state.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

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

static PyMethodDef functions[] = {
    {"decode_plain", (PyCFunction)(void (*)(void))decode_plain, METH_FASTCALL, decode_plain_doc},
    {NULL, NULL, 0, NULL},
};

static int
add_constants(PyObject *module)
{
    PyObject *checksum = PyLong_FromUnsignedLong(SOURCE_CHECKSUM);
    if (checksum == NULL) {
        return -1;
    }
    int failed = PyModule_AddObjectRef(module, "SOURCE_CHECKSUM", checksum);
    Py_DECREF(checksum);
    return failed;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)add_constants},
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
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
