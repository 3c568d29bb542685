/* This library, which is loaded before the C library (LD_PRELOAD), adds the seconds in a file to the wall clock.
 *
 * The file, whose path is PS_CLUSTER_TEST_CLOCK, holds one long. All processes map it, so a write shifts all clocks.
 * A wait until a shifted time is passed to the kernel with the true time, so the wait keeps its length. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef long system_call(long, ...);

static const volatile long *file;

__attribute__((constructor)) static void map_file(void) {
    const char *path = getenv("PS_CLUSTER_TEST_CLOCK");
    int descriptor = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (descriptor < 0) return;
    void *page = mmap(NULL, sizeof *file, PROT_READ, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (page != MAP_FAILED) file = page;
}

static long shift(void) { return file ? *file : 0; }

static struct timespec as_the_kernel_knows(const struct timespec *until) {
    return (struct timespec){until->tv_sec - shift(), until->tv_nsec};
}

static system_call *real_call(void) {
    static system_call *found;
    return found ? found : (found = (system_call *)dlsym(RTLD_NEXT, "syscall"));
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)real_call()(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int failed = (int)real_call()(SYS_gettimeofday, now, zone);
    if (!failed) now->tv_sec += shift();
    return failed;
}

time_t time(time_t *copy) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (copy) *copy = now.tv_sec;
    return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    /* The condition does not show which clock it uses. A time of the monotonic clock is smaller than this: no machine has
     * run for 30 years. */
    if (until->tv_sec < 1000000000) return pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, until);
    struct timespec known = as_the_kernel_knows(until);
    return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, &known);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    struct timespec known = as_the_kernel_knows(until);
    return sem_clockwait(semaphore, CLOCK_REALTIME, &known);
}

/* absl and nsync wait by the system call. Each of its arguments fits into a register, whatever its type. */
long syscall(long number, ...) {
    long given[6];
    struct timespec known;
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++) given[i] = va_arg(arguments, long);
    va_end(arguments);
    if (number == SYS_futex && (given[1] & FUTEX_CLOCK_REALTIME) && given[3]) {
        known = as_the_kernel_knows((const struct timespec *)given[3]);
        given[3] = (long)&known;
    }
    return real_call()(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
