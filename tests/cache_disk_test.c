// SPDX-License-Identifier: Apache-2.0
//
// The prompt cache's folder on the embedded model: states outlive the process, however it ends; what is damaged, cut or another
// build's is refused and read anew; the folder keeps its budget. `--kills N` ends N processes in the middle of their work.

#include "runtime/cache/disk_state.h"
#include "tests/cache_rig.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20, KILLS = 5, NAMES = 512, TALKS = 6 };

static struct engine *plain; // keeps nothing
static char folder[64];

static struct engine *open_on(const char *path, int64_t disk_bytes)
{
    struct engine *e = rig_open((struct engine_options){.cache_bytes = 60 * MIB,
                                                        .cache_interval = 100,
                                                        .cache_disk = path,
                                                        .cache_disk_bytes = disk_bytes,
                                                        .lanes = 2});
    if (e)
        e->cache->settle = 0;
    return e;
}

static struct served ask_for(struct engine *e, const struct talk *t)
{
    e->counters.prompt_seconds =
        0; // nothing is known of the price of rows, so a state is read whatever this machine takes for it
    return serve(e, &(struct ask){.talk = t, .reply = 3, .drafts = 2});
}

static struct talk talk_of(uint64_t seed)
{
    struct talk t = {0};
    rig_state = seed;
    say_more(&t, 40 + below(60));
    return t;
}

// Turns until nothing is left to write.
static void settle(struct engine *e)
{
    bool busy;
    e->cache->next_look = 0;
    e->counters.prompt_seconds = 0; // nor is a state written that a fast machine has made sooner than it would be read
    for (int i = 0; i < 2000; i++) {
        engine_turn(e, &busy, NULL);
        if (!busy && !disk_write_goes_on(e->cache->disk))
            return;
        usleep(500);
    }
}

static int list(const char *path, char names[][CACHE_FILE_NAME])
{
    DIR *d = opendir(path);
    int count = 0;
    for (struct dirent *f = d ? readdir(d) : NULL; f && count < NAMES; f = readdir(d))
        if (strlen(f->d_name) == 49)
            snprintf(names[count++], CACHE_FILE_NAME, "%.49s", f->d_name);
    if (d)
        closedir(d);
    return count;
}

static char *path_of(const char *name)
{
    static char path[300];
    snprintf(path, sizeof path, "%s/%.63s", folder, name);
    return path;
}

static void clear(void)
{
    char names[NAMES][CACHE_FILE_NAME];
    for (int i = list(folder, names); i-- > 0;)
        unlink(path_of(names[i]));
    unlink(path_of("lock"));
    unlink(path_of("unfinished"));
    rmdir(folder);
}

static unsigned mode_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? st.st_mode & 0777 : 0;
}

// ---- a process after the other -----------------------------------------------------------------------------------------------

static void outlives(void)
{
    char names[NAMES][CACHE_FILE_NAME], detail[200];
    const struct talk t = talk_of(3);
    const struct served fresh = ask_for(plain, &t);
    struct engine *e = open_on(folder, 0);
    struct served got = ask_for(e, &t);
    settle(e);
    const struct cache_counters c = counted(e);
    const int files = list(folder, names);
    ok(c.disk_writes == 1 && c.disk_states == 1 && files == 1, "a state is written once nothing else is to be done",
       "");
    ok(mode_of(folder) == 0700 && mode_of(path_of(names[0])) == 0600, "for the owner alone", "");
    struct engine *second = open_on(folder, 0);
    ok(!second, "a folder is one process's", "");
    engine_close(second);
    engine_close(e);
    e = open_on(folder, 0);
    got = ask_for(e, &t);
    snprintf(detail, sizeof detail, "cached %lld of %d, read %lld", (long long)got.cached, t.count,
             (long long)got.read);
    ok(same_reply(&fresh, &got) && got.cached == t.count - model.opening && counted(e).disk_reads == 1,
       "another process begins where that one ended: resumed == fresh", detail);
    got = ask_for(e, &t);
    ok(same_reply(&fresh, &got) && got.cached == t.count && counted(e).disk_reads == 1,
       "and then has all of it in memory", "");
    // Two at once, of the same state, in a process that has it on disk only.
    engine_close(e);
    e = open_on(folder, 0);
    const struct ask ask = {.talk = &t, .reply = 3, .drafts = 2};
    struct stream *s[2] = {rig_submit(e, &ask), rig_submit(e, &ask)};
    struct served both[2] = {{{0}}};
    bool busy = true;
    for (int i = 0; i < 500 && busy; i++) {
        engine_turn(e, &busy, NULL);
        rig_take(s[0], &both[0]);
        rig_take(s[1], &both[1]);
    }
    snprintf(detail, sizeof detail, "%d and %d tokens, cached %lld and %lld, %lld reads, phases %d %d", both[0].count,
             both[1].count, (long long)stream_counters(s[0])->cached_tokens,
             (long long)stream_counters(s[1])->cached_tokens, (long long)counted(e).disk_reads, (int)stream_phase(s[0]),
             (int)stream_phase(s[1]));
    ok(!memcmp(both[0].id, fresh.id, sizeof fresh.id) && !memcmp(both[1].id, fresh.id, sizeof fresh.id) &&
           stream_counters(s[1])->cached_tokens >= t.count - model.opening && counted(e).disk_reads == 1,
       "two that begin there share one reading", detail);
    stream_close(s[0]);
    stream_close(s[1]);
    s[0] = rig_submit(e, &ask);
    engine_turn(e, &busy, NULL);
    stream_close(s[0]);
    engine_close(e);
}

