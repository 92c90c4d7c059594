// SPDX-License-Identifier: Apache-2.0
//
// Requests in, replies out; see http.h. What is wrong with a request's head is answered before its body is read.

#include "runtime/server/http.h"
#include "runtime/server/exchange_side.h"
#include "runtime/server/keys.h"
#include "runtime/server/routes.h"
#include "runtime/server/watch.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    POOL_BYTES = 24 << 10, // of a connection: its headers and a piece of its body
    PARAMETERS_MOST = 16,  // behind the `?` of a path
    BLOCK_BYTES = 8 << 10, // most that a stream hands over at a time
    IDLE_SECONDS = 60,     // without a byte in either direction
    HEAD_SECONDS = 90,     // to send a request's head, also since the reply before
    BODY_SECONDS = 120,    // to send its body
};

// ---- a request's head ----------------------------------------------------------------------------------------------------------

struct head {
    int lengths, encodings, hosts;
    long long length; // of the body; -1: not said
    bool bad_length;
    bool waits;          // for leave to send its body
    const char *encoded; // how the body is, or NULL: as it is
};

static enum MHD_Result count_header(void *user, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct head *h = user;
    (void)kind;
    if (!strcasecmp(key, "Content-Length")) {
        char *end = NULL;
        h->lengths++;
        errno = 0;
        h->length = value && *value >= '0' && *value <= '9' ? strtoll(value, &end, 10) : -1;
        h->bad_length = h->bad_length || !end || *end || errno;
    } else if (!strcasecmp(key, "Transfer-Encoding")) {
        h->encodings++;
        h->bad_length = h->bad_length || !value || strcasecmp(value, "chunked");
    } else if (!strcasecmp(key, "Host")) {
        h->hosts++;
    } else if (!strcasecmp(key, "Content-Encoding")) {
        h->encoded = value && strcasecmp(value, "identity") ? value : NULL;
    } else if (!strcasecmp(key, "Expect")) {
        h->waits = value && !strcasecmp(value, "100-continue");
    }
    return MHD_YES;
}

// The key that came with the request, or NULL.
static const char *presented(struct MHD_Connection *connection)
{
    const char *value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Authorization");
    if (value && !strncasecmp(value, "Bearer ", 7))
        return value + 7 + strspn(value + 7, " ");
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "x-api-key");
}

static bool permitted(struct exchange *x, struct MHD_Connection *connection)
{
    if (!x->server->keys)
        return true;
    const char *key = presented(connection);
    if (key && keys_find(x->server->keys, key, x->label, sizeof x->label))
        return true;
    if (x->route && x->route->open)
        return true;
    exchange_error(x, 401, NULL, "invalid_api_key", NULL,
                   key ? "the API key is not known here" : "an API key is needed: send Authorization: Bearer KEY");
    return false;
}

// Bytes that a request's body may have.
static size_t body_most(const struct exchange *x)
{
    const size_t more = TOKEN_BYTES * (size_t)x->server->context, least = more > TOKENS_BODY ? more : TOKENS_BODY;
    return x->route && x->route->tokens && least < BODY_MOST ? least : BODY_MOST;
}

static void refuse_long(struct exchange *x)
{
    exchange_error(x, 413, NULL, NULL, NULL, "the body has more than %zu bytes, which are the most that %s takes",
                   body_most(x), x->route->path);
}

static bool check_length(struct exchange *x, const struct head *head)
{
    const bool too_long = head->length > 0 && (size_t)head->length > body_most(x);
    if (head->lengths > 1 || head->encodings > 1 || (head->lengths && head->encodings) || head->bad_length ||
        head->hosts > 1)
        exchange_error(x, 400, NULL, NULL, NULL,
                       "the request's head does not say clearly how long its body is, or for whom");
    else if (head->encoded)
        exchange_error(x, 415, NULL, NULL, NULL, "Content-Encoding %.40s is not read here: send the body as it is",
                       head->encoded);
    else if (head->length > BODY_MOST)
        exchange_error(x, 413, NULL, NULL, NULL, "the body has %lld bytes, at most %d are taken", head->length,
                       BODY_MOST);
    else if (head->waits && too_long)
        refuse_long(x);
    else if (atomic_load(&x->server->body_bytes) > BODIES_MOST)
        exchange_error(x, 503, NULL, NULL, NULL, "too many requests are being read; try again later");
    else {
        // What is too much for this path alone is read and thrown away: many clients see no answer before they have sent all.
        if (too_long)
            x->side->early = 413;
        return true;
    }
    return false;
}

