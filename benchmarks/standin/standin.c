/* A stand-in for a RocketMQ name server and broker that is never the slow side of a measurement.
 *
 *   standin PORT MESSAGES [-q QUEUES] [-s]
 *
 * PORT 0 takes a free one; "ready PORT" on stdout says that it listens.  Every topic exists and has
 * QUEUES queues (16), each with an endless backlog: a pull is answered with the stored messages of the
 * file MESSAGES, their queue id and offsets patched.  Sends are counted and thrown away.  Answers have
 * JSON headers, as those of a 5.5.0 broker; -s answers in the encoding of the request, as 4.9.7 does.
 * One thread, epoll, level triggered, one write for all the answers to what one read brought.
 */
#define _GNU_SOURCE
#include "standin.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 20, MAX_FRAME = 16 << 20, EVENTS = 64 };

connection *connections;
int port, queues = 16, mirror_encoding;
static int poller;

void reserve(buffer *b, size_t more) {
  if (b->length + more <= b->capacity) return;
  b->capacity = (b->length + more) * 2;
  b->data = realloc(b->data, b->capacity);
  if (!b->data) { perror("realloc"); exit(1); }
}

void append(buffer *b, const void *data, size_t length) {
  reserve(b, length);
  memcpy(b->data + b->length, data, length);
  b->length += length;
}

static void watch(connection *c, uint32_t events, int operation) {
  struct epoll_event event = {.events = events, .data.ptr = c};
  if (epoll_ctl(poller, operation, c->fd, &event)) perror("epoll_ctl");
}

/* Writes what is queued; a peer that does not read is asked for nothing more until it does. */
int flush(connection *c) {
  while (c->written < c->out.length) {
    ssize_t n = write(c->fd, c->out.data + c->written, c->out.length - c->written);
    if (n < 0 && errno == EAGAIN) {
      if (!c->blocked) watch(c, EPOLLOUT, EPOLL_CTL_MOD);
      c->blocked = 1;
      return 0;
    }
    if (n < 0) return -1;
    c->written += n;
  }
  c->out.length = c->written = 0;
  if (c->blocked) watch(c, EPOLLIN, EPOLL_CTL_MOD);
  c->blocked = 0;
  return 0;
}

static void welcome(int listener) {
  int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK), one = 1;
  if (fd < 0) return;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  connection *c = calloc(1, sizeof *c);
  c->fd = fd;
  c->next = connections;
  connections = c;
  watch(c, EPOLLIN, EPOLL_CTL_ADD);
}

static void drop(connection *c) {
  char group[NAME];
  connection **link = &connections;
  while (*link != c) link = &(*link)->next;
  *link = c->next;
  memcpy(group, c->group, sizeof group);
  close(c->fd);
  free(c->in.data);
  free(c->out.data);
  free(c);
  if (*group) notify_group(group);
}

/* A broker closes the connection at once on anything that is not a frame. */
static int serve_frames(connection *c) {
  size_t at = 0, left;
  while ((left = c->in.length - at) >= 8) {
    const char *frame = c->in.data + at;
    uint32_t total = read32(frame), word = read32(frame + 4), header = word & 0xffffff;
    if (total < 4 || total > MAX_FRAME - 4 || header > total - 4 || word >> 24 > 1) return -1;
    if (left < 4 + (size_t)total) break;
    request r = {.binary = word >> 24, .header = frame + 8, .header_length = header,
                 .body = frame + 8 + header, .body_length = total - 4 - header};
    if (read_head(&r)) return -1;
    answer(c, &r);
    at += 4 + (size_t)total;
  }
  memmove(c->in.data, c->in.data + at, c->in.length - at);
  c->in.length -= at;
  return 0;
}

static int receive(connection *c) {
  reserve(&c->in, READ_BYTES);
  ssize_t n = read(c->fd, c->in.data + c->in.length, READ_BYTES);
  if (n < 0 && errno == EAGAIN) return 0;
  if (n <= 0) return -1;
  c->in.length += n;
  return serve_frames(c) || flush(c) ? -1 : 0;
}

static int listen_on(int wanted) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(wanted),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(fd, (void *)&address, size) || listen(fd, 128)) { perror("listen"); exit(1); }
  getsockname(fd, (void *)&address, &size);
  port = ntohs(address.sin_port);
  return fd;
}

static void serve(int listener) {
  struct epoll_event events[EVENTS], event = {.events = EPOLLIN, .data.ptr = NULL};
  poller = epoll_create1(0);
  epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
  printf("ready %d\n", port);
  fflush(stdout);
  for (;;) {
    int count = epoll_wait(poller, events, EVENTS, -1);
    for (int i = 0; i < count; i++) {
      connection *c = events[i].data.ptr;
      if (!c) welcome(listener);
      else if (c->blocked ? flush(c) : receive(c)) drop(c);
    }
  }
}

int main(int argc, char **argv) {
  if (argc < 3) { fprintf(stderr, "usage: standin PORT MESSAGES [-q QUEUES] [-s]\n"); return 2; }
  for (int i = 3; i < argc; i++) {
    if (!strcmp(argv[i], "-s")) mirror_encoding = 1;
    else if (!strcmp(argv[i], "-q") && i + 1 < argc) queues = atoi(argv[++i]);
  }
  load_messages(argv[2]);
  if (queues < 1 || queues > MAX_QUEUES) { fprintf(stderr, "1 to %d queues\n", MAX_QUEUES); return 2; }
  signal(SIGPIPE, SIG_IGN);
  serve(listen_on(atoi(argv[1])));
}