// A request that goes away while its state is read.
static void goes_away(void)
{
    const struct talk t = talk_of(3);
    const struct served fresh = ask_for(plain, &t);
    struct engine *e = open_on(folder, 0);
    bool busy;
    for (int i = 0; i < 4; i++) {
        struct stream *s = rig_submit(e, &(struct ask){.talk = &t, .reply = 3});
        for (int k = 0; k < i; k++)
            engine_turn(e, &busy, NULL);
        if (i % 2)
            stream_cancel(s);
        stream_close(s);
    }
    struct engine_counters c;
    engine_counters(e, &c);
    const struct served got = ask_for(e, &t);
    ok(same_reply(&fresh, &got) && c.pages_promised == 0 && c.pages_claimed * c.page_bytes == c.cache.bytes,
       "a request that goes away while its state is read leaves nothing", "");
    engine_close(e);
}

// ---- damage ------------------------------------------------------------------------------------------------------------------

static bool whole(const char *path, const struct cache_shape *shape)
{
    struct cache_file f;
    const int fd = open(path, O_RDONLY);
    if (fd < 0 || !cache_file_open(&f, fd, shape, NULL))
        return false;
    uint8_t *block = malloc((size_t)shape->page_bytes);
    bool good = true;
    for (uint64_t i = 0; good && i < f.head.blocks; i++)
        good = cache_file_block(&f, i, block, NULL);
    free(block);
    cache_file_close(&f);
    return good;
}

static void flip(const char *path, int64_t at, int bit)
{
    uint8_t byte = 0;
    const int fd = open(path, O_RDWR);
    if (pread(fd, &byte, 1, at) == 1) {
        byte = (uint8_t)(byte ^ 1 << bit);
        if (pwrite(fd, &byte, 1, at) != 1)
            printf("# cannot write\n");
    }
    close(fd);
}

// Zeros between the parts are nobody's; everything else is somebody's.
static bool padding(const struct cache_file_head *h, int64_t at)
{
    const int64_t page = CACHE_FILE_PAGE, ids = page + h->length * 4ll, checks = (ids + page - 1) / page * page;
    const int64_t end = checks + (int64_t)h->blocks * 8;
    return (at >= (int64_t)sizeof *h && at < page) || (at >= ids && at < checks) ||
           (at >= end && at < (end + page - 1) / page * page);
}