// Everything that can be said before the body is read. False when it was answered.
static bool check_head(struct exchange *x, struct MHD_Connection *connection, const char *url, const char *method)
{
    struct head head = {.length = -1};
    const union MHD_ConnectionInfo *size = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    MHD_get_connection_values(connection, MHD_HEADER_KIND, count_header, &head);
    x->route = routes_find(url, method, x->rest, sizeof x->rest, x->allowed);
    if (size && size->header_size > HEADERS_MOST) {
        exchange_error(x, 431, NULL, NULL, NULL, "the request's head has %zu bytes, at most %d are taken",
                       size->header_size, HEADERS_MOST);
        return false;
    }
    if (!permitted(x, connection))
        return false;
    if (!x->route) {
        exchange_error(x, *x->allowed ? 405 : 404, NULL, NULL, NULL,
                       *x->allowed ? "%.12s is not possible for %.100s" : "%.12s %.100s: there is no such thing here",
                       method, url);
        return false;
    }
    if (atomic_load(&x->server->draining) && !x->route->quick) {
        exchange_error(x, 503, NULL, NULL, NULL, "the server ends; ask again when it is back");
        return false;
    }
    return check_length(x, &head);
}

// ---- a request's body ------------------------------------------------------------------------------------------------------------

// Takes a piece of the body; false: the connection is to be cut.
static bool take_body(struct exchange *x, const char *bytes, size_t count)
{
    struct connection_side *side = x->side;
    if (side->early) {
        side->counted += count; // what is thrown away; a client that goes on and on is cut
        bool enough = side->counted > 4 * (size_t)BODY_MOST;
        atomic_fetch_add(&x->server->body_bytes, (int_fast64_t)count);
        return !enough;
    }
    if (count > body_most(x) - x->body_bytes) {
        side->early = 413;
        return true;
    }
    if (side->body_room - x->body_bytes <= count) {
        size_t room = 2 * x->body_bytes + count + 1024;
        char *longer = realloc(x->body, room);
        if (!longer) {
            side->early = 503;
            return true;
        }
        atomic_fetch_add(&x->server->body_bytes, (int_fast64_t)(room - side->body_room));
        side->counted += room - side->body_room;
        x->body = longer;
        side->body_room = room;
    }
    memcpy(x->body + x->body_bytes, bytes, count);
    x->body_bytes += count;
    x->body[x->body_bytes] = '\0';
    return true;
}

// ---- replies -----------------------------------------------------------------------------------------------------------------------

static ssize_t read_stream(void *user, uint64_t position, char *buffer, size_t most)
{
    struct exchange *x = user;
    struct connection_side *side = x->side;
    ssize_t given = 0;
    (void)position;
    pthread_mutex_lock(&side->lock);
    if (side->gone) {
        given = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (side->out_bytes > side->out_taken) {
        size_t left = side->out_bytes - side->out_taken, take = left < most ? left : most;
        memcpy(buffer, side->out + side->out_taken, take);
        side->out_taken += take;
        given = (ssize_t)take;
    } else if (side->closed) {
        given = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        side->suspended = true;
        MHD_suspend_connection(side->connection);
    }
    pthread_mutex_unlock(&side->lock);
    return given;
}

static void response_done(void *user)
{
    exchange_drop(user);
}

static struct MHD_Response *make_response(struct exchange *x)
{
    struct connection_side *side = x->side;
    exchange_hold(x);
    struct MHD_Response *response =
        side->state == SIDE_WHOLE
            ? MHD_create_response_from_buffer_with_free_callback_cls(side->out_bytes, side->out, response_done, x)
            : MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, x, response_done);
    if (!response)
        exchange_drop(x); // not the last reference: the connection has one
    return response;
}

