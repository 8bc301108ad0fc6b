/* The first process of a pod's, or of the cluster's own, namespaces: holds them, reaps orphans, ends when asked to. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void reap(int signal_number) {
    (void)signal_number;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

static void end(int signal_number) {
    (void)signal_number;
    _exit(0);
}

int main(void) {
    signal(SIGCHLD, reap);
    signal(SIGINT, end);
    signal(SIGTERM, end);
    for (;;) {
        pause();
    }
}