static void damage(const struct cache_shape *shape)
{
    char names[NAMES][CACHE_FILE_NAME], path[300], text[100];
    struct stat st;
    struct cache_file_head head;
    if (list(folder, names) < 1)
        return;
    snprintf(path, sizeof path, "%s", path_of(names[0]));
    int fd = open(path, O_RDONLY), wrong = 0, flips = 0;
    if (stat(path, &st) != 0 || read(fd, &head, sizeof head) != sizeof head)
        wrong++;
    close(fd);
    wrong += !whole(path, shape);
    for (int i = 0; i < 600; i++) {
        const int64_t at = i < (int)sizeof head ? i : below((int)st.st_size), bit = below(8);
        if (padding(&head, at))
            continue;
        flip(path, at, (int)bit);
        wrong += whole(path, shape);
        flip(path, at, (int)bit);
        flips++;
    }
    wrong += !whole(path, shape);
    snprintf(text, sizeof text, "%d flipped bits: each is seen", flips);
    ok(wrong == 0, text, "");
    for (int64_t size = 0; size < st.st_size; size += 1 + st.st_size / 40) {
        wrong += truncate(path, size) != 0 || whole(path, shape);
    }
    ok(wrong == 0, "a file that is cut is refused, wherever", "");
}

// A flipped bit, met by a request.
static void refused(void)
{
    char names[NAMES][CACHE_FILE_NAME];
    const struct talk t = talk_of(5);
    const struct served fresh = ask_for(plain, &t);
    struct cache_shape shape = {0};
    int wrong = 0, again = 0;
    clear();
    for (int i = 0; i < 4; i++) {
        struct engine *e = open_on(folder, 0);
        struct served got = ask_for(e, &t);
        settle(e);
        engine_close(e);
        const int files = list(folder, names);
        struct stat st;
        if (files < 1 || stat(path_of(names[0]), &st) != 0)
            break;
        flip(path_of(names[0]), i == 0 ? 9 : st.st_size - 1 - below((int)st.st_size / 2), below(8));
        e = open_on(folder, 0);
        shape = e->cache->disk->shape;
        got = ask_for(e, &t);
        wrong += !same_reply(&fresh, &got) || got.cached != 0 || counted(e).disk_refused != 1;
        settle(e);
        again += counted(e).disk_writes == 1;
        engine_close(e);
    }
    ok(wrong == 0, "a damaged state is refused and the prompt read anew", "");
    ok(again == 4, "and its place is taken by a whole one", "");
    shape.build++;
    struct disk *d;
    struct disk_counters c = {0};
    struct error error;
    bool good = disk_open(&d, folder, 100 * MIB, &shape, &error);
    if (good)
        disk_count(d, &c);
    ok(good && c.states == 0 && c.bytes > 0 && !disk_find(d, t.ids, t.count, 0),
       "another build's states are not looked at, but counted", good ? "" : error.text);
    disk_close(d);
    good = disk_open(&d, folder, 1000, &shape, &error);
    disk_close(d);
    ok(good && list(folder, names) == 0, "and the first to go", "");
    shape.build--;
    struct engine *e = open_on(folder, 0);
    ask_for(e, &t);
    engine_close(e); // which writes what was not written yet
    damage(&shape);
}

static void budget(void)
{
    char names[NAMES][CACHE_FILE_NAME];
    struct stat st;
    clear();
    struct engine *e = open_on(folder, 4 * MIB);
    int wrong = 0;
    for (uint64_t i = 0; i < 6; i++) {
        const struct talk t = talk_of(100 + i);
        ask_for(e, &t);
        settle(e);
        int64_t bytes = 0;
        for (int k = list(folder, names); k-- > 0;)
            bytes += stat(path_of(names[k]), &st) == 0 ? st.st_size : 0;
        wrong += bytes > 4 * MIB || bytes == 0;
    }
    const struct cache_counters c = counted(e);
    ok(wrong == 0 && c.disk_writes == 6 && c.disk_states < 6 && c.disk_bytes <= c.disk_budget,
       "the folder keeps its budget: the oldest go", "");
    engine_close(e);
}

// ---- kill -9 -----------------------------------------------------------------------------------------------------------------

// Serves conversations and says the name of each file that is on the disk, until it is killed.
static int child(const char *path, uint64_t seed)
{
    struct engine *e = open_on(path, (int64_t)4 << 30);
    struct disk_entry *last = NULL;
    for (uint64_t i = 0; e && i < TALKS; i++) {
        const struct talk t = talk_of(seed * 100 + i);
        bool busy;
        ask_for(e, &t);
        e->cache->next_look = 0;
        for (int k = 0; k < 20000 && e->cache->disk->first == last; k++) {
            engine_turn(e, &busy, NULL);
            disk_write_goes_on(e->cache->disk);
            usleep(200);
        }
        const bool written = e->cache->disk->first != last;
        last = e->cache->disk->first;
        if (written && printf("%llu %s\n", (unsigned long long)i, last->name) > 0)
            fflush(stdout);
    }
    fclose(stdout); // whoever waits for a file that was late need not wait any longer
    while (pause() != 0)
        ;
    return 0;
}