static void add_headers(struct exchange *x, struct MHD_Response *response)
{
    const struct connection_side *side = x->side;
    char id[48];
    snprintf(id, sizeof id, "req-%s", x->id);
    MHD_add_response_header(response, "Content-Type", side->type);
    MHD_add_response_header(response, "X-Request-Id", id);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Cache-Control", side->state == SIDE_STREAM ? "no-cache" : "no-store");
    if (side->state == SIDE_STREAM)
        MHD_add_response_header(response, "X-Accel-Buffering", "no");
    if (x->policy[0]) {
        MHD_add_response_header(response, "Content-Security-Policy", x->policy);
        MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    }
    if (side->status == 405)
        MHD_add_response_header(response, "Allow", x->allowed);
    if (side->status == 401)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (side->status == 429 || side->status == 503)
        MHD_add_response_header(response, "Retry-After", "1");
    // What is left of a body that is not wanted is not read.
    if (side->status == 413 || side->status == 415 || side->status == 431 || atomic_load(&x->server->draining))
        MHD_add_response_header(response, "Connection", "close");
}

// Sends what the exchange has: its state is set and does not change any more. The lock is not held, since libmicrohttpd takes a lock
// here under which it calls read_stream.
static enum MHD_Result queue(struct exchange *x, struct MHD_Connection *connection)
{
    struct connection_side *side = x->side;
    struct MHD_Response *response = make_response(x);
    if (!response)
        return MHD_NO;
    add_headers(x, response);
    side->queued = true;
    enum MHD_Result result = MHD_queue_response(connection, (unsigned)side->status, response);
    MHD_destroy_response(response);
    if (side->link >= 0 && side->state == SIDE_WHOLE)
        watch_deadline(x->server->watch, side->link, READ_SECONDS);
    return result;
}

// The path of a request whose line has a whole URL, as proxies send it.
static const char *path_of(const char *url)
{
    const char *host = !strncasecmp(url, "http://", 7) ? url + 7 : NULL, *path = host ? strchr(host, '/') : url;
    return path ? path : "/";
}

static enum MHD_Result begin(struct server *s, struct MHD_Connection *connection, const char *url, const char *method,
                             void **context)
{
    struct exchange *x = exchange_new(s, connection);
    const union MHD_ConnectionInfo *link = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    if (!x)
        return MHD_NO;
    *context = x;
    x->side->link = link && link->socket_context ? (int)(intptr_t)link->socket_context - 1 : -1;
    if (x->side->link < 0) {
        exchange_error(x, 503, NULL, NULL, NULL, "too many connections; try again later");
        return queue(x, connection);
    }
    watch_deadline(s->watch, x->side->link, BODY_SECONDS);
    const char *query = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "reset_peak");
    snprintf(x->query, sizeof x->query, "%s", query ? query : "");
    return check_head(x, connection, path_of(url), method) ? MHD_YES : queue(x, connection);
}

// The body is whole: to the workers, unless the answer needs none.
static enum MHD_Result dispatch(struct exchange *x, struct MHD_Connection *connection)
{
    struct connection_side *side = x->side;
    side->complete = true;
    if (side->early == 413)
        refuse_long(x);
    else if (side->early)
        exchange_error(x, 503, NULL, NULL, NULL, "no memory for the body; try again later");
    else if (x->route->quick)
        x->route->handle(x);
    if (exchange_opened(x))
        return queue(x, connection);
    pthread_mutex_lock(&side->lock);
    side->suspended = true;
    MHD_suspend_connection(connection);
    pthread_mutex_unlock(&side->lock);
    watch_begin(x->server->watch, side->link, x);
    exchange_wake(x);
    return MHD_YES;
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *bytes, size_t *count, void **context)
{
    struct exchange *x = *context;
    (void)version;
    if (!x)
        return begin(user, connection, url, method, context);
    if (*count) {
        bool more = x->side->queued || take_body(x, bytes, *count);
        *count = 0;
        return more ? MHD_YES : MHD_NO;
    }
    if (!x->side->complete)
        return dispatch(x, connection);
    pthread_mutex_lock(&x->side->lock);
    const bool lost = x->side->gone || x->side->state == SIDE_NOTHING;
    pthread_mutex_unlock(&x->side->lock);
    return lost ? MHD_NO : queue(x, connection);
}

static void on_completed(void *user, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode end)
{
    struct server *s = user;
    struct exchange *x = *context;
    (void)connection, (void)end;
    if (!x)
        return;
    *context = NULL;
    struct connection_side *side = x->side;
    pthread_mutex_lock(&side->lock);
    side->connection = NULL;
    bool cut = !side->closed;
    side->suspended = false;
    pthread_mutex_unlock(&side->lock);
    if (side->link >= 0) {
        watch_end(s->watch, side->link);
        watch_deadline(s->watch, side->link, HEAD_SECONDS);
    }
    if (cut && side->complete) {
        metrics_disconnected(&s->metrics);
        exchange_gone(x);
    }
    exchange_drop(x);
}

