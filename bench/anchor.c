/*
 * The price of the kernel: a server that does nothing but find where a request ends, and answer it.
 *
 *   anchor PORT ANSWER_BYTES
 *
 * One thread, epoll, one read and one writev for what a connection sent; an answer has ANSWER_BYTES: a short JSON header
 * with the request's opaque, and a body. No broker can need less for the same exchange on the same machine.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define ROOM (4 << 20)
#define MAX_ANSWERS 256
typedef struct { int fd; size_t used; unsigned char *bytes; } conn;

static const char HEAD[] = "{\"code\":0,\"flag\":1,\"language\":\"JAVA\",\"opaque\":";
static const char TAIL[] = ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":401}";

static uint32_t u32(const unsigned char *p) { return (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3]; }

static void put32(unsigned char *p, uint32_t v) { p[0] = v >> 24; p[1] = v >> 16; p[2] = v >> 8; p[3] = v; }

static void fail(const char *what) { perror(what); exit(1); }

static void write_all(int fd, struct iovec *parts, int count) {
  while (count) {
    ssize_t sent = writev(fd, parts, count);
    if (sent < 0) { usleep(50); continue; }
    while (count && (size_t)sent >= parts->iov_len) { sent -= parts->iov_len; parts++; count--; }
    if (count) { parts->iov_base = (char *)parts->iov_base + sent; parts->iov_len -= sent; }
  }
}

static int serve(conn *c, unsigned char *body, size_t answer_bytes) {
  static unsigned char heads[MAX_ANSWERS][160];
  struct iovec parts[2 * MAX_ANSWERS];
  ssize_t got = read(c->fd, c->bytes + c->used, ROOM - c->used);
  if (got <= 0) return got < 0 ? 1 : 0;
  c->used += (size_t)got;
  size_t at = 0;
  int answers = 0;
  while (c->used - at >= 8 && u32(c->bytes + at) + 4 <= c->used - at) {
    unsigned char *frame = c->bytes + at;
    char *digits = memmem(frame, u32(frame) + 4, "\"opaque\":", 9);
    if (!digits) return 0;
    int wide = (int)strspn(digits + 9, "0123456789");
    unsigned char *out = heads[answers];
    int head = snprintf((char *)out + 8, 150, "%s%.*s%s", HEAD, wide, digits + 9, TAIL);
    size_t body_bytes = answer_bytes > 8 + (size_t)head ? answer_bytes - 8 - (size_t)head : 0;
    put32(out, (uint32_t)(4 + head + body_bytes));
    put32(out + 4, (uint32_t)head);
    parts[2 * answers] = (struct iovec){out, 8 + (size_t)head};
    parts[2 * answers + 1] = (struct iovec){body, body_bytes};
    at += u32(frame) + 4;
    if (++answers == MAX_ANSWERS) { write_all(c->fd, parts, 2 * answers); answers = 0; }
  }
  if (answers) write_all(c->fd, parts, 2 * answers);
  memmove(c->bytes, c->bytes + at, c->used - at);
  c->used -= at;
  return 1;
}

int main(int argc, char **argv) {
  if (argc != 3) { fprintf(stderr, "usage: anchor PORT ANSWER_BYTES\n"); return 2; }
  size_t answer_bytes = (size_t)atol(argv[2]);
  unsigned char *body = calloc(1, answer_bytes + 1);
  int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), polled = epoll_create1(0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1])),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 512)) fail("listen");
  epoll_ctl(polled, EPOLL_CTL_ADD, listener, &(struct epoll_event){.events = EPOLLIN, .data.ptr = NULL});
  for (;;) {
    struct epoll_event ready[64];
    int count = epoll_wait(polled, ready, 64, -1);
    for (int i = 0; i < count; i++) {
      conn *c = ready[i].data.ptr;
      if (!c) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (fd < 0) continue;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        c = malloc(sizeof *c);
        *c = (conn){fd, 0, malloc(ROOM)};
        epoll_ctl(polled, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.ptr = c});
      } else if (!serve(c, body, answer_bytes)) {
        close(c->fd);
        free(c->bytes);
        free(c);
      }
    }
  }
}