struct toll {
    int said, lost, unsound, wrong, missed;
};

// What the child said by now: names of files, and of which talks.
static int listen(FILE *in, int told, int most, char names[][CACHE_FILE_NAME], int *reported)
{
    unsigned long long at;
    char name[CACHE_FILE_NAME];
    while (told < most && fscanf(in, "%llu %63s", &at, name) == 2 && at < TALKS) {
        reported[at] = 1;
        snprintf(names[told++], CACHE_FILE_NAME, "%s", name);
    }
    return told;
}

// Kills a process some time after a file of it: in the middle of whatever it then does. False when none could be started.
static bool kill_one(int number, struct toll *toll, int *reported)
{
    static char names[NAMES][CACHE_FILE_NAME];
    char self[300] = {0}, seed[24];
    struct stat st;
    int pipes[2];
    snprintf(seed, sizeof seed, "%d", number);
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0 || pipe(pipes) != 0)
        return false;
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(pipes[1], 1);
        close(pipes[0]);
        close(pipes[1]);
        execl(self, self, "--child", folder, seed, (char *)NULL);
        _exit(1);
    }
    close(pipes[1]);
    FILE *in = fdopen(pipes[0], "r");
    rig_state = (uint64_t)number * 7 + (uint64_t)time(NULL);
    const int wait_for = below(TALKS), more = below(30000);
    int told = listen(in, 0, wait_for, names, reported);
    usleep((useconds_t)more + (wait_for ? 0 : 100000));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    told = listen(in, told, TALKS, names, reported);
    fclose(in);
    for (int k = 0; k < told; k++)
        toll->lost += stat(path_of(names[k]), &st) != 0;
    toll->said += told;
    return pid > 0;
}

// What another process finds then.
static void look_after(int number, struct toll *toll, const int *reported)
{
    static char names[NAMES][CACHE_FILE_NAME];
    struct engine *e = open_on(folder, (int64_t)4 << 30);
    const int files = list(folder, names);
    for (int k = 0; e && k < files; k++)
        toll->unsound += !whole(path_of(names[k]), &e->cache->disk->shape);
    for (int k = 0; e && k < TALKS; k += 3) {
        const struct talk t = talk_of((uint64_t)number * 100 + (uint64_t)k);
        const struct served fresh = ask_for(plain, &t), got = ask_for(e, &t);
        toll->wrong += !same_reply(&fresh, &got);
        toll->missed += reported[k] && got.cached != t.count - model.opening;
    }
    toll->wrong += !e || counted(e).disk_refused != 0;
    engine_close(e);
}

static void kills(int count)
{
    struct toll toll = {0};
    char text[160], detail[160];
    int ended = 0;
    for (int i = 0; i < count; i++) {
        int reported[TALKS] = {0};
        clear();
        ended += kill_one(i, &toll, reported);
        look_after(i, &toll, reported);
    }
    snprintf(text, sizeof text, "kill -9, %d times, %d files on the disk by then: none lost, none damaged", ended,
             toll.said);
    snprintf(detail, sizeof detail, "%d lost, %d damaged, %d replies wrong, %d not found", toll.lost, toll.unsound,
             toll.wrong, toll.missed);
    ok(ended == count && !toll.lost && !toll.unsound && !toll.wrong && !toll.missed, text, detail);
}

int main(int argc, char **argv)
{
    int count = KILLS;
    if (argc == 4 && !strcmp(argv[1], "--child"))
        return child(argv[2], strtoull(argv[3], NULL, 10));
    if (argc == 3 && !strcmp(argv[1], "--kills"))
        count = atoi(argv[2]);
    snprintf(folder, sizeof folder, "build/tests/cache-%d", (int)getpid());
    plain = rig_open((struct engine_options){.page = 64});
    outlives();
    goes_away();
    refused();
    budget();
    kills(count);
    clear();
    engine_close(plain);
    return done();
}