static void on_connection(void *user, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct server *s = user;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        int link = info ? watch_open_link(s->watch, info->connect_fd) : -1;
        *context = (void *)(intptr_t)(link + 1);
        if (link >= 0)
            watch_deadline(s->watch, link, HEAD_SECONDS);
    } else if (*context) {
        watch_close_link(s->watch, (int)(intptr_t)*context - 1);
        *context = NULL;
    }
}

// Paths are compared as they were sent: nothing in them is decoded.
static size_t keep_as_sent(void *user, struct MHD_Connection *connection, char *text)
{
    (void)user, (void)connection;
    return strlen(text);
}

// The library lists every parameter of a path in the connection's memory, and where that ends it says nothing more on the connection.
// Nobody here reads more than one: the text, which is the library's own buffer, ends behind the first few.
static void *cut_parameters(void *user, const char *uri, struct MHD_Connection *connection)
{
    (void)user, (void)connection;
    char *at = strchr((char *)(uintptr_t)uri, '?');
    for (int i = 0; at && i < PARAMETERS_MOST; i++)
        at = strchr(at + 1, '&');
    if (at)
        *at = '\0';
    return NULL; // no context yet
}

// ---- the listener ------------------------------------------------------------------------------------------------------------------

// Every connection takes a descriptor; raises the limit as far as it goes.
static unsigned connections_most(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return 256;
    const rlim_t wanted = LINKS_MOST + 64;
    if (limit.rlim_cur < wanted) {
        limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    return limit.rlim_cur > LINKS_MOST + 64 ? LINKS_MOST - 8
                                            : (unsigned)(limit.rlim_cur > 128 ? limit.rlim_cur - 64 : 64);
}

static int bind_to(const struct addrinfo *a)
{
    const int on = 1;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen)) {
        int cause = errno;
        close(fd);
        errno = cause;
        return -1;
    }
    return fd;
}

static bool cannot_listen(const struct server *s, struct error *error)
{
    return error_set(error, "%.60s port %d: cannot listen: %s; choose another --port or --host",
                     s->options.host ? s->options.host : "127.0.0.1", s->options.port, strerror(errno));
}

bool http_bind(struct server *s, struct error *error)
{
    const struct server_options *o = &s->options;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[8];
    const char *host = o->host ? o->host : "127.0.0.1";
    snprintf(service, sizeof service, "%d", o->port);
    int failed = getaddrinfo(host, service, &hints, &found);
    if (failed)
        return error_set(error, "--host %.60s: %s", host, gai_strerror(failed));
    for (const struct addrinfo *a = found; a && s->socket < 0; a = a->ai_next)
        s->socket = bind_to(a);
    if (s->socket < 0)
        cannot_listen(s, error);
    freeaddrinfo(found);
    struct sockaddr_storage bound;
    socklen_t size = sizeof bound;
    if (s->socket >= 0 && !getsockname(s->socket, (struct sockaddr *)&bound, &size))
        s->port = ntohs(bound.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)(const void *)&bound)->sin6_port
                                                    : ((const struct sockaddr_in *)(const void *)&bound)->sin_port);
    return s->socket >= 0;
}

bool http_open(struct server *s, struct error *error)
{
    const int fd = s->socket;
    if (listen(fd, 1024))
        return cannot_listen(s, error);
    s->daemon =
        MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC, 0, NULL, NULL,
                         on_request, s, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, connections_most(),
                         MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                         (size_t)POOL_BYTES, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_NOTIFY_COMPLETED, on_completed,
                         s, MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_UNESCAPE_CALLBACK, keep_as_sent,
                         NULL, MHD_OPTION_URI_LOG_CALLBACK, cut_parameters, NULL, MHD_OPTION_END);
    if (!s->daemon)
        return error_set(error, "the listener cannot be started: %s", strerror(errno));
    s->socket = -1; // the daemon's
    return true;
}

void http_quiet(struct server *s)
{
    MHD_socket fd = s->daemon ? MHD_quiesce_daemon(s->daemon) : MHD_INVALID_SOCKET;
    if (fd != MHD_INVALID_SOCKET)
        close(fd);
}

void http_close(struct server *s)
{
    if (s->daemon)
        MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
    if (s->socket >= 0)
        close(s->socket);
    s->socket = -1;
}
